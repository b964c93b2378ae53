"""Hypothesis strategies for engine configurations.

Small geometries on purpose: faults of a scheduler show where a few blocks are short. Every choice is ordered so that what
Hypothesis shrinks towards is what a person would call simpler: fewer and smaller blocks, limits not set, features off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import strategies as st

from model.config import DISAGGREGATED, EngineConfig, PrefillWorker, Speculation

CAPACITY_TOKENS = 24
"""Geometries hold at most about this many tokens."""

CADENCES: tuple[dict[str, Any], ...] = ({}, *({"dp_size": 2, "prefill_schedule_interval": steps} for steps in (2, 3)))


def _limits(most: int) -> st.SearchStrategy[int | None]:
    return st.none() | st.integers(1, most)


@st.composite
def paged_options(draw: st.DrawFn, *, speculation: bool | None = None) -> dict[str, Any]:
    """Options of a ``vllm`` engine; with ``speculation`` True or False that is fixed."""
    block_size = draw(st.integers(1, 4))
    drafts = st.integers(1, 3).map(lambda count: Speculation(count))
    chosen = {True: drafts, False: st.none(), None: st.none() | drafts}[speculation]
    return {
        "block_size": block_size,
        "num_blocks": draw(st.integers(1, max(1, CAPACITY_TOKENS // block_size // 2))),
        "prefix_caching": draw(st.booleans()),
        "speculation": draw(chosen),
        "max_num_batched_tokens": draw(_limits(16)),
        "max_num_seqs": draw(_limits(3)),
        "chunked_prefill": not draw(st.booleans()),
        "preemption": draw(st.sampled_from(("lifo", "fifo"))),
        "max_model_len": draw(st.none() | st.integers(2, CAPACITY_TOKENS)),
        "kv_events": not draw(st.booleans()),
        **draw(st.sampled_from(CADENCES)),
    }


def guaranteed_options(*, speculation: bool | None = None) -> st.SearchStrategy[dict[str, Any]]:
    """Options of a ``trtllm`` engine: those of a ``vllm`` one that it knows."""
    unknown = ("preemption", "max_model_len", "dp_size", "prefill_schedule_interval")
    return paged_options(speculation=speculation).map(
        lambda options: {name: value for name, value in options.items() if name not in unknown}
    )


@st.composite
def radix_options(draw: st.DrawFn, *, speculation: bool | None = None) -> dict[str, Any]:
    """Options of a ``sglang`` engine; with ``speculation`` True or False that is fixed."""
    block_size = draw(st.integers(1, 4))
    drafts = st.integers(1, 2).map(lambda count: Speculation(count))
    chosen = {True: drafts, False: st.none(), None: st.none() | drafts}[speculation]
    return {
        "block_size": block_size,
        "num_blocks": draw(st.integers(1, max(1, CAPACITY_TOKENS // block_size))),
        "prefix_caching": not draw(st.booleans()),
        "chunked_prefill_size": draw(st.integers(1, 16)),
        "max_prefill_tokens": draw(st.sampled_from((16384, 4, 8))),
        "speculation": draw(chosen),
        "schedule_policy": draw(st.sampled_from(("fcfs", "lpm"))),
        # With little set aside for output more requests run than the pool can hold: retraction.
        "schedule_conservativeness": draw(st.sampled_from((1.0, 0.0, 0.3))),
        "clip_max_new_tokens": draw(st.sampled_from((4096, 1, 3))),
        "max_num_seqs": draw(_limits(3)),
        "max_model_len": draw(st.none() | st.integers(2, CAPACITY_TOKENS)),
        "prefill_decode_interval": draw(st.sampled_from((0, 0, 0, 1, 2))),
        "kv_events": not draw(st.booleans()),
    }


OPTIONS: dict[str, Callable[..., st.SearchStrategy[dict[str, Any]]]] = {
    "vllm": paged_options,
    "trtllm": guaranteed_options,
    "sglang": radix_options,
}
"""Per scheduler: a strategy for its options, taking ``speculation``."""


def engine_configs(
    scheduler: str, *, defects: Iterable[str] = (), speculation: bool | None = None, **fixed: Any
) -> st.SearchStrategy[EngineConfig]:
    """Configurations of a scheduler.

    Args:
        scheduler: one of ``OPTIONS``.
        defects: ids switched on in all of them.
        speculation: True or False to have it always or never.
        fixed: options that are not to be drawn; ``role="disaggregated"`` makes systems of two workers.
    """
    names = frozenset(defects)

    def build(options: dict[str, Any]) -> EngineConfig:
        return EngineConfig(scheduler=scheduler, defects=names, **{**options, **fixed})

    options = OPTIONS[scheduler](speculation=speculation)
    if fixed.get("role") == DISAGGREGATED:
        return st.tuples(options, prefill_workers()).map(lambda drawn: build({**drawn[0], "prefill": drawn[1]}))
    return options.map(build)


def prefill_workers() -> st.SearchStrategy[PrefillWorker | None]:
    """What the prefill worker of a disaggregated system has different: often a cache of another size."""
    return st.none() | st.integers(1, CAPACITY_TOKENS // 2).map(lambda blocks: PrefillWorker(num_blocks=blocks))
