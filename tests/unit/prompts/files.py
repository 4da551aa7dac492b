"""Small files in the formats that prompts are read from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def write_jsonl(path: Path, rows: Sequence[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_parquet(path: Path, rows: Sequence[Row], row_group_size: int = 1000) -> Path:
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path, row_group_size=row_group_size)
    return path


def write_saved_dataset(folder: Path, rows: Sequence[Row], num_shards: int = 1, batch_rows: int = 2) -> Path:
    """What `datasets.Dataset.save_to_disk` leaves: Arrow streams in small record batches, and `state.json` that names
    them."""
    import pyarrow

    folder.mkdir(parents=True)
    names = [f"data-{shard:05d}-of-{num_shards:05d}.arrow" for shard in range(num_shards)]
    for shard, name in enumerate(names):
        table = pyarrow.Table.from_pylist(
            list(rows)[shard::num_shards], schema=pyarrow.Table.from_pylist(list(rows)).schema
        )
        with pyarrow.OSFile(str(folder / name), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=batch_rows)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0123", "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {}}))
    return folder


def plain_rows(num: int, prefix: str = "q") -> list[Row]:
    return [{"prompt": f"{prefix}{n}", "answer": str(n)} for n in range(num)]
