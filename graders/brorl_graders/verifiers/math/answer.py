r"""Verifier of mathematical answers: 1 if the response's answer equals the reference.

Answers may be numbers, fractions, units, percentages, words, sets, intervals and equations. With `extract: anywhere`
the verifier reads inside the last `<answer>` tags, if any, and never in the thinking. The last `\boxed{}` counts
together with adjacent boxes: `\boxed{1}` and `\boxed{2}` are one answer of two values. Without a box, or when "final
answer is" follows the box, the verifier reads the text after the last such phrase, else the last formula or number.

An answer that the text denies or takes back does not count, nor one whose words are not understood: "half of 6" and "6
is too large" are not 6. A question that is written out again, such as `2x+1 \ge 11` or a sum, equals no solution of it.

Numbers, plain expressions, words and groups of these are compared without a grammar of LaTeX. math-verify compares
relations, matrices and functions. A verdict depends only on the two answers and the payload's options.

Votes count one spelling of each answer: `\frac{1}{2}`, `1/2`, `$0.5$` and `\boxed{\dfrac12}` are one vote. Other
expressions lose spacing and typesetting, so `x+1` and `1+x` are two votes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from brorl_graders.base.answer import boxed_answers, extract_answer, without_thinking
from brorl_graders.base.payload import ANSWER, Key, Payload, accepted_answers, check_answer, check_choices, is_number
from brorl_graders.verifiers.math.equation import is_no_answer, is_to_be_solved
from brorl_graders.verifiers.math.finding import MAX_TAIL, PLACES, find_answer, in_boxes, place_of
from brorl_graders.verifiers.math.library import equal_by_library
from brorl_graders.verifiers.math.notation import in_one_notation
from brorl_graders.verifiers.math.qualifier import with_argument_of, without_qualifier
from brorl_graders.verifiers.math.reading import (
    Group,
    Named,
    Numeral,
    Quantity,
    Ratio,
    Reading,
    Words,
    has_changing_words,
    read,
    read_mixed_number,
)
from brorl_graders.verifiers.math.relation import is_inequality, is_solved
from brorl_graders.verifiers.math.statement import is_prose, stated_answer
from brorl_graders.verifiers.math.value import Value, compare, scaled

# `notation.py` brings answers into one notation, `statement.py` finds an unmarked answer, and `remarks.py` what is
# said of it. `reading.py` reads answers without a grammar. It uses `relation.py` for inequalities and
# `number_words.py`. `equation.py` judges chains of equations, and `qualifier.py` removes "for all x". `value.py`
# and `units.py` compare, and `library.py` asks math-verify. Verdicts are cached, since most responses to a prompt
# end in one of few answers. Votes ask no library that may hang.

PERCENT = ("either", "exact")
UNITS = ("agree", "required", "ignore")
FORMS = ("done", "any")
MIN_WORD = 4  # letters; a shorter word may be a product of variables
_HUNDREDTH = 100

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
_TEXT = re.compile(r"\\text ?\{([^{}]*)\}")
_LOOSE_SPACE = re.compile(r" (?![A-Za-z0-9])|(?<![A-Za-z0-9]) +")
_NAMED = re.compile(r"[a-zA-Z]\w?(?:\([a-z]\))?=(?=.)")
_OPERATION = re.compile(
    r"\\(?:sum|prod|i*nt|oint|lim)(?![A-Za-z])|\\frac ?\{ ?(?:d|\\partial)[^{}]*\}\{ ?(?:d|\\partial) ?[A-Za-z] ?\}"
)
_SMALL_WORDS = ("yes", "no")  # other short words may be points or products, whose capitals count
MAX_LENGTH = 2000  # characters of an answer that is brought into one spelling


class MathRules(NamedTuple):
    """Rules of a data set for when two answers are equal. The default of each is the first possible value."""

    percent: str = PERCENT[0]  # exact: 50% equals 0.5 and never 50
    units: str = UNITS[0]  # required: an answer must give the reference's unit; ignore: units are not compared
    relative_tolerance: float = 0.0  # largest relative difference of equal numbers
    form: str = FORMS[0]  # any: a sum, integral or limit that is left to do equals its value


USUAL = MathRules()


def are_equal(
    reference: Reading,
    given: Reading,
    rules: MathRules,
) -> bool | None:
    """Return whether a mathematical answer equals the reference answer, as `rules` compare answers.

    None: the comparison needs a grammar or symbolic algebra.
    """
    if isinstance(reference, Named) or isinstance(given, Named):
        return _named(reference, given, rules)
    if isinstance(reference, Numeral) or isinstance(given, Numeral):
        return reference == given
    if isinstance(reference, Ratio) or isinstance(given, Ratio):
        return _ratios(reference, given, rules)
    if isinstance(reference, Quantity) and isinstance(given, Quantity):
        return _quantities(reference, given, rules)
    if isinstance(reference, Group) and isinstance(given, Group):
        return _groups(reference, given, rules)
    if isinstance(reference, Group) or isinstance(given, Group):
        return _group_and_other(reference, given, rules)
    return _words(reference, given)


def _named(
    reference: Reading,
    given: Reading,
    rules: MathRules,
) -> bool | None:
    """Compare two mathematical answers of which at least one names its value, as `x = 5` does.

    `x = 5` equals 5. For `x = 5` and `y = 5` the result is None, which leaves them to math-verify.
    """
    one = reference
    other = given
    if isinstance(reference, Named):
        one = reference.reading
    if isinstance(given, Named):
        other = given.reading
    if isinstance(reference, Named) and isinstance(given, Named) and reference.name != given.name:
        return None
    return are_equal(one, other, rules)


def _ratios(reference: Reading, given: Reading, rules: MathRules) -> bool | None:
    """Compare two answers of which at least one is a ratio. A ratio of two numbers equals their quotient.

    A time of day, such as 2:30, equals only itself.
    """
    if isinstance(reference, Ratio) and isinstance(given, Ratio):
        if reference.is_time or len(reference.parts) != len(given.parts):
            return reference.parts == given.parts
        return _are_proportional(reference.parts, given.parts)
    ratio = reference if isinstance(reference, Ratio) else given
    other = given if ratio is reference else reference
    assert isinstance(ratio, Ratio)
    if len(ratio.parts) != 2 or not isinstance(other, Quantity) or not ratio.parts[1].value:
        return False
    if ratio.is_time and ratio is reference:
        return False
    quotient = Quantity(Value(ratio.parts[0].value / ratio.parts[1].value))
    return are_equal(quotient, other, rules) if ratio is reference else are_equal(other, quotient, rules)


def _are_proportional(some: tuple[Value, ...], others: tuple[Value, ...]) -> bool:
    first, *_ = zip(some, others, strict=True)
    for one, other in zip(some, others, strict=True):
        if one.value * first[1].value != other.value * first[0].value:
            return False
    return any(value.value for value in some) == any(value.value for value in others)


def _quantities(
    reference: Quantity,
    given: Quantity,
    rules: MathRules,
) -> bool | None:
    if rules.units == "required" and reference.unit and not given.unit:
        return False
    one = reference.value
    other = given.value
    if rules.units != "ignore" and reference.unit and given.unit:
        if reference.unit.powers != given.unit.powers:
            return False
        if reference.unit.factor != given.unit.factor:
            one = scaled(one, reference.unit.factor)
            other = scaled(other, given.unit.factor)
    if reference.is_percent == given.is_percent:
        return compare(one, other, rules.relative_tolerance)
    if reference.is_percent:
        one = scaled(one, Fraction(1, _HUNDREDTH))
    else:
        other = scaled(other, Fraction(1, _HUNDREDTH))
    as_share = compare(one, other, rules.relative_tolerance)
    if as_share or rules.percent == "exact":
        return as_share
    return compare(reference.value, given.value, rules.relative_tolerance)


def _words(reference: Reading, given: Reading) -> bool | None:
    """Compare two mathematical answers of which at least one consists of words.

    None: the words are short, and may be products of variables.
    """
    if reference == given:
        return True
    for one in (reference, given):
        if isinstance(one, Words) and len(one.text) >= MIN_WORD:
            return False
    return None


def _groups(
    reference: Group,
    given: Group,
    rules: MathRules,
) -> bool | None:
    kinds = {reference.brackets, given.brackets}
    if "U" in kinds:
        is_list_of_intervals = reference.brackets == "U" and not given.brackets
        is_equal = (len(kinds) == 1 or is_list_of_intervals) and _unordered(reference, given, rules)
        return is_equal or None
    if kinds <= {"", "{}"}:
        return _unordered(reference, given, rules)
    if len(kinds) == 1 or kinds == {"", "()"}:
        return _ordered(reference, given, rules)
    if kinds == {"", "[]"} and not reference.brackets:
        return _ordered(reference, given, rules)
    return None if "" in kinds else False


def _ordered(
    reference: Group,
    given: Group,
    rules: MathRules,
) -> bool | None:
    if len(reference.items) != len(given.items):
        return False
    is_open = False
    for one, other in zip(reference.items, given.items, strict=True):
        verdict = are_equal(one, other, rules)
        if verdict is False:
            return False
        is_open = is_open or verdict is None
    return None if is_open else True


def _unordered(
    reference: Group,
    given: Group,
    rules: MathRules,
) -> bool | None:
    """Compare two groups of answers as sets: every item of one group must equal an item of the other group."""
    is_open = False
    for some, others in ((reference.items, given.items), (given.items, reference.items)):
        for item in some:
            verdict = _is_among(item, others, rules, is_reference=some is reference.items)
            if verdict is False:
                return False
            is_open = is_open or verdict is None
    return None if is_open else True


def _is_among(
    item: Reading,
    others: tuple[Reading, ...],
    rules: MathRules,
    is_reference: bool,
) -> bool | None:
    """Return whether one answer of a group equals one of several other answers, or None if that cannot be decided.

    `is_reference`: `item` is part of the reference, and `others` are part of the response's answer.
    """
    is_open = False
    for other in others:
        verdict = are_equal(item, other, rules) if is_reference else are_equal(other, item, rules)
        if verdict:
            return True
        is_open = is_open or verdict is None
    return None if is_open else False


def _group_and_other(
    reference: Reading,
    given: Reading,
    rules: MathRules,
) -> bool | None:
    """Compare a group of answers with a single answer.

    They are equal if every item of the group equals the single answer.
    """
    verdict: bool | None = True
    if isinstance(reference, Group):
        group = reference
        other = given
    else:
        assert isinstance(given, Group)
        group = given
        other = reference
    if group.brackets in ("", "{}"):
        for item in group.items:
            is_same = are_equal(item, other, rules) if group is reference else are_equal(other, item, rules)
            verdict = verdict and is_same
        return verdict
    return False if isinstance(other, Quantity) else None  # a group in brackets has two items or more


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
    if given is None:
        return 0.0
    rules = MathRules(
        payload.get("percent", PERCENT[0]),
        payload.get("units", UNITS[0]),
        float(payload.get(TOLERANCE, 0.0)),
        payload.get("form", FORMS[0]),
    )
    references = accepted_answers(payload)
    for reference in references:
        if is_equal(reference, given, rules):
            return 1.0
    return float(_is_tagged_text(references, response))


def _is_tagged_text(references: list[str], response: str) -> bool:
    """Return whether the whole text in a response's answer tags is a reference, such as `March 5` in any script."""
    tagged = extract_answer(without_thinking(response)) if "<answer>" in response else None
    if tagged is None or len(tagged) > MAX_TAIL or "boxed" in tagged:
        return False
    text = _letters(in_one_notation(tagged))
    return bool(text) and any(_letters(in_one_notation(reference)) == text for reference in references)


def answer(payload: Payload, response: str) -> str | None:
    """Return the mathematical answer in a response in one spelling, for counting votes, or None if there is none.

    Two answers that math-verify finds equal may have two spellings.
    """
    place = place_of(payload)
    found = find_answer(response, place)
    return key_of(found) if found else None


def load() -> None:
    """Import math-verify and SymPy with all that they import later, and fill their tables (1 s)."""
    equal_by_library("x^2+118x+2185", "(x+23)(x+96)")
    equal_by_library("\\sqrt{8}+\\frac{1}{3}", "3.1")
    equal_by_library("(1, 2]", "\\{1, 2\\}")
    equal_by_library("x<3", "(1,3)")


def is_equal(reference: str, given: str, rules: MathRules = USUAL) -> bool:
    """Return whether the mathematical answer in a response equals the reference, as `rules` compare answers.

    `given` is a result of `find_answer`. The reference may be a text with the answer in it.
    """
    if not given or len(given) > MAX_TAIL:
        return False
    return _is_equal(_in_reference(reference), in_one_notation(given), rules)


@lru_cache(maxsize=4096)
def _in_reference(reference: str) -> str:
    """Return the answer in a reference, in plain LaTeX as `in_one_notation` writes it.

    The reference may be the answer alone, or a text that states it.
    """
    boxes = boxed_answers(reference)
    if boxes:
        return in_one_notation(in_boxes(boxes))
    if is_prose(reference):
        return in_one_notation(stated_answer(reference) or reference)
    return in_one_notation(reference)


@lru_cache(maxsize=65536)
def _is_equal(reference: str, given: str, rules: MathRules) -> bool:
    """Return whether two answers in plain LaTeX are equal, as `rules` compare them. The result is cached."""
    if _letters(reference) == _letters(given):
        return bool(given)
    if rules.form == FORMS[0] and _OPERATION.search(given) and not _OPERATION.search(reference):
        return False
    reference = without_qualifier(reference)
    given = without_qualifier(given)
    if "=" in given:
        given = with_argument_of(reference, given)
    wanted = read(reference)
    if "=" in given and (is_no_answer(given) or (_is_value(wanted) and is_to_be_solved(given))):
        return _letters(reference) == _letters(given)
    found = read(given)
    mixed = read_mixed_number(given) if "and" in given else None
    if mixed is not None and not isinstance(wanted, Group):
        found = mixed
    if wanted is not None and found is not None:
        verdict = are_equal(wanted, found, rules)
        if verdict is not None:
            return verdict
    if found is None and has_changing_words(given):
        return False
    if not is_solved(given) and (not is_inequality(reference) or is_solved(reference)):
        return False
    return equal_by_library(reference, given)


def _is_value(reading: Reading | None) -> bool:
    """Return whether an answer is read as a value or several, without variables."""
    if isinstance(reading, Named):
        return _is_value(reading.reading)
    if isinstance(reading, Group):
        return all(map(_is_value, reading.items))
    return isinstance(reading, Quantity) and not reading.value.has_variables


def _letters(text: str) -> str:
    """Return the characters of an answer for a comparison letter by letter.

    Spaces are kept only between letters and digits.
    """
    plain = _TEXT.sub(r" \1 ", text) if "\\text" in text else text
    return _LOOSE_SPACE.sub("", " ".join(plain.split()))


def key_of(answer: str) -> str | None:
    """Return one spelling for all spellings of an answer, to count equal answers. None: the answer is empty."""
    if len(answer) > MAX_LENGTH:
        return answer
    plain = in_one_notation(answer)
    reading = read(plain)
    key = None if reading is None else _key(reading)
    return key or _compact(plain) or None


def _key(reading: Reading) -> str | None:
    """Return one spelling for all spellings of a parsed answer, or None if the answer's text can be counted as is."""
    if isinstance(reading, Named):
        return _key(reading.reading)
    if isinstance(reading, Quantity):
        return _key_of_quantity(reading)
    if isinstance(reading, Group):
        return _key_of_group(reading)
    if isinstance(reading, Words):
        is_word = len(reading.text) >= MIN_WORD or reading.text in _SMALL_WORDS
        return reading.text if is_word else None
    if isinstance(reading, Ratio):
        return None
    assert isinstance(reading, Numeral)
    return f"{reading.digits}_{reading.base}"


def _key_of_quantity(quantity: Quantity) -> str | None:
    value = quantity.value.value
    if quantity.value.has_variables or not isinstance(value, Fraction):
        return None
    if max(abs(value.numerator), value.denominator).bit_length() > MAX_LENGTH:
        return None
    if quantity.unit is None or quantity.unit.powers == {("degree", 1)}:
        return str(value)
    names = []
    for name, power in sorted(quantity.unit.powers):
        names.append(f"{name}^{power}")
    unit = " ".join(names)
    return f"{value * quantity.unit.factor} {unit}"


def _key_of_group(group: Group) -> str | None:
    keys = []
    for item in group.items:
        key = _key(item)
        if key is None:
            return None
        keys.append(key)
    if group.brackets in ("()", "[]", "(]", "[)"):
        return f"{group.brackets[0]}{','.join(keys)}{group.brackets[1]}"
    unordered = ",".join(sorted(set(keys)))
    return f"{{{unordered}}}"


def _compact(text: str) -> str:
    plain = _TEXT.sub(r"\1", text)
    plain = plain.replace(" ", "")
    named = _NAMED.match(plain)
    if named:
        plain = plain[named.end() :]
    return plain
