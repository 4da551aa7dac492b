"""Show a few responses to people: question, response, reward and the reason.

Responses are hostile text, so their control characters are escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from brorl_graders import reading_of
from brorl_graders.base.foreign import inert

from nemo_brorl.cluster.object_store import fetch
from nemo_brorl.prompts.asking import place_of_answer
from nemo_brorl.types import Prompt, ScoredGroup, is_right

NUM_SHOWN = 3  # number of responses shown
MAX_SHOWN = 700  # characters of a prompt or response shown: its end, where the answer is
PLACES = {
    "tags": "between <answer> and </answer>",
    "boxed": "in \\boxed{}",
    "last": 'behind the last "answer is", "Answer:" or "####"',
    "anywhere": "in tags, in a box, or where the text states it",
}

Decode = Callable[[Sequence[int]], str]


def shown_responses(groups: Sequence[ScoredGroup], decode: Decode) -> list[str]:
    """Return lines about three responses, the best, the middle and the worst by reward, with reasons for the reward."""
    places = []
    for number, group in enumerate(groups):
        for place, reward in enumerate(group.rewards.tolist()):
            places.append((reward, number, place))
    places.sort(key=lambda item: item[0], reverse=True)
    middle = len(places) // 2
    # With one or two responses some of these indices are equal.
    chosen = dict.fromkeys((0, middle, len(places) - 1))
    lines = summary(groups)
    for rank in list(chosen)[:NUM_SHOWN]:
        reward, number, place = places[rank]
        group = groups[number]
        response = decode(response_ids(group, place))
        reason = reward_reason(group, place, response)
        lines.append(f"  reward {reward:.2f} for {group.prompt.uid} ({group.prompt.task}): {reason}")
        lines += quoted("asked", question_text(group.prompt, decode))
        lines += quoted("said", response)
    return lines


def summary(groups: Sequence[ScoredGroup]) -> list[str]:
    """Return one line about all sampled responses: mean reward, number correct, number cut off, and mean length."""
    rewards = np.concatenate([group.rewards for group in groups])
    is_stopped = np.concatenate([group.group.is_stopped for group in groups])
    tokens = np.concatenate([group.group.lengths for group in groups])
    right = sum(int(is_right(group).sum()) for group in groups)
    num_cut = int((~is_stopped).sum())
    return [
        f"  reward {rewards.mean():.3f}, {right} of {len(rewards)} right, {num_cut} cut at their limit, "
        f"mean length {tokens.mean():.0f} tokens"
    ]


def response_ids(group: ScoredGroup, place: int) -> list[int]:
    """Return the token ids of one response of a group."""
    for chunk in group.group.chunks:
        if place < len(chunk.lengths):
            arrays = fetch(chunk.data)
            start, end = arrays.offsets[place : place + 2].tolist()
            ids: list[int] = arrays.token_ids[start:end].tolist()
            return ids
        place -= len(chunk.lengths)
    raise IndexError(f"the group of {group.prompt.uid} has no response {place}")


def question_text(prompt: Prompt, decode: Decode) -> str:
    """Return the text of a prompt's question: its last message, or the whole prompt."""
    if prompt.messages:
        return prompt.messages[-1]["content"]
    return decode(prompt.token_ids)


def reward_reason(group: ScoredGroup, place: int, response: str) -> str:
    """Return the reason for a response's reward: the answer that the verifier extracted, and the reference."""
    prompt = group.prompt
    is_cut = not group.group.is_stopped[place]
    cut = f"; it was cut at {group.group.lengths[place]} tokens, before its end" if is_cut else ""
    place_looked = place_of_answer(prompt.verifier, prompt.payload, prompt.payload.get("answer_format", "auto"))
    read = reading_of(prompt.verifier, prompt.payload, response, place_looked)
    if not read.place:
        reason = inert(group.reasons[place]) if group.reasons else ""
        return f"scored by {prompt.verifier}{': ' if reason else ''}{reason}{cut}"
    reference = ""
    if "answer" in prompt.payload:
        accepted = " or ".join(repr(inert(text)) for text in read.accepted)
        reference = f"the reference is {accepted}"
    if read.found is not None:
        return f"answer found: {inert(read.found)!r}, {reference}{cut}"
    hint = ""
    if read.elsewhere is not None and read.place != "last":
        hint = f"; it says {inert(read.elsewhere)!r} elsewhere (data.answer_format=last reads that)"
    return f"no answer found {PLACES[read.place]}{hint}; {reference}{cut}"


def quoted(title: str, text: str) -> list[str]:
    """Return lines with a title and a quoted text, each line of the text after a vertical bar.

    Of a long text only the end is shown.
    """
    shown = inert(text.strip())
    if len(shown) > MAX_SHOWN:
        shown = f"… {shown[-MAX_SHOWN:]}"
    lines = [f"    {title}:"]
    lines += [f"    | {line}" for line in shown.splitlines() or [""]]
    return lines
