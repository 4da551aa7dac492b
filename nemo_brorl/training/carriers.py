"""Dataclasses on disk: JSON with the arrays in one npz file, without pickle.

A value is written with the name of its type and read back by it, so new fields need no change here. References into the
object store are resolved. When a file is read, tokens go into the object store again (if Ray runs), so that only
processes that need them get them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from brorl_graders.base.environment_values import as_written, restored
from brorl_graders.base.foreign import DIGITS, VAST, open_record, read_json

from nemo_brorl import types
from nemo_brorl.cluster.object_store import fetch, store
from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.core.files import MALFORMED

MAX_DEPTH = 256  # lists and objects in each other; a row of data may have 64, each of which is written as two
_PLAIN = (str, int, float, bool, type(None))


def save_carriers(path: Path, carriers: Sequence[Any]) -> None:
    """Write dataclasses such as `ScoredGroup`, which hold a run's rollouts, and their arrays to a file.

    Dataclasses may be nested in dataclasses, sequences and mappings.
    """
    arrays: dict[str, Any] = {}
    records = [_record(carrier, arrays) for carrier in carriers]
    text = json.dumps(records).encode()
    np.savez(path, records=np.frombuffer(text, np.uint8), **arrays)


def load_carriers(path: Path, *kinds: type) -> list[Any]:
    """Read the dataclasses in a file that `save_carriers` wrote.

    `kinds` are dataclasses in the file that `nemo_brorl/types.py` does not define. Raises CheckpointError for a damaged
    file, or one of another version of this program.
    """
    known = _own_kinds() | {kind.__name__: kind for kind in kinds}
    try:
        with open_record(path, VAST) as file, np.load(file) as arrays:
            text = arrays["records"].tobytes()
            records = read_json(text, depth=MAX_DEPTH, digits=DIGITS, most_bytes=len(text))
            return [_value(record, known, arrays) for record in records]
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} was written by another version of this program ({error}): start a new run folder"
        ) from error
    except (OSError, *MALFORMED) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def _record(value: Any, arrays: dict[str, Any]) -> Any:
    """Convert a value to JSON and add the value's arrays to `arrays`.

    Texts that came from environment variables are written as `${oc.env:NAME}`.
    """
    if isinstance(value, str):
        return as_written(value)
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, np.ndarray):
        name = str(len(arrays))
        arrays[name] = value
        return {"array": name}
    if dataclasses.is_dataclass(value):
        # Cached properties are in the instance's dict, too. Only the fields are its state.
        names = [field.name for field in dataclasses.fields(value)]
        return {"type": type(value).__name__, "fields": {name: _record(getattr(value, name), arrays) for name in names}}
    if isinstance(value, list | tuple):
        items = [_record(item, arrays) for item in value]
        return {"items": items, "is_tuple": isinstance(value, tuple)}
    if isinstance(value, Mapping):
        return {"mapping": {key: _record(item, arrays) for key, item in value.items()}}
    return _record(fetch(value), arrays)


def _value(record: Any, known: Mapping[str, type], arrays: Any) -> Any:
    if isinstance(record, str):
        return restored(record)
    if isinstance(record, _PLAIN):
        return record
    if "array" in record:
        return arrays[record["array"]]
    if "type" in record:
        kind = known[record["type"]]
        fields = {name: _value(field, known, arrays) for name, field in record["fields"].items()}
        return store(kind(**fields))
    if "items" in record:
        items = [_value(item, known, arrays) for item in record["items"]]
        return tuple(items) if record["is_tuple"] else items
    return {key: _value(item, known, arrays) for key, item in record["mapping"].items()}


def _own_kinds() -> dict[str, type]:
    kinds = [kind for kind in vars(types).values() if isinstance(kind, type)]
    return {kind.__name__: kind for kind in kinds if dataclasses.is_dataclass(kind)}
