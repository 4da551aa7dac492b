"""Scores of Reasoning Gym answers worked by hand, where ours are not the library's and where they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from brorl_graders.verifiers import reasoning_gym


def score(payload: Mapping[str, Any], given: str) -> float:
    return reasoning_gym.score(payload, f"<answer>{given}</answer>")


def entry(dataset: str, answer: str, **metadata: object) -> dict[str, Any]:
    return {"dataset": dataset, "config": {}, "question": "?", "answer": answer, "metadata": metadata}


PUZZLE = entry("puzzle24", "6*4*1*1", numbers=[6, 4, 1, 1])
COUNTDOWN = entry("countdown", "6*(4 + 1)", numbers=[1, 4, 6], target=30)
POLYNOMIAL = entry("polynomial_multiplication", "6*x**2 + x*y", variables=["y", "x"])
RECIPROCAL = entry("simple_integration", "log(x) + C", integrand="1/x", variable="x")
HALTING = entry("game_of_life_halting", "False")
COMPLEX = entry("complex_arithmetic", "3.0 + 4.0i", result=[3.0, 4.0])
COIN = entry("coin_flip", "0.3125")
RARE = entry("coin_flip", "6.103515625e-05")
FACTORS = entry("prime_factorization", "2 × 2 × 3", number=12, factors=[2, 2, 3])
INTEGRAL = entry("intermediate_integration", "x**3 + sin(x)/2 + C", integrand="3*x**2 + cos(x)/2", variable="x")


WORKED = [
    *((PUZZLE, "(6 * 4) * (1 / 1)", 1.0), (PUZZLE, "6*4*1**1", 0.01), (PUZZLE, "6+4+1+1", 0.01)),
    *((PUZZLE, "6*4//1*1", 0.01), (PUZZLE, "8*3*1*1", 0.01), (PUZZLE, "6*4*1*1*1", 0.01), (PUZZLE, "4*6", 0.01)),
    *((PUZZLE, "6*4*1*1=24", 0.0), (PUZZLE, "", 0.0)),
    *((COUNTDOWN, "6 * (4 + 1)", 1.0), (COUNTDOWN, "(1 + 4) * 6", 1.0), (COUNTDOWN, "(4 + 1)*6//1", 0.05)),
    *((COUNTDOWN, "4*6 + 6*1", 0.05), (COUNTDOWN, "30.0", 0.05)),
    *((COUNTDOWN, "30", 0.05), (COUNTDOWN, "6*4 + 1", 0.05), (COUNTDOWN, "I do not know", 0.0)),
    *((POLYNOMIAL, "y*x + 6*x**2", 1.0), (POLYNOMIAL, "x*(6*x)+x*y", 1.0)),
    *((POLYNOMIAL, "x*y + 6*x**2 + z", 0.0), (POLYNOMIAL, "x*y + 6*x^2", 0.0)),
    *((INTEGRAL, "x**3 + 1/2*sin(x) + C", 1.0), (INTEGRAL, "x**3 + 0.5 * sin(x) + c", 1.0)),
    *((INTEGRAL, "x**3 + sin(x)/2 + pi + ln(2)", 1.0), (INTEGRAL, "x*x*x - cos(x + pi/2)/2", 1.0)),
    *((INTEGRAL, "x**3 + sqrt(1 - cos(x)**2)/2 + C", 0.0), (INTEGRAL, "Integral(3*x**2 + cos(x)/2, x)", 0.0)),
    (INTEGRAL, "integrate(3*x**2 + cos(x)/2, x)", 0.0),
    *((INTEGRAL, "x**3 + sin(x)/2 + x/10**9", 0.0), (INTEGRAL, "a*x**3 + sin(x)/2", 0.0), (INTEGRAL, "x**3", 0.0)),
    *((INTEGRAL, "x**3 + sin(x)/2 + log(-1)", 1.0), (INTEGRAL, "x**3 + sin(x)/2 + 1/0", 0.0)),
    *((RECIPROCAL, "log(Abs(x))", 1.0), (RECIPROCAL, "log(x) + C", 1.0), (RECIPROCAL, "log(7*x)", 1.0)),
    *((RECIPROCAL, "log(x**2)", 0.0), (RECIPROCAL, "ln(-x)", 1.0), (RECIPROCAL, "exp(exp(exp(exp(99*x))))", 0.0)),
    *((HALTING, "True", 0.0), (HALTING, "false", 1.0), (HALTING, "0", 0.0), (HALTING, "junk", 0.0)),
    *((COMPLEX, "nan", 0.0), (COMPLEX, "NaN+nanj", 0.0), (COMPLEX, "3 + 4i", 1.0), (COMPLEX, "inf", 0.0)),
    *((COIN, "0", 0.0), (COIN, "0.3", 0.0), (COIN, "0.31250", 1.0), (COIN, "5/16", 1.0), (COIN, ".3125", 1.0)),
    *((COIN, "1e999193359375", 0.0), (COIN, "5/0", 0.0), (COIN, "nan", 0.0), (COIN, "3125e-4", 1.0)),
    *((RARE, "0", 0.0), (RARE, "0.000061", 1.0), (RARE, "1/16384", 1.0), (RARE, "0.0001", 0.0)),
    *((FACTORS, "", 0.0), (FACTORS, "×", 0.0), (FACTORS, "12", 0.01), (FACTORS, "3 × 4", 0.5)),
    *((FACTORS, "3 × 2 × 2", 1.0), (FACTORS, "5", 0.01)),
]


@pytest.mark.parametrize(("payload", "given", "earned"), WORKED)
def test_formulas_worked_by_hand(payload: Mapping[str, Any], given: str, earned: float) -> None:
    assert score(payload, given) == earned


def test_an_answer_that_cannot_be_seen_is_none() -> None:
    payload = {"dataset": "fraction_simplification", "config": {}, "question": "?", "answer": "1/2", "metadata": {}}
    assert [score(payload, given) for given in ("", " ", "\u200b", "\ufeff\n")] == [0.0] * 4
