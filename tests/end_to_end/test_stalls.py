"""A real policy rank that stops in mid-work is named, and the run ends with an error that says so."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
import ray

from nemo_brorl.config.rank_settings import RankSettings
from nemo_brorl.core.errors import StallError
from nemo_brorl.core.stall_watch import Heartbeat, StallWatch
from nemo_brorl.policy.driver import megatron_policy, stalled_ranks
from nemo_brorl.policy.driver.megatron_policy import MegatronPolicy
from nemo_brorl.policy.process.rank_progress import POLL_GROUP
from tests.support.model_factory import make_config, make_model, make_plan

pytestmark = pytest.mark.end_to_end

ASKED_EVERY_S = 0.5
SILENT_S = 3.0  # without an answer for longer, a rank is told from its peers
WARNING_S = 7.0
TIMEOUT_S = 8.0


def test_a_stopped_rank_is_named_and_ends_the_run(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(megatron_policy, "_CLOSE_TIMEOUT_S", 2.0)  # it will not answer then either
    monkeypatch.setattr(megatron_policy, "SLICE_S", ASKED_EVERY_S)
    monkeypatch.setattr(stalled_ranks, "POLL_EVERY_S", ASKED_EVERY_S)
    monkeypatch.setattr(stalled_ranks, "SILENT_S", SILENT_S)
    heartbeat = Heartbeat()
    warnings: list[str] = []
    heartbeat.on_stall = lambda text, seconds: warnings.append(text)
    settings = RankSettings.from_config(make_config(tensor_model_parallel_size=2))
    policy = MegatronPolicy(settings, make_model(tmp_path / "model"), heartbeat)
    policy.wait_ready()
    pids = [ray.get(rank.progress.options(concurrency_group=POLL_GROUP).remote()).process for rank in policy.ranks]
    policy.update(make_plan(1, micro_batches=2))
    os.kill(pids[1], signal.SIGSTOP)
    try:
        with (
            StallWatch(heartbeat, tmp_path, WARNING_S, TIMEOUT_S),
            pytest.raises(
                StallError, match=r"policy update.*policy rank 1 does not answer.*policy rank 0 at update.*waiting in"
            ),
        ):
            policy.update(make_plan(1, micro_batches=2))
    finally:
        policy.close()
        gone_at = time.monotonic() + 60
        while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < gone_at:
            time.sleep(0.1)
        left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert left == []
    assert "policy rank 1 does not answer" in warnings[0]
    assert json.loads((tmp_path / "heartbeat.json").read_text())["state"] == "ended"
