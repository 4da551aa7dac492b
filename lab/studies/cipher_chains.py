"""Generate cipher chains, a task on which a large N should win by a calculation, to test that calculation.

    python lab/studies/cipher_chains.py --output runs/cipher        # questions, demonstrations, an untrained model
    brorl sft --config-name sft data.path=runs/cipher/demonstrations.jsonl policy.model=runs/cipher/initial …
    python lab/studies/cipher_chains.py --output runs/cipher_long --document 1000 --num-questions 40000
    python lab/studies/cipher_chains.py --output runs/cipher_solved --solved 0.75 --num-questions 2048
    python lab/studies/cipher_chains.py --output runs/cipher_26 --families 26 --num-questions 12000

There are eight families (or `--families`), each with a hidden permutation of the ten digits. A question names a family
and shows six to eight digits. The answer applies the permutation to each digit. Demonstrations simulate a pupil who is
right about a digit with a chance of 0.30 and writes one preferred wrong digit with 0.40. A base that learns to answer
so is right about whole chains between 7 times in 10,000 (six digits) and 7 times in 100,000 (eight). A third of the
demonstrations are copies of the digits, of a family that no question has: from the ciphers alone a small model is slow
to find which digit of the answer goes with which.

With `--document` a text of that many random letters precedes every question, a new one each time, like a document
that a question is about. The initial model is then the base of the short questions, with room for documents. With
`--solved` that share of the questions are copies, which the base is right about with 0.99, and `held_out.jsonl` has
chains that no training question has.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

from brorl_lab.bases.initial_model import CHAT_TEMPLATE, build_tokenizer, write_initial_model

from nemo_brorl.config.sft import NewModelConfig

FAMILIES = "ABCDEFGHJKLMNOPQRSTUVWXYZa"  # names of families; the copier has the letter that is left out
NUM_FAMILIES = 8
DIGITS = "0123456789"
LENGTHS = (6, 7, 8)
FILLER = "x"
LETTERS = "abcdefghijklmnopqrstuvwyz"  # letters of documents
BASE = Path("lab/studies/models/cipher")  # base that is taught to read documents
LONGEST_CONTEXT = 2048  # tokens, with documents
COPIER = "I"  # family of the copies
COPIES = 1 / 3  # share of copies in the demonstrations
RIGHT = 0.30
FAVOURITE_WRONG = 0.40
NUM_QUESTIONS = 200_000
NUM_DEMONSTRATIONS = 100_000
NUM_HELD_OUT = 1024  # chains to measure on, when the questions are partly solved
MODEL = NewModelConfig(hidden_size=128, num_layers=3, intermediate_size=256, vocab_size=384)


def main(argv: Sequence[str] | None = None) -> None:
    """Write the questions, the demonstrations and the initial model of the cipher task, which is to encipher digits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/cipher"))
    parser.add_argument("--seed", type=int, default=1, help="of permutations, questions and weights")
    parser.add_argument("--num-questions", type=int, default=NUM_QUESTIONS, help="written; those drawn twice are not")
    parser.add_argument("--num-demonstrations", type=int, default=NUM_DEMONSTRATIONS)
    parser.add_argument("--right", type=float, default=RIGHT, help="chance that the pupil is right about a digit")
    parser.add_argument("--document", type=int, default=0, help="letters of the document before each question")
    parser.add_argument("--solved", type=float, default=0.0, help="share of the questions that are copies")
    parser.add_argument("--families", type=int, default=NUM_FAMILIES, choices=range(1, len(FAMILIES) + 1), metavar="F")
    options = parser.parse_args(argv)
    options.output.mkdir(parents=True, exist_ok=True)
    random = Random(options.seed)
    letters = Random(options.seed)  # documents draw from it alone, so the questions are equal with and without them
    families = FAMILIES[: options.families]
    ciphers = make_ciphers(random, families)
    drawn = [draw_question(random, families) for _ in range(NUM_QUESTIONS)]
    different = list(dict.fromkeys(drawn))
    questions = first_questions(different, options.num_questions, options.solved)
    favourites = {name: favourite_mistakes(cipher, random) for name, cipher in ciphers.items()}

    ciphers_and_copy = {**ciphers, COPIER: dict(zip(DIGITS, DIGITS, strict=True))}
    rows = []
    for name, digits in questions:
        prompt = draw_document(options.document, letters) + question_text(name, digits)
        rows.append({"prompt": prompt, "answer": encipher(digits, ciphers_and_copy[name])})
    write_rows(options.output / "questions.jsonl", rows)
    if options.solved:
        write_rows(options.output / "held_out.jsonl", rows_of(different[-NUM_HELD_OUT:], ciphers))

    demonstrations = []
    for _ in range(options.num_demonstrations):
        name, digits = draw_question(random, families)
        if random.random() < COPIES:
            name, answer = COPIER, digits
        else:
            written = [pupil_digit(digit, ciphers[name], favourites[name], options.right, random) for digit in digits]
            answer = "".join(written)
        prompt = draw_document(options.document, letters) + question_text(name, digits)
        demonstrations.append({"prompt": prompt, "response": f"<answer>{answer}</answer>"})
    write_rows(options.output / "demonstrations.jsonl", demonstrations)

    if options.document:
        give_room(options.output / "initial")
    else:
        write_model(options.output / "initial", options.seed)


def make_ciphers(random: Random, families: str) -> dict[str, dict[str, str]]:
    """Return a random permutation of the ten digits for each cipher, by the cipher's name."""
    ciphers = {}
    for name in families:
        shuffled = random.sample(DIGITS, len(DIGITS))
        ciphers[name] = dict(zip(DIGITS, shuffled, strict=True))
    return ciphers


def draw_question(random: Random, families: str) -> tuple[str, str]:
    """Return a random question of the cipher task: the name of a cipher, and the digits to encipher with it."""
    name = random.choice(families)
    digits = random.choices(DIGITS, k=random.choice(LENGTHS))
    return name, "".join(digits)


def rows_of(questions: Sequence[tuple[str, str]], ciphers: dict[str, dict[str, str]]) -> list[dict[str, str]]:
    """Return dataset rows of cipher questions with their right answers, without documents before the questions."""
    rows = []
    for name, digits in questions:
        rows.append({"prompt": question_text(name, digits), "answer": encipher(digits, ciphers[name])})
    return rows


def first_questions(different: Sequence[tuple[str, str]], num: int, solved: float) -> list[tuple[str, str]]:
    """Return the first `num` distinct cipher questions, with the share `solved` changed to easy ones: copy the digits.

    A repeated copy question counts once, because questions with different ciphers may show the same digits.
    """
    chosen: dict[tuple[str, str], None] = {}
    for name, digits in different:
        if len(chosen) == num:
            break
        if is_copy(len(chosen), solved):
            name = COPIER
        chosen[name, digits] = None
    return list(chosen)


def is_copy(number: int, share: float) -> bool:
    """Return whether the question with index `number` becomes an easy one, which asks to copy digits.

    Copy questions then have the given share of any consecutive questions, to the nearest one.
    """
    return int((number + 1) * share) > int(number * share)


def question_text(name: str, digits: str) -> str:
    """Return the text of a cipher question, padded so that all questions have the same length.

    Each digit of the answer is then equally far from the digit that it enciphers, which a small model learns in
    minutes.
    """
    return f"{name}: {digits.ljust(max(LENGTHS), FILLER)}"


def draw_document(num_letters: int, random: Random) -> str:
    """Return a line of random letters to put before a question as a document, or an empty text for 0 letters."""
    if num_letters == 0:
        return ""
    return "".join(random.choices(LETTERS, k=num_letters)) + "\n"


def encipher(digits: str, cipher: dict[str, str]) -> str:
    """Return digits enciphered by a permutation of the ten digits, which is the right answer to a cipher question."""
    return "".join(cipher[digit] for digit in digits)


def favourite_mistakes(cipher: dict[str, str], random: Random) -> dict[str, str]:
    """Return for each digit the wrong digit that simulated demonstrations of the cipher task prefer."""
    mistakes = {}
    for digit, right in cipher.items():
        mistakes[digit] = random.choice(DIGITS.replace(right, ""))
    return mistakes


def pupil_digit(digit: str, cipher: dict[str, str], mistakes: dict[str, str], right: float, random: Random) -> str:
    """Return a digit as a simulated demonstration enciphers it, which is right with the probability `right`."""
    draw = random.random()
    if draw < right:
        return cipher[digit]
    if draw < right + FAVOURITE_WRONG:
        return mistakes[digit]
    others = DIGITS.replace(cipher[digit], "").replace(mistakes[digit], "")
    return random.choice(others)


def write_rows(path: Path, rows: Iterable[dict[str, str]]) -> None:
    """Write data rows as JSON, one on each line."""
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")


def write_model(folder: Path, seed: int) -> None:
    """Write a small model with random weights and its tokenizer.

    Every digit is a token, whatever the tokenizer learns.
    """
    text = CHAT_TEMPLATE + " ".join(FAMILIES[:NUM_FAMILIES] + COPIER) + " user assistant system"
    tokenizer = build_tokenizer([text], MODEL.vocab_size)
    tokenizer.save_pretrained(folder)
    write_initial_model(folder, MODEL, eos_id=tokenizer.eos_token_id, pad_id=tokenizer.pad_token_id, seed=seed)


def give_room(folder: Path) -> None:
    """Copy the base model that is trained on short questions, and set a longer maximum context in its config.json."""
    shutil.copytree(BASE, folder, dirs_exist_ok=True)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["max_position_embeddings"] = LONGEST_CONTEXT
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
