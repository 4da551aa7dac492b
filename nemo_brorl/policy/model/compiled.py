"""torch.compile as the policy uses it: for any number of tokens, as a whole, and never quietly uncompiled.

What torch has compiled for too many kinds of input it runs as it stands, which for attention writes down every pair of
tokens. With `fullgraph` that is an error, as is a part of a function that cannot be compiled; torch's switch for the
whole process would also end runs in which one of Megatron's small functions does better uncompiled.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch


@cache
def compiled(function: Any, **constants: Any) -> Any:
    """A function compiled once for inputs of all sizes, with some arguments fixed: a number that could change would be
    one more input of the kernel."""
    fixed = partial(function, **constants) if constants else function
    return torch.compile(fixed, dynamic=True, fullgraph=True)


def forget_compiled() -> None:
    """Start afresh: a process that makes one model after another would reach the limit of kinds of input."""
    torch._dynamo.reset()
    compiled.cache_clear()
