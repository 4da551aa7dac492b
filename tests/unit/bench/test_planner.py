"""What the planner's bench makes of a watched run, with numbers worked by hand."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from brorl_launcher.planner.cpu_plan import SHARES, cpu_hardware
from brorl_launcher.planner.cpu_probe import CpuSpeed
from brorl_launcher.planner.plan import Lengths, make_plan

from bench.planner import Compared, calibrated, measured, misses, with_shares
from bench.run_watch import Watched, watch
from nemo_brorl.config.load import load_config
from nemo_brorl.core.model_shape import ModelShape, Rope

SHAPE = ModelShape(4, 256, 4, 2, 64, 512, 512, 512, 1e-6, Rope(1e4), has_qkv_bias=True, is_tied=True)
SPEED = CpuSpeed(2e-5, 5e-5, 3e-6, 1e-5, 1e11, 3e10, 4e-8)


def row(seconds: float) -> dict[str, float]:
    stages = {f"time/{name}_s": seconds for name in ("generate", "log_prob", "update", "sync")}
    return {
        **stages,
        "rollouts/response_tokens": 4.0,
        "rollouts/response_tokens_max": 7.0,
        "generation/num_samples": 10_240.0,
    }


def compared() -> Compared:
    config = load_config("brorl_cpu")
    actors = [
        Watched("rank", 1.0, 0.1, [10.0, 20.0, 23.0, 28.0, 90.0]),
        Watched("rank", 1.5, 0.1, [10.0, 20.0, 25.0, 30.0, 90.0]),
        Watched("engine", 1.2, 0.1, [5.0, 9.0, 11.0, 13.0, 50.0]),
    ]
    found = measured(actors, [{"time/validate_s": 1.0}, row(50.0), row(2.0), row(4.0), row(70.0)], config, prompts=36.0)
    hardware = cpu_hardware(SPEED, 16.0)
    plan = make_plan(
        config, hardware, Lengths(36.0, found.response_tokens, found.response_spread, found.keep_rate), SHAPE
    )
    return Compared("brorl_cpu", found, plan)


def test_the_first_and_the_last_step_do_not_count() -> None:
    found = compared().measured
    assert found.wall_s["update"] == 3.0
    assert (found.rank_gib, found.engine_gib) == (1.5, 1.2)
    assert found.rank_cpu_s == 4.5  # of steps 2 and 3: the means over ranks are 4 and 5
    assert found.engine_cpu_s == 2.0
    assert found.keep_rate == 8192 / 10_240
    assert found.response_spread == pytest.approx(0.25)


def test_a_calibrated_plan_meets_its_case() -> None:
    one = compared()
    by_clock = with_shares(one, calibrated(one, by_clock=True)).figures
    assert [by_clock[f"{name}, s"][1] for name in ("generate", "log_prob")] == [
        pytest.approx(3.0),
        pytest.approx(3.0, abs=0.01),
    ]
    shares = calibrated(one, by_clock=False)
    assert shares.token / SHARES.token == pytest.approx(2.0 / one.figures["engine, processor s"][1])


def test_what_misses_its_target_is_named() -> None:
    one = compared()
    [rank, engine, step] = [one.figures[name][1] for name in ("policy rank, GiB", "engine, GiB", "step, s")]
    stages = dict.fromkeys(("generate", "log_prob", "update", "sync"), step / 4)
    met = replace(one.measured, rank_gib=rank / 1.14, engine_gib=engine / 0.86, wall_s=stages)
    assert misses(replace(one, measured=met)) == []
    missed = replace(met, rank_gib=rank / 1.16, wall_s={name: seconds / 0.74 for name, seconds in stages.items()})
    assert [text.split(" planned")[0] for text in misses(replace(one, measured=missed))] == [
        "brorl_cpu: policy rank, GiB",
        "brorl_cpu: step, s",
    ]


def test_a_watched_command_that_fails_is_an_error(tmp_path: Path) -> None:
    assert watch([sys.executable, "-c", "pass"], tmp_path / "metrics.jsonl") == []
    with pytest.raises(subprocess.CalledProcessError):
        watch([sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "metrics.jsonl")
