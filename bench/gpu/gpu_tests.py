"""Part a: run `pytest -m gpu`, and count how many of the GPU tests pass, fail and are skipped.

Files run side by side, because most of the time is compilation. `engine_tests` are the tests that start an engine,
which takes a share of the whole card.

    python -m bench.gpu.gpu_tests [--tiny] [--results FOLDER] [--select EXPRESSION]

With `--tiny` they are only collected.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

from bench.gpu.record import Row
from bench.gpu.setting import open_setting

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "gpu"
WITH_ENGINE = ("test_engine.py", "test_weight_transports.py")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the GPU tests part to its parser."""
    parser.add_argument("--select", default="", help="pytest's -k")


def run_tests(part: str, description: str | None, files: Sequence[str], num_processes: int = 0) -> None:
    """Run pytest on these files, in that many processes beside it, and read its report."""
    setting = open_setting(part, description, add_arguments)
    results, report = setting.results, setting.results.path.with_suffix(".junit.xml")
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", f"--junitxml={report}"]
    command += [str(FOLDER / name) for name in files]
    command += ["-n", str(num_processes), "--dist", "loadfile"]
    if setting.extra.select:
        command += ["-k", setting.extra.select]
    report.unlink(missing_ok=True)
    code = subprocess.run([*command, "--collect-only", "-q"] if setting.is_tiny else command, check=False).returncode
    if setting.is_tiny:
        results.add(Row("GPU tests can be collected", float(code == 0), "", at_least=1))
    else:
        (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
        num = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
        failed = num["failures"] + num["errors"]
        results.add(Row("tests that pass", num["tests"] - failed - num["skipped"], "", at_least=1))
        results.add(Row("tests that fail", failed, "", at_most=0))
        results.add(Row("tests that are skipped", num["skipped"], "", note="the log says why"))
        results.detail(
            "failed", [case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None]
        )
    results.finish()


def main() -> None:
    """All files but those of engines."""
    files = sorted(path.name for path in FOLDER.glob("test_*.py") if path.name not in WITH_ENGINE)
    run_tests("gpu_tests", __doc__, files, num_processes=len(files))


if __name__ == "__main__":
    main()
