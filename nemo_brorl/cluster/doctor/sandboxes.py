"""Check that programs which a policy writes would be held, where the settings may have them run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nemo_brorl.cluster.doctor.report import FAIL, OK, WARN, Check, answer, ask
from nemo_brorl.config.schema import BroRLConfig, SourceConfig
from nemo_brorl.tasks.questions.columns import row_formats
from nemo_brorl.tasks.verifiers.registry import names_in

NAME = "sandbox"
DEADLINE_S = 90.0
ADVICE = "docs/sandbox.md says how to get one: bubblewrap, or user namespaces, or another container"


def verifiers(source: SourceConfig) -> set[str]:
    """Verifiers that may score the answers of a source, as far as its settings tell: a row may name another."""
    if source.environment == "python":
        return {"code"}  # needs the same sandbox
    if source.source == "environment":
        return set()
    if source.source == "reasoning_gym":
        return {"reasoning_gym"}
    names: set[str] = set()
    for layout in row_formats(source):
        names.update(names_in(layout.verifier, source.verifier_options))
    return names


def runs_programs(config: BroRLConfig) -> bool:
    """Whether the verifier `code` may be needed."""
    return any("code" in verifiers(source) for _, source in config.data.sources())


def check_sandbox(config: BroRLConfig) -> Iterator[Check]:
    """Start one and ask what holds; nothing where no program is run."""
    if not runs_programs(config):
        return
    found = ask("sandboxes", "layers", {}, DEADLINE_S)
    if found.data is None:
        yield Check(NAME, FAIL, f"the sandbox did not start: {found.reason}", ADVICE)
        return
    layers = found.data["layers"].removeprefix("sandbox: ")
    gaps = "; ".join(found.data["gaps"])
    if not gaps:
        yield Check(NAME, OK, layers)
    elif config.rewards.code.allow_unsandboxed:
        yield Check(NAME, WARN, f"programs could {gaps}: rewards.code.allow_unsandboxed=true runs them all the same")
    else:
        yield Check(NAME, FAIL, f"programs could {gaps} ({layers})", ADVICE)


def layers(_: dict[str, Any]) -> dict[str, Any]:
    """What holds a program on this machine."""
    from nemo_brorl.tasks.sandbox.sandbox import Sandbox

    sandbox = Sandbox(is_bare_allowed=True)
    try:
        return {"layers": str(sandbox.layers), "gaps": sandbox.layers.gaps()}
    finally:
        sandbox.close()


if __name__ == "__main__":
    answer({"layers": layers})
