"""Seconds a training step is kept waiting by a checkpoint: written at once, against written in the background.

    python bench/checkpoint.py [--hidden 512] [--layers 10] [--repeats 3] [--ranks 1] [--json FILE]

The policy's ranks as plain processes, fp32, with a KL reference: 20 bytes a parameter (weights, the optimizer's copy of
them, two moments, reference), random but trained for a step. The two ways take turns; between them old files are
deleted and the disk's queue is emptied. In the background, a step waits for the copy to host memory when the save
begins and for the index when it is finished; training steps run in between and are compared with steps while nothing is
written.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the ranks are those of the tests

from nemo_brorl.config.rank_settings import RankSettings  # noqa: E402
from nemo_brorl.config.schema import BroRLConfig  # noqa: E402
from nemo_brorl.types import UpdatePlan  # noqa: E402
from tests.support.model_factory import make_config, make_model, make_plan  # noqa: E402
from tests.support.policy_ranks import Learner, run_ranks  # noqa: E402


def measure(config: BroRLConfig, model_folder: Path, plan: UpdatePlan, repeats: int) -> dict[str, list[float]]:
    """Time training steps and checkpoints on one rank, `repeats` times, and return the seconds by name."""
    from tests.support.policy_ranks import _DEVICE

    learner = Learner(RankSettings.from_config(config), model_folder, _DEVICE)
    gc.freeze()  # as a rank does
    seconds: dict[str, list[float]] = {}

    def timed(name: str, call: Any, *arguments: Any) -> None:
        start = time.perf_counter()
        call(*arguments)
        seconds.setdefault(name, []).append(time.perf_counter() - start)

    learner.update(plan)
    for number in range(repeats + 1):
        folder = model_folder.parent / f"save{number}"
        timed("step", learner.update, plan)
        timed("at once", _save_at_once, learner, folder / "sync")
        _forget(folder)
        timed("copy", learner.begin_save, folder / "async")
        steps_before = len(seconds.get("step while writing", []))
        while not learner.is_save_written() or len(seconds["step while writing"]) == steps_before:
            timed("step while writing", learner.update, plan)
        timed("index", _finish, learner, seconds)
        _forget(folder)
        if number == 0:  # imports, first allocations, the check of shards
            seconds.clear()
    return seconds


def _save_at_once(learner: Learner, folder: Path) -> None:
    learner.begin_save(folder)
    learner.finish_save()


def _finish(learner: Learner, seconds: dict[str, list[float]]) -> None:
    seconds.setdefault("writing", []).append(learner.finish_save())


def _forget(folder: Path) -> None:
    import torch.distributed as dist

    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
        os.sync()
    dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--vocab", type=int, default=32768)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=1, help="data-parallel")
    parser.add_argument("--folder", type=Path, help="where to write; by default the system's temporary folder")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        sizes = {
            "hidden_size": arguments.hidden,
            "num_hidden_layers": arguments.layers,
            "intermediate_size": 3 * arguments.hidden,
        }
        heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": arguments.vocab}
        model_folder = make_model(Path(folder) / "model", **sizes, **heads)
        config = make_config(data_parallel_size=arguments.ranks)
        plan = make_plan(arguments.ranks, num_mini_batches=1, micro_batches=1)
        ranks = run_ranks(config, measure, config, model_folder, plan, arguments.repeats)
        num_parameters = sum(path.stat().st_size for path in model_folder.glob("*.safetensors")) / 4
    medians = {name: statistics.median(values) for name, values in ranks[0].items()}
    waiting = medians["copy"] + medians["index"]
    result = {"parameters": num_parameters, "ratio": medians["at once"] / waiting, **medians}
    print(
        f"{num_parameters / 1e6:.0f} M parameters, {20 * num_parameters / 1e9:.2f} GB a checkpoint, {arguments.ranks} "
        "rank(s)"
    )
    print(f"{'a step waits for a save at once':<44}{medians['at once']:8.2f} s")
    print(f"{'a step waits for a save in the background':<44}{waiting:8.2f} s   ({result['ratio']:.1f} times less)")
    print(f"{'  of it: copy, index':<44}{medians['copy']:8.2f} s {medians['index']:6.2f} s")
    print(f"{'writing in the background':<44}{medians['writing']:8.2f} s")
    print(
        f"{'a training step, nothing written / meanwhile':<44}{medians['step']:8.2f} s "
        f"{medians['step while writing']:6.2f} s"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps({**result, "samples": ranks[0]}, indent=1))


if __name__ == "__main__":
    main()
