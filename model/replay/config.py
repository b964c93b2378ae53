"""What a replay is told: the trace, the mode, the workers, and what to measure. The ``replay`` object of the case format."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
from attrs import field, frozen

from model.errors import BadInput, expect_object, refuse_unknown, shown
from model.replay.accept import DECODE_PROVENANCE, DEFINITIONS
from model.replay.driver import CANCELED, FAILED
from model.replay.errors import TraceError
from model.replay.events import IDENTITY, ORDERS
from model.replay.flat import SLA_FIELDS, Sla
from model.replay.mooncake import DEFAULT_BLOCK_SIZE
from model.replay.reader import read_record
from model.replay.synthetic import Arrivals, Delays, Lengths, Synthetic

MOONCAKE = "mooncake"
DELTA = "mooncake-delta"
APPLIED_COMPUTE = "applied_compute_agentic"
AGENTIC = "agentic_mooncake"
AGENTIC_LEGACY = "agentic_mooncake_legacy"
FLAT = "flat"
SYNTHETIC = "synthetic"
FORMATS = (MOONCAKE, DELTA, APPLIED_COMPUTE, AGENTIC, AGENTIC_LEGACY, FLAT, SYNTHETIC)

TRACE_MODE = "trace"


def _is_int(least: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(least: float = -math.inf) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, int | float) and not isinstance(value, bool) and value >= least and abs(value) < math.inf
    )


def _option(default: Any, passes: Callable[[Any], bool], allowed: str, *, null: bool = False, **more: Any) -> Any:
    """A field with its check; ``null``: it may also be null."""

    def validate(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if not (passes(value) or (null and value is None)):
            raise BadInput(attribute.name, shown(value), f"{allowed} or null" if null else allowed)

    return field(default=default, validator=validate, **more)


@frozen
class Interruption:
    """A request withdrawn by its client, or lost, while it is in flight.

    Attributes:
        request: its name.
        after_ms: after its arrival.
        status: ``canceled`` or ``failed``.
    """

    request: str = _option(attrs.NOTHING, lambda value: isinstance(value, str), "the name of a request")
    after_ms: float = _option(attrs.NOTHING, _is_number(0), "a finite number ≥ 0")
    status: str = _option(CANCELED, lambda value: value in (CANCELED, FAILED), f"{CANCELED} or {FAILED}")


def _interruptions(values: Any) -> tuple[Interruption, ...]:
    if not isinstance(values, list | tuple):
        raise BadInput("interruptions", shown(values), "a list of objects")
    return tuple(
        value if isinstance(value, Interruption) else _read(Interruption, value, f"interruptions[{number}]")
        for number, value in enumerate(values)
    )


def _sla(value: Any) -> Sla:
    return value if isinstance(value, Sla) else Sla(**read_record(value or {}, SLA_FIELDS, None, "sla"))


def _rows(value: Any) -> tuple[Any, ...] | None:
    if value is None:
        return None
    if not isinstance(value, Iterable) or isinstance(value, str | dict):
        raise BadInput("rows", shown(value), "a list of rows")
    return tuple(value)


def _concurrency(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"concurrency"} and _is_int(1)(value["concurrency"])


@frozen
class ReplayConfig:
    """A replay.

    Attributes:
        format: one of ``FORMATS``.
        rows: the rows of the trace (``flat``: its requests; ``agentic_mooncake``: the header first), numbered from 1 in errors.
        file: path of the trace, instead of rows.
        synthetic: what a ``synthetic`` trace is made from, instead of either.
        block_size: tokens that a hash id stands for; a header that says it wins.
        speedup: arrivals and delays are divided by it, except in concurrency mode.
        mode: ``trace`` (arrivals as recorded) or ``{"concurrency": n}``.
        workers: engines behind round-robin placement.
        strict: refuse, as the public file entry does, a session without first arrival; else it arrives at 0.
        accept_length: name of the definition (``accept.DEFINITIONS``).
        event_order: ``identity`` or ``insertion``; no result may depend on it.
        lanes: plays that run side by side; None for all.
        max_sim_time_ms: stop before the first instant beyond it.
        max_passes: stop after so many passes of all workers together.
        max_rows, max_output_tokens: use so many rows of the trace, and cut outputs.
        sla: bounds of goodput.
        telemetry_ms: interval of samples; None for none.
        window_ms: interval of traffic windows; None for none. ``first_window_ms``: the first tick; None for one interval.
        shared_prefix_ratio, num_prefix_groups: of ``applied_compute_agentic``.
        gpus_per_worker: for GPU hours.
        interruptions: requests withdrawn or lost on the way.
    """

    format: str = _option(MOONCAKE, lambda value: value in FORMATS, ", ".join(FORMATS))
    rows: tuple[Any, ...] | None = field(default=None, converter=_rows)
    file: str | None = _option(None, lambda value: isinstance(value, str), "a path", null=True)
    synthetic: Synthetic | None = None
    block_size: int = _option(DEFAULT_BLOCK_SIZE, _is_int(1), "an integer ≥ 1")
    speedup: float = _option(1.0, _is_number(), "a finite number")
    mode: str | Mapping[str, int] = _option(
        TRACE_MODE, lambda value: value == TRACE_MODE or _concurrency(value), '"trace" or {"concurrency": n ≥ 1}'
    )
    workers: int = _option(1, _is_int(1), "an integer ≥ 1")
    strict: bool = _option(False, lambda value: isinstance(value, bool), "true or false")
    accept_length: str = _option(DECODE_PROVENANCE, lambda value: value in DEFINITIONS, ", ".join(DEFINITIONS))
    event_order: str = _option(IDENTITY, lambda value: value in ORDERS, " or ".join(ORDERS))
    lanes: int | None = _option(None, _is_int(1), "an integer ≥ 1", null=True)
    max_sim_time_ms: float | None = _option(None, _is_number(0), "a finite number ≥ 0", null=True)
    max_passes: int | None = _option(None, _is_int(1), "an integer ≥ 1", null=True)
    max_rows: int | None = _option(None, _is_int(1), "an integer ≥ 1", null=True)
    max_output_tokens: int | None = _option(None, _is_int(0), "an integer ≥ 0", null=True)
    sla: Sla = field(factory=Sla, converter=_sla)
    telemetry_ms: float | None = _option(None, lambda value: _is_number(0)(value) and value > 0, "a finite number > 0", null=True)
    window_ms: float | None = _option(None, lambda value: _is_number(0)(value) and value > 0, "a finite number > 0", null=True)
    first_window_ms: float | None = _option(None, _is_number(0), "a finite number ≥ 0", null=True)
    shared_prefix_ratio: float = _option(0.0, lambda value: _is_number(0)(value) and value <= 1, "a number from 0 to 1")
    num_prefix_groups: int = _option(0, _is_int(0), "an integer ≥ 0")
    gpus_per_worker: int = _option(1, _is_int(0), "an integer ≥ 0")
    interruptions: tuple[Interruption, ...] = field(default=(), converter=_interruptions)

    def __attrs_post_init__(self) -> None:
        """One source, and a mode that the format has."""
        sources = [name for name in ("rows", "file", "synthetic") if getattr(self, name) is not None]
        expected = ("synthetic",) if self.format == SYNTHETIC else ("rows", "file")
        if len(sources) != 1 or sources[0] not in expected:
            raise BadInput(expected[0], " and ".join(sources) or "nothing", f"{' or '.join(expected)} with format {self.format}")
        if self.format == APPLIED_COMPUTE and self.concurrency is None:
            raise TraceError(
                "mode", shown(self.mode), '{"concurrency": n}: the format has no arrivals', code="E_NEEDS_CONCURRENCY"
            )
        if self.format in (AGENTIC, AGENTIC_LEGACY) and self.concurrency is not None:
            raise TraceError("mode", shown(self.mode), '"trace"; lanes bound what runs', code="E_NO_CONCURRENCY")
        if self.lanes is not None and self.format not in (AGENTIC, AGENTIC_LEGACY):
            raise BadInput("lanes", shown(self.lanes), f"only with format {AGENTIC}")

    @property
    def concurrency(self) -> int | None:
        """The cap of concurrency mode; None in trace mode."""
        return None if isinstance(self.mode, str) else self.mode["concurrency"]

    @classmethod
    def from_json(cls, value: object, path: str = "replay") -> ReplayConfig:
        """The configuration in a JSON object found at ``path``.

        Raises:
            BadInput: with the path of the first field that is unknown or has a wrong value.
        """
        given = dict(expect_object(value, path))
        try:
            if given.get("synthetic") is not None:
                given["synthetic"] = _synthetic(given["synthetic"], given.get("block_size", DEFAULT_BLOCK_SIZE))
            config = _read(cls, given, "")
        except BadInput as error:
            raise error.under(path) from None
        assert isinstance(config, ReplayConfig)
        return config

    def to_json(self) -> dict[str, Any]:
        """The object that ``from_json`` reads back to an equal configuration; fields at their default are left out."""
        written: dict[str, Any] = {"format": self.format}
        for attribute in attrs.fields(ReplayConfig):
            value = getattr(self, attribute.name)
            if attribute.name not in written and value != _default(attribute):
                written[attribute.name] = _plain(value)
        return written


def _default(attribute: attrs.Attribute[Any]) -> Any:
    default: Any = attribute.default
    return default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    """Nested classes as objects without the fields at their default, tuples as lists."""
    if attrs.has(type(value)):
        fields = [(one.name, getattr(value, one.name), _default(one)) for one in attrs.fields(type(value))]
        return {name: _plain(given) for name, given, default in fields if given != default}
    if isinstance(value, tuple):
        return [_plain(element) for element in value]
    return dict(value) if isinstance(value, Mapping) else value


def _read(cls: Any, value: object, path: str) -> Any:
    """An instance of an attrs class from a JSON object."""
    given = expect_object(value, path)
    refuse_unknown(given, [attribute.name for attribute in attrs.fields(cls)], path)
    for attribute in attrs.fields(cls):
        if attribute.default is attrs.NOTHING and attribute.name not in given:
            raise BadInput(f"{path}.{attribute.name}" if path else attribute.name, "nothing", "a value")
    try:
        return cls(**given)
    except BadInput as error:
        raise error.under(path) if path else error from None
    except TypeError as error:
        raise BadInput(path, shown(value), f"values of the right type ({error})") from None


def _synthetic(value: object, block_size: int) -> Synthetic:
    given = {"block_size": block_size, **expect_object(value, "synthetic")}
    for name, kind in (("input", Lengths), ("output", Lengths), ("arrivals", Arrivals), ("delays", Delays)):
        if name in given:
            part = given[name]
            given[name] = kind(part) if kind is Lengths and _is_number()(part) else _read(kind, part, f"synthetic.{name}")
    spec = _read(Synthetic, given, "synthetic")
    assert isinstance(spec, Synthetic)
    return spec
