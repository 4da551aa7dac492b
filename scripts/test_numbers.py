"""Run the tests marked `numbers` under settings that imitate other processors (tests/support/processors.py).

`make test-numbers` tries all settings, and ARGS="--setting avx2" one of them, by its name. Other arguments go to
pytest: ARGS="tests/unit -x". `--margins 3` also lists the assertions whose bound is less than three times the observed
value. Exits with 1 if a test failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.support.processors import SETTINGS, Setting, environment_of, this_processor

FOLDERS = ("tests/unit", "tests/end_to_end")
MARGINS = ("-p", "tests.support.margins", "-o", "enable_assertion_pass_hook=true")


@dataclass(frozen=True)
class Result:
    """Outcome of the tests marked `numbers` under one setting."""

    passed: int
    failed: Sequence[str]  # names of the failed tests
    near: Sequence[str]  # lines about assertions near their bound

    def row(self, name: str) -> str:
        return f"{name:<20} {self.passed:>6} {len(self.failed):>6}  {', '.join(self.failed)}".rstrip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", choices=[setting.name for setting in SETTINGS], action="append")
    parser.add_argument("--margins", type=float, help="list assertions that came nearer to their bound")
    options, given = parser.parse_known_args()
    processor = this_processor()
    rows = [f"{'setting':<20} {'passed':>6} {'failed':>6}  names of the failed"]
    is_good = True
    near: list[str] = []
    for setting in SETTINGS:
        if options.setting and setting.name not in options.setting:
            continue
        missing = processor.lacks(setting)
        if missing:
            rows.append(f"{setting.name}: {missing}, skipped")
            continue
        print(f"== {setting.name}", flush=True)
        result = tried(setting, given, options.margins)
        rows.append(result.row(setting.name))
        near += [f"{setting.name}: {line}" for line in result.near]
        is_good = is_good and result.passed > 0 and not result.failed
    print("\n".join([*near, *rows]))
    return 0 if is_good else 1


def tried(setting: Setting, given: Sequence[str], margin: float | None) -> Result:
    """Run the tests marked `numbers` under one setting and return the outcome."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report = folder / "report.xml"
        notes = folder / "margins"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "numbers", f"--junitxml={report}"]
        environment = environment_of(setting, folder)
        if margin is not None:
            command += MARGINS
            # Assertions compiled without the hook would be missed, so bytecode goes into another folder.
            environment |= {"BRORL_MARGINS": str(notes), "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
        if not any(argument.startswith("tests") for argument in given):
            command += FOLDERS
        code = subprocess.run([*command, *given], env=environment, check=False).returncode
        passed, failed = counted(report)
        if code and not failed:
            failed = [f"pytest itself, exit code {code}"]
        return Result(passed, failed, nearest(notes, margin or 0.0))


def counted(report: Path) -> tuple[int, list[str]]:
    """Return the number of passed tests in a JUnit report, and the names of the failed ones."""
    if not report.exists():
        return 0, []
    passed = 0
    failed = []
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(case.get("name", ""))
        elif case.find("skipped") is None:
            passed += 1
    return passed, failed


def nearest(notes: Path, margin: float) -> list[str]:
    """Return a line for every assertion whose bound is less than `margin` times the observed value."""
    if not notes.exists():
        return []
    lines = []
    for note in map(json.loads, notes.read_text().splitlines()):
        if note["bound"] < margin * note["observed"]:
            lines.append(f"{note['observed']:.1e} of {note['bound']:.1e} at {note['place']} in {note['test']}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
