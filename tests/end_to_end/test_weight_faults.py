"""Publications between light Ray actors that hang or die on purpose: real Gloo, real timeouts, no Megatron and no
vLLM."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from nemo_brorl.cluster.actor_transport import RayTransport
from nemo_brorl.config.generation import GenerationConfig
from nemo_brorl.core.errors import ReceiverLostError, WeightSyncError
from nemo_brorl.generation.engine_handle import EngineHandle, EngineReady
from nemo_brorl.types import BucketNotice, StreamedBucket, TensorInfo, WeightLink
from nemo_brorl.weights import rendezvous
from nemo_brorl.weights.flat import check_bytes
from nemo_brorl.weights.incoming import IncomingWeights, LoadReport
from nemo_brorl.weights.publication import publish
from nemo_brorl.weights.receivers import WeightReceivers
from nemo_brorl.weights.sender import WeightSender
from nemo_brorl.weights.source import WeightSource

HOST = "127.0.0.1"
WEIGHTS = [(f"w{i}", torch.full((64,), float(i))) for i in range(6)]  # one a bucket
MANIFEST = [TensorInfo(name, (64,), "float32") for name, _ in WEIGHTS]
TIMEOUT_S = 3.0


class LightRank:
    """Sends WEIGHTS; hangs before bucket `hangs_at`."""

    def __init__(self, number: int, hangs_at: int | None) -> None:
        self.number, self.hangs_at = number, hangs_at
        self.sender = WeightSender("collective", number == 0)

    def ready(self) -> None:
        pass

    def call(self, method: str) -> list[TensorInfo]:
        assert method == "weight_manifest"
        return MANIFEST

    def open_weight_link(self, receivers: tuple[str, ...]) -> WeightLink:
        self.sender.group = None
        self.store = rendezvous.open_store(HOST)
        return WeightLink(HOST, self.store.port, receivers, 1, "gloo", TIMEOUT_S)

    def join_weight_link(self, link: WeightLink) -> None:
        self.sender.group = rendezvous.wait_for_receivers(link, self.store)

    def stream_weights(self) -> Iterator[Any]:
        yield from self.sender.stream(self.weights(), limit=256)

    def weights(self) -> Iterator[Any]:
        for number, named in enumerate(WEIGHTS):
            if number == self.hangs_at:
                threading.Event().wait()
            yield named


class LightEngine:
    """Takes broadcasts; the engines started in one place one after the other misbehave as `faults` say."""

    def __init__(self, index: int, folder: str, faults: Sequence[str], cache_bytes: int = 0) -> None:
        earlier = len(list(Path(folder).glob(f"{index}_*")))
        (Path(folder) / f"{index}_{earlier}").touch()
        self.index, self.fault = index, faults[earlier] if earlier < len(faults) else "none"
        self.num_loaded = 0

    def misbehave(self, now: str) -> None:
        if self.fault == f"hang {now}":
            threading.Event().wait()
        if self.fault == f"die {now}":
            os._exit(1)

    def ready(self) -> EngineReady:
        return EngineReady(self.index, os.getpid(), 0.0, 0.0)

    def join_weight_link(self, link: WeightLink, number: int) -> None:
        self.misbehave("joining")
        self.group = rendezvous.join(link, number, 0)

    def begin_weights(self, manifest: Sequence[TensorInfo]) -> None:
        self.incoming = IncomingWeights(manifest)

    def receive_weights(self, notice: BucketNotice) -> None:
        self.misbehave(f"at {self.num_loaded}")
        self.incoming.accept(notice)
        flat = torch.zeros(256, dtype=torch.uint8)
        self.group.broadcast(flat)
        check_bytes(notice, flat)
        self.num_loaded += 1

    def finish_weights(self, version: int) -> LoadReport:
        return self.incoming.finish(version)


class LightPolicy:
    """The weight part of the Policy port over light ranks."""

    weight_transport = "collective"

    def __init__(self, *hangs_at: int | None) -> None:
        generation = GenerationConfig(weight_timeout_s=TIMEOUT_S, weight_bucket_mib=256 / 2**20)
        self.ranks = [ray.remote(num_cpus=0.1)(LightRank).remote(number, at) for number, at in enumerate(hangs_at)]
        ray.get([rank.ready.remote() for rank in self.ranks])
        self.source = WeightSource(
            self.ranks,
            generation,
            self.weight_transport,
            lambda calls, _: ray.get([reference for _, reference in calls]),
        )
        self.weight_manifest, self.open_weight_link = self.source.manifest, self.source.open_link

    def weight_stream(self) -> Iterator[StreamedBucket]:
        yield from self.source.stream(lambda: None)


class LightGenerator:
    """The weight part of the Generator port over light engines."""

    def __init__(self, folder: Path, *faults: Sequence[str]) -> None:
        actor = ray.remote(num_cpus=0.1, max_restarts=0)(LightEngine)
        transport = RayTransport()
        self.handles = []
        for index, fault in enumerate(faults):
            start_actor = partial(actor.remote, index, str(folder), fault)
            self.handles.append(EngineHandle(index, start_actor, 5, 60.0, transport))
        self.receivers = self.receivers_of(self.handles)

    def receivers_of(self, handles: Sequence[EngineHandle]) -> WeightReceivers:
        return WeightReceivers(handles, TIMEOUT_S, len(handles), "collective", handles[0]._transport)


pytestmark = pytest.mark.usefixtures("cluster")


def test_engines_that_fail_a_broadcast_are_named_and_replaced_and_the_next_attempt_succeeds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy, generator = LightPolicy(None), LightGenerator(tmp_path, ["hang joining", "none", "die at 2"], ["hang at 3"])
    with pytest.raises(ReceiverLostError) as caught:
        publish(policy, generator.receivers, version=1)
    assert "published again: engine 0 did not join the weight group within 3 s" in caplog.text
    assert str(caught.value).startswith("engine 1 is late: it has confirmed 3 of "), "attempt 2"
    report = publish(policy, generator.receivers, version=1)
    assert re.search(r"published again: engine 0 is gone: it has confirmed 2 of \d buckets sent", caplog.text)
    assert report.num_attempts == 2
    assert generator.receivers.weight_receivers() == ("engine 0 (number 4)", "engine 1 (number 3)")
    assert publish(policy, generator.receivers, version=2).num_attempts == 1
    generator.handles[0].replace("test")
    assert [handle.lacks_weights for handle in generator.handles] == [True, False]
    assert publish(policy, generator.receivers_of(generator.handles[:1]), version=2).num_attempts == 1
    assert [handle.lacks_weights for handle in generator.handles] == [False, False]
    assert publish(policy, generator.receivers, version=3).num_attempts == 1


def test_policy_ranks_that_hang_are_named_with_what_engines_have(tmp_path: Path) -> None:
    """A rank that stops before tensor 4 has sent the buckets 0 to 2: it looks at a tensor before it closes the bucket
    before."""
    generator = LightGenerator(tmp_path, ["none"])
    with pytest.raises(
        WeightSyncError, match="policy rank 1 sent bucket 3 of 6 and nothing for 3 s; engine 0 has confirmed 6"
    ):
        publish(LightPolicy(None, 4), generator.receivers, version=1)
    with pytest.raises(
        WeightSyncError, match="policy rank 0 sent bucket 1 of 6 and nothing for 3 s; engine 0 has confirmed 1"
    ):
        publish(LightPolicy(2), generator.receivers, version=1)
