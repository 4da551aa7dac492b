"""A string from the environment has its value for code, and its unresolved text in files and messages."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from brorl_graders.base.environment_values import FromEnvironment, as_written, plain, remember, restored

KEY = FromEnvironment("value-1", "${oc.env:KEY}")


@dataclass
class KeyedOptions:
    key: str
    options: dict[str, Any] = field(default_factory=dict)


def test_it_is_its_value() -> None:
    assert KEY == "value-1"
    assert hash(KEY) == hash("value-1")
    assert f"Bearer {KEY}" == "Bearer value-1"
    assert json.dumps({"key": KEY}) == '{"key": "value-1"}'


def test_what_shows_mappings_shows_what_was_written() -> None:
    shown = f"{ {'key': KEY} } {[KEY]!r} {KeyedOptions(KEY, {'a': KEY})} {KEY!r} %r" % (KEY,)
    assert "value-1" not in shown
    assert shown.count("${oc.env:KEY}") == 6


def test_copies_keep_both_texts() -> None:
    part = KeyedOptions("", {"key": KEY})
    copies = [
        pickle.loads(pickle.dumps(part)),
        copy.deepcopy(part),
        copy.copy(part),
        KeyedOptions(**asdict(part)),
        replace(part, key="x"),
        KeyedOptions("", {**part.options}),
    ]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        copies.append(KeyedOptions("", {"key": pickle.loads(pickle.dumps(KEY, protocol))}))
    for made in copies:
        found = made.options["key"]
        assert type(found) is FromEnvironment
        assert (str(found), found.written) == ("value-1", "${oc.env:KEY}")


def test_everything_is_written_as_it_stood_at_any_depth() -> None:
    whole = KeyedOptions(KEY, {"a": [KEY, ("x", KEY)], "b": {"c": KEY, "d": 1}})
    text = "${oc.env:KEY}"
    assert as_written(whole) == KeyedOptions(text, {"a": [text, ("x", text)], "b": {"c": text, "d": 1}})
    assert whole.options["b"]["c"] == "value-1"
    ordinary = plain(whole)
    assert ordinary == whole
    assert type(ordinary.key) is type(ordinary.options["a"][1][1]) is str


def test_a_file_brings_back_values_of_this_processs_settings_and_no_others() -> None:
    remember([KEY])
    read = {"a": ["${oc.env:KEY}", "${oc.env:OTHER}", "x ${oc.env:KEY}", 3], "b": "value-1"}
    found = restored(read)
    assert found == {"a": ["value-1", "${oc.env:OTHER}", "x ${oc.env:KEY}", 3], "b": "value-1"}
    assert type(found["a"][0]) is FromEnvironment
    assert type(found["b"]) is str
    assert as_written(found) == {**read}
