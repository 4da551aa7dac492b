r"""Verifier of mathematical answers: 1 if the response's answer equals the reference.

Answers may be numbers, fractions, units, percentages, words, sets, intervals and equations. With `extract: anywhere`
the verifier reads inside the last `<answer>` tags, if any, and never in the thinking. The last `\boxed{}` counts
together with adjacent boxes: `\boxed{1}` and `\boxed{2}` are one answer of two values. Without a box, or when "final
answer is" follows the box, the verifier reads the text after the last such phrase, else the last formula or number.

An answer that the text denies or takes back does not count, nor one whose words are not understood: "half of 6" and "6
is too large" are not 6. A question that is written out again, such as `2x+1 \ge 11` or a sum, equals no solution of it.

What is not understood as a whole equals nothing but itself. SymPy compares expressions, relations and matrices whose
values do not decide, and is given no text. A verdict depends only on the two answers and the payload's options.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from brorl_graders.base.answer import boxed_answers, extract_answer, without_thinking
from brorl_graders.base.payload import ANSWER, Key, Payload, accepted_answers, check_answer, check_choices, is_number
from brorl_graders.verifiers.math.equality import FORMS, PERCENT, UNITS, USUAL, MathRules, are_equal
from brorl_graders.verifiers.math.equation import has_operation, is_no_answer, is_to_be_solved, without_operation
from brorl_graders.verifiers.math.estimate import steps_of_an_estimate
from brorl_graders.verifiers.math.finding import MAX_TAIL, PLACES, find_answer, in_boxes, place_of
from brorl_graders.verifiers.math.kinds import Group, Quantity, Reading, Words, unnamed
from brorl_graders.verifiers.math.lexer import tokens_of
from brorl_graders.verifiers.math.library import equal_by_library
from brorl_graders.verifiers.math.marks import have_one_name
from brorl_graders.verifiers.math.notation import in_one_notation
from brorl_graders.verifiers.math.qualifier import with_argument_of, with_integer_of, without_qualifier
from brorl_graders.verifiers.math.reading import is_plain, read, read_in_the_kind_of
from brorl_graders.verifiers.math.relation import is_inequality, is_solved
from brorl_graders.verifiers.math.statement import first_mark, is_bare, is_prose, stated_answer
from brorl_graders.verifiers.math.tokens import Tokens, text_of
from brorl_graders.verifiers.math.votes import key_of as key_of

# `lexer.py` and `notation.py` give the tokens of an answer, `tokens.py` divides them, `statement.py` finds an unmarked
# answer, and `remarks.py` what is said of it. `reading.py` reads answers as one of the kinds in `kinds.py`. It uses
# `relation.py` for inequalities, `assignment.py` for answers of several names, `words.py` and `number_words.py`, and
# `expression.py`, the only parser of expressions. `equality.py` compares what was read, by `value.py`, `units.py` and,
# where these do not decide, `library.py`, which asks SymPy. `equation.py` judges chains of equations, `qualifier.py`
# removes "for all x", and `marks.py` compares names in capitals. Verdicts are cached, since most responses to a prompt
# end in one of few answers.

TOLERANCE = "relative_tolerance"
KEYS = (
    ANSWER,
    Key("extract", "where a response must give its answer; overrides `data.answer_format`", PLACES),
    Key("percent", "`either`: 50% equals 0.5 and also 50; `exact`: 50% does not equal 50", PERCENT),
    Key(
        "units",
        "`agree`: two units must agree, and a number without a unit equals one with a unit; `required`: an answer "
        "needs the reference's unit; `ignore`: units are not compared",
        UNITS,
    ),
    Key(
        "form",
        "`done`: an answer with a sum, product, integral, limit or derivative left to do equals only a reference that "
        "has one; `any`: it equals its value",
        FORMS,
    ),
    Key(TOLERANCE, "largest relative difference of equal numbers, from 0 to below 1", (), "0"),
)
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_VECTOR_PRODUCT = re.compile(r"\\(?:mathbf|boldsymbol|bm|vec)(?![A-Za-z])[^+=]*\\times")
_LETTER = re.compile(r"(?:\\text\{)?\(?[A-J]\)?\}?")
_CHOICE = re.compile(r"(?:[Oo]ption |[Cc]hoice )?(?:\((?P<bracketed>[A-J])\)|(?P<letter>[A-J])(?:[.:)]|$))(?P<text>.*)")
_OTHER_CHOICE = re.compile(r"\([A-J]\)|\b(?:or|and)\b")
_LOOSE_SPACE = re.compile(r" (?![A-Za-z0-9])|(?<![A-Za-z0-9]) +(?!(?<=\d, )\d{3})")  # `1, 234` are two numbers
_DECIMAL_AFTER = re.compile(r"(?<=[\d}]) \((?:=|\\approx)?(-?\d*\.\d+)\)$")  # `\frac{3}{8} (0.375)`


def check(payload: Payload) -> Iterator[str]:
    """Yield what is wrong with the payload of a mathematical question."""
    yield from check_answer(payload)
    yield from check_choices(payload, KEYS)
    tolerance = payload.get(TOLERANCE, 0.0)
    if not is_number(tolerance) or not 0 <= tolerance < 1:
        yield f"{TOLERANCE!r} is {tolerance!r}; write a share of the number, from 0 to below 1"


def score(payload: Payload, response: str) -> float:
    """Return 1.0 if the answer in a response equals the reference answer, or one of several, else 0.0.

    The reference is `payload["answer"]`, a text or several texts. `payload["extract"]` says where the answer must be.
    `percent`, `units` and `relative_tolerance` are the rules of equality.
    """
    place = place_of(payload)
    given = find_answer(response, place)
    if given is None and place not in ("anywhere", "tags"):
        return 0.0
    rules = MathRules(
        payload.get("percent", PERCENT[0]),
        payload.get("units", UNITS[0]),
        float(payload.get(TOLERANCE, 0.0)),
        payload.get("form", FORMS[0]),
    )
    references = accepted_answers(payload)
    for text in (given, _whole_text(response)):
        if text and any(is_equal(reference, text, rules) for reference in references):
            return 1.0
    return 0.0


def _whole_text(response: str) -> str | None:
    """Return all the text in a response's answer tags, or all of a short response, if every part of it is read."""
    shown = without_thinking(response)
    tagged = extract_answer(shown) if "<answer>" in response else shown
    if tagged is None or len(tagged) > MAX_TAIL or "boxed" in tagged:
        return None
    if tagged != shown:
        return tagged
    # The mark is found faster than a text is read.
    if first_mark(shown) >= 0 or not is_bare(text_of(in_one_notation(shown))):
        return None
    return shown if is_plain(read(in_one_notation(shown))) else None


def answer(payload: Payload, response: str) -> str | None:
    """Return the mathematical answer in a response in one spelling, for counting votes, or None if there is none.

    Two answers that SymPy finds equal may have two spellings.
    """
    place = place_of(payload)
    found = find_answer(response, place)
    return key_of(found) if found else None


def load() -> None:
    """Import SymPy with all that it imports later, and fill its tables (1 s)."""
    equal_by_library(in_one_notation("x^2+118x+2185"), in_one_notation("(x+23)(x+96)"))
    equal_by_library(in_one_notation("\\sqrt{8}+\\frac{1}{3}"), in_one_notation("3.1"))
    equal_by_library(in_one_notation("\\sin^2 x"), in_one_notation("1-\\cos^2 x"))


def is_equal(reference: str, given: str, rules: MathRules = USUAL) -> bool:
    """Return whether the mathematical answer in a response equals the reference, as `rules` compare answers.

    `given` is a result of `find_answer`. The reference may be a text with the answer in it.
    """
    if not given or len(given) > MAX_TAIL:
        return False
    if _VECTOR_PRODUCT.search(reference):
        return _letters(_in_reference(reference)) == _letters(in_one_notation(given))
    return _is_equal(_in_reference(reference), in_one_notation(given), rules)


@lru_cache(maxsize=4096)
def _in_reference(reference: str) -> Tokens:
    """Return the tokens of the answer in a reference.

    The reference may be the answer alone, or a text that states it.
    """
    boxes = boxed_answers(reference)
    if boxes:
        return in_one_notation(in_boxes(boxes))
    if is_prose(reference):
        return in_one_notation(stated_answer(reference) or reference)
    return in_one_notation(reference)


@lru_cache(maxsize=65536)
def _is_equal(reference: Tokens, given: Tokens, rules: MathRules) -> bool:
    """Return whether two answers are equal, as `rules` compare them. The result is cached."""
    if reference == given or _letters(reference) == _letters(given):
        return bool(given)
    if not has_operation(reference):
        given = without_operation(given)
        if rules.form == FORMS[0] and has_operation(given):
            return False
    given = with_integer_of(reference, given)
    reference = without_qualifier(reference)
    given = with_argument_of(reference, without_qualifier(given))
    estimate = _with_estimate(given)
    if "\\approx" in estimate[1:] and "\\approx" not in reference:
        steps = steps_of_an_estimate(estimate)
        if steps or estimate == given:
            return any(_is_equal(reference, step, rules) for step in steps)
    return _verdict(reference, given, rules)


def _with_estimate(given: Tokens) -> Tokens:
    """Return `\\frac{3}{8} (0.375)` as `\\frac{3}{8} \\approx 0.375`."""
    text = text_of(given) if given[-1:] == (")",) else ""
    found = _DECIMAL_AFTER.search(text)
    return tokens_of(f"{text[: found.start()]} \\approx {found[1]}") if found else given


def _verdict(reference: Tokens, given: Tokens, rules: MathRules) -> bool:
    """Compare two answers as they are read."""
    is_same = have_one_name(text_of(reference), text_of(given))
    if is_same is not None:
        return is_same
    wanted = read(reference)
    is_value = _is_value(wanted)
    if "=" in given and (is_no_answer(given) or (is_value and is_to_be_solved(given))):
        return False
    found = _chosen(text_of(reference), text_of(given)) or read_in_the_kind_of(wanted, given)
    if wanted is None or found is None:
        return False
    is_question = not is_solved(given) and (not is_inequality(reference) or is_solved(reference))
    return not (is_question and not is_plain(found)) and are_equal(wanted, found, rules)


def _chosen(reference: str, given: str) -> Words | None:
    """Read "(C) 17" and "C. 17" as the letter C where the reference is the letter of an option."""
    found = _CHOICE.fullmatch(_TEXT.sub(r"\1", given)) if _LETTER.fullmatch(reference) else None
    if found is None or _OTHER_CHOICE.search(found["text"]):
        return None
    return Words((found["bracketed"] or found["letter"]).lower())


def _is_value(reading: Reading | None) -> bool:
    """Return whether an answer is read as a value or several, without variables."""
    plain = unnamed(reading)
    if isinstance(plain, Group):
        return all(map(_is_value, plain.items))
    return isinstance(plain, Quantity) and not plain.value.has_variables


def _letters(tokens: Tokens) -> str:
    """Return the characters of an answer for a comparison letter by letter.

    Spaces are kept only between letters and digits.
    """
    text = text_of(tokens)
    plain = _TEXT.sub(r" \1 ", text) if "\\text" in text else text
    return _LOOSE_SPACE.sub("", " ".join(plain.split()))
