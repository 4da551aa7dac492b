"""What is compiled for too many kinds of input is an error, not run as it stands."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._dynamo.testing import CompileCounter

from nemo_brorl.policy.process.device import compiled, forget_compiled


def scaled(tensor: torch.Tensor, by: float) -> torch.Tensor:
    return tensor * by


def test_a_function_compiled_for_too_many_kinds_of_input_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kind is allowed here, where it is eight; other lengths are the same kind, another format is not."""
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    forget_compiled()
    with torch._dynamo.config.patch(recompile_limit=1):
        double = compiled(scaled, by=2.0)
        for length in (3, 4, 9):
            assert double(torch.ones(length)).sum() == 2 * length
        assert counter.frame_count == 1
        with pytest.raises(FailOnRecompileLimitHit):
            double(torch.ones(3, dtype=torch.float64))
    forget_compiled()


def test_functions_do_not_count_against_each_others_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotations forward and back, attention, its mask and log-probs are more kinds together than torch allows for
    one."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=CompileCounter()))
    forget_compiled()
    with torch._dynamo.config.patch(recompile_limit=1):
        for by in (1.0, -1.0, 3.0):
            assert compiled(scaled, by=by)(torch.ones(3)).sum() == 3 * by
        assert compiled(torch.nn.functional.relu)(torch.ones(3)).sum() == 3
        assert compiled(torch.nn.functional.silu)(torch.zeros(3)).sum() == 0
    forget_compiled()
