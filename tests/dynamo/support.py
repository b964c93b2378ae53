"""Cases in few words."""

from __future__ import annotations

from typing import Any

from adapters.dynamo.release import Release
from adapters.workload import TimedRequest, Workload
from model.config import NANOSECONDS_PER_MS, EngineConfig, Timing
from model.requests import Prompt, RequestSpec

NEW = Release("1.6.1", mapping=True)
OLD = Release("1.5.1", mapping=False)
MS = NANOSECONDS_PER_MS
FIXED = Timing(prefill_ms=10, prefill_ms_per_token=0, decode_ms=5)


def vllm(size: int, blocks: int, **options: Any) -> EngineConfig:
    """A paged engine under fixed times, 10 ms to prefill and 5 ms to decode; prefix caching off unless asked for."""
    given = {"scheduler": "vllm", "prefix_caching": False, "timing": FIXED, **options}
    return EngineConfig(block_size=size, num_blocks=blocks, **given)


def sglang(size: int, blocks: int, **options: Any) -> EngineConfig:
    """A radix engine under the same times."""
    return vllm(size, blocks, **{"scheduler": "sglang", **options})


def arriving(*requests: tuple[int, int, int]) -> Workload:
    """Requests as (arrival in ms, prompt length, output), named r0, r1, … with prompts of their own."""
    return Workload(
        TimedRequest(RequestSpec(f"r{number}", Prompt.of_streams([(f"r{number}", prompt)]), output), at_ms * MS)
        for number, (at_ms, prompt, output) in enumerate(requests)
    )
