"""Everything one rank owns: its piece of the model, optimizer and reference. No Ray here, so plain processes can run
it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from megatron.core import parallel_state

from nemo_brorl.config.derived import weight_transport
from nemo_brorl.config.model_rules import check_policy_fits
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.policy.device import Device, release_cache
from nemo_brorl.policy.layout import ParallelLayout
from nemo_brorl.policy.model.attention_flex import ROW_MULTIPLE, uses_flex
from nemo_brorl.policy.model.model import build_model
from nemo_brorl.policy.numerics.fp8_check import Fp8Check
from nemo_brorl.policy.numerics.precision import fp8_off, param_dtype, row_multiple
from nemo_brorl.policy.pipeline import score_rows
from nemo_brorl.policy.rank_report import RankReport
from nemo_brorl.policy.rows.packed_rows import PackedSegment, Response, Row
from nemo_brorl.policy.rows.row_builder import RowSettings, build_row
from nemo_brorl.policy.state import saving
from nemo_brorl.policy.state.background_save import BackgroundSave
from nemo_brorl.policy.state.offload import Offload
from nemo_brorl.policy.state.optimizer import build_optimizer, clear_state, wrap_model
from nemo_brorl.policy.state.reference import ReferenceWeights
from nemo_brorl.policy.update import Update
from nemo_brorl.policy.weights.bucket_plan import bucket_bytes
from nemo_brorl.policy.weights.hf_folder import SHARD_BYTES, write_hf_folder
from nemo_brorl.policy.weights.hf_weights import HfExport, load_hf
from nemo_brorl.policy.weights.weight_stream import WeightSender, buckets, weight_manifest
from nemo_brorl.types import BucketNotice, Float32, TensorInfo, UpdatePlan, WeightBucket


class Learner:
    """One rank of the policy. Process groups are open; methods marked collective are called by all ranks together."""

    def __init__(self, config: BroRLConfig, layout: ParallelLayout, model_folder: Path, device: Device) -> None:
        """Collective. Raises ModelError or ConfigError."""
        self.config, self.layout, self.model_folder, self.device = config, layout, model_folder, device
        self.shape = check_policy_fits(config, model_folder)
        self.models = build_model(config.policy, self.shape, layout)
        load_hf(self.models, self.shape, model_folder)
        self.chunks = wrap_model(self.models)
        self.optimizer = build_optimizer(self.chunks, config.policy.optim)
        self.reference = ReferenceWeights(self.models) if config.algorithm.kl.coefficient > 0 else None
        with_params = config.policy.offload == "all"
        self.offloading = Offload(self.chunks, self.optimizer, with_params) if config.policy.offload != "none" else None
        self.pending_save: BackgroundSave | None = None
        self.has_saved = False
        self.hf_export = HfExport(self.models, self.shape, device.torch_device)
        self.sender = WeightSender(
            weight_transport(config), torch.distributed.get_rank() == 0, config.generation.keep_published
        )
        is_flex = uses_flex(config.policy, layout)
        self.row_settings = RowSettings(
            device.torch_device,
            math.lcm(row_multiple(config.policy, layout), ROW_MULTIPLE if is_flex else 1),
            parallel_state.get_context_parallel_rank(),
            layout.context,
            with_sight=is_flex,
        )
        self.fp8_check = Fp8Check(config.policy, self.models, self.chunks)

    def row(self, segments: Sequence[PackedSegment], temperature: float) -> Row:
        """Segments laid out for this rank's model."""
        return self.rows([segments], temperature)[0]

    def rows(self, segments: Sequence[Sequence[PackedSegment]], temperature: float) -> list[Row]:
        """Rows to run together; under a virtual pipeline all as long as the longest (`schedule._row_length`)."""

        def build(at_least: int) -> list[Row]:
            return [build_row(part, temperature, self.row_settings, at_least) for part in segments]

        rows = build(at_least=1)
        if self.layout.virtual_pipeline is None:
            return rows
        return build(at_least=max((row.token_ids.size(1) for row in rows), default=1))

    def update(self, plan: UpdatePlan) -> RankReport:
        """Collective: every mini-batch of the plan."""
        report = Update(self, plan).run()
        if not self.device.is_gpu:
            # engines sample next, in the same memory; and holes between micro-batches do not add up over steps
            release_cache()
        return report

    def log_probs(
        self, prompt_ids: Sequence[Sequence[int]], response_ids: Sequence[Sequence[int]], with_fp8: bool = True
    ) -> list[Float32] | None:
        """Log-probs [T] of every response at the rollouts' temperature; None except on the last pipeline stage.

        Collective; every replica does the same work. `with_fp8=False` leaves out what `policy.fp8` does to them.
        """
        rows, numbers = self._rows_within_budget(prompt_ids, response_ids)
        if with_fp8:
            self.fp8_check.first_scales(rows[0])
        with nullcontext() if with_fp8 else fp8_off(self.models):
            scores = score_rows(self.chunks, rows)
        if not parallel_state.is_pipeline_last_stage(ignore_virtual=True):
            return None
        starts = np.cumsum([0, *(len(token_ids) for token_ids in response_ids)])
        flat = torch.zeros(int(starts[-1]), device=self.device.torch_device)
        for row, row_numbers, row_scores in zip(rows, numbers, scores, strict=True):
            firsts = starts[np.array([row_numbers[response.segment] for response in row.responses], np.int64)]
            flat[torch.from_numpy(firsts[row.response_index] + row.token_index)] = row_scores.log_probs
        if self.layout.context > 1:  # each rank has the tokens that it predicts
            torch.distributed.all_reduce(flat, group=parallel_state.get_context_parallel_group())
        return np.split(flat.cpu().numpy(), starts[1:-1])

    def _rows_within_budget(
        self, prompt_ids: Sequence[Sequence[int]], response_ids: Sequence[Sequence[int]]
    ) -> tuple[list[Row], list[list[int]]]:
        """Rows of at most tokens_per_micro_batch tokens per context-parallel rank, and which sequences are in each."""
        numbers: list[list[int]] = []
        num_tokens = budget = self.config.policy.tokens_per_micro_batch * self.layout.context
        for number, (prompt, response) in enumerate(zip(prompt_ids, response_ids, strict=True)):
            length = len(prompt) + len(response)
            if num_tokens + length > budget:
                numbers.append([])
                num_tokens = 0
            numbers[-1].append(number)
            num_tokens += length
        segments = [
            [_segment(i, prompt_ids[n], response_ids[n]) for i, n in enumerate(row_numbers)] for row_numbers in numbers
        ]
        return self.rows(segments, self.config.rollouts.temperature), numbers

    def weight_manifest(self) -> list[TensorInfo]:
        """Names, shapes and dtypes of the weight stream."""
        return weight_manifest(self.shape, param_dtype(self.config.policy))

    def weight_buckets(self) -> Iterator[WeightBucket]:
        """Collective: the current weights, bytes and all. Every rank must exhaust it."""
        return buckets(self.hf_export.stream(), bucket_bytes(self.config))

    def send_weights(self) -> Iterator[WeightBucket | BucketNotice | None]:
        """Collective: the current weights by the transport of the config."""
        return self.sender.stream(self.hf_export.stream(), bucket_bytes(self.config))

    def take_part_in_weight_stream(self) -> None:
        """Collective: feed a stream that rank 0 uses."""
        for _ in self.hf_export.stream():
            pass

    def save(self, folder: Path) -> None:
        """Collective: write everything `load` needs, whatever its layout, and wait for it. Raises CheckpointError."""
        self.begin_save(folder)
        self.finish_save()

    def begin_save(self, folder: Path) -> None:
        """Collective: the same, but training goes on once the state is copied; then `finish_save`."""
        assert self.pending_save is None, "the last save was not finished"
        # The shards of a model do not change while it runs, so that they fit is checked across ranks once.
        self.pending_save = saving.begin_save(self, folder, validate=not self.has_saved)
        self.has_saved = True

    def is_save_written(self) -> bool:
        """Whether `finish_save` would not wait for this rank's files."""
        return self.pending_save is None or self.pending_save.is_written()

    def finish_save(self) -> float:
        """Collective: wait for the files and make them a checkpoint. Seconds of writing. Raises CheckpointError on all
        ranks."""
        pending, self.pending_save = self.pending_save, None
        assert pending is not None, "no save was begun"
        return pending.finish()

    def load(self, folder: Path) -> None:
        """Collective. Raises CheckpointError."""
        saving.load(self, folder)
        self.fp8_check.loaded()

    def export(self, folder: Path) -> None:
        """Collective: a Hugging Face folder, written by rank 0."""
        if torch.distributed.get_rank() == 0:
            write_hf_folder(self.hf_export.stream(), self.weight_manifest(), self.model_folder, folder, SHARD_BYTES)
        else:
            self.take_part_in_weight_stream()

    def reset_reference(self, clear_optimizer: bool) -> None:
        """Make the current weights the reference of the KL term, where there is one; forget Adam's moments and steps if
        asked."""
        if self.reference:
            self.reference.reset()
        if clear_optimizer:
            clear_state(self.optimizer)

    def offload(self) -> None:
        """Move to host memory what `policy.offload` names; until `onload` there is nothing to compute with."""
        if self.offloading:
            self.offloading.offload()

    def onload(self) -> None:
        """Undo `offload`, bit for bit."""
        if self.offloading:
            self.offloading.onload()


def _segment(number: int, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> PackedSegment:
    token_ids = np.asarray(response_ids, np.int32)
    response = Response(number, 0, token_ids, np.zeros(len(token_ids), np.float32), 0.0, is_fresh=True)
    return PackedSegment(np.asarray(prompt_ids, np.int32), (response,))
