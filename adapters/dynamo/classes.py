"""Random cases by class: the classes on which the specifications were compared with the released engines.

Every case is a function of its class and a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any

from attrs import frozen

from adapters.workload import TimedRequest, Workload
from model.config import NANOSECONDS_PER_MS, EngineConfig, Speculation, Tiers, Timing
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


def _paged(
    random: Random,
    scheduler: str,
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
    turns: bool = False,
) -> Case:
    """A case for a paged scheduler with the features named (vLLM specification 0)."""
    block_size = random.randint(2, 16 if large else 4)
    num_blocks = random.randint(8, 40) if large else random.randint(2, 5) if tight else random.randint(2, 12)
    requests = random.randint(4, 14) if large else random.randint(1, 6)
    capacity = block_size * num_blocks
    options: dict[str, Any] = {}
    if max_length:
        options["max_model_len"] = random.randint(2, capacity + 3)
    if fifo:
        options["preemption"] = "fifo"
    config = EngineConfig(
        scheduler=scheduler,
        block_size=block_size,
        num_blocks=num_blocks,
        max_num_batched_tokens=None if unlimited and random.random() < 0.5 else random.randint(1, 3 * capacity // 2),
        max_num_seqs=None if unlimited else random.randint(1, 5),
        chunked_prefill=chunked,
        prefix_caching=caching,
        speculation=_speculation(random, accepted),
        timing=_timing(random, zero_time),
        defects="upstream",
        **options,
    )
    if turns:
        return Case(config, _conversation(random, capacity))
    return Case(config, _workload(random, requests, capacity, zero_output=zero_output, shared=caching))


def _paged_mixed(random: Random, scheduler: str) -> Case:
    """Everything at once."""
    vllm = scheduler == "vllm"
    return _paged(
        random,
        scheduler,
        caching=random.random() < 0.6,
        tight=random.random() < 0.5,
        chunked=random.random() < 0.7,
        fifo=vllm and random.random() < 0.4,
        max_length=vllm and random.random() < 0.4,
        zero_output=random.random() < 0.3,
        accepted=random.choice((None, "all", "none", "some")),
        unlimited=random.random() < 0.3,
        turns=random.random() < 0.2,
    )


def _radix(
    random: Random,
    *,
    caching: bool = True,
    lpm: bool = False,
    long_prompts: bool = False,
    conservative: bool = False,
    clip: bool = False,
    unservable: bool = False,
    tree: bool = False,
    accepted: str | None = None,
    many: bool = False,
    crowd: bool = False,
    unit_time: bool = False,
    max_length: bool = False,
    interval: bool = False,
) -> Case:
    """A case for SGLang's policy with the features named (SGLang specification 0.3)."""
    page_size = random.randint(1, 16) if many else random.randint(1, 5)
    num_pages = random.randint(20, 60) if many or long_prompts or crowd else random.randint(3, 14)
    capacity = page_size * num_pages
    if crowd:
        requests = random.randint(126, 134)
    elif many:
        requests = random.randint(8, 24)
    else:
        requests = random.randint(1, 7)
    options: dict[str, Any] = {}
    if conservative:
        options["schedule_conservativeness"] = random.choice((0.0, 0.25, 0.5, 1.0, 1.5, 2.0))
    if clip:
        options["clip_max_new_tokens"] = random.randint(1, 8)
    if max_length:
        options["max_model_len"] = random.randint(2, capacity + 3)
    if interval:
        options["prefill_decode_interval"] = random.randint(1, 3)
    if unit_time:
        timing = Timing(prefill_ms=random.randint(0, 1), prefill_ms_per_token=0, decode_ms=random.randint(0, 1))
    else:
        timing = _timing(random, zero=False)
    config = EngineConfig(
        scheduler="sglang",
        block_size=page_size,
        num_blocks=num_pages,
        max_num_seqs=random.randint(1, 6),
        chunked_prefill_size=page_size * random.randint(1, 6),
        max_prefill_tokens=random.choice((16384, random.randint(1, 2 * capacity))),
        schedule_policy="lpm" if lpm else "fcfs",
        prefix_caching=caching,
        speculation=_speculation(random, accepted),
        timing=timing,
        defects="upstream",
        **options,
    )
    if long_prompts or crowd:
        return Case(config, _crowd(random, requests, length=(20, 56) if long_prompts else (1, 8)))
    # Room must be left over once a prompt and its output are set aside (SGLang specification 3).
    servable = max(capacity - 2 * page_size, 1)
    odd = 0.5 if unservable else 0.05
    return Case(config, _workload(random, requests, servable, shared=caching, unservable=odd, branching=tree))


def _tiered(random: Random, *, ample: bool = False, latency: bool = False, disk: str | None = None) -> Case:
    """A case for vLLM's policy with host memory, ``ample`` or not, and perhaps a disk (offload specification 0)."""
    block_size = random.choice((2, 4))
    num_blocks = random.randint(2, 8)
    capacity = block_size * num_blocks
    tiers: dict[str, Any] = {
        "host_blocks": 8 * capacity if ample else random.randint(1, 8),
        "d2h_gbps": random.choice((0, 1, 2)),
        "h2d_gbps": random.choice((1, 2)),
    }
    if latency:
        tiers["host_latency_ms"] = random.choice((0.5, 1, 3))
    if disk is not None:
        tiers["disk_scope"] = disk
        tiers["disk_blocks"] = random.randint(1, 16)
        tiers["disk_latency_ms"] = random.choice((0, 0.5, 2))
        tiers["disk_read_gbps"] = random.choice((0, 1, 2))
        tiers["disk_write_gbps"] = random.choice((0, 1, 2))
        if disk == "cluster_shared":
            tiers["disk_shared_read_gbps"] = random.choice((0, 1, 2))
            tiers["disk_shared_write_gbps"] = random.choice((0, 1, 2))
    config = EngineConfig(
        scheduler="vllm",
        block_size=block_size,
        num_blocks=num_blocks,
        max_num_batched_tokens=random.randint(block_size, 2 * capacity),
        max_num_seqs=random.randint(1, 4),
        chunked_prefill=random.random() < 0.8,
        preemption=random.choice(("lifo", "fifo")),
        tiers=Tiers(**tiers),
        timing=_timing(random, zero=False),
        defects="upstream",
    )
    return Case(config, _workload(random, random.randint(2, 8), capacity, shared=True))


def _speculation(random: Random, accepted: str | None) -> Speculation | None:
    if accepted is None:
        return None
    drafts = random.randint(1, 3)
    return Speculation(drafts, {"all": drafts, "none": 0}.get(accepted, random.randint(0, drafts)))


def _timing(random: Random, zero: bool) -> Timing:
    prefill_ms, decode_ms = random.randint(1, 6), random.randint(1, 4)
    if zero:
        prefill_ms, decode_ms = random.choice(((0, decode_ms), (prefill_ms, 0), (0, 0)))
    return Timing(prefill_ms=prefill_ms, prefill_ms_per_token=0, decode_ms=decode_ms)


def _workload(
    random: Random,
    count: int,
    capacity: int,
    *,
    shared: bool,
    zero_output: bool = False,
    unservable: float = 0.1,
    branching: bool = False,
) -> Workload:
    """Requests of which most could be served alone.

    Args:
        random: the generator.
        count: of requests.
        capacity: tokens that fit the cache.
        shared: prompts begin as few streams do, and then diverge.
        zero_output: at most two output tokens, often none.
        unservable: the share of requests that may be longer than the cache.
        branching: prompts diverge up to three times, at few places.
    """
    arrival_ms = 0
    requests = []
    for number in range(count):
        if random.random() < 0.6:
            arrival_ms += random.randint(1, 20)
        most = capacity + (random.randint(1, 9) if random.random() < unservable else 0)
        length = random.randint(1, most if random.random() < 0.3 else max(1, capacity // 2))
        own = f"own {number}"
        pieces = [(own, length)]
        if branching:
            pieces = _branch(random, length, own)
        elif shared and random.random() < 0.8:
            common = random.randint(1, length)
            pieces = [(random.choice("AB"), common), (random.choice(("C", "D", own)), length - common)]
        output = random.randint(0, 2) if zero_output else random.randint(1, max(1, most - length + 1))
        spec = RequestSpec(f"r{number}", Prompt.of_streams(pieces), min(output, 24))
        requests.append(TimedRequest(spec, arrival_ms * NANOSECONDS_PER_MS))
    return Workload(requests)


def _branch(random: Random, length: int, own: str) -> list[tuple[str, int]]:
    """A path in a small tree of streams, cut to ``length``."""
    pieces = []
    name = ""
    while length:
        name += random.choice("AB")
        piece = min(length, random.randint(1, 6)) if len(name) < 4 else length
        pieces.append((name if len(name) < 4 else own, piece))
        length -= piece
    return pieces


def _crowd(random: Random, count: int, length: tuple[int, int]) -> Workload:
    """Requests with prompts of ``length`` (least and most) and shared beginnings, which arrive nearly at once."""
    requests = []
    for number in range(count):
        whole = random.randint(*length)
        common = random.randint(0, whole)
        pieces = [(random.choice("ABC"), common), (f"own {number}", whole - common)]
        spec = RequestSpec(f"r{number}", Prompt.of_streams(pieces), random.randint(1, 4))
        requests.append(TimedRequest(spec, random.randint(0, 3) * NANOSECONDS_PER_MS))
    return Workload(requests)


def _conversation(random: Random, capacity: int) -> Workload:
    """Follow-up turns: a prompt that continues an earlier one with the answer to that, whose tokens are planned."""
    arrival_ms = 0
    token = 0
    earlier: list[RequestSpec] = []
    requests = []
    for number in range(random.randint(2, 6)):
        arrival_ms += random.randint(0, 40)
        prompt = Prompt(())
        if earlier and random.random() < 0.8:
            before = random.choice(earlier)
            said = before.output_tokens or ()
            prompt = before.prompt.extended(said[: random.randint(0, len(said))])
        new = random.randint(1, max(1, capacity // 3))
        prompt = prompt.extended(range(token, token + new))
        output = random.randint(1, max(1, capacity // 3))
        answer = tuple(range(token + new, token + new + output))
        token += new + output
        spec = RequestSpec(f"r{number}", prompt, output, answer)
        earlier.append(spec)
        requests.append(TimedRequest(spec, arrival_ms * NANOSECONDS_PER_MS))
    return Workload(requests)


PAGED: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "caching": {"caching": True},
    "speculation, all accepted": {"accepted": "all"},
    "speculation, all rejected": {"accepted": "none"},
    "speculation, caching": {"accepted": "some", "caching": True},
    "follow-up turns": {"caching": True, "turns": True},
    "larger geometry": {"large": True, "caching": True},
    "zero time": {"zero_time": True, "caching": True},
    "unlimited": {"unlimited": True},
    "zero output": {"zero_output": True, "caching": True},
    "tight pool, caching": {"caching": True, "tight": True},
    "chunking off": {"chunked": False},
}
VLLM: Mapping[str, Mapping[str, Any]] = {
    "fifo": {"fifo": True},
    "fifo, tight pool": {"fifo": True, "tight": True},
    "max model length": {"max_length": True},
    "speculation, fifo": {"accepted": "some", "fifo": True},
    "speculation, max model length": {"accepted": "some", "max_length": True},
}
RADIX: Mapping[str, Mapping[str, Any]] = {
    "caching off": {"caching": False},
    "caching": {},
    "lpm": {"lpm": True},
    "lpm, long prompts": {"lpm": True, "long_prompts": True},
    "conservativeness": {"conservative": True},
    "clipped output": {"clip": True},
    "requests that do not fit": {"unservable": True},
    "shared-prefix trees": {"tree": True},
    "speculation, all accepted": {"accepted": "all"},
    "speculation, all rejected": {"accepted": "none"},
    "many requests": {"many": True, "tree": True},
    "unit time": {"unit_time": True},
    "max model length": {"max_length": True},
    "prefill interval": {"interval": True},
}
TIERED: Mapping[str, Mapping[str, Any]] = {
    "ample host tier": {"ample": True},
    "ample host tier, latency": {"ample": True, "latency": True},
}
EVICTING: Mapping[str, Mapping[str, Any]] = {
    "host tier": {},
    "host tier, latency": {"latency": True},
    "disk of its own": {"disk": "worker_local"},
    "shared disk": {"disk": "cluster_shared"},
    "shared disk, latency": {"disk": "cluster_shared", "latency": True},
}


def _classes(scheduler: str, draw: Callable[..., Case], features: Mapping[str, Mapping[str, Any]]) -> list[CaseClass]:
    return [CaseClass(name, scheduler, partial(draw, **options)) for name, options in features.items()]


CLASSES: tuple[CaseClass, ...] = (
    *_classes("vllm", partial(_paged, scheduler="vllm"), {**PAGED, **VLLM}),
    CaseClass("everything mixed", "vllm", partial(_paged_mixed, scheduler="vllm")),
    *_classes("trtllm", partial(_paged, scheduler="trtllm"), PAGED),
    CaseClass("everything mixed", "trtllm", partial(_paged_mixed, scheduler="trtllm")),
    *_classes("sglang", _radix, RADIX),
    *_classes("vllm", _tiered, TIERED),
)
EVICTING_TIERS: tuple[CaseClass, ...] = tuple(_classes("vllm", _tiered, EVICTING))
"""Classes in which blocks leave host memory. Blocks that came there together are as old as each other, and the engine breaks
the tie by their hashes, which the model does not have; so about one case in a hundred differs."""
CROWD = CaseClass("lpm, crowd", "sglang", partial(_radix, lpm=True, crowd=True))
"""More waiting requests than longest-prefix matching sorts; each case is large, so it stands by itself."""
