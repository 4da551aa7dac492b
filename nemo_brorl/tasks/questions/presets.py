"""How the rows of well-known files are laid out (docs/data.md says where each comes from)."""

from __future__ import annotations

from dataclasses import replace

from nemo_brorl.config.schema import SourceConfig
from nemo_brorl.tasks.questions.columns import RowFormat

# name -> formats; the first that fits a row reads it
PRESETS: dict[str, tuple[RowFormat, ...]] = {
    "plain": (
        RowFormat(
            "prompt", "answer", "exact_match", {"metadata": "metadata?"}, task_path="task", verifier_path="verifier"
        ),
    ),
    # agentica-org/DeepScaleR-Preview-Dataset: problem, answer, solution
    "deepscaler": (RowFormat("problem", "answer", "math"),),
    # PRIME-RL/Eurus-2-RL-Data: data_source, prompt (messages), ability, reward_model {style, ground_truth}, extra_info
    "eurus_2": (
        RowFormat(
            "prompt", "reward_model.ground_truth", "math", {"data_source": "data_source?"}, when=("ability", "math")
        ),
        RowFormat(
            "prompt",
            None,
            "code",
            {"tests": "json:reward_model.ground_truth", "data_source": "data_source?"},
            when=("ability", "code"),
        ),
    ),
    # EricLu/SCP-116K: domain, problem, solution and solutions of other models
    "scp_116k": (RowFormat("problem", "final:solution", "math", {"domain": "domain?"}),),
    # google/IFEval: key, prompt, instruction_id_list, kwargs
    "ifeval": (
        RowFormat(
            "prompt",
            None,
            "instruction_following",
            {"instruction_id_list": "instruction_id_list", "kwargs": "kwargs", "key": "key?"},
        ),
    ),
}


def row_formats(config: SourceConfig) -> tuple[RowFormat, ...]:
    """The preset with what `columns` and `verifier` say instead; an answer \"\" is none."""
    own = config.columns
    return tuple(
        replace(
            layout,
            prompt=own.prompt or layout.prompt,
            answer=layout.answer if own.answer is None else own.answer,
            task_path=own.task or layout.task_path,
            verifier_path=own.verifier or layout.verifier_path,
            payload={**layout.payload, **own.payload},
            verifier=config.verifier or layout.verifier,
        )
        for layout in PRESETS[config.preset]
    )
