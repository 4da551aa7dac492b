"""Build the state of one rank: its part of the model, the optimizer, the reference, and the settings of its rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import MegatronOptimizer

from nemo_brorl.config.model_rules import check_policy_fits, check_same_shape
from nemo_brorl.config.rank_settings import RankSettings
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.model_shape import ModelShape
from nemo_brorl.policy.model.attention import choose_attention
from nemo_brorl.policy.model.attention_flash import use_newest_kernel
from nemo_brorl.policy.model.attention_flex import ROW_MULTIPLE
from nemo_brorl.policy.model.model import PolicyModel, build_model
from nemo_brorl.policy.model.precision import row_multiple
from nemo_brorl.policy.process.device import Device
from nemo_brorl.policy.process.process_groups import weight_groups
from nemo_brorl.policy.rows.packed_rows import PackedGroup, Row, RowSettings
from nemo_brorl.policy.rows.row_builder import build_row
from nemo_brorl.policy.state.optimizer import build_optimizer, wrap_model
from nemo_brorl.policy.state.reference import ReferenceWeights
from nemo_brorl.weights.reading import load_hf

_log = get_logger(__name__)


@dataclass
class RankState:
    """State of one policy rank that its learner, updates and checkpoints work on."""

    settings: RankSettings
    device: Device
    shape: ModelShape
    models: list[PolicyModel]  # one per virtual pipeline stage
    chunks: list[DistributedDataParallel]  # models as wrapped for training
    optimizer: MegatronOptimizer
    references: list[ReferenceWeights]  # one for the KL term, or one for each teacher; empty: no KL term
    row_settings: RowSettings

    def row(self, packed_groups: Sequence[PackedGroup], temperature: float) -> Row:
        """Return the row of tokens of a micro-batch's prompts and responses, laid out for this rank's model."""
        return build_row(packed_groups, temperature, self.row_settings)

    def rows(self, micro_batches: Sequence[Sequence[PackedGroup]], temperature: float) -> list[Row]:
        """Return the rows of tokens of several micro-batches, which go through the pipeline together.

        With virtual pipeline stages all rows are padded to the longest row (`pipeline._row_length`).
        """
        rows = [self.row(packed_groups, temperature) for packed_groups in micro_batches]
        if self.settings.layout.virtual_pipeline is None or not rows:
            return rows
        longest = max(row.token_ids.size(1) for row in rows)
        return [build_row(packed_groups, temperature, self.row_settings, longest) for packed_groups in micro_batches]


def build_rank_state(
    settings: RankSettings,
    model_folder: Path,
    device: Device,
) -> RankState:
    """Return the state of a policy rank before the first step, with the weights of a Hugging Face folder.

    Process groups must be open. Collective. Raises ModelError for an unusable folder, ConfigError for settings that do
    not fit the model.
    """
    shape = check_policy_fits(settings.policy, model_folder, settings.layout.on_gpu)
    models = build_model(settings.policy, shape, settings.layout)
    load_hf(models, shape, model_folder, weight_groups())
    chunks = wrap_model(models, settings.sizes.overlaps_gradients, settings.policy.overlap_param_gather)
    optimizer = build_optimizer(chunks, settings.policy.optim)
    references = choose_references(settings, models, shape)
    row_settings = _row_settings(settings, device, shape)
    return RankState(
        settings,
        device,
        shape,
        models,
        chunks,
        optimizer,
        references,
        row_settings,
    )


def choose_references(
    settings: RankSettings, models: Sequence[PolicyModel], shape: ModelShape
) -> list[ReferenceWeights]:
    """Return the weights that the KL term compares with: those of the models now, or of the teachers' folders.

    Collective. Raises ModelError for an unusable folder, ConfigError for parameters that are kept in FP8.
    """
    references = [ReferenceWeights(models) for _ in settings.references]
    for reference, folder in zip(references, settings.references, strict=True):
        if folder is not None:
            check_same_shape(shape, folder)
            with reference.swapped_in():
                load_hf(models, shape, folder, weight_groups())
    return references


def _row_settings(
    settings: RankSettings,
    device: Device,
    shape: ModelShape,
) -> RowSettings:
    policy, layout = settings.policy, settings.layout
    attention, reason = choose_attention(policy, layout, shape)
    _log.info("attention by %s: %s", attention, reason)
    if attention == "flash":
        _log.info("its kernels are of %s", use_newest_kernel())
    multiple = row_multiple(policy, layout)
    if attention == "flex":
        multiple = math.lcm(multiple, ROW_MULTIPLE)
    context_rank = parallel_state.get_context_parallel_rank()
    return RowSettings(
        device=device.torch_device,
        multiple=multiple,
        context_rank=context_rank,
        context_size=layout.context,
        attention=attention,
        min_shared_tokens=policy.min_shared_tokens,
    )
