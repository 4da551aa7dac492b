"""Record the parameters of the policy's GPU layers as Megatron builds them with the real Transformer Engine.

Transformer Engine's Python code is imported over a stand-in for its compiled module. The result is written to
tests/data/te_layers.json, which a test reads.

pip download --no-deps transformer-engine-cu13==2.11.0, unzip it, then  python scripts/te_layers.py FOLDER

Every constructor call of Megatron's is checked against the real signature, and so are the FP8 recipes.
"""

from __future__ import annotations

import inspect
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support import fake_cuda, transformer_engine_stub  # noqa: E402

VERSION = "2.11.0"
TARGET = ROOT / "tests" / "data" / "te_layers.json"
SIGNATURES = ("Linear", "LayerNormLinear", "GroupedLinear", "RMSNorm", "checkpoint", "autocast")


def layers_of(family: str, folder: Path, **policy: Any) -> dict[str, Any]:
    """Return parameter shapes by Megatron's names, and the modules that sum weight gradients in fp32 buffers."""
    from nemo_brorl.config.parallel_layout import ParallelLayout
    from nemo_brorl.core.model_shape import read_model_shape
    from nemo_brorl.policy.model.model import build_model
    from tests.support.model_factory import make_config, make_model
    from tests.support.te_families import FAMILIES

    sizes = dict(FAMILIES[family])
    make_model(folder, sizes.pop("architecture"), **sizes)
    config = make_config(precision="bf16", **policy)
    [model] = build_model(config.policy, read_model_shape(folder), ParallelLayout(1, 1, 1, on_gpu=True))
    summed = [name for name, module in model.named_modules() if getattr(module, "fuse_wgrad_accumulation", False)]
    shapes = {name: list(param.shape) for name, param in model.named_parameters()}
    return {"parameters": shapes, "summed in buffers": summed}


def recipes() -> dict[str, str]:
    """Return Transformer Engine's recipe for each of our FP8 settings, as Megatron creates it."""
    from megatron.core.fp8_utils import get_fp8_recipe
    from megatron.core.transformer.transformer_config import TransformerConfig

    from nemo_brorl.policy.model.precision import precision_settings
    from tests.support.model_factory import make_config

    found = {}
    for recipe in ("delayed", "tensorwise", "blockwise"):
        for fp8 in ("hybrid", "e4m3"):
            policy = make_config(precision="bf16", fp8=fp8, fp8_recipe=recipe).policy
            settings = precision_settings(policy, on_gpu=True)
            config = TransformerConfig(num_layers=2, hidden_size=16, num_attention_heads=1, **settings)
            made = get_fp8_recipe(config)
            found[f"{recipe} {fp8}"] = f"{type(made).__mro__[0].__name__} {made.fp8_format.name}"
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        library = Path(scratch) / "fake_cuda.so"
        fake_cuda.build(library)
        fake_cuda.use(library)
        import torch
        import torch.distributed as dist

        from nemo_brorl.config.parallel_layout import ParallelLayout
        from nemo_brorl.policy.process.device import open_device

        device = open_device(on_gpu=False, num_threads=1)
        transformer_engine_stub.install(Path(sys.argv[1]), VERSION)
        import transformer_engine.pytorch as te

        from nemo_brorl.policy.process import process_groups
        from tests.support.te_families import FAMILIES

        torch.nn.Module.cuda = lambda self, *arguments: self
        process_groups.open_groups(ParallelLayout(1, 1, 1), 0, dist.HashStore(), device, seed=1)
        found: dict[str, Any] = {"transformer_engine": VERSION, "recipes": recipes()}
        found["signatures"] = {name: str(inspect.signature(getattr(te, name))) for name in SIGNATURES}
        found["families"] = {family: layers_of(family, Path(scratch) / family.replace(" ", "_")) for family in FAMILIES}
        process_groups.close_groups()
    TARGET.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
