"""The configuration of a paged engine in the form a pass reads: limits as numbers, defects as flags.

Computed once and shared by all engines thawed from one another.
"""

from __future__ import annotations

from attrs import field, frozen

from model.config import EngineConfig, nanoseconds

UNLIMITED = 1 << 62
"""Stands for a limit that is not set; larger than any count that occurs."""


def cdiv(tokens: int, block_size: int) -> int:
    """Blocks needed for ``tokens``."""
    return -(-tokens // block_size)


@frozen
class PagedRules:
    """See the module docstring; the fields are those of the configuration, None replaced by ``UNLIMITED``."""

    config: EngineConfig
    block_size: int = field(init=False)
    num_blocks: int = field(init=False)
    budget: int = field(init=False)
    max_seqs: int = field(init=False)
    chunked: bool = field(init=False)
    caching: bool = field(init=False)
    events: bool = field(init=False)
    max_length: int = field(init=False)
    fifo: bool = field(init=False)
    guaranteed: bool = field(init=False)
    cadence: int = field(init=False)
    hands_off: bool = field(init=False)
    decode_role: bool = field(init=False)
    prefill_role: bool = field(init=False)
    speculative: bool = field(init=False)
    draft_tokens: int = field(init=False)
    accepted: int = field(init=False)
    max_burst: int = field(init=False)
    prefill_ns: int = field(init=False)
    prefill_token_ns: int = field(init=False)
    decode_ns: int = field(init=False)
    decode_request_ns: int = field(init=False)
    reserves_terminal: bool = field(init=False)
    allocates_terminal: bool = field(init=False)
    admits_unservable: bool = field(init=False)
    counts_dropped_hits: bool = field(init=False)
    takes_last_ready: bool = field(init=False)
    scans_needlessly: bool = field(init=False)
    holders_wait: bool = field(init=False)

    def __attrs_post_init__(self) -> None:
        config = self.config
        speculation = config.speculation
        timing = config.timing
        on = config.defects
        derived = {
            "block_size": config.block_size,
            "num_blocks": config.num_blocks,
            "budget": config.max_num_batched_tokens or UNLIMITED,
            "max_seqs": config.max_num_seqs or UNLIMITED,
            "chunked": config.chunked_prefill,
            "caching": config.prefix_caching,
            "events": config.kv_events and config.prefix_caching,
            "max_length": config.max_model_len or UNLIMITED,
            "fifo": config.preemption == "fifo",
            # TensorRT-LLM's guaranteed-no-evict policy: whole outputs are set aside at admission.
            "guaranteed": config.scheduler == "trtllm",
            # One rank alone has nobody to keep in step with (vLLM specification 3.10).
            "cadence": config.prefill_schedule_interval if config.dp_size > 1 else 1,
            "hands_off": config.role != "aggregated",
            "decode_role": config.role == "decode",
            "prefill_role": config.role == "prefill",
            "speculative": speculation is not None,
            "draft_tokens": speculation.draft_tokens if speculation else 0,
            "accepted": speculation.accepted if speculation else 0,
            # A prefill worker produces the first token alone (vLLM specification 3.8).
            "max_burst": 1 if speculation is None or config.role == "prefill" else speculation.draft_tokens + 1,
            "prefill_ns": nanoseconds(timing.prefill_ms),
            "prefill_token_ns": nanoseconds(timing.prefill_ms_per_token),
            "decode_ns": nanoseconds(timing.decode_ms),
            "decode_request_ns": nanoseconds(timing.decode_ms_per_request),
            # Finding 9: each half of the fix alone is a variant.
            "reserves_terminal": "speculative-terminal-block" in on or "speculative-terminal-block:allocation-only" in on,
            "allocates_terminal": "speculative-terminal-block" in on or "speculative-terminal-block:reservation-only" in on,
            "admits_unservable": "admits-unservable" in on,
            "counts_dropped_hits": "counts-dropped-hits" in on,
            "takes_last_ready": "fifo-preempts-last-ready" in on,
            "scans_needlessly": "handoff-scan" in on,
            "holders_wait": "holders-wait" in on,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def output_limit(self, prompt: int, output: int) -> int:
        """The most tokens that a request with these lengths may produce.

        The cap on model length cuts it; with TensorRT-LLM's policy the cache does, which has to hold the whole sequence (vLLM
        specification 3.4). A prompt that fills the cache alone is not cut: it is refused at the head of the queue.
        """
        if self.guaranteed:
            capacity = self.num_blocks * self.block_size
            return min(output, capacity - prompt) if prompt < capacity else output
        return min(output, max(self.max_length - prompt, 0))
