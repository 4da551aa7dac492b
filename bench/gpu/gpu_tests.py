"""a: `pytest -m gpu`: how many of the GPU tests pass, fail and are skipped.

    python -m bench.gpu.gpu_tests [--tiny] [--results FOLDER] [--select EXPRESSION]

With `--tiny` they are only collected.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

from bench.gpu.record import Row
from bench.gpu.setting import open_setting


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of this part."""
    parser.add_argument("--select", default="", help="pytest's -k")


def main() -> None:
    """Run pytest and read its report."""
    setting = open_setting("gpu_tests", __doc__, add_arguments)
    results, report = setting.results, setting.results.path.with_suffix(".junit.xml")
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "tests/gpu", "-p", "no:cacheprovider", f"--junitxml={report}"]
    if setting.extra.select:
        command += ["-k", setting.extra.select]
    report.unlink(missing_ok=True)
    code = subprocess.run([*command, "--collect-only", "-q"] if setting.is_tiny else command, check=False).returncode
    if setting.is_tiny:
        results.add(Row("GPU tests that can be collected", float(code == 0), "", at_least=1))
    else:
        (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
        num = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
        failed = num["failures"] + num["errors"]
        results.add(Row("tests that pass", num["tests"] - failed - num["skipped"], "", at_least=1))
        results.add(Row("tests that fail", failed, "", at_most=0))
        results.add(Row("tests that are skipped", num["skipped"], "", note="the log says why"))
        results.detail("failed", [case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None])
    results.finish()


if __name__ == "__main__":
    main()
