"""Check the questions of a run before anything starts: references earn, prompts fit, and there are as many as asked."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from brorl_graders import Pool, accepted_answers, answers_of, endpoints_in, full_mark, names_in
from brorl_graders.base.components import is_import_path

from nemo_brorl.config.data import DataConfig
from nemo_brorl.config.evaluation import EvaluationConfig
from nemo_brorl.config.generation import GenerationConfig
from nemo_brorl.config.rewards import RewardsConfig
from nemo_brorl.config.rollouts import RolloutsConfig
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.tokenizer import ChatTokenizer
from nemo_brorl.prompts.asking import place_of_answer, render_question
from nemo_brorl.prompts.file_source import FileSource
from nemo_brorl.prompts.mixture import Domain, Mixture
from nemo_brorl.scoring.grader_settings import deadlines_of
from nemo_brorl.scoring.preparation import keys_of
from nemo_brorl.types import Prompt

log = get_logger(__name__)

NUM_QUESTIONS = 200  # questions of files that are looked at
NUM_GENERATED = 40  # the same of generated tasks
NUM_OWN = 20  # the same that a function of the user scores, which may be slow
GENERATING_S = 0.5
JUDGING_S = 3.0
NUM_SHOWN = 3
MIN_EARNING = 0.95  # smallest share of references that must earn
FEW_HELD_OUT = 8
FORMS = {"tags": "<answer>{}</answer>", "boxed": "\\boxed{{{}}}", "last": "The answer is {}."}
THOUGHT = "<think>\nI think.\n</think>\n"
WRONG = "none of these 4711"


class Finding(NamedTuple):
    """What is wrong with the inputs of a run, with examples and what to set."""

    text: str
    is_refused: bool = False


class Looked(NamedTuple):
    """A question that is looked at before a run starts."""

    where: str  # data file and line, or the task of a generated question
    verifier: str
    payload: Mapping[str, Any]
    num_tokens: int = 0
    max_tokens: int = 0  # longest prompt that is not left out


@dataclass(frozen=True)
class Questions:
    """The questions of a run, with the settings that ask for them."""

    data: DataConfig
    evaluation: EvaluationConfig
    rollouts: RolloutsConfig
    generation: GenerationConfig
    rewards: RewardsConfig
    train: Mixture
    looked: Sequence[Looked]  # some questions of training
    held_out: Sequence[Looked]  # some held-out questions
    num_held_out: int  # questions of validation
    max_positions: int  # positions of the model


def look_at(mixture: Mixture, data: DataConfig, tokenizer: ChatTokenizer) -> list[Looked]:
    """Return some questions of each domain of a mixture, rendered and measured in tokens."""
    looked = []
    most = math.ceil(NUM_QUESTIONS / len(mixture.domains))
    for domain in mixture.domains:
        size, start = domain.source.size, time.monotonic()
        for index in range(min(most, NUM_GENERATED) if size is None else min(most, size)):
            if size is None and time.monotonic() - start > GENERATING_S:
                break
            looked.append(_looked(domain, index, data, tokenizer))
    return looked


def _looked(domain: Domain, index: int, data: DataConfig, tokenizer: ChatTokenizer) -> Looked:
    source = domain.source
    question = source.question(index)
    rendered = render_question(question, domain.system_prompt, data, domain.success_reward)
    num_tokens = len(tokenizer.prompt_ids(rendered.messages, domain.system_prompt, question.tools))
    where = f"{question.task}, question {index}"
    if isinstance(source, FileSource):
        where = source.locate(index).rpartition("/")[2]  # the file's name is enough
    return Looked(where, question.verifier, rendered.payload, num_tokens, domain.max_prompt_tokens)


def look_at_prompts(prompts: Iterable[Prompt]) -> list[Looked]:
    """Return the questions of some prompts of an evaluation."""
    return [Looked(prompt.uid, prompt.verifier, prompt.payload) for prompt in prompts]


def references_earn(asked: Questions) -> Iterator[Finding]:
    """Yield the findings of `references_of` for the questions of training, and held-out ones in their own file."""
    has_own_file = any(source.held_out_path is not None for _, source in asked.data.sources())
    yield from references_of([*asked.looked, *(asked.held_out if has_own_file else ())], asked.data, asked.rewards)


def references_of(asked: Sequence[Looked], data: DataConfig, rewards: RewardsConfig) -> Iterator[Finding]:
    """Yield a finding if references do not earn a reward when they are written where the verifier reads.

    It refuses the run if more than 5 % do not. A function of the user may pay for something else than the reference, so
    it is refused only if it fails on all. Another finding says that no reference earns the full mark. Passed over are
    questions without a reference, programs, services and environments.
    """
    references = [(question, _reference(question)) for question in asked]
    known = [(question, text) for question, text in references if text is not None]
    own = [pair for pair in known if _is_own(pair[0])]
    ours = [pair for pair in known if not _is_own(pair[0])]
    if rewards.reference_answers == "off" or not known:
        return
    with Pool(deadlines_of(rewards, JUDGING_S)) as pool:
        for pairs in (ours, own[:NUM_OWN]):
            tried = _tried(pairs, data, pool)
            if len(tried) < len(pairs):
                log.info("%d of %d references were scored in %.0f s", len(tried), len(pairs), JUDGING_S)
            failures = [reference for reference in tried if not reference.earns]
            yield from _marks_not_reached(tried)
            if not failures:
                continue
            is_refused = len(failures) > (1 - MIN_EARNING) * len(tried)
            if pairs is not ours:
                is_refused = all(reference.reward is None for reference in tried)
            is_refused = is_refused and rewards.reference_answers == "refuse"
            yield Finding(_not_earning(failures, len(tried), is_refused), is_refused)


class _Tried(NamedTuple):
    """A reference that was scored as an answer, in the form that earned most."""

    where: str
    reference: str
    verifier: str
    full_mark: float
    reward: float | None  # None: the verifier failed on all forms
    reason: str
    is_read: bool
    earns: bool


def _reference(question: Looked) -> str | None:
    """Return the reference of a question, or None if there is none or nothing here can score it."""
    verifier, payload = question.verifier, question.payload
    names = names_in(verifier, payload)
    if not names or "code" in names or endpoints_in(verifier, payload) or payload.get("answer") is None:
        return None
    reader = answers_of(verifier, payload)
    if reader is None:
        return accepted_answers(payload)[0] if _is_own(question) else None
    letters = reader.references() if payload.get("choices") else ()
    return next(iter(letters), None) or next(iter(accepted_answers(payload)), None)


def _is_own(question: Looked) -> bool:
    return any(is_import_path(name) for name in names_in(question.verifier, question.payload))


def _tried(pairs: Sequence[tuple[Looked, str]], data: DataConfig, pool: Pool) -> list[_Tried]:
    tried, start = [], time.monotonic()
    for question, reference in pairs:
        if time.monotonic() - start > JUDGING_S:
            break
        scored = _scored(question, reference, data, pool)
        # A verifier that is too slow for this check is not tried.
        if scored.reward is None and time.monotonic() - start > JUDGING_S:
            break
        tried.append(scored)
    return tried


def _scored(question: Looked, reference: str, data: DataConfig, pool: Pool) -> _Tried:
    verifier, payload = question.verifier, question.payload
    place = place_of_answer(verifier, payload, data.answer_format)
    forms = ["{}", *FORMS.values()] if place is None else [FORMS[place]]
    texts = [start + form.format(reference) for form, start in product(forms, ("", THOUGHT))]
    verdicts = pool.judge(verifier, payload, [*texts, THOUGHT + forms[-1].format(WRONG)])
    *scores, wrong = [-math.inf if score is None else score for score in verdicts.scores]
    best = max(range(len(texts)), key=scores.__getitem__)
    # Scores of several verifiers, and of functions of the user, have scales of their own.
    has_own_scale = verifier == "composite" or _is_own(question)
    earns = scores[best] >= 1 or (has_own_scale and scores[best] > wrong)
    reader = answers_of(verifier, payload)
    is_read = earns or reader is None or reader.read_or_blank(texts[best]) is not None
    reward, reason = verdicts.scores[best], verdicts.reasons.get(best, "")
    return _Tried(question.where, reference, verifier, full_mark(payload), reward, reason, is_read, earns)


def _marks_not_reached(tried: Sequence[_Tried]) -> Iterator[Finding]:
    """Yield a finding for each verifier that gives rewards, and none as large as that of a right response."""
    for verifier, mark in sorted({(reference.verifier, reference.full_mark) for reference in tried}):
        scored = [reference for reference in tried if (reference.verifier, reference.full_mark) == (verifier, mark)]
        best = max(reference.reward or 0.0 for reference in scored)
        if 0 < best < mark:
            yield Finding(
                f"{len(scored)} references earn at most {best:g} from {verifier}, and a response is right from "
                f"{mark:g} on: pass@1 may stay 0. Set data.success_reward={best:g} if that is the full mark, in a "
                "mixture for the domain"
            )


def _not_earning(failures: Sequence[_Tried], num_tried: int, is_refused: bool) -> str:
    shown = []
    for failure in failures[:NUM_SHOWN]:
        reward = "no reward" if failure.reward is None else f"{failure.reward:g}"
        why = failure.reason or ("" if failure.is_read else "nothing is read there")
        because = f" ({why})" if why else ""
        shown.append(f"{failure.where}: {_cut(failure.reference)} got {reward} from {failure.verifier}{because}")
    num_unread = sum(not failure.is_read for failure in failures)
    unread = f", and {num_unread} of them cannot be read there" if num_unread else ""
    more = "; …" if len(failures) > NUM_SHOWN else ""
    advice = "Correct these rows, or choose another verifier or column of answers"
    if all(failure.reward is None for failure in failures):
        advice = f"Mend {failures[0].verifier}"
    if is_refused:
        advice += ". Set rewards.reference_answers=warn to go on"
    return (
        f"{len(failures)} of {num_tried} references do not earn the full reward when written as the answer{unread}: "
        f"{'; '.join(shown)}{more}. {advice}"
    )


def _cut(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")


def prompts_fit(asked: Questions) -> Iterator[Finding]:
    """Yield a finding if prompts are longer than `data.max_prompt_tokens` and left out, with what would take them."""
    for looked, kind in ((asked.looked, "prompts"), (asked.held_out, "held-out prompts")):
        too_long = [question for question in looked if question.num_tokens > question.max_tokens]
        if not too_long:
            continue
        shown = [f"{question.where} has {question.num_tokens}" for question in too_long[:NUM_SHOWN]]
        sizes = sorted(question.num_tokens for question in looked)
        longest = sizes[-1]
        enough = sizes[math.ceil(0.99 * len(sizes)) - 1]
        if enough <= asked.data.max_prompt_tokens:
            enough = longest
        yield Finding(
            f"{len(too_long)} of {len(looked)} {kind} are longer than data.max_prompt_tokens="
            f"{too_long[0].max_tokens} and are left out ({', '.join(shown)}; the longest {longest}). "
            + _room_for(enough, asked)
        )


def _room_for(num: int, asked: Questions) -> str:
    """Return settings that make room for prompts of `num` tokens, or say that the model has none."""
    response = max(asked.rollouts.max_response_tokens, asked.evaluation.max_response_tokens or 0)
    room = asked.max_positions - response
    if num > room:
        return f"The model's {asked.max_positions} positions leave {room} tokens for prompts: shorten these rows"
    together = ""
    if asked.generation.max_model_len is not None and asked.generation.max_model_len < num + response:
        together = f" generation.max_model_len={num + response}"
    own = ", and the domain's own max_prompt_tokens" if asked.data.source == "mixture" else ""
    return f"Set data.max_prompt_tokens={num}{together}{own} to take 99 % of them"


def enough_held_out(asked: Questions) -> Iterator[Finding]:
    """Yield a finding if there are fewer held-out questions than `evaluation.num_prompts`."""
    num_asked, num_found, data = asked.evaluation.num_prompts, asked.num_held_out, asked.data
    if num_found >= num_asked:
        return
    points = 50 / math.sqrt(num_found)
    few = " Fewer than 8 cannot tell two validations apart." if num_found < FEW_HELD_OUT else ""
    advice = "give data.held_out_path, or a larger data.held_out_fraction"
    if any(source.held_out_path is not None for _, source in data.sources()):
        advice = f"add questions to data.held_out_path, or set evaluation.num_prompts={num_found}"
    elif data.held_out_fraction < 0.5:
        advice = f"give data.held_out_path, or set data.held_out_fraction={min(0.5, 2 * data.held_out_fraction):g}"
    yield Finding(
        f"{num_found} held-out questions, {num_asked} asked (evaluation.num_prompts): pass@1 has a standard error of "
        f"up to {points:.0f} points.{few} To measure better, {advice}"
    )


def enough_for_steps(asked: Questions) -> Iterator[Finding]:
    """Yield a finding for each domain with fewer questions than a step takes of it."""
    train, rollouts = asked.train, asked.rollouts
    total = sum(domain.weight for domain in train.domains)
    prompts = max((num for _, num in rollouts.stage_sizes()), default=rollouts.prompts_per_step)
    for domain in train.domains:
        size, wanted = domain.source.size, prompts * domain.weight / total
        if size is not None and size < wanted:
            of = f" of {domain.name}" if domain.name else ""
            yield Finding(
                f"{size} training questions{of}, {wanted:.3g} a step: a step takes questions more than once. Set "
                f"rollouts.prompts_per_step={max(1, int(size * total / domain.weight))}, or give more questions"
            )


def epochs_of(train: Mixture, rollouts: RolloutsConfig) -> Iterator[str]:
    """Yield in words how many steps an epoch of each domain has, for domains that end."""
    total = sum(domain.weight for domain in train.domains)
    for domain in train.domains:
        size, wanted = domain.source.size, rollouts.prompts_per_step * domain.weight / total
        if size is not None:
            of, steps = f" of {domain.name}" if domain.name else "", math.ceil(size / wanted)
            yield f"{size:,} training questions{of}, {wanted:.3g} a step: one epoch is {steps:,} steps"


def options_are_read(asked: Questions) -> Iterator[Finding]:
    """Yield a finding for each option of verifiers, and each form of answers, that no verifier of the questions reads.

    Functions of the user and services may read any option.
    """
    names = set().union(*(names_in(question.verifier, question.payload) for question in asked.looked))
    keys = keys_of(names)
    if keys is None or not names:
        return
    said = ", ".join(sorted(names))
    for where, source in asked.data.sources():
        for name, value in source.verifier_options.items():
            if name not in keys:
                yield Finding(
                    f"{where}.verifier_options.{name}={value} is not read: {said} reads {', '.join(sorted(keys))}"
                )
    format = asked.data.answer_format
    if not any(place_of_answer(question.verifier, question.payload, format) for question in asked.looked):
        given = {
            "answer_format": format if format != "auto" else None,
            "answer_instruction": asked.data.answer_instruction,
        }
        for name, value in given.items():
            if value:
                yield Finding(f"data.{name}={value} is not read: {said} looks for no answer at a place")


def same_verifiers(asked: Questions) -> Iterator[Finding]:
    """Yield a finding if held-out questions in their own file have a verifier that no question of training has."""
    if all(source.held_out_path is None for _, source in asked.data.sources()):
        return
    trained = {question.verifier for question in asked.looked}
    others = [question for question in asked.held_out if question.verifier not in trained]
    if others:
        yield Finding(
            f"{len(others)} of {len(asked.held_out)} held-out questions are scored by {others[0].verifier} (such as "
            f"{others[0].where}), and training questions by {', '.join(sorted(trained))}: validation measures "
            "something else than what is trained"
        )


CHECKS = (options_are_read, prompts_fit, enough_held_out, enough_for_steps, same_verifiers, references_earn)
