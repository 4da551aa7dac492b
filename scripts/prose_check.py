"""Measure the prose that people read: docstrings, trailing comments, pages.

    python scripts/prose_check.py             # the figures and their bounds
    python scripts/prose_check.py --findings  # each finding as file:line: text

AGENTS.md has the rules. ruff checks that a docstring's first line is one sentence with an imperative verb (D205,
D401). This script counts what ruff cannot see, and a test keeps the figures within the bounds of `scripts/bounds.toml`.
Each pattern is a guess: never write a worse sentence to please it.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CODE = ("nemo_brorl", "launcher", "lab", "graders")
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "AGENTS.md",
    "SECURITY.md",
    "docs",
    "graders/README.md",
    "lab/README.md",
    "launcher/README.md",
)
GENERATED = "by `make docs`"  # what a generated page says in its first lines

# First words of a comment that only its field's name would complete.
FRAGMENT = re.compile(
    r"(of|what|whether|how|where|that|who|whom|whose|which|why|when|while|as|than|until|if|for|from|to|in|on|at|by|with|"
    r"without|within|between|among|because|so|and|or|but|its?|they|their|them|these|those|ones?|both|such)\b",
    re.IGNORECASE,
)
# Words of this project's past English, and the field's words for them.
PRIVATE = {
    r"(?:un|re)?learnt": "trained on, learned",
    r"anew": "again",
    r"foretold|foretells?": "predicted, planned, estimated",
    r"begun|told": "started; notified, reported",
    r"in the mean": "on average",
    r"beside": "next to, while … also runs",
    r"whoever|nobody|somebody": "name the process or user",
    r"(?:goes|go|went) before": "overrides",
    r"(?:goes|go|going|gone|went) on": "continues, resumes",
    r"(?:is|are|was|were) gone": "has exited, was removed",
    r"ask(?:s|ed)? for": "requested, set, enabled",
    r"(?:stands?|stood) (?:in|behind|before|for|at|with)": "is in, follows, precedes",
    r"lies? (?:in|at|on|where|beside|behind)": "is in",
    r"stretch(?:es)?": "segment, span",
    r"(?:come|comes|came) to|(?:be|came|come)come of": "results in, happened to",
    r"mend(?:ed)?": "fixed",
    r"thereby|therein|thereof|whereupon|hence|lest|the like": "plain words",
    r"beliefs?": "estimate, posterior",
    r"hand(?:s|ed)? (?:out|over|on)": "assign, pass, return",
}
BOUNDS: dict[str, float] = tomllib.loads((ROOT / "scripts/bounds.toml").read_text(encoding="utf-8"))["prose"]


class Text(NamedTuple):
    """A docstring, comment or sentence, and where it is."""

    where: str  # file:line
    text: str
    is_longer_than_code: bool = False  # whether it is a docstring with more lines than the function's body

    @property
    def num_words(self) -> int:
        """Number of words, code and numbers included."""
        return sum(bool(re.search(r"[^\W_]", word)) for word in self.text.split())


def docstrings(source: str, shown: str) -> Iterator[Text]:
    """Yield the docstrings of functions. One without a body below it is never longer than its code."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (text := ast.get_docstring(node)):
            first, *body = node.body
            is_longer = bool(body) and num_lines(first, first) > num_lines(body[0], body[-1])
            yield Text(f"{shown}:{node.lineno}", text, is_longer)


def num_lines(first: ast.stmt, last: ast.stmt) -> int:
    """Return the number of lines from one statement to another, both included."""
    return (last.end_lineno or last.lineno) - first.lineno + 1


def trailing_comments(source: str, shown: str) -> Iterator[Text]:
    """Yield the comments that follow code on their line, without directives for tools."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.lstrip("# ")
        is_trailing = token.type == tokenize.COMMENT and token.line[: token.start[1]].strip()
        if is_trailing and not re.match(r"noqa|type:|fmt:|long:|pragma", text):
            yield Text(f"{shown}:{token.start[0]}", text)


def sentences(markdown: str, shown: str) -> Iterator[Text]:
    """Yield the sentences of a page's paragraphs and lists, without code, tables and headings."""
    prose = re.sub(r"^```.*?^```|^ {4,}(?![-*\d]).*?$|^[#|!<].*?$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    for block in re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", prose):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(block.split())).replace("**", "")
        plain = re.sub(r"`[^`]*`", "CODE", plain)
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z(\"“])", plain):
            if len(sentence.split()) >= 3:
                yield Text(shown, sentence)


class Prose(NamedTuple):
    """All prose of the repository, tests left out."""

    docstrings: list[Text]
    comments: list[Text]
    sentences: list[Text]
    num_page_words: int


def read_prose() -> Prose:
    """Read the code of the four packages and the pages that are written by hand."""
    prose = Prose([], [], [], 0)
    for path in sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py")):
        shown = path.relative_to(ROOT).as_posix()
        if not re.search(r"(^|/)tests?[/_]|conftest", shown):
            source = path.read_text(encoding="utf-8")
            prose.docstrings.extend(docstrings(source, shown))
            prose.comments.extend(trailing_comments(source, shown))
    num_words = 0
    for page in PAGES:
        top = ROOT / page
        for path in [top] if top.is_file() else sorted(top.rglob("*.md")):
            markdown = path.read_text(encoding="utf-8")
            if GENERATED not in markdown[:1000]:
                num_words += Text("", markdown).num_words
                prose.sentences.extend(sentences(markdown, path.relative_to(ROOT).as_posix()))
    return prose._replace(num_page_words=num_words)


def findings(prose: Prose) -> dict[str, list[Text]]:
    """Return the texts that each countable figure finds."""
    private = re.compile(rf"\b(?:{'|'.join(PRIVATE)})\b", re.IGNORECASE)
    everything = [*prose.docstrings, *prose.comments, *prose.sentences]
    return {
        "docstrings longer than their code": [text for text in prose.docstrings if text.is_longer_than_code],
        "docstrings: % of under four words": [text for text in prose.docstrings if text.num_words < 4],
        "trailing comments: % that begin as a fragment": [text for text in prose.comments if FRAGMENT.match(text.text)],
        "pages: % of sentences over 30 words": [text for text in prose.sentences if text.num_words > 30],
        "pages: % of sentences with a semicolon": [text for text in prose.sentences if ";" in text.text],
        "private words": [text for text in everything if private.search(re.sub(r"`[^`]*`", "", text.text))],
    }


def figures(prose: Prose) -> dict[str, float]:
    """Return each figure that has a bound."""
    totals = {"docstrings": prose.docstrings, "trailing comments": prose.comments, "pages": prose.sentences}
    values: dict[str, float] = {
        "pages: words": prose.num_page_words,
        "pages: words a sentence": sum(text.num_words for text in prose.sentences) / len(prose.sentences),
    }
    for name, found in findings(prose).items():
        total = totals.get(name.partition(":")[0])
        values[name] = 100.0 * len(found) / len(total) if total else len(found)
    return {name: values[name] for name in BOUNDS}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures, or the findings, and return 1 where a figure is over its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--findings", action="store_true", help="list each finding")
    prose = read_prose()
    if parser.parse_args(argv).findings:
        for name, found in findings(prose).items():
            print(f"== {name}", *(f"{text.where}: {' '.join(text.text.split())}" for text in found), sep="\n")
    values = figures(prose)
    for name, value in values.items():
        print(f"{name:48} {value:9,.1f}   at most {BOUNDS[name]:,}")
    return int(any(value > BOUNDS[name] for name, value in values.items()))


if __name__ == "__main__":
    raise SystemExit(main())
