"""A sandbox for untrusted Python programs: `run` for one program, `Sandbox` for many (README.md).

It needs the standard library alone, and no other package of this project.
"""

from brorl_graders.sandbox.judging import Judge, ScriptedTest
from brorl_graders.sandbox.limits import (
    FAILED,
    FINISHED,
    KILLED,
    LOST,
    TIMED_OUT,
    TOO_MUCH_OUTPUT,
    Layers,
    SandboxLimits,
)
from brorl_graders.sandbox.sandbox import Sandbox, SandboxError, SandboxProgram, SandboxResult, run
from brorl_graders.sandbox.values import NotPlainError, as_json, decode

__all__ = [
    "FAILED",
    "FINISHED",
    "KILLED",
    "LOST",
    "TIMED_OUT",
    "TOO_MUCH_OUTPUT",
    "Judge",
    "Layers",
    "NotPlainError",
    "Sandbox",
    "SandboxError",
    "SandboxLimits",
    "SandboxProgram",
    "SandboxResult",
    "ScriptedTest",
    "as_json",
    "decode",
    "run",
]
