"""Functions to write, with calls of them and assertions whose expected values are computed."""

from __future__ import annotations

from typing import Any, NamedTuple


class Exercise(NamedTuple):
    """A function to write. Nothing that it returns is a constant that a policy would try."""

    function: str
    source: str
    wrong_source: str
    calls: tuple[tuple[list[Any], Any], ...]  # arguments, result
    expressions: tuple[str, ...]  # assertions whose expected value is computed


EXERCISES = (
    Exercise(
        function="running_totals",
        source="""\
def running_totals(numbers):
    totals = []
    for number in numbers:
        totals.append(number + (totals[-1] if totals else 0))
    return totals
""",
        wrong_source="def running_totals(numbers):\n    return sorted(numbers)\n",
        calls=(([[31, 14, 15]], [31, 45, 60]), ([[9, 26, 53]], [9, 35, 88])),
        expressions=(
            "assert sorted(running_totals([31, 14, 15])) == sorted([60, 31, 45])",
            "assert set(running_totals([9, 26, 53])) == set((9, 35, 88))",
        ),
    ),
    Exercise(
        function="common_part",
        source="def common_part(first, second):\n    return [item for item in first if item in second]\n",
        wrong_source="def common_part(first, second):\n    return first + second\n",
        calls=(([[17, 29, 41], [41, 17]], [17, 41]), ([[5, 83], [83, 7]], [83])),
        expressions=(
            "assert tuple(common_part([17, 29, 41], [41, 17])) == tuple([17, 41])",
            "assert list(common_part([5, 83], [83, 7])) == list((83,))",
            "assert len(common_part([17, 29, 41], [41, 17, 29])) == len('abc')",
        ),
    ),
    Exercise(
        function="mean_gap",
        source="""\
def mean_gap(numbers):
    gaps = [abs(right - left) for left, right in zip(numbers, numbers[1:])]
    return sum(gaps) / len(gaps)
""",
        wrong_source="def mean_gap(numbers):\n    return float(len(numbers))\n",
        calls=(([[2, 9, 4]], 6.0), ([[1, 3, 4, 20]], 19 / 3)),
        expressions=(
            "assert abs(mean_gap([1, 3, 4, 20]) - 19.0 / 3.0) < 1e-6",
            "assert round(mean_gap([1, 3, 4, 20]), 2) == round(6.3333, 2)",
            "assert mean_gap([2, 9, 4]) < float('inf') and mean_gap([2, 9, 4]) == float('6')",
        ),
    ),
    Exercise(
        function="shifted",
        source="""\
def shifted(text, step):
    moved = []
    for letter in text:
        moved.append(chr((ord(letter) - 97 + step) % 26 + 97))
    return ''.join(moved)
""",
        wrong_source="def shifted(text, step):\n    return text[step:] + text[:step]\n",
        calls=((["heron", 3], "khurq"), (["xylem", 4], "bcpiq")),
        expressions=(
            "assert shifted('heron', 3) == ''.join(['khu', 'rq'])",
            "assert list(shifted('xylem', 4)) == list('bcpiq')",
        ),
    ),
    Exercise(
        function="power_sum",
        source="def power_sum(base, count):\n    return sum(base**exponent for exponent in range(count))\n",
        wrong_source="def power_sum(base, count):\n    return base * count\n",
        calls=(([2, 10], 1023), ([3, 7], 1093)),
        expressions=(
            "assert power_sum(2, 10) == 2**10 - 1",
            "assert power_sum(3, 7) == int('1093')",
        ),
    ),
)
