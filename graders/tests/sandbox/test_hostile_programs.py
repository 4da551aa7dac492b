"""Every hostile program of the corpus is contained: nothing of it is alive afterwards, the host is as it was, and it
scores nothing."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from brorl_graders.sandbox.limits import MIB, SandboxLimits
from brorl_graders.sandbox.sandbox import Sandbox, SandboxProgram
from brorl_graders.verifiers.code import code
from brorl_graders.verifiers.code.code import Program
from brorl_graders.verifiers.code.tests import ComparisonRules, PrintTest, read_tests

from graders.tests.support.hostile_host import Host, descendants, hostile_programs

pytestmark = pytest.mark.slow

PROGRAMS = hostile_programs()
# for each hostile run; what the machine's load takes from an honest one must not matter, so that has more
SECONDS = 0.5
LIMITS = SandboxLimits(60, memory_mib=128, scratch_mib=4, file_mib=4, output_kib=256, processes=6, open_files=32)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    os.environ["CANARY"] = "CANARY"
    with Host(tmp_path_factory.mktemp("host"), LIMITS.scratch_mib * MIB) as host:
        yield host
    del os.environ["CANARY"]


@pytest.fixture(scope="module")
def runner(host: Host) -> Iterator[code.Runner]:
    runner = code.Runner(Sandbox(LIMITS), SECONDS)
    yield runner
    runner.close()


def test_the_corpus_is_large() -> None:
    assert len(PROGRAMS) >= 100


@pytest.mark.parametrize("name", [name for name in PROGRAMS if not name.startswith("deceit")])
def test_a_hostile_program_is_contained(name: str, host: Host, runner: code.Runner) -> None:
    source = host.fill_in(PROGRAMS[name])
    run = runner.sandbox.run(SandboxProgram(source), SECONDS)
    assert "ESCAPED" not in run.printed and "CANARY" not in run.printed
    assert _what_is_left(runner, host) == []
    assert not PrintTest("", str(host.answer)).passes(run, ComparisonRules())


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name.startswith("deceit")])
def test_a_deceitful_program_scores_nothing(name: str, host: Host, runner: code.Runner) -> None:
    source = host.fill_in(PROGRAMS[name])
    payload = {
        "inputs": [[5], [6]],
        "outputs": [host.answer, [host.answer]],
        "fn_name": "f",
        "asserts": [f"assert f(5) == {host.answer}", f"assert abs(f(7) - {host.answer}.5) < 1e-3"],
        "script": f"def check(candidate):\n    assert candidate(5) == {host.answer}\n    assert candidate(6) in "
        f"[{host.answer}]",
        "entry_point": "f",
    }
    for isolation in code.ISOLATIONS:
        outcomes = list(
            code.run_tests(Program(source), read_tests(payload), payload | {"isolation": isolation}, runner)
        )
        assert outcomes == [False] * 5
    assert _what_is_left(runner, host) == []


def test_what_a_program_writes_to_shared_memory_goes_with_its_scratch_folder(host: Host, runner: code.Runner) -> None:
    writes = "open('/dev/shm/written', 'w').write('for the next')\nprint('written')"
    reads = "import os\nprint(os.path.exists('/dev/shm/written'))"
    try:
        assert runner.sandbox.run(SandboxProgram(writes), SECONDS).printed in (
            "written\n",
            "",
        )  # "": no mount namespace
        assert runner.sandbox.run(SandboxProgram(reads), SECONDS).printed == "False\n"
        assert not Path("/dev/shm/written").exists()
    finally:
        Path("/dev/shm/written").unlink(missing_ok=True)
    assert _what_is_left(runner, host) == []


def test_the_same_sandbox_serves_honest_programs_after_all_that(runner: code.Runner) -> None:
    patient = dataclasses.replace(runner, seconds=LIMITS.seconds)
    payload = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3", "7"]}
    program = Program("print(sum(map(int, input().split())))")
    assert list(code.run_tests(program, read_tests(payload), payload, patient)) == [True, True]
    assert runner.sandbox.num_lost == 0


def _what_is_left(runner: code.Runner, host: Host) -> list[object]:
    """Return processes other than the fork server, and files and sockets that a program has touched."""
    below = descendants(runner.sandbox.process_id)
    return [*below[1 if runner.sandbox.layers.pid else 0 :], *host.touched()]
