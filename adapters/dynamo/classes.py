"""Random cases by class: the classes on which the specifications were compared with the released engines.

Every case is a function of its class and a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from attrs import frozen

from adapters.workload import TimedRequest, Workload
from model.config import NANOSECONDS_PER_MS, EngineConfig, Speculation, Timing
from model.requests import Prompt, RequestSpec


@frozen
class Case:
    """A configuration and what arrives."""

    config: EngineConfig
    workload: Workload


@frozen
class CaseClass:
    """A class of random cases.

    Attributes:
        name: what is particular.
        scheduler: for which scheduler.
        draw: a case out of a random generator.
    """

    name: str
    scheduler: str
    draw: Callable[[Random], Case]

    def case(self, seed: int) -> Case:
        """The case of ``seed``."""
        return self.draw(Random(f"{self.scheduler} {self.name} {seed}"))


# vLLM specification 0.


def _vllm(
    random: Random,
    *,
    caching: bool = False,
    tight: bool = False,
    chunked: bool = True,
    fifo: bool = False,
    max_length: bool = False,
    zero_output: bool = False,
    accepted: str | None = None,
    unlimited: bool = False,
    large: bool = False,
    zero_time: bool = False,
) -> Case:
    """A case for vLLM's policy with the features named."""
    block_size = random.randint(2, 16 if large else 4)
    num_blocks = random.randint(8, 40) if large else random.randint(2, 5) if tight else random.randint(2, 12)
    requests = random.randint(4, 14) if large else random.randint(1, 6)
    capacity = block_size * num_blocks
    options: dict[str, Any] = {}
    if max_length:
        options["max_model_len"] = random.randint(2, capacity + 3)
    if accepted is not None:
        drafts = random.randint(1, 3)
        options["speculation"] = Speculation(drafts, {"all": drafts, "none": 0}.get(accepted, random.randint(0, drafts)))
    prefill_ms, decode_ms = random.randint(1, 6), random.randint(1, 4)
    if zero_time:
        prefill_ms, decode_ms = random.choice(((0, decode_ms), (prefill_ms, 0), (0, 0)))
    config = EngineConfig(
        scheduler="vllm",
        block_size=block_size,
        num_blocks=num_blocks,
        max_num_batched_tokens=None if unlimited and random.random() < 0.5 else random.randint(1, 3 * capacity // 2),
        max_num_seqs=None if unlimited else random.randint(1, 5),
        chunked_prefill=chunked,
        prefix_caching=caching,
        preemption="fifo" if fifo else "lifo",
        timing=Timing(prefill_ms=prefill_ms, prefill_ms_per_token=0, decode_ms=decode_ms),
        defects="upstream",
        **options,
    )
    return Case(config, _workload(random, requests, capacity, zero_output, shared=caching))


def _workload(random: Random, count: int, capacity: int, zero_output: bool, shared: bool) -> Workload:
    """Requests of which most could be served alone; with ``shared`` their prompts begin as few streams do, and diverge."""
    arrival_ms = 0
    requests = []
    for number in range(count):
        if random.random() < 0.6:
            arrival_ms += random.randint(1, 20)
        most = capacity + (2 if random.random() < 0.1 else 0)
        length = random.randint(1, most if random.random() < 0.3 else max(1, capacity // 2))
        pieces = [(f"own {number}", length)]
        if shared and random.random() < 0.8:
            common = random.randint(1, length)
            rest = random.choice(("C", "D", f"own {number}"))
            pieces = [(random.choice("AB"), common), (rest, length - common)]
        output = random.randint(0, 2) if zero_output else random.randint(1, max(1, most - length + 1))
        spec = RequestSpec(f"r{number}", Prompt.of_streams(pieces), min(output, 24))
        requests.append(TimedRequest(spec, arrival_ms * NANOSECONDS_PER_MS))
    return Workload(requests)


def _mixed(random: Random) -> Case:
    """Everything at once."""
    return _vllm(
        random,
        caching=random.random() < 0.6,
        tight=random.random() < 0.5,
        chunked=random.random() < 0.7,
        fifo=random.random() < 0.4,
        max_length=random.random() < 0.4,
        zero_output=random.random() < 0.3,
        accepted=random.choice((None, "all", "none", "some")),
        unlimited=random.random() < 0.3,
    )


VLLM: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "caching": {"caching": True},
    "tight pool, caching": {"caching": True, "tight": True},
    "chunking off": {"chunked": False},
    "fifo": {"fifo": True},
    "fifo, tight pool": {"fifo": True, "tight": True},
    "max model length": {"max_length": True},
    "zero output": {"zero_output": True, "caching": True},
    "speculation, all accepted": {"accepted": "all"},
    "speculation, all rejected": {"accepted": "none"},
    "speculation, caching": {"accepted": "some", "caching": True},
    "speculation, fifo": {"accepted": "some", "fifo": True},
    "speculation, max model length": {"accepted": "some", "max_length": True},
    "larger geometry": {"large": True, "caching": True},
    "unlimited": {"unlimited": True},
    "zero time": {"zero_time": True, "caching": True},
}


def _features(features: Mapping[str, Any]) -> Callable[[Random], Case]:
    return lambda random: _vllm(random, **features)


CLASSES: tuple[CaseClass, ...] = (
    *(CaseClass(name, "vllm", _features(features)) for name, features in VLLM.items()),
    CaseClass("everything mixed", "vllm", _mixed),
)
