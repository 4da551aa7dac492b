"""Sandbox for programs that nobody trusts: `run` for one, `Sandbox` for many. README.md says what holds them.

Standard library only, and nothing of the rest of this project.
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
