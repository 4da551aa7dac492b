"""Decide which engines and which requests the lean scheduler can serve. Written against vLLM 0.32.0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm import envs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.request import RequestStatus

from nemo_brorl.generation.lean_requests import MAX_STOP_TOKENS

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request


def why_unsupported(config: VllmConfig, kv_cache_config: KVCacheConfig) -> str:
    """Return which engine setting keeps decoding requests from being scheduled in arrays, outside vLLM's scheduler.

    The text is empty if no setting does.
    """
    model, parallel, settings = config.model_config, config.parallel_config, config.scheduler_config
    events = config.kv_events_config
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    is_full_attention = len(specs) == 1 and isinstance(specs[0], FullAttentionSpec) and not specs[0].sliding_window
    features = {
        "a connector": config.kv_transfer_config is not None or config.ec_transfer_config is not None,
        "pipeline stages": parallel.pipeline_parallel_size > 1,
        "context parallelism": parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1,
        "speculation": config.speculative_config is not None,
        "LoRA": config.lora_config is not None,
        "a model that is no decoder": model.is_encoder_decoder or model.is_diffusion or model.runner_type != "generate",
        "layers that do not attend to the whole context": not is_full_attention,
        "returned routes": config.aux_output_config.enabled,
        "sampling masks": model.return_sampling_mask,
        "counting NaNs": envs.VLLM_COMPUTE_NANS_IN_LOGITS,
        "events of the KV cache": events is not None and events.enable_kv_cache_events,
        "priorities": settings.policy != "fcfs",
        "watermark": settings.watermark > 0,
        "long_prefill_token_threshold": settings.long_prefill_token_threshold > 0,
        "prefill_schedule_interval": settings.prefill_schedule_interval > 1,
    }
    return ", ".join(name for name, is_there in features.items() if is_there)


def stop_tokens_of(request: Request) -> list[int] | None:
    """Return the tokens that end a request, or None if the request needs vLLM's own code in every step."""
    params = request.sampling_params
    if (
        params is None
        or params.output_kind != RequestOutputKind.FINAL_ONLY
        or params.num_logprobs
        or params.logprob_token_ids
        or params.stop
        or params.min_tokens
        or params.repetition_detection is not None
        or request.use_structured_output
        or request.resumable
        or request.mm_features
        or request.client_index
        or request.trace_headers is not None
    ):
        return None
    stop_tokens = list(params.stop_token_ids or ())
    if params.eos_token_id is not None:
        stop_tokens.append(params.eos_token_id)
    return stop_tokens if len(stop_tokens) <= MAX_STOP_TOKENS else None


def only_decodes(request: Request) -> bool:
    """Return whether a request has its first sampled token, and no part of its prompt is being computed."""
    num_placeholders = request.num_output_placeholders
    return (
        request.status == RequestStatus.RUNNING
        and request.num_output_tokens > 0
        and not request.num_stale_output_tokens
        and request.num_computed_tokens - num_placeholders == request.num_tokens - 1
        and request.num_in_flight_tokens == num_placeholders
    )
