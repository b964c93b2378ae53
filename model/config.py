"""What an engine is told before it starts: geometry, budgets, policies, timing, defects.

The fields and their defaults are those of the case format (section 1); they are validated where they are declared, so
no value is ever half checked. ``from_json`` and ``to_json`` are inverse to each other but for fields at their default,
which ``to_json`` leaves out.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import attrs
from attrs import field, frozen

from model import defects
from model.errors import BadInput, expect_list, expect_object, refuse_unknown, shown
from model.registry import Registry
from model.requests import Prompt

SCHEDULERS = ("vllm", "trtllm", "sglang")
PAGED = ("vllm", "trtllm")
DISAGGREGATED = "disaggregated"
ROLES = ("aggregated", "prefill", "decode", DISAGGREGATED)
NANOSECONDS_PER_MS = 1_000_000

Check = Callable[[object], bool]


def nanoseconds(milliseconds: float) -> int:
    """Milliseconds as whole nanoseconds, rounded half to even (replay specification 5.7)."""
    return round(Fraction(milliseconds) * NANOSECONDS_PER_MS)


def _is_int(least: int) -> Check:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: object) -> bool:
    finite = isinstance(value, int | float) and not isinstance(value, bool) and value == value
    return finite and 0 <= value < float("inf")  # type: ignore[operator]


def _option(
    default: object,
    check: Check,
    allowed: str,
    schedulers: tuple[str, ...] = SCHEDULERS,
    **more: Any,
) -> Any:
    """A field with its check, the words that say what passes it, and the schedulers that know it."""

    def validate(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if not check(value):
            raise BadInput(attribute.name, shown(value), allowed)

    metadata = {"allowed": allowed, "schedulers": schedulers}
    return field(default=default, validator=validate, metadata=metadata, **more)


def _count(default: object, least: int = 1, schedulers: tuple[str, ...] = SCHEDULERS) -> Any:
    return _option(default, _is_int(least), f"an integer ≥ {least}", schedulers)


def _count_or_null(least: int = 1, schedulers: tuple[str, ...] = SCHEDULERS) -> Any:
    check = _is_int(least)
    return _option(None, lambda value: value is None or check(value), f"an integer ≥ {least} or null", schedulers)


def _switch(default: bool, schedulers: tuple[str, ...] = SCHEDULERS) -> Any:
    return _option(default, lambda value: isinstance(value, bool), "true or false", schedulers)


def _switch_or_null() -> Any:
    return _option(None, lambda value: value is None or isinstance(value, bool), "true, false or null")


def _one_of(default: object, names: tuple[str, ...], schedulers: tuple[str, ...] = SCHEDULERS) -> Any:
    return _option(default, lambda value: value in names, " or ".join(f'"{name}"' for name in names), schedulers)


def _duration(default: float) -> Any:
    return _option(default, _is_number, "a finite number of milliseconds ≥ 0")


def _bandwidth(default: float) -> Any:
    return _option(default, _is_number, "a finite number of GB/s ≥ 0, 0 for unlimited")


class _Document:
    """Reading and writing one attrs class as a JSON object."""

    @classmethod
    def read(cls, value: object, path: str) -> Any:
        """An instance from a JSON object found at ``path``.

        Raises:
            BadInput: with the path of the first field that is unknown, missing or has a wrong value.
        """
        given = expect_object(value, path)
        names = [attribute.name for attribute in attrs.fields(cls)]  # type: ignore[arg-type]
        refuse_unknown(given, names, path)
        for attribute in attrs.fields(cls):  # type: ignore[arg-type]
            if attribute.default is attrs.NOTHING and attribute.name not in given:
                allowed = attribute.metadata.get("allowed", "a value")
                raise BadInput(f"{path}.{attribute.name}", "nothing", allowed)
        try:
            return cls(**given)
        except BadInput as error:
            raise error.under(path) from None

    def to_json(self) -> dict[str, Any]:
        """The fields that differ from their default, as a JSON object."""
        written = {}
        for attribute in attrs.fields(type(self)):  # type: ignore[arg-type]
            value = getattr(self, attribute.name)
            if attribute.default is attrs.NOTHING or value != attribute.default:
                written[attribute.name] = value.to_json() if isinstance(value, _Document) else value
        return written


@frozen
class Speculation(_Document):
    """Speculative decoding: ``draft_tokens`` a step, of which ``accepted`` are kept unless an action says otherwise."""

    draft_tokens: int = _count(attrs.NOTHING)
    accepted: int = _count(0, least=0)

    def __attrs_post_init__(self) -> None:
        """Drafts that were never proposed cannot be accepted."""
        if self.accepted > self.draft_tokens:
            raise BadInput("accepted", shown(self.accepted), f"an integer from 0 to draft_tokens ({self.draft_tokens})")


@frozen
class Timing(_Document):
    """The linear virtual-time model of a pass.

    A pass that computes prompt tokens takes ``prefill_ms`` plus ``prefill_ms_per_token`` for each of them; one that
    decodes takes ``decode_ms`` plus ``decode_ms_per_request`` for each request that decodes. With the two ``per`` values
    at 0 this is the fixed timing model of public simulators.
    """

    prefill_ms: float = _duration(0)
    prefill_ms_per_token: float = _duration(1)
    decode_ms: float = _duration(1)
    decode_ms_per_request: float = _duration(0)


def _prompts(value: object, this: object, attribute: attrs.Attribute[Any]) -> tuple[Prompt, ...]:
    if isinstance(value, tuple) and all(isinstance(prompt, Prompt) for prompt in value):
        return value
    name = attribute.name
    return tuple(Prompt.read(prompt, f"{name}[{number}]") for number, prompt in enumerate(expect_list(value, name)))


def _preload() -> Any:
    converter: Any = attrs.Converter(_prompts, takes_self=True, takes_field=True)
    return field(factory=tuple, converter=converter, metadata={"allowed": "a list of prompts"})


@frozen
class Tiers(_Document):
    """Host memory (G2) and disk (G3) below the GPU cache (offload specification 1).

    Bandwidths are decimal GB/s, 0 for unlimited; a latency is the time to the first byte of a transfer. The size of a block
    follows from the engine's ``kv_bytes_per_token``; without it a block has 1 MB, of which 1 GB/s moves one a millisecond.

    Attributes:
        host_blocks: capacity of G2.
        disk_blocks: capacity of G3, of one worker or of all of them together; null for none.
        d2h_gbps, h2d_gbps: from GPU to host and back.
        host_latency_ms: of a transfer between GPU and host.
        disk_scope: whether each worker has a disk of its own or all share one.
        disk_latency_ms: of a disk read or write.
        disk_read_gbps, disk_write_gbps: of one worker.
        disk_shared_read_gbps, disk_shared_write_gbps: of all workers together, when they share the disk.
        host_events: tell Stored and Removed events of the host tier.
        preloaded_host, preloaded_disk: prompts whose full blocks lie in the tier at the start; the first prompt is the
            oldest, and within a prompt the last block.
    """

    host_blocks: int = _count(attrs.NOTHING)
    disk_blocks: int | None = _count_or_null()
    d2h_gbps: float = _bandwidth(32)
    h2d_gbps: float = _bandwidth(32)
    host_latency_ms: float = _duration(0)
    disk_scope: str = _one_of("worker_local", ("worker_local", "cluster_shared"))
    disk_latency_ms: float = _duration(0.1)
    disk_read_gbps: float = _bandwidth(10)
    disk_write_gbps: float = _bandwidth(10)
    disk_shared_read_gbps: float = _bandwidth(80)
    disk_shared_write_gbps: float = _bandwidth(80)
    host_events: bool = _switch(True)
    preloaded_host: tuple[Prompt, ...] = _preload()
    preloaded_disk: tuple[Prompt, ...] = _preload()

    def __attrs_post_init__(self) -> None:
        """What speaks of a disk needs one."""
        if self.disk_blocks is None:
            for attribute in attrs.fields(Tiers):
                value = getattr(self, attribute.name)
                default = () if attribute.name == "preloaded_disk" else attribute.default
                if "disk" in attribute.name and value != default:
                    shown_value = "prompts" if attribute.name == "preloaded_disk" else shown(value)
                    raise BadInput(attribute.name, shown_value, "only with disk_blocks")

    def to_json(self) -> dict[str, Any]:
        """The JSON object that ``read`` reads back to equal tiers."""
        written = super().to_json()
        for name in ("preloaded_host", "preloaded_disk"):
            prompts = written.pop(name)
            if prompts:
                written[name] = [prompt.to_json() for prompt in prompts]
        return written


@frozen
class PrefillWorker(_Document):
    """What a prefill worker has different from the decode worker beside it; null: the same."""

    num_blocks: int | None = _count_or_null()
    max_num_seqs: int | None = _count_or_null()
    max_num_batched_tokens: int | None = _count_or_null()
    chunked_prefill: bool | None = _switch_or_null()
    chunked_prefill_size: int | None = _count_or_null()
    max_prefill_tokens: int | None = _count_or_null()
    prefix_caching: bool | None = _switch_or_null()


def _prefill(value: object) -> PrefillWorker | None:
    read = value if value is None or isinstance(value, PrefillWorker) else PrefillWorker.read(value, "prefill")
    assert read is None or isinstance(read, PrefillWorker)
    return read


def _tiers(value: object) -> Tiers | None:
    read = value if value is None or isinstance(value, Tiers) else Tiers.read(value, "tiers")
    assert read is None or isinstance(read, Tiers)
    return read


def _speculation(value: object) -> Speculation | None:
    read = value if value is None or isinstance(value, Speculation) else Speculation.read(value, "speculation")
    assert read is None or isinstance(read, Speculation)
    return read


def _timing(value: object) -> Timing:
    read = value if isinstance(value, Timing) else Timing.read(value, "timing")
    assert isinstance(read, Timing)
    return read


def _resolve_for(value: object, config: Any) -> frozenset[str]:
    # Converters come before validators: an unknown scheduler is refused by its own check, not for its defects.
    return defects.resolve(value, config.scheduler) if config.scheduler in SCHEDULERS else frozenset()


_resolved_defects: Any = attrs.Converter(_resolve_for, takes_self=True)
"""A set named in a configuration stands for those of its members that touch the scheduler."""


@frozen
class EngineConfig(_Document):
    """One engine, as the case format describes it; the module docstring says how it is checked.

    Raises:
        BadInput: for a value outside its range, or a field that the scheduler does not know.
    """

    scheduler: str = _one_of(attrs.NOTHING, SCHEDULERS)
    block_size: int = _count(attrs.NOTHING)
    num_blocks: int = _count(attrs.NOTHING)
    role: str = _one_of("aggregated", ROLES)
    max_num_batched_tokens: int | None = _count_or_null(schedulers=PAGED)
    max_num_seqs: int | None = _count_or_null()
    chunked_prefill: bool = _switch(True, PAGED)
    chunked_prefill_size: int = _count(8192, schedulers=("sglang",))
    max_prefill_tokens: int = _count(16384, schedulers=("sglang",))
    schedule_policy: str = _one_of("fcfs", ("fcfs", "lpm"), ("sglang",))
    schedule_conservativeness: float = _option(1.0, _is_number, "a finite number ≥ 0", ("sglang",))
    clip_max_new_tokens: int = _count(4096, schedulers=("sglang",))
    prefill_decode_interval: int = _count(0, least=0, schedulers=("sglang",))
    dp_size: int = _count(1, schedulers=("vllm",))
    prefill_schedule_interval: int = _count(1, schedulers=("vllm",))
    kv_transfer_gbps: float = _bandwidth(0)
    kv_bytes_per_token: int | None = _count_or_null()
    prefix_caching: bool = _switch(True)
    kv_events: bool = _switch(True)
    max_model_len: int | None = _count_or_null(schedulers=("vllm", "sglang"))
    preemption: str = _one_of("lifo", ("lifo", "fifo"), ("vllm",))
    speculation: Speculation | None = field(
        default=None,
        converter=_speculation,
        metadata={"allowed": 'null or {"draft_tokens": k, "accepted": n}', "schedulers": SCHEDULERS},
    )
    tiers: Tiers | None = field(
        default=None,
        converter=_tiers,
        metadata={"allowed": 'null or {"host_blocks": n, "disk_blocks": m, …}', "schedulers": ("vllm",)},
    )
    prefill: PrefillWorker | None = field(
        default=None,
        converter=_prefill,
        metadata={"allowed": 'null or {"num_blocks": n, …}', "schedulers": SCHEDULERS},
    )
    timing: Timing = field(
        factory=Timing,
        converter=_timing,
        metadata={"allowed": "an object of durations", "schedulers": SCHEDULERS},
    )
    defects: frozenset[str] = field(
        default=frozenset(),
        converter=_resolved_defects,  # type: ignore[misc]
        metadata={"allowed": "a list of defect ids, or a named set", "schedulers": SCHEDULERS},
    )
    implementation: str = _option(
        "model", lambda value: isinstance(value, str) and bool(value), '"model" or the name of an adapter'
    )

    def __attrs_post_init__(self) -> None:
        """A field away from its default must mean something to the scheduler."""
        for attribute in attrs.fields(EngineConfig):
            schedulers = attribute.metadata["schedulers"]
            value = getattr(self, attribute.name)
            if self.scheduler not in schedulers and value != attribute.default:
                raise BadInput(
                    attribute.name, shown(value), f"only with scheduler {' or '.join(schedulers)}; here it is {self.scheduler}"
                )
        if self.tiers is not None:
            self._check_tiers(self.tiers)
        if self.prefill is not None and self.role != DISAGGREGATED:
            raise BadInput("prefill", "an object", f"null with role {self.role}")
        if self.role == DISAGGREGATED:
            try:
                self.worker("prefill")
            except BadInput as error:
                raise error.under("prefill") from None

    def worker(self, role: str) -> EngineConfig:
        """Of a disaggregated system, the configuration of its ``prefill`` or ``decode`` worker.

        Raises:
            BadInput: for a field that the prefill worker has different and its scheduler does not know.
        """
        different = {}
        if role == "prefill" and self.prefill is not None:
            given = attrs.asdict(self.prefill, recurse=False)
            different = {name: value for name, value in given.items() if value is not None}
        return attrs.evolve(self, role=role, prefill=None, **different)

    def handoff_delay_ns(self, prompt: int) -> int | Fraction | None:
        """How long the KV of a prompt takes from a prefill worker to the next (vLLM specification 3.11); None if unknown.

        A byte at 1 GB/s takes a nanosecond.
        """
        if self.role != "prefill" or not self.kv_transfer_gbps or self.kv_bytes_per_token is None:
            return None
        delay = Fraction(prompt * self.kv_bytes_per_token) / Fraction(self.kv_transfer_gbps)
        return int(delay) if delay.denominator == 1 else delay

    def _check_tiers(self, tiers: Tiers) -> None:
        """What the tiers ask of the rest (offload specification 1)."""
        if not self.prefix_caching:
            raise BadInput("tiers", "host blocks", "null with prefix_caching false")
        if self.role != "aggregated":
            raise BadInput("tiers", "host blocks", f"null with role {self.role}")
        if self.dp_size != 1:
            raise BadInput("tiers", "host blocks", f"null with dp_size {self.dp_size}")
        if self.dp_size > 1:
            raise BadInput("tiers", "host blocks", f"null with dp_size {self.dp_size}")
        if tiers.disk_blocks is not None and self.speculation is not None:
            raise BadInput("tiers.disk_blocks", shown(tiers.disk_blocks), "null with speculation")
        registry = Registry(self.block_size)
        for name, capacity in (("preloaded_host", tiers.host_blocks), ("preloaded_disk", tiers.disk_blocks or 0)):
            prompts: tuple[Prompt, ...] = getattr(tiers, name)
            blocks = {block for prompt in prompts for block in registry.chained(prompt.blocks(self.block_size)[0])}
            if len(blocks) > capacity:
                raise BadInput(f"tiers.{name}", f"{len(blocks)} blocks", f"at most {capacity} full blocks")

    @classmethod
    def from_json(cls, value: object, path: str = "engine") -> EngineConfig:
        """The configuration in a JSON object found at ``path``.

        Raises:
            BadInput: with the path of the first offending field.
        """
        config = cls.read(value, path)
        assert isinstance(config, EngineConfig)
        return config

    def to_json(self) -> dict[str, Any]:
        """The JSON object that ``from_json`` reads back to an equal configuration."""
        written = super().to_json()
        if self.timing == Timing():
            written.pop("timing", None)
        if self.defects:
            written["defects"] = sorted(self.defects)
        return written
