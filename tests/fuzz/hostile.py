"""What strangers and broken disks write: values, texts, and damage to files."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st

NESTED: Any = []
for _ in range(60):
    NESTED = [NESTED]

VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 1e308, -1e308, 10**30, 1e-300, float("nan"), float("inf"),
    "", " ", "\x00", "nan", "١٢", "\ud800", "a" * 3000, "${oc.env:HOME}", "../../etc", [], {}, [None], [[]],
    {"a": {}}, {"": 0}, NESTED,
)  # fmt: skip
WORDS = (
    "<answer>", "</answer>", "<think>", "</think>", "\\boxed{", "\\fbox{", "}", "{", "$", "\\(", "\\)", "\\frac{1}{",
    "\\sqrt[", "]", "####", "answer is", "The answer:", "**", "^", "_", "^{", "10", "1/0", "-", "0.5", "1e999",
    "9" * 400, "10^10^10^10", "9**9**9**9", "\\pi", "\\infty", "\\text{", "x", "=", ",", ";", "and", "or", "(", ")",
    "[1,2)", "\\begin{pmatrix}", "&", "\\\\", "\\end{pmatrix}", "%", "!", "\n", "\t", "\u200b", "\u202e", "１２", "½",
    "∞", "√", "A", "(B)", "```python", "```", "```json", "def f():", "\\", "\\u0000", "\x00", "'", '"', "sin", "log",
    "mod", "cases", "\\{", "\\}", "\\left(", "\\right]", "°", "\\%",
)  # fmt: skip

values = st.one_of(
    st.sampled_from(VALUES),
    st.integers(),
    st.floats(),
    st.text(max_size=30),
    st.recursive(st.none() | st.booleans() | st.text(max_size=5), lambda one: st.lists(one, max_size=3), max_leaves=5),
)
responses = st.one_of(
    st.lists(st.sampled_from(WORDS) | st.text(max_size=4), max_size=40).map("".join),
    st.tuples(st.sampled_from(WORDS), st.integers(1, 3000)).map(lambda pair: pair[0] * pair[1]),
    st.text(max_size=200),
)


class Damage(NamedTuple):
    """One change of a file's bytes."""

    kind: str
    place: float  # in the file, 0 to below 1
    bit: int

    def of(self, data: bytes) -> bytes:
        """The damaged bytes."""
        place = int(self.place * len(data))
        return DAMAGES[self.kind](data, place, self.bit)


def _flipped(data: bytes, place: int, bit: int) -> bytes:
    if not data:
        return data
    return data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]


DAMAGES: dict[str, Callable[[bytes, int, int], bytes]] = {
    "flipped": _flipped,
    "truncated": lambda data, place, bit: data[:place],
    "zeros": lambda data, place, bit: data[:place] + bytes(16 << bit) + data[place + (16 << bit) :],
    "left out": lambda data, place, bit: data[:place] + data[place + (1 << bit) :],
    "doubled": lambda data, place, bit: data[:place] + data[: len(data) - place],
    "replaced": lambda data, place, bit: [b"", b"\n", b"[]", b"3", b"null", b"\xff\xfe\x00", b"[" * 9999, b"{}"][bit],
}
damages = st.builds(
    Damage,
    st.sampled_from(["flipped", "flipped", *DAMAGES]),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 7),
)


class Swap(NamedTuple):
    """One value of JSON in place of another one, or a key left out: what damage to bytes seldom makes."""

    place: int
    value: Any
    is_left_out: bool

    def of(self, data: bytes) -> bytes:
        """Lines of JSON, or one value, with one leaf of one line changed. What is no JSON comes back as it is."""
        lines = data.splitlines() if data.count(b"\n{") else [data]
        number = self.place % len(lines)
        try:
            value = json.loads(lines[number])
        except ValueError:
            return data
        changed = self._changed(value, self.place // len(lines))
        lines[number] = json.dumps(changed).encode()
        return b"\n".join(lines) + b"\n"

    def _changed(self, value: Any, place: int) -> Any:
        if not isinstance(value, dict | list) or not value or place % 7 == 6:
            return self.value
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = keys[place % len(keys)]
        if self.is_left_out:
            del value[key]
        else:
            value[key] = self._changed(value[key], place // len(keys))
        return value


swaps = st.builds(Swap, st.integers(0, 10**6), values, st.booleans())
