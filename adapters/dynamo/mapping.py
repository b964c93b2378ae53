"""Our configuration and workload in the words of the simulated engine: its configuration, and a Mooncake trace.

Only what the engine can be told is mapped; anything else is refused by name, never dropped.
"""

from __future__ import annotations

import json
from typing import Any

from adapters.cases import mooncake_rows
from adapters.dynamo.release import Release
from adapters.workload import Workload
from model.actions import Nanoseconds
from model.config import NANOSECONDS_PER_MS, EngineConfig, Tiers
from model.errors import BadInput, shown
from model.tiers.rules import MEGABYTE


def milliseconds(nanoseconds: Nanoseconds) -> float:
    """Virtual time as the engine's float64 milliseconds."""
    return float(nanoseconds / NANOSECONDS_PER_MS)


def engine_argument(config: EngineConfig, release: Release) -> dict[str, Any]:
    """The configuration as ``release`` takes it: a nested mapping (1.6), or flat JSON for its argument object (1.5).

    Raises:
        BadInput: for what this engine cannot be told.
    """
    _refuse_inexpressible(config, release)
    timing = config.timing
    words: dict[str, Any] = {
        "num_gpu_blocks": config.num_blocks,
        "block_size": config.block_size,
        "max_num_seqs": config.max_num_seqs,
        "enable_prefix_caching": config.prefix_caching,
        "timing_model": {"type": "fixed", "prefill_ms": timing.prefill_ms, "decode_ms": timing.decode_ms},
    }
    if config.max_model_len is not None:
        words["max_model_len"] = config.max_model_len
    if config.speculation is not None:
        drafts, accepted = config.speculation.draft_tokens, config.speculation.accepted
        words["aic_nextn"] = drafts
        words["aic_nextn_accept_rates"] = ",".join("1" if at < accepted else "0" for at in range(drafts))
    if config.scheduler == "sglang":
        words["max_num_batched_tokens"] = None
        words["sglang"] = {
            "schedule_policy": "lpm" if config.schedule_policy == "lpm" else "fifo",
            "chunked_prefill_size": config.chunked_prefill_size,
            "max_prefill_tokens": config.max_prefill_tokens,
            "schedule_conservativeness": config.schedule_conservativeness,
            "clip_max_new_tokens": config.clip_max_new_tokens,
        }
        if config.prefill_decode_interval:
            words["prefill_decode_interval"] = config.prefill_decode_interval
    else:
        words["max_num_batched_tokens"] = config.max_num_batched_tokens
        words["enable_chunked_prefill"] = config.chunked_prefill
    if config.scheduler == "vllm":
        words["preemption_mode"] = config.preemption
    if config.tiers is not None:
        words.update(_tiers(config, config.tiers))
    if release.mapping:
        return {"engine": {"backend": config.scheduler, **words}}
    return {"engine_type": config.scheduler, **words}


def _tiers(config: EngineConfig, tiers: Tiers) -> dict[str, Any]:
    """Host and disk offload (offload specification 1)."""
    per_token = config.kv_bytes_per_token
    if per_token is None:
        per_token, rest = divmod(MEGABYTE, config.block_size)
        if rest:
            raise BadInput("engine.kv_bytes_per_token", "null", "a number, where the block size does not divide 1,000,000")
    for name in ("preloaded_host", "preloaded_disk"):
        if getattr(tiers, name):
            raise BadInput(f"engine.tiers.{name}", "prompts", "none: the engine starts empty")
    words: dict[str, Any] = {
        "kv_cache_bytes_per_token": per_token,
        "native_host_offload": {
            "scope": "dp_rank_local",
            "num_host_blocks": tiers.host_blocks,
            "d2h_bandwidth_gbps": tiers.d2h_gbps,
            "h2d_bandwidth_gbps": tiers.h2d_gbps,
            "latency_to_first_byte_ms": tiers.host_latency_ms,
        },
    }
    if tiers.disk_blocks is not None:
        words["g3_offload"] = {
            "scope": tiers.disk_scope,
            "num_g3_blocks": tiers.disk_blocks,
            "latency_to_first_byte_ms": tiers.disk_latency_ms,
            "read_bandwidth_gbps": tiers.disk_read_gbps,
            "write_bandwidth_gbps": tiers.disk_write_gbps,
            "shared_read_bandwidth_gbps": tiers.disk_shared_read_gbps,
            "shared_write_bandwidth_gbps": tiers.disk_shared_write_gbps,
        }
    return words


def _refuse_inexpressible(config: EngineConfig, release: Release) -> None:
    here = f"with {release.name}"
    only: dict[str, object] = {"role": "aggregated", "dp_size": 1}
    if not release.mapping:
        only.update(prefill_decode_interval=0, tiers=None)
        if config.scheduler != "vllm":
            only["max_model_len"] = None
    for name, allowed in only.items():
        value = getattr(config, name)
        if value != allowed:
            raise BadInput(f"engine.{name}", shown(value), f"{shown(allowed)} {here}")
    for name in ("prefill_ms_per_token", "decode_ms_per_request"):
        value = getattr(config.timing, name)
        if value:
            raise BadInput(f"engine.timing.{name}", shown(value), f"0 {here}")


def trace_text(workload: Workload) -> str:
    """The workload as a Mooncake trace, one session a request.

    The session of a request is its position in the workload, so that its own name may be anything.
    """
    rows = enumerate(mooncake_rows(workload))
    return "".join(json.dumps({"session_id": str(position), **row}) + "\n" for position, row in rows)
