"""Run one rank's part of what the driver requests: update, score, send weights, save and load.

Nothing here needs Ray, so plain processes can run it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from megatron.core import parallel_state

from nemo_brorl.config.rank_settings import RankSettings
from nemo_brorl.core.torch_device import release_cache
from nemo_brorl.policy.model.log_probs import TokenScores
from nemo_brorl.policy.model.precision import fp8_off, param_dtype
from nemo_brorl.policy.process.device import Device
from nemo_brorl.policy.process.process_groups import weight_groups
from nemo_brorl.policy.rank.fp8_check import Fp8Check
from nemo_brorl.policy.rank.pipeline import score_rows
from nemo_brorl.policy.rank.rehearsal import rehearse_update
from nemo_brorl.policy.rank.update import Update
from nemo_brorl.policy.rows.packed_rows import PackedGroup, Response, Row
from nemo_brorl.policy.state import saving
from nemo_brorl.policy.state.offload import Offload
from nemo_brorl.policy.state.optimizer import clear_state
from nemo_brorl.policy.state.rank_state import build_rank_state
from nemo_brorl.policy.state.saving import BackgroundSave
from nemo_brorl.types import BucketNotice, Float32, RankRehearsal, TensorInfo, UpdatePlan, UpdateReport, WeightBucket
from nemo_brorl.weights.buckets import bucket_bytes
from nemo_brorl.weights.hf_folder import SHARD_BYTES, write_hf_folder
from nemo_brorl.weights.sender import WeightSender, weight_manifest
from nemo_brorl.weights.sending import HfExport

TokenLists = Sequence[Sequence[int]]


class Learner:
    """One rank of the policy. Its process groups are open. All ranks call methods marked collective together."""

    def __init__(
        self,
        settings: RankSettings,
        model_folder: Path,
        device: Device,
    ) -> None:
        """Build the policy rank's state from a Hugging Face model folder.

        Collective over all policy ranks. Raises ModelError for an unusable folder, ConfigError for settings that do not
        fit the model.
        """
        self.state = build_rank_state(settings, model_folder, device)
        self.model_folder = model_folder
        models = self.state.models
        chunks = self.state.chunks
        self.fp8_check = Fp8Check(settings.policy, models, chunks)
        self.offloading: Offload | None = None
        if settings.policy.offload != "none":
            with_params = settings.policy.offload == "all"
            self.offloading = Offload(chunks, self.state.optimizer, with_params)
        self.pending_save: BackgroundSave | None = None
        self.has_saved = False
        self.hf_export = HfExport(models, self.state.shape, device.torch_device, weight_groups())
        self.bucket_bytes = bucket_bytes(settings.generation)
        is_first_rank = torch.distributed.get_rank() == 0
        self.sender = WeightSender(settings.sizes.weight_transport, is_first_rank)

    def update(self, plan: UpdatePlan) -> UpdateReport:
        """Train on every mini-batch of an update plan, and return this policy rank's report.

        Collective over all policy ranks. Only reports of the last pipeline stage have metrics.
        """
        return Update(self.state, self.fp8_check, plan).run()

    def rehearse(self, num_tokens: int) -> RankRehearsal:
        """Rehearse an update on a row of `num_tokens` tokens (`rehearse_update`)."""
        return rehearse_update(self.state, num_tokens)

    def log_probs(
        self,
        prompt_ids: TokenLists,
        response_ids: TokenLists,
        with_fp8: bool = True,
    ) -> list[Float32] | None:
        """Return the log-probs [T] of every response at the rollouts' temperature.

        Returns None except on the last pipeline stage. Collective over all policy ranks. Every data-parallel replica
        does the same work. `with_fp8=False` computes the log-probs without `policy.fp8`.
        """
        micro_batches = self._within_budget(prompt_ids, response_ids)
        temperature = self.state.settings.rollouts.temperature
        rows = self.state.rows(micro_batches, temperature)
        if with_fp8:
            # Without scales from a real row the first log-probs of a run would be wrong.
            self.fp8_check.first_scales(rows[0])
        precision = nullcontext() if with_fp8 else fp8_off(self.state.models)
        with precision:
            scores = score_rows(self.state.chunks, rows)
        if not parallel_state.is_pipeline_last_stage(ignore_virtual=True):
            return None
        lengths = [len(token_ids) for token_ids in response_ids]
        # Rows reorder responses for the attention. Their `index` restores the caller's order.
        starts = np.cumsum([0, *lengths])
        return self._by_response(rows, scores, starts)

    def _within_budget(self, prompt_ids: TokenLists, response_ids: TokenLists) -> list[list[PackedGroup]]:
        """Pack prompts with one response each into micro-batches of at most `tokens_per_micro_batch` tokens.

        The budget is per context-parallel rank. A `Response.index` is the response's number among all responses.
        """
        budget = self.state.settings.sizes.row_tokens
        micro_batches: list[list[PackedGroup]] = []
        num_tokens = budget
        pairs = zip(prompt_ids, response_ids, strict=True)
        for number, (prompt, response) in enumerate(pairs):
            length = len(prompt) + len(response)
            if num_tokens + length > budget:
                micro_batches.append([])
                num_tokens = 0
            packed_group = len(micro_batches[-1])
            to_score = _to_score(packed_group, number, prompt, response)
            micro_batches[-1].append(to_score)
            num_tokens += length
        return micro_batches

    def _by_response(
        self,
        rows: Sequence[Row],
        scores: Sequence[TokenScores],
        starts: np.ndarray,
    ) -> list[Float32]:
        """Return the log-probs [T] of every response, collected from the scores of packed rows of tokens.

        `starts` [responses + 1] are the offsets of the responses' tokens, end to end.
        """
        num_tokens = int(starts[-1])
        flat = torch.zeros(num_tokens, device=self.state.device.torch_device)
        for row, row_scores in zip(rows, scores, strict=True):
            numbers = [response.index for response in row.responses]
            firsts = starts[np.array(numbers, np.int64)]
            places = firsts[row.response_index] + row.token_index
            flat[torch.from_numpy(places)] = row_scores.log_probs
        # Each context-parallel rank has only the tokens that it predicts.
        if self.state.settings.layout.context > 1:
            torch.distributed.all_reduce(flat, group=parallel_state.get_context_parallel_group())
        log_probs = flat.cpu().numpy()
        return np.split(log_probs, starts[1:-1])

    def weight_manifest(self) -> list[TensorInfo]:
        """Return name, shape and dtype of every tensor that a weight sync sends to the inference engines."""
        dtype = param_dtype(self.state.settings.policy)
        return weight_manifest(self.state.shape, dtype)

    def send_weights(self) -> Iterator[WeightBucket | BucketNotice | None]:
        """Yield this policy rank's messages to the driver while the current weights are sent to the inference engines.

        Collective over all policy ranks. The configured weight transport sends them.
        """
        return self.sender.stream(self.hf_export.stream(), self.bucket_bytes)

    def take_part_in_weight_stream(self) -> None:
        """Gather all weights with the other policy ranks and discard them, because rank 0 needs this rank's shares.

        Collective over all policy ranks.
        """
        for _ in self.hf_export.stream():
            pass

    def begin_save(self, folder: Path) -> None:
        """Start to write a checkpoint that `load` can read under any parallel layout. Collective.

        Training can continue when this returns, because the state has been copied. `finish_save` must follow.
        """
        assert self.pending_save is None, "the last save was not finished"
        # A model's shards never change during a run, so one check across ranks is enough.
        is_first = not self.has_saved
        self.pending_save = saving.begin_save(self.state, folder, validate=is_first)
        self.has_saved = True

    def is_save_written(self) -> bool:
        """Return whether this rank's checkpoint files are written, so that `finish_save` would not wait for them."""
        return self.pending_save is None or self.pending_save.is_written()

    def finish_save(self) -> float:
        """Wait for the files of a checkpoint, complete it, and return the seconds of writing on this rank.

        Collective over all policy ranks. Raises CheckpointError on all ranks if one of them failed.
        """
        pending = self.pending_save
        assert pending is not None, "no save was begun"
        self.pending_save = None
        return pending.finish()

    def load(self, folder: Path) -> None:
        """Load weights, optimizer state and the KL term's reference from a checkpoint.

        Collective over all policy ranks. Raises CheckpointError for a checkpoint that cannot be read.
        """
        saving.load(self.state, folder)
        self.fp8_check.loaded()

    def export(self, folder: Path) -> None:
        """Write the current weights as a Hugging Face folder, on rank 0. Collective."""
        if torch.distributed.get_rank() == 0:
            tensors = self.hf_export.stream()
            write_hf_folder(tensors, self.weight_manifest(), self.model_folder, folder, SHARD_BYTES)
        else:
            self.take_part_in_weight_stream()

    def reset_reference(self, clear_optimizer: bool) -> None:
        """Make the current weights the reference of the KL term, if there is one, and optionally clear Adam's state."""
        for reference in self.state.references:
            reference.reset()
        if clear_optimizer:
            clear_state(self.state.optimizer)

    def release(self) -> None:
        """Release torch's cached memory if other processes need the memory of the device.

        On CPU this keeps memory fragmentation from micro-batches from adding up over the training steps.
        """
        if self.state.settings.sizes.gives_memory_back:
            release_cache()

    def offload(self) -> None:
        """Move the tensors that `policy.offload` selects to host memory, and release cached memory.

        Call `onload` before any computation.
        """
        if self.offloading:
            self.offloading.offload()
        self.release()

    def onload(self) -> None:
        """Move the tensors that `offload` has moved to host memory back to the device, bit for bit."""
        if self.offloading:
            self.offloading.onload()


def _to_score(
    packed_group: int,
    number: int,
    prompt_ids: Sequence[int],
    response_ids: Sequence[int],
) -> PackedGroup:
    """Return a prompt with one response whose log-probs are to be computed.

    Its advantage and its sampled log-probs are placeholders.
    """
    prompt = np.asarray(prompt_ids, np.int32)
    token_ids = np.asarray(response_ids, np.int32)
    no_log_probs = np.zeros(len(token_ids), np.float32)
    response = Response(packed_group, number, token_ids, no_log_probs, 0.0, is_fresh=True)
    return PackedGroup(prompt, (response,))
