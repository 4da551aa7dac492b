"""What services have said, remembered by a worker and written to the run folder (`service_answers/`): a run that is
started again takes it from there, and another run may replay it."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from nemo_brorl.config.schema import ServicesConfig
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.tasks.verifiers.services import shown_url

FOLDER = "service_answers"  # of a run folder
MAX_REASON = 2000  # characters that are recorded
MAX_KEPT = 300  # characters that are kept in memory


class KnownAnswer(NamedTuple):
    """What a service has said of a text."""

    score: float
    reason: str


class KnownAnswers:
    """Scores by key of prompt and text, at most `rewards.services.cache_size`, those used last."""

    def __init__(
        self,
        settings: ServicesConfig,
        folder: Path | None,
        worker: int,
    ) -> None:
        """`folder`: where answers are recorded, by worker; None: nowhere. Raises ConfigError when what is to be
        replayed is not there."""
        self.settings = settings
        self.answers: OrderedDict[bytes, KnownAnswer] = OrderedDict()  # the oldest first
        self._record = None
        if settings.replay is not None:
            self._load(_recorded(settings.replay))
        elif folder is not None and settings.record:
            folder.mkdir(parents=True, exist_ok=True)
            self._load(sorted(folder.glob("*.jsonl")))
            path = folder / f"worker_{worker}.jsonl"
            self._record = path.open("a", buffering=1, encoding="utf-8")

    def find(self, key: bytes) -> KnownAnswer | None:
        """What was said; None where nothing is known."""
        if key in self.answers:
            self.answers.move_to_end(key)
        return self.answers.get(key)

    def note(
        self,
        verifier: str,
        key: bytes,
        score: float,
        reason: str,
    ) -> None:
        """Keep an answer."""
        self._remember(key, KnownAnswer(score, reason[:MAX_KEPT]))
        if self._record is not None:
            row = {
                "key": key.hex(),
                "verifier": shown_url(verifier),
                "score": score,
                "reason": reason[:MAX_REASON],
            }
            self._record.write(json.dumps(row) + "\n")

    def _remember(self, key: bytes, answer: KnownAnswer) -> None:
        self.answers[key] = answer
        self.answers.move_to_end(key)
        if self.settings.replay is not None:
            return
        if len(self.answers) > self.settings.cache_size:
            self.answers.popitem(last=False)

    def close(self) -> None:
        """Close the record."""
        if self._record is not None:
            self._record.close()

    def _load(self, paths: Sequence[Path]) -> None:
        """Know what was recorded."""
        for path in paths:
            for key, answer in _answers(path):
                self._remember(key, answer)


def _recorded(place: str) -> list[Path]:
    """The files of a record: one, those of a folder, or those of a run folder. Raises ConfigError."""
    path = Path(place)
    if path.is_file():
        return [path]
    inside = path / FOLDER
    folder = inside if inside.is_dir() else path
    found = sorted(folder.glob("*.jsonl"))
    if not found:
        raise ConfigError(f"rewards.services.replay={place} holds no answers: write a run folder that has {FOLDER}/")
    return found


def _answers(path: Path) -> Iterator[tuple[bytes, KnownAnswer]]:
    """Keys and answers; a half-written last line is passed over."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            key = bytes.fromhex(row["key"])
            reason = str(row.get("reason", ""))
            yield key, KnownAnswer(float(row["score"]), reason[:MAX_KEPT])
