"""Sandbox for programs that nobody trusts: `run` for one, `Sandbox` for many. README.md says what holds them.

Standard library only, and nothing of the rest of this project.
"""

from nemo_brorl.tasks.sandbox.judging import Judge, ScriptedTest
from nemo_brorl.tasks.sandbox.limits import (
    FAILED,
    FINISHED,
    KILLED,
    LOST,
    TIMED_OUT,
    TOO_MUCH_OUTPUT,
    Layers,
    Limits,
)
from nemo_brorl.tasks.sandbox.sandbox import Job, Run, Sandbox, SandboxError, run
from nemo_brorl.tasks.sandbox.values import NotPlainError, as_json, decode

__all__ = [
    "FAILED",
    "FINISHED",
    "KILLED",
    "LOST",
    "TIMED_OUT",
    "TOO_MUCH_OUTPUT",
    "Job",
    "Judge",
    "Layers",
    "Limits",
    "NotPlainError",
    "Run",
    "Sandbox",
    "SandboxError",
    "ScriptedTest",
    "as_json",
    "decode",
    "run",
]
