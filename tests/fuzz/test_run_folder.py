"""Files of a run folder that a broken disk or a stranger has changed: read, left out, or one message."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_brorl.core.errors import BroRLError
from nemo_brorl.rollouts.carried_groups import CarriedGroups
from nemo_brorl.training.checkpoint import Checkpoints, CutStep, RunState
from nemo_brorl.training.marker import MARKER, write_marker
from nemo_brorl.training.saver import Saver
from nemo_brorl.types import RolloutRequest, Sampling
from tests.fuzz.hostile import Damage, Swap, damages, swaps
from tests.fuzz.profile import fuzz, no_hang
from tests.support.fakes import FakePolicy, make_chunk, make_group, make_prompt, score_chunk
from tests.support.run_readers import READERS, put_healthy

TIMELINE = "timeline/step_000002.trace.json.gz"  # whoever asks for a step of it knows that it is there
IN_CHECKPOINTS = ("step_4/state.json", "step_4/groups.npz", "step_4/COMPLETE", "cut_step.npz")


@pytest.fixture(scope="module")
def healthy() -> Iterator[Path]:
    """A run whose every file can be read."""
    with tempfile.TemporaryDirectory() as folder:
        yield put_healthy(Path(folder))


@pytest.fixture(scope="module")
def checkpoints() -> Iterator[Checkpoints]:
    """Checkpoints of two steps, and a part of the step after them."""
    with tempfile.TemporaryDirectory() as folder:
        made = Checkpoints(Path(folder), keep=2)
        for step in (2, 4):
            groups = CarriedGroups(kept=(make_group([0.0, 1.0], uid=f"train/{step}"),))
            Saver(made, FakePolicy(), in_background=False).save(RunState(step, {"version": step}, groups), wait=True)
        chunk = make_chunk(RolloutRequest(make_prompt(), 0, 2, 1, Sampling(1.0, 1.0, 8)), [2, 3])
        made.save_cut_step(CutStep(4, (score_chunk(chunk, [0.0, 1.0]),)))
        yield made


@contextlib.contextmanager
def kept(path: Path) -> Iterator[bytes]:
    """What is in a file, which is in it again afterwards."""
    content = path.read_bytes()
    try:
        yield content
    finally:
        path.write_bytes(content)


@fuzz(0.1)
@given(st.sampled_from(sorted(READERS)), damages | swaps)
def test_whoever_reads_a_changed_file_says_so_or_goes_on_without_it(
    healthy: Path, name: str, change: Damage | Swap
) -> None:
    for read in READERS[name]:
        missing = (FileNotFoundError,) if name == TIMELINE else ()
        with kept(healthy / name) as content, no_hang(name), contextlib.suppress(BroRLError, *missing):
            (healthy / name).write_bytes(change.of(content))
            read(healthy)


@fuzz(0.05)
@given(st.sampled_from(IN_CHECKPOINTS), damages | swaps, st.booleans())
def test_a_changed_checkpoint_is_gone_on_from_or_the_one_before(
    checkpoints: Checkpoints, name: str, change: Damage | Swap, is_marked_anew: bool
) -> None:
    newest = checkpoints.folder / "step_4"
    path = checkpoints.folder / name
    with kept(newest / MARKER), kept(path) as content, no_hang(name):
        path.write_bytes(change.of(content))
        if is_marked_anew:  # by a stranger, who knows how: the sums fit
            write_marker(newest)
        checkpoints.unreadable.clear()
        run = checkpoints.load_newest(FakePolicy().load)
        checkpoints.load_cut_step(4)
    assert run is not None
