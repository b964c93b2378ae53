"""Small configurations with tiers, workloads, and what may be done to an engine, for Hypothesis."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from model.actions import Action, Advance, Cancel, Step, Submit
from model.config import EngineConfig
from model.requests import Prompt, RequestSpec
from tests.tiers.driver import Arrival
from tests.tiers.fixtures import MS

SIZE = 2
"""Tokens in a block."""

_bandwidths = st.sampled_from([0, 1, 0.25, 3])


def prompt_of(blocks: str, extra: int = 0) -> Prompt:
    """A prompt of whole blocks, each named by a letter, and ``extra`` tokens."""
    return Prompt.of_tokens([ord(name) for name in blocks for _ in range(SIZE)] + [1] * extra)


prompts = st.builds(prompt_of, st.sampled_from(["ab", "cd", "abc", "a", "cdab", "abd"]), st.integers(0, 1))


@st.composite
def configurations(draw: st.DrawFn, defects: tuple[str, ...] = ("",)) -> EngineConfig:
    """A small engine with host memory and mostly a disk, with one of ``defects``."""
    tiers: dict[str, Any] = {
        "host_blocks": draw(st.integers(1, 4)),
        "d2h_gbps": draw(_bandwidths),
        "h2d_gbps": draw(_bandwidths),
        "host_latency_ms": draw(st.sampled_from([0, 0, 0.5])),
    }
    if draw(st.integers(0, 3)):
        preloaded = draw(st.sampled_from(["", "ab", "abc ab", "abc cd", "cdab abd abc"])).split()
        tiers |= {
            "disk_blocks": draw(st.integers(8, 12) if preloaded else st.integers(1, 8)),
            "preloaded_disk": [prompt_of(blocks).to_json() for blocks in preloaded],
            "disk_latency_ms": draw(st.sampled_from([0, 0, 0.25])),
            "disk_read_gbps": draw(_bandwidths),
            "disk_write_gbps": draw(_bandwidths),
            "disk_scope": draw(st.sampled_from(["worker_local", "cluster_shared"])),
            "disk_shared_read_gbps": draw(_bandwidths),
            "disk_shared_write_gbps": draw(_bandwidths),
        }
    defect = draw(st.sampled_from(defects))
    return EngineConfig.from_json(
        {
            "scheduler": "vllm",
            "block_size": SIZE,
            "num_blocks": draw(st.integers(2, 8)),
            "max_num_batched_tokens": draw(st.sampled_from([1, 2, 3, 4, 8])),
            "max_num_seqs": draw(st.integers(1, 3)),
            "preemption": draw(st.sampled_from(["lifo", "fifo"])),
            "timing": {
                "prefill_ms": draw(st.sampled_from([0, 1])),
                "prefill_ms_per_token": 0,
                "decode_ms": draw(st.sampled_from([0, 0.5])),
            },
            "tiers": tiers,
            "defects": [defect] if defect else [],
        }
    )


def requests(id_: str) -> st.SearchStrategy[RequestSpec]:
    """A short request."""
    return st.builds(RequestSpec, st.just(id_), prompts, st.integers(0, 4))


@st.composite
def workloads(draw: st.DrawFn, most: int = 5) -> list[Arrival]:
    """Up to ``most`` requests within a few milliseconds."""
    count = draw(st.integers(1, most))
    times = st.sampled_from([Fraction(0), Fraction(0), Fraction(1), Fraction(2), Fraction(5), Fraction(1, 2)])
    return [Arrival(draw(times), draw(requests(f"r{number}"))) for number in range(count)]


MOVES: tuple[Action, ...] = (Step(), Step(), Advance(), Advance(MS // 2), Advance(MS * Fraction(4, 3)))


@st.composite
def plans(draw: st.DrawFn) -> list[Action]:
    """What is done to an engine, whatever it makes of it: requests arrive, and between them passes run and time goes on."""
    actions: list[Action] = []
    for number in range(draw(st.integers(1, 6))):
        actions.append(Submit(draw(requests(f"r{number}"))))
        if draw(st.integers(0, 5)) == 5:
            actions.append(Cancel(f"r{draw(st.integers(0, number))}"))
        actions += draw(st.lists(st.sampled_from(MOVES), min_size=3, max_size=16))
    return actions
