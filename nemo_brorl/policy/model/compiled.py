"""torch.compile as the policy uses it: for any number of tokens, as a whole, and never quietly uncompiled.

What torch has compiled for too many kinds of input it runs as it stands, which for attention writes down every pair of
tokens. So that is an error here, as is a part of a function that cannot be compiled.
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


def fail_rather_than_run_uncompiled() -> None:
    """For the whole process, before anything is compiled."""
    torch._dynamo.config.fail_on_recompile_limit_hit = True


def forget_compiled() -> None:
    """Start afresh: a process that makes one model after another would reach the limit of kinds of input."""
    torch._dynamo.reset()
    compiled.cache_clear()
