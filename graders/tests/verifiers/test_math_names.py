"""Functions, constants, units and brackets as they are written in plain text or in another font."""

from __future__ import annotations

import pytest
from brorl_graders.verifiers.math.answer import score

RIGHT = [
    ("\\ln 7", "\\boxed{ln(7)}"),
    ("3\\ln 5", "\\boxed{3 ln 5}"),
    ("\\cos x", "\\boxed{cos(x)}"),
    ("\\log_3 7", "\\boxed{log_3(7)}"),
    ("\\arcsin \\frac{1}{3}", "\\boxed{arcsin(1/3)}"),
    ("\\cos\\theta", "\\boxed{cos theta}"),
    ("\\sin^2 x", "\\boxed{sin(x)^2}"),
    ("9\\pi", "\\boxed{9pi}"),
    ("9\\pi", "The answer is 9*pi."),
    ("\\frac{\\pi}{3}", "\\boxed{pi/3}"),
    ("\\sqrt{5}", "\\boxed{sqrt 5}"),
    ("\\sqrt{8+\\sqrt{5}}", "\\boxed{√(8+√5)}"),
    ("e^{3}", "\\boxed{exp(3)}"),
    ("4^9", "\\boxed{4**9}"),
    ("x^{10}", "\\boxed{x**10}"),
    ("e^{8}", "\\boxed{\\mathrm{e}^{8}}"),
    ("7+9i", "\\boxed{7+9\\mathrm{i}}"),
    ("\\frac{5}{21}", "\\boxed{{5 \\over 21}}"),
    ("495", "\\boxed{{12 \\choose 8}}"),
    ("44 \\text{ m/s}^2", "\\boxed{44\\,\\mathrm{m\\,s^{-2}}}"),
    ("44 \\text{ m/s}^2", "\\boxed{44\\text{ m/s²}}"),
    ("73", "\\boxed{\\text{73 apples}}"),
    ("\\text{155 km}", "\\boxed{155}"),
    ("2\\sin(3x)", "\\boxed{2\\operatorname{sin}(3x)}"),
    ("\\log_{5} 9", "\\boxed{\\mathrm{log}_5(9)}"),
    ("\\sqrt[3]{11}", "The answer is cbrt(11)."),
    ("\\sqrt[3]{11}", "\\boxed{∛11}"),
    ("|x-4|", "The answer is abs(x-4)."),
    ("|x-4|", "\\boxed{\\mid x-4\\mid}"),
    ("2:5", "\\boxed{2\\mathbin{:}5}"),
    ("2:5", "\\boxed{2：5}"),
    ("720", "The answer is 6 factorial."),
    ("7", "\\boxed{\\ 7\\ }"),
]
WRONG = [
    ("\\ln 7", "\\boxed{ln(8)}"),
    ("\\sin x", "\\boxed{cos(x)}"),
    ("9\\pi", "\\boxed{9p}"),
    ("e^{3}", "\\boxed{exp(2)}"),
    ("4^9", "\\boxed{4**8}"),
    ("495", "\\boxed{{12 \\choose 3}}"),
    ("44 \\text{ m/s}^2", "\\boxed{44\\text{ m/s³}}"),
    ("73", "\\boxed{\\text{74 apples}}"),
    ("\\sqrt[3]{11}", "The answer is cbrt(12)."),
    ("6", "The answer is 6 factorial."),
    ("x-4", "The answer is abs(x-4)."),
]


@pytest.mark.parametrize(("answer", "response"), RIGHT)
def test_a_right_answer_earns_in_plain_text_and_other_fonts(answer: str, response: str) -> None:
    assert score({"answer": answer}, response) == 1.0


@pytest.mark.parametrize(("answer", "response"), WRONG)
def test_a_wrong_answer_in_plain_text_earns_nothing(answer: str, response: str) -> None:
    assert score({"answer": answer}, response) == 0.0
