"""Check the sandbox that runs programs, where responses may be programs.

As a program (`probe.py`) this module reports the layers that isolate a program here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from brorl_graders import names_in

from brorl_launcher.doctor.probe import answer_probe, run_probe
from brorl_launcher.doctor.report import FAIL, OK, WARN, Check
from nemo_brorl.config.data import SourceConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.prompts.row_formats import row_formats

SANDBOX_DEADLINE_S = 90.0
SANDBOX = "sandbox"
SANDBOX_ADVICE = "docs/reference/sandbox.md says how to get one: bubblewrap, or user namespaces, or another container"


def possible_verifiers(source: SourceConfig) -> set[str]:
    """Return the verifiers that may score responses to prompts of this source, as far as the settings tell.

    A data row may name another verifier.
    """
    if source.environment == "python":
        return {"code"}  # the environment runs programs in the same sandbox
    if source.source == "environment":
        return set()
    if source.source == "reasoning_gym":
        return {"reasoning_gym"}
    names: set[str] = set()
    for layout in row_formats(source):
        names.update(names_in(layout.verifier, source.verifier_options))
    return names


def runs_programs(config: BroRLConfig) -> bool:
    """Return whether the run may need the verifier `code`, which runs programs."""
    return any("code" in possible_verifiers(source) for _, source in config.data.sources())


def check_sandbox(config: BroRLConfig) -> Iterator[Check]:
    """Start a sandbox for untrusted programs and check its layers of isolation.

    Yields nothing where no verifier runs programs.
    """
    if not runs_programs(config):
        return
    found = run_probe("sandbox", "layers", {}, SANDBOX_DEADLINE_S)
    if found.data is None:
        yield Check(SANDBOX, FAIL, f"the sandbox did not start: {found.reason}", SANDBOX_ADVICE)
        return
    layers = found.data["layers"].removeprefix("sandbox: ")
    gaps = "; ".join(found.data["gaps"])
    if not gaps:
        yield Check(SANDBOX, OK, layers)
    elif config.rewards.code.allow_unsandboxed:
        yield Check(SANDBOX, WARN, f"programs could {gaps}: rewards.code.allow_unsandboxed=true runs them all the same")
    else:
        yield Check(SANDBOX, FAIL, f"programs could {gaps} ({layers})", SANDBOX_ADVICE)


def sandbox_layers(_: dict[str, Any]) -> dict[str, Any]:
    """Return the isolation layers of a sandbox on this machine, and what they leave unprotected, as texts."""
    from brorl_graders.sandbox.sandbox import Sandbox

    sandbox = Sandbox(is_bare_allowed=True)
    try:
        return {"layers": str(sandbox.layers), "gaps": sandbox.layers.gaps()}
    finally:
        sandbox.close()


if __name__ == "__main__":
    answer_probe({"layers": sandbox_layers})
