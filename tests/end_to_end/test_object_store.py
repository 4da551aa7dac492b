"""Arrays and references to them, on real Ray."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import ray

from nemo_brorl.cluster.object_store import fetch, fetch_or_none, store
from nemo_brorl.training.carriers import load_carriers, save_carriers
from nemo_brorl.types import ChunkArrays, RolloutRequest, Sampling
from tests.support.fakes import make_arrays, make_chunk, make_prompt


class Owner:
    """An actor whose objects go with it."""

    def put(self, lengths: list[int]) -> list[ray.ObjectRef]:
        return [ray.put(make_arrays(list(range(len(lengths))), lengths))]


pytestmark = pytest.mark.usefixtures("cluster")


def test_stored_arrays_come_back_and_a_reference_stays_what_it_is() -> None:
    arrays = make_arrays([0, 1], [2, 3])
    reference = store(arrays)
    assert not isinstance(reference, ChunkArrays)
    assert store(reference) is reference
    assert fetch(reference).token_ids.tolist() == arrays.token_ids.tolist()
    assert fetch_or_none(arrays, timeout_s=0.0) is arrays


def test_what_is_read_from_a_file_is_in_the_object_store_again(tmp_path: Path) -> None:
    request = RolloutRequest(make_prompt(), first_index=0, num_rollouts=2, seed=1, sampling=Sampling(1.0, 1.0, 8))
    written = make_chunk(request, [2, 3])
    save_carriers(tmp_path / "chunks.npz", [replace(written, data=store(written.data))])
    (read,) = load_carriers(tmp_path / "chunks.npz")
    assert isinstance(read.data, ray.ObjectRef)
    assert fetch(read.data).token_ids.tolist() == written.data.token_ids.tolist()
    assert read.request == request


def test_what_is_gone_with_its_owner_is_none() -> None:
    owner = ray.remote(num_cpus=0)(Owner).remote()
    (reference,) = ray.get(owner.put.remote([2, 3]))
    there = fetch_or_none(reference, timeout_s=30.0)
    assert there is not None and there.offsets.tolist() == [0, 2, 5]
    del there
    (reference,) = ray.get(owner.put.remote([4]))
    ray.kill(owner)
    until = time.monotonic() + 60.0  # Ray hears of deaths a little later
    while fetch_or_none(reference, timeout_s=5.0) is not None:
        assert time.monotonic() < until, "the arrays outlived their owner"
        time.sleep(0.05)
