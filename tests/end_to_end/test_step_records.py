"""What the steps of a run leave: the job of `make train`, with fewer rollouts, its two ranks side by side in every
layer or, as that job has them, each with a part of the batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from nemo_brorl.core.metric_sinks import read_metrics
from nemo_brorl.core.timeline import BETWEEN, top_stages
from nemo_brorl.core.trace_file import read_spans, timeline_steps
from tests.support.commands import run

pytestmark = pytest.mark.end_to_end

SMALL = (
    "generation.num_engines=1",
    "rewards.num_workers=1",
    "parity.enabled=false",
    "rollouts.num_per_prompt=16",
    "rollouts.prompts_per_step=8",
    "evaluation.num_prompts=8",
    "trainer.max_steps=2",
    "trainer.rehearsal=false",
    "trainer.save_interval=1",
    "trainer.val_interval=0",
)
OF_TIME = ("time/", "generation/samples_per_s", "generation/tokens_per_s", "sync/seconds", "sync/gib_per_s")
TENSOR_PARALLEL = ("policy.tensor_model_parallel_size=2", "policy.data_parallel_size=1")


def trained(folder: Path, *layout: str) -> Path:
    """A run of two steps."""
    run("train", "--config-name", "sums_cpu", f"exp_manager.explicit_log_dir={folder}", *SMALL, *layout)
    return folder


@pytest.fixture(scope="module")
def tensor_parallel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("runs") / "tensor_parallel", *TENSOR_PARALLEL)


@pytest.fixture(scope="module")
def data_parallel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("runs") / "data_parallel")


def numbers(folder: Path) -> list[dict[str, float]]:
    """Metrics of every step, but for how long it took."""
    found: list[dict[str, float]] = []
    for row in read_metrics(folder / "metrics.jsonl"):
        found.append({name: value for name, value in row.items() if not name.startswith(OF_TIME)})
    return found


def replayed(folder: Path) -> str:
    return run("replay", str(folder), "--step", "2").output


def test_a_stored_step_of_two_tensor_parallel_ranks_is_the_same_update_bit_for_bit(tensor_parallel: Path) -> None:
    output = replayed(tensor_parallel)
    assert "bit-identical" in output
    assert "differ" not in output


def test_a_stored_step_of_the_default_job_on_two_data_parallel_ranks_is_too(data_parallel: Path) -> None:
    output = replayed(data_parallel)
    assert OmegaConf.load(data_parallel / "config.yaml").policy.data_parallel_size == 2
    assert "bit-identical" in output
    assert "differ" not in output


def test_what_is_kept_of_steps_changes_no_number_of_them(data_parallel: Path, tmp_path: Path) -> None:
    without = trained(tmp_path / "without", "store.enabled=false", "timeline.enabled=false")
    assert not (without / "store").exists()
    assert not (without / "timeline").exists()
    assert numbers(without) == numbers(data_parallel)


def test_every_step_leaves_a_trace_of_all_processes_whose_stages_are_its_time(tensor_parallel: Path) -> None:
    assert timeline_steps(tensor_parallel) == [0, 1, 2]
    spans = read_spans(tensor_parallel, 2)
    assert {span.process for span in spans} >= {"driver", "verifier 0", "policy rank 0", "policy rank 1"}
    stages = top_stages(spans)
    assert sum(stage.seconds for stage in stages) >= 0.98 * spans[0].seconds
    assert sum(stage.seconds for stage in stages if stage.name == BETWEEN) <= 0.02 * spans[0].seconds
    sampled: set[str] = set()
    learnt: set[str] = set()
    for span in spans:
        if span.name == "sample":
            sampled.update(span.rollouts)
        elif span.name.startswith("mini-batch"):
            learnt.update(span.rollouts)
    assert sampled & learnt
