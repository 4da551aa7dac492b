"""The console script: `brorl COMMAND …` is `python -m nemo_brorl.COMMAND …`."""

from __future__ import annotations

import ast
import importlib.util
import runpy
import sys
from pathlib import Path

COMMANDS = ("train", "evaluate", "sft", "simulate", "plateau", "doctor", "plan", "convert")


def main() -> int:
    """Hand over to the module of the command. Exits with 2 for an unknown command, otherwise with the command's own code."""
    known = available_commands()
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.stdout.write(usage(known))
        return 0 if len(sys.argv) > 1 else 2
    command = sys.argv.pop(1)
    if command not in known:
        sys.stderr.write(f"error: there is no command '{command}'\n\n{usage(known)}")
        return 2
    sys.argv[0] = f"brorl {command}"
    runpy.run_module(f"nemo_brorl.{command}", run_name="__main__")
    return 0


def available_commands() -> dict[str, str]:
    """The commands of this version with the first sentence of each module's docstring, without importing them."""
    found: dict[str, str] = {}
    for command in COMMANDS:
        spec = importlib.util.find_spec(f"nemo_brorl.{command}")
        if spec is not None and spec.origin is not None:
            summary = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
            found[command] = summary.partition("\n")[0].rpartition("`: ")[2]
    return found


def usage(commands: dict[str, str]) -> str:
    """What `brorl --help` prints."""
    lines = [f"  {name:<10} {summary}" for name, summary in commands.items()]
    return "usage: brorl COMMAND [options]\n\n" + "\n".join(lines) + "\n\nEvery command answers --help.\n"


if __name__ == "__main__":
    sys.exit(main())
