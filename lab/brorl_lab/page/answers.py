"""Read what a run answered to a held-out question before and after training, as text of bounded length."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from nemo_brorl.core.files import MALFORMED
from nemo_brorl.training.records import read_records

MAX_CHARACTERS = 20_000  # longest text
FILE_NAME = re.compile(r"step_([0-9]{1,9})\.jsonl")

Part = dict[str, Any]


def before_and_after(run_folder: Path, last_step: int) -> list[Part] | None:
    """Return the rows of a held-out question in the files of the first and the last validation up to `last_step`.

    Of the questions in both files it is the one whose reward has changed most in the direction of their sum. The result
    is None without two such files.
    """
    files: dict[int, Path] = {}
    for path in (run_folder / "validations").glob("*.jsonl"):
        found = FILE_NAME.fullmatch(path.name)
        if found and int(found[1]) <= last_step:
            files[int(found[1])] = path
    if len(files) < 2:
        return None
    try:
        before, after = _by_question(files[min(files)]), _by_question(files[max(files)])
        changes = {uid: after[uid]["reward"] - row["reward"] for uid, row in before.items() if uid in after}
        sign = 1 if sum(changes.values()) >= 0 else -1
        uid = max(changes, key=lambda uid: sign * changes[uid])
        return [before[uid], after[uid]]
    except (OSError, *MALFORMED):
        return None


def _by_question(path: Path) -> dict[str, Part]:
    by_uid: dict[str, Part] = {}
    for row in read_records(path):
        by_uid[str(row["uid"])] = {
            "step": row["step"],
            "reward": float(row["reward"]),
            "is_right": bool(row["is_right"]),
            "question": shorten(str(row["question"])),
            "response": shorten(str(row["response"])),
        }
    return by_uid


def shorten(text: str) -> str:
    """Return a text cut to MAX_CHARACTERS, with the number of characters that were cut."""
    if len(text) <= MAX_CHARACTERS:
        return text
    return f"{text[:MAX_CHARACTERS]}… ({len(text) - MAX_CHARACTERS:,} more characters)"
