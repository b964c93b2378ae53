"""The configuration of a radix engine in the form a pass reads: limits as numbers, defects as flags.

Computed once and shared by all engines thawed from one another.
"""

from __future__ import annotations

from attrs import field, frozen

from model.config import EngineConfig, nanoseconds

UNLIMITED = 1 << 62
"""Stands for a limit that is not set; larger than any count that occurs."""

INITIAL_RATIO = 0.7
MINIMAL_RATIO_FACTOR = 0.14
RATIO_DECAY_PASSES = 600
RETRACTION_DECODE_STEPS = 20
"""Decode steps that the re-estimated ratio provides for after a retraction."""

LPM_MOST_WAITING = 128
"""With more requests waiting, the longest-prefix-match policy leaves the queue as it is."""
LPM_IN_BATCH_TOKENS = 32
"""Below this many cached tokens, requests that share their first tokens wait for the first of them."""


@frozen
class RadixRules:
    """See the module docstring; the fields are those of the configuration, None replaced by ``UNLIMITED``.

    ``initial_ratio``, ``minimal_ratio`` and ``ratio_step`` are floats computed in the order of SGLang specification 1, since a
    released engine computes them so.
    """

    config: EngineConfig
    page_size: int = field(init=False)
    num_pages: int = field(init=False)
    chunk_budget: int = field(init=False)
    input_budget: int = field(init=False)
    max_seqs: int = field(init=False)
    clip: int = field(init=False)
    initial_ratio: float = field(init=False)
    minimal_ratio: float = field(init=False)
    ratio_step: float = field(init=False)
    lpm: bool = field(init=False)
    interval: int = field(init=False)
    caching: bool = field(init=False)
    publishes: bool = field(init=False)
    max_length: int = field(init=False)
    draft_tokens: int = field(init=False)
    accepted: int = field(init=False)
    prefill_ns: int = field(init=False)
    prefill_token_ns: int = field(init=False)
    decode_ns: int = field(init=False)
    decode_request_ns: int = field(init=False)
    hands_off: bool = field(init=False)
    decode_role: bool = field(init=False)
    chunk_ignores_rest: bool = field(init=False)
    split_keeps_capacity: bool = field(init=False)
    truncation_keeps_capacity: bool = field(init=False)
    admits_unservable: bool = field(init=False)
    input_budget_blocks: bool = field(init=False)
    readmits_by_pages: bool = field(init=False)
    sorts_partials: bool = field(init=False)
    partials_keep_pages: bool = field(init=False)
    caches_with_first_token: bool = field(init=False)
    holds_uncached: bool = field(init=False)
    last_one_stays: bool = field(init=False)

    def __attrs_post_init__(self) -> None:
        config = self.config
        speculation = config.speculation
        timing = config.timing
        on = config.defects
        initial_ratio = INITIAL_RATIO * config.schedule_conservativeness
        minimal_ratio = initial_ratio * MINIMAL_RATIO_FACTOR
        derived = {
            "page_size": config.block_size,
            "num_pages": config.num_blocks,
            "chunk_budget": config.chunked_prefill_size,
            "input_budget": config.max_prefill_tokens,
            "max_seqs": config.max_num_seqs or UNLIMITED,
            "clip": config.clip_max_new_tokens,
            "initial_ratio": initial_ratio,
            "minimal_ratio": minimal_ratio,
            "ratio_step": (initial_ratio - minimal_ratio) / RATIO_DECAY_PASSES,
            # Without caching nothing matches, so the policy falls back to the order of arrival.
            "lpm": config.schedule_policy == "lpm" and config.prefix_caching,
            "interval": config.prefill_decode_interval,
            "caching": config.prefix_caching,
            # Finding 4: whether events are published is decided without a look at caching.
            "publishes": config.kv_events and (config.prefix_caching or "stored-without-caching" in on),
            "max_length": config.max_model_len or UNLIMITED,
            # A prefill worker produces one token at a time (2.5).
            "draft_tokens": speculation.draft_tokens if speculation and config.role != "prefill" else 0,
            "accepted": speculation.accepted if speculation else 0,
            "prefill_ns": nanoseconds(timing.prefill_ms),
            "prefill_token_ns": nanoseconds(timing.prefill_ms_per_token),
            "decode_ns": nanoseconds(timing.decode_ms),
            "decode_request_ns": nanoseconds(timing.decode_ms_per_request),
            "hands_off": config.role != "aggregated",
            "decode_role": config.role == "decode",
            "chunk_ignores_rest": "sglang-chunk-budget" in on,
            "split_keeps_capacity": "split-keeps-capacity" in on,
            "truncation_keeps_capacity": "truncation-keeps-capacity" in on,
            "admits_unservable": "radix-admits-unservable" in on,
            "input_budget_blocks": "input-budget-blocks" in on,
            "readmits_by_pages": "retracted-never-readmitted" in on,
            "sorts_partials": "lpm-sorts-partials" in on,
            "partials_keep_pages": "partial-starves-decode" in on,
            "caches_with_first_token": "stored-before-cached" in on,
            "last_one_stays": "ready-starves-running" in on,
            "holds_uncached": "held-prompt-not-cached" in on,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def whole_pages(self, tokens: int) -> int:
        """``tokens`` rounded down to whole pages, in tokens."""
        return tokens // self.page_size * self.page_size

    def paged(self, tokens: int) -> int:
        """``tokens`` rounded up to whole pages, in tokens."""
        return -(-tokens // self.page_size) * self.page_size
