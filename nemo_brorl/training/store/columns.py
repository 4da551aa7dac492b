"""Columns of the rollout store's tables, with their types and meanings.

`scripts/rollout_store_page.py` writes docs/rollout_store.md from these columns.
"""

from __future__ import annotations

import pyarrow as pa

MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])

# Name of a column → its type and meaning.
GROUP_COLUMNS = {
    "step": (pa.int32(), "training step of the file"),
    "uid": (pa.string(), "name of the prompt, such as `train/17`"),
    "task": (pa.string(), "task of the prompt"),
    "domain": (pa.string(), 'domain of the data mixture, or ""'),
    "origin": (
        pa.string(),
        "`sampled` in this step, `carried` from an earlier step, or `completed`: late rollouts of a cut group",
    ),
    "fate": (
        pa.string(),
        "outcome of the group: `trained` in this step; `carried` to a later step (dropped as too old if no step has "
        "the group); or the reason against training: `all_correct`, `all_wrong`, `all_equal`, `surplus`, `timed_out`, "
        "`failed`, `dropped`",
    ),
    "num_rollouts": (pa.int32(), "number of rollouts"),
    "num_failed": (pa.int32(), "number of responses whose verifier failed; the group has only those that made it fail"),
    "mean_reward": (pa.float32(), "mean raw reward"),
    "full_mark": (pa.float64(), "raw reward from which a rollout is right; earlier versions store none: 1"),
    "version": (pa.int32(), "oldest policy version that sampled a token of the group"),
    "newest_version": (pa.int32(), "newest policy version that sampled a token of the group"),
    "verifier": (pa.string(), "verifier of the prompt"),
    "payload": (
        pa.string(),
        "input of the verifier as JSON, with `${oc.env:NAME}` for options from the environment",
    ),
    "messages": (pa.list_(MESSAGE), "conversation of the prompt"),
    "prompt_ids": (pa.list_(pa.int32()), "tokens of the prompt"),
    "learn_from": (
        pa.list_(pa.int64()),
        "indices of a `completed` group's rollouts that were not trained on before; null: all",
    ),
    "seed": (pa.int64(), "seed of the group; rollout i is sampled with seed + i"),
    "temperature": (pa.float64(), "sampling temperature"),
    "top_p": (pa.float64(), "probability mass of nucleus sampling"),
    "max_tokens": (pa.int32(), "most tokens of a response"),
}
ROLLOUT_COLUMNS = {
    "step": (pa.int32(), "training step of the file"),
    "uid": (pa.string(), "name of the prompt, such as `train/17`"),
    "task": (pa.string(), "task of the prompt"),
    "fate": (pa.string(), "outcome of the rollout's group"),
    "place": (pa.int32(), "row of the rollout within its group"),
    "index": (pa.int32(), "number of the rollout among the requested rollouts of the group"),
    "chunk": (pa.int32(), "number of the engine request that sampled the rollout"),
    "engine": (pa.int32(), "engine of the request"),
    "version": (pa.int32(), "oldest policy version that sampled a token of the chunk"),
    "newest_version": (pa.int32(), "newest policy version that sampled a token of the chunk"),
    "num_tokens": (pa.int32(), "number of all tokens of the response"),
    "num_sampled": (pa.int32(), "number of sampled tokens, without observations"),
    "turn_rewards": (pa.list_(pa.float32()), "reward of each turn; null without an environment"),
    "tool_errors": (pa.list_(pa.bool_()), "true for each turn with a tool error; null without an environment"),
    "is_stopped": (pa.bool_(), "true if a stop token or the environment ended the rollout"),
    "sampled_at": (
        pa.float64(),
        "time at which the chunk, or its last turn, was sampled (unix seconds, the engine's clock)",
    ),
    "sampling_s": (pa.float64(), "seconds of sampling the chunk or its last turn"),
    "scored_at": (pa.float64(), "time at which the chunk was scored (unix seconds)"),
    "scoring_s": (pa.float64(), "seconds of scoring the chunk"),
    "reward": (pa.float32(), "raw reward"),
    "reason": (
        pa.string(),
        "reason of the verifier (`format 1; exact_match 0` of a composition) or its failure, at most 300 characters",
    ),
    "shaped_reward": (pa.float32(), "reward after shaping; null if the group was not trained on"),
    "advantage": (
        pa.float32(),
        "advantage; 0 for an untrained rollout of a trained group; null if the group was not trained on",
    ),
    "is_trained": (pa.bool_(), "true if the step trained on the rollout"),
    "repetition": (pa.float32(), "share of repeated n-grams; 0 without repetition shaping"),
    "token_ids": (pa.list_(pa.int32()), "tokens of the response"),
    "log_probs": (pa.list_(pa.float32()), "log-prob of each token as sampled"),
    "is_sampled": (pa.list_(pa.bool_()), "false for each token of an observation; null: all tokens were sampled"),
    "text": (pa.string(), "text of the response, with `store.text=true`; else null"),
}

GROUP_SCHEMA = pa.schema([(name, kind) for name, (kind, _) in GROUP_COLUMNS.items()])
ROLLOUT_SCHEMA = pa.schema([(name, kind) for name, (kind, _) in ROLLOUT_COLUMNS.items()])
