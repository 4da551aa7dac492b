"""e: new weights of the 1.5B shape from a policy rank into the engine on its GPU, by CUDA IPC.

    python -m bench.gpu.weight_ipc [--tiny] [--results FOLDER] [--repeats 5]

Every bucket's checksum is compared in the engine; that the weights are the policy's
is seen from log-probs: before the first publication the engine has other weights. The floor is every byte read and
written once on the device. On CPU the transport is the object store, so that nothing of this is measured there.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from bench.gpu.ceilings import measure_once
from bench.gpu.colocated import PeakUse, config_for, disagreement, start
from bench.gpu.floors import sync_seconds
from bench.gpu.record import Row
from bench.gpu.setting import GIB, Setting, open_setting
from bench.gpu.shapes import QWEN_1_5B, TINY, make_model, with_tokenizer
from nemo_brorl.core.model_shape import read_model_shape
from nemo_brorl.weights.publication import publish

SECONDS, AGREE = 1.0, 0.05  # targets: of a publication; nats between sampler and trainer in bf16
SHARE = 0.3  # of the GPU for the engine


def measure(setting: Setting, engine_model: Path, policy_model: Path) -> None:
    """One pair of actors; the first publication, in which memory grows for good, is told apart."""
    config = config_for(setting, SHARE, weight_bucket_mib=setting.extra.bucket_mib, enforce_eager=True)
    with start(config, engine_model, policy_model) as pair:
        assert pair.policy is not None
        before = disagreement(pair)
        reports, extra = [], []
        for version in range(1, setting.extra.repeats + 2):
            with PeakUse(setting) as peak:
                reports.append(publish(pair.policy, pair.pool, version))
            extra.append(peak.extra)
        after = disagreement(pair)
    results, transport = setting.results, reports[0].transport
    floor = sync_seconds(read_model_shape(policy_model), setting.ceilings)
    seconds = statistics.median(report.seconds for report in reports[1:])
    note = f"{transport}, {reports[0].num_bytes / GIB:.2f} GiB, first {reports[0].seconds:.2f} s"
    results.add(Row("publication", seconds, "s", floor=floor, at_most=SECONDS, note=note))
    is_gpu = not setting.is_tiny
    results.add(Row("extra GPU memory", max(extra[1:]) if is_gpu else None, "GiB", note="by the driver's count"))
    results.add(Row("extra memory counted", max(report.peak_extra_bytes for report in reports) / GIB, "GiB"))
    results.add(Row("|Megatron − vLLM| after", after, "nats", at_most=AGREE, note=f"before {before:.3f}"))
    assert not before < 2 * after, (
        f"the engine had the policy's weights before they were published: {before:.4f} then {after:.4f} nats"
    )
    results.detail(
        "publication",
        {"seconds": [report.seconds for report in reports], "extra_gib": extra, "tensors": reports[0].num_tensors},
    )


def compare_heads(setting: Setting, folder: Path) -> None:
    """Trainer and sampler on the same weights, with the engine's output layer in fp32 and in the weights' precision."""
    for name, arguments in (("fp32", {}), ("bf16", {"hf_overrides": {"head_dtype": "model"}})):
        config = config_for(setting, SHARE, enforce_eager=True, engine_args=arguments)
        row = f"output layer in {name}: |Megatron − vLLM|"
        with setting.results.attempt(row), start(config, folder, folder) as pair:
            setting.results.add(Row(row, disagreement(pair), "nats", at_most=AGREE))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the weight IPC part to its parser."""
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--heads", action="store_true", help="then both precisions of the output layer")
    parser.add_argument("--bucket-mib", type=float, default=256.0, help="generation.weight_bucket_mib")


def main() -> None:
    """Measure the weight sync from a policy to an engine that has another model of the same shape."""
    setting = open_setting("weight_ipc", __doc__, add_arguments)
    measure_once(setting)
    shape, name = (TINY, "tiny") if setting.is_tiny else (QWEN_1_5B, "1.5B_shape")
    policy_model = make_model(setting.models / name, shape)
    engine_model = with_tokenizer(make_model(setting.models / f"{name}_other", shape, seed=1))
    with setting.results.attempt("publication"):
        measure(setting, engine_model, policy_model)
    if setting.extra.heads:
        compare_heads(setting, with_tokenizer(policy_model))
    setting.results.finish()


if __name__ == "__main__":
    main()
