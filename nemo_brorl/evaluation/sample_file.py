"""Write a few responses of an evaluation as text, so that users can read them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from nemo_brorl.cluster.object_store import fetch
from nemo_brorl.core.files import naming
from nemo_brorl.evaluation.shown_responses import Decode
from nemo_brorl.types import ScoredGroup


class SampleFile:
    """File with the first responses of each prompt as text.

    A prompt that is sampled again after a crash may occur twice.
    """

    def __init__(self, path: Path, num: int, decode: Decode) -> None:
        self.path = path
        self.num = num
        self.decode = decode
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            # A killed writer may leave half a line at the end, which is cut off.
            file.seek(0)
            num_whole = file.read().rfind(b"\n") + 1
            file.truncate(num_whole)

    def add(self, group: ScoredGroup) -> None:
        """Write the first responses to a prompt to the file of samples, one JSON line each. Raises ResourceError."""
        question = self.decode(group.prompt.token_ids)
        with naming(self.path), self.path.open("a", encoding="utf-8") as file:
            for place, text in enumerate(self._texts(group)):
                answer = None if group.answers is None else group.answers[place]
                is_stopped = bool(group.group.is_stopped[place])
                row = {
                    "uid": group.prompt.uid,
                    "sample": place,
                    "prompt": question,
                    "response": text,
                    "reward": float(group.rewards[place]),
                    "answer": answer,
                    "is_truncated": not is_stopped,
                }
                line = json.dumps(row)
                file.write(f"{line}\n")

    def _texts(self, group: ScoredGroup) -> list[str]:
        texts: list[str] = []
        for chunk in group.group.chunks:
            if len(texts) >= self.num:
                break
            arrays = fetch(chunk.data)
            for low, high in pairwise(arrays.offsets.tolist()):
                token_ids = arrays.token_ids[low:high]
                texts.append(self.decode(token_ids.tolist()))
        return texts[: self.num]
