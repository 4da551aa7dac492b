"""Answers in sentences: words around a number, remarks, denials, text that goes on, and other scripts."""

from __future__ import annotations

import pytest
from brorl_graders.verifiers.math.answer import score

LONG = " I hope that this helps; ask for more details of any step." * 60
CASES = [
    # words before and after a number
    ("-8", "The answer is negative 8.", 1),
    ("8", "The answer is minus 8.", 0),
    ("8", "The answer is twice 8.", 0),
    ("8", "The answer is at least 8.", 0),
    ("8", "The answer is about 8.", 1),
    ("8", "The answer is one third of 8.", 0),
    ("8", "The answer is no more than 8.", 0),
    ("8", "The answer is 8 hundred.", 0),
    ("800", "The answer is 8 hundred.", 1),
    ("8", "The answer is 8 times larger.", 0),
    ("8", "The answer is 8 or more.", 0),
    ("8", "The answer is 8 marbles.", 1),
    ("8", "The answer is 8 because 3 + 5 = 8.", 1),
    ("8", "The answer is negative $8$.", 0),
    ("-8", "The answer is negative $8$.", 1),
    ("8", "The answer is half of $8$.", 0),
    # denials of the sentence
    ("8", "I doubt that the answer is 8.", 0),
    ("8", "I do not think that the answer is 8.", 0),
    ("8", "It is false that the answer is 8.", 0),
    ("8", "Since x is not zero, the answer is 8.", 1),
    ("8", "The answer is 8. No, that is wrong.", 0),
    ("8", "The answer is 8, which is not the right one. The answer is 9.", 0),
    ("9", "The answer is 8, which is not the right one. The answer is 9.", 1),
    ("8", "The answer is 8, which is not a prime.", 1),
    # answers that are taken back
    ("8", "The answer is 8. Scratch that.", 0),
    ("8", "The answer is 8. On second thought, 9.", 0),
    ("8", "One might say that the answer is 8, but it is 9.", 0),
    ("8", "Our answer is 8, but that's really $9$.", 0),
    ("8", "Our answer is 8, but it is not prime.", 1),
    ("8", "\\boxed{8}? I do not think so.", 0),
    ("9", "The answer is not 8 but 9.", 1),
    ("8", "The answer is not 8 but 9.", 0),
    ("9", "~~\\boxed{8}~~ \\boxed{9}", 1),
    ("3\\pi", "The perimeter is not $3\\pi$.", 0),
    ("3\\pi", "The perimeter is more than $3\\pi$.", 0),
    ("3\\pi", "The square root is $3\\pi$.", 1),
    # numbers in words, and estimates
    ("12", "The answer is twelve (12).", 1),
    ("12", "The answer is 12 (twelve).", 1),
    ("12", "The answer is 12 (thirteen).", 0),
    ("12", "The answer is 12 times 3.", 0),
    ("3\\pi", "The length is $3\\pi$, or approximately 9.42.", 1),
    ("9.42", "The length is $3\\pi$, or approximately 9.42.", 1),
    ("3\\pi", "Hence $L = 3\\pi$ (where $L$ is the length).", 1),
    ("2\\sqrt{3}", "The answer is 2 square root of 3.", 1),
    ("3", "The answer is the square root of 3.", 0),
    ("15", "The answer is 6 choose 2", 1),
    ("6", "The answer is 6 choose 2", 0),
    ("all real numbers", "The domain is all real numbers.", 1),
    ("x \\ne 4", "The domain is all real numbers except 4.", 1),
    ("x \\ne 5", "The domain is all real numbers except 4.", 0),
    ("\\mathbb{R}", "The solution is not all real numbers.", 0),
    ("(-\\infty,\\infty)", "Answer: (-∞, ∞)", 1),
    ("[-5,3]", "Answer: -5 <= x <= 3", 1),
    # money
    ("$12.50", "The answer is €12.50.", 0),
    ("$12.50", "The answer is 12.50 cents.", 0),
    ("$12.50", "The answer is 12.50 dollars.", 1),
    ("$12.50", "The answer is US\\$12.50.", 1),
    # boxes
    ("8", "$\\boxed{8}$ is wrong.", 0),
    ("8", "$\\boxed{8}$. Wait, that can't be right.", 0),
    ("9", "$\\boxed{8}$ is too small. The answer is 9.", 1),
    ("8", "$\\boxed{8}$, which is not divisible by 3.", 1),
    ("8", "The result is not \\boxed{8}.", 0),
    ("8", "It is not hard to see that $x=\\boxed{8}$.", 1),
    ("9", "\\boxed{8}, no: \\boxed{9}", 1),
    ("8", "\\boxed{8}, no: \\boxed{9}", 0),
    ("8", "\\boxed{8} and not \\boxed{9}", 1),
    ("8", "\\boxed{8} times \\boxed{8}", 0),
    ("8", "So it is \\boxed{8}. My format was \\boxed{}", 1),
    # remarks
    ("81", "The answer is 81 (50 in May and 31 in June).", 1),
    ("81", "The answer is 81 (50 + 31).", 1),
    ("81", "The answer is 81 (50 + 30).", 0),
    ("81", "The answer is 81 [50 of them in May].", 1),
    ("81", "So he sold 81 pens (50 in May and 31 in June).", 1),
    ("81", "The answer is 50 (81 in May).", 0),
    ("81", "The answer is 81 (or 82).", 0),
    ("81", "Total: 81 pens in 2 months", 1),
    # text that goes on
    ("81", f"#### 81\n{LONG}", 1),
    ("80", f"#### 81\n{LONG}", 0),
    ("81", "The answer is 81<|im_end|>", 1),
    ("81", "The answer is 81<|endoftext|>The answer is 80.", 1),
    ("81", "#### 81\n\nQuestion: How many are 2 eggs?\n#### 2", 1),
    ("2", "#### 81\n\nQuestion: How many are 2 eggs?\n#### 2", 0),
    ("81", "So $\\boxed{81}$.\n\n### Problem 2:\nfind it \\boxed{2}", 1),
    ("81", "Question: how many?\nAnswer: 81", 1),
    # other scripts, and words with marks
    ("27", "所以一共有27个苹果。", 1),
    ("28", "所以一共有27个苹果。", 0),
    ("27", "答案是27。", 1),
    ("3月5日", "<answer>3月5日</answer>", 1),
    ("Zürich", "<answer>Zürich</answer>", 1),
    ("Zürich", "<answer>Zurich</answer>", 0),
    ("R & D", "<answer>R & D</answer>", 1),
    # lists with a comma before "and", shares, and numbers that are ruled out
    ("1,3,5", "The solutions are 1, 3, and 5.", 1),
    ("1,3,5", "The solutions are x = 1, x = 3, and x = 5.", 1),
    ("5", "The solutions are 1, 3, and 5.", 0),
    ("3/4", "The probability is 3 out of 4.", 1),
    ("4", "The probability is 3 out of 4.", 0),
    ("12", "So the total is 12 dollars, not 13.", 1),
    ("13", "So the total is 12 dollars, not 13.", 0),
    ("12", "12 is excluded, so there are none", 0),
    ("12", "x = 12 is extraneous.", 0),
    ("6", "I cannot determine whether it is 6", 0),
    ("42", "Therefore $N=42$. $\\blacksquare$", 1),
    ("42", "=> 42", 1),
    ("7/12", "<answer>seven twelfths</answer>", 1),
    # no solution in a sentence
    ("no solution", "So the system has no solution.", 1),
    ("DNE", "Therefore the limit does not exist.", 1),
    ("no solution", "The answer is that there is no solution.", 1),
    ("5", "So the system has no solution.", 0),
]


@pytest.mark.parametrize(("answer", "response", "right"), CASES)
def test_a_sentence_gives_the_answer_that_it_states(answer: str, response: str, right: int) -> None:
    assert score({"answer": answer}, response) == right
