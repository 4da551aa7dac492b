"""What this package uses of Ray's inside, against the Ray that is installed."""

from __future__ import annotations

import importlib
import inspect
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorClass, ActorMethod, method

from nemo_brorl.cluster import ray_adapter
from nemo_brorl.cluster.ray_adapter import VERSION, is_lost_at_start, start_stream, system_options
from tests.support.source_tree import ROOT, package_files

PACKAGE = Path(inspect.getsourcefile(ray) or "").parent


def test_the_adapter_is_written_against_the_version_that_is_pinned_and_installed() -> None:
    pinned = set(re.findall(r"\"ray(?:\[\w+\])?==([\d.]+)\"", (ROOT / "pyproject.toml").read_text()))
    assert pinned == {VERSION}
    assert metadata.version("ray") == VERSION


def test_ray_is_started_with_options_that_it_has(tmp_path: Path) -> None:
    assert system_options(None).keys() < system_options(tmp_path).keys()
    taken = (PACKAGE / "_private" / "worker.py").read_text()
    parameters = inspect.signature(ray.init).parameters
    for name in system_options(tmp_path):
        assert name in parameters or f'kwargs.pop("{name}"' in taken
    for setting in system_options(None)["_system_config"]:
        assert setting.encode() in (PACKAGE / "_raylet.so").read_bytes()


def test_ray_says_what_a_start_that_may_be_tried_again_is_known_by() -> None:
    said = (PACKAGE / "_private" / "node.py").read_text().replace("{'start' if self.head else 'connect to'}", "start")
    for words in ray_adapter._LOST_AT_START:
        assert words in said
        assert is_lost_at_start(RuntimeError(f"Ray: {words} today"))
    assert not is_lost_at_start(RuntimeError("no Ray today"))


def test_actors_have_the_method_that_ends_them_in_order() -> None:
    assert "def __ray_terminate__(self)" in inspect.getsource(inspect.getmodule(ActorClass) or ray)


class Streaming:
    """A method of an actor: takes options as Ray's does, and is called."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}

    def options(self, **options: Any) -> Streaming:
        self.asked = options
        return self

    def remote(self) -> str:
        return "references"


def test_a_stream_is_asked_for_with_options_that_ray_has() -> None:
    streaming = Streaming()
    assert start_stream(streaming) == "references"
    assert streaming.asked == {"num_returns": "streaming"}
    start_stream(streaming, num_ahead=1)
    assert streaming.asked["_generator_backpressure_num_objects"] == 1
    for name in streaming.asked:
        assert f'"{name}"' in inspect.getsource(method)
        assert name.lstrip("_") in str(inspect.signature(ActorMethod.__init__))


def test_private_names_of_ray_stand_in_the_adapter_alone() -> None:
    private = re.compile(r"ray\._|__ray_|_generator_backpressure|\"_system_config\"|\"_temp_dir\"")
    users = {path.name for path in package_files() if private.search(path.read_text(encoding="utf-8"))}
    assert users == {"ray_adapter.py"}


def test_ray_starts_without_the_monitor_that_answers_anybody() -> None:
    node = importlib.import_module("ray._private.node").Node
    start = node.start_monitor
    assert "self.start_monitor()" in inspect.getsource(node.start_head_processes)
    with ray_adapter.without_monitor():
        assert node.start_monitor is not start
        assert node.start_monitor(None) is None
    assert node.start_monitor is start
    assert '"--no-monitor"' in (PACKAGE / "scripts" / "scripts.py").read_text()
