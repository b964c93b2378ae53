"""A prefill and a decode engine, and the coordinator between them, behind the engine interface.

Worker 0 prefills, worker 1 decodes; each has a clock of its own. A pass is one of a worker, chosen by the action. Every other
step is a command to one of the two, or something that befalls a hand-off: the actions that ``choices`` names, and the
cancelling of a request. So an action touches one worker, and its report names that one.

The prefill worker is asked for one token, which nobody outside sees; the decode worker produces all of them (as the replay of
public simulators has it). A request ends where the decode worker ends it, where a worker refuses it, or with the last cancel
command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from model.actions import MISHAPS, Action, Advance, Cancel, Handoff, Step, Submit
from model.config import EngineConfig
from model.engine import Engine, UnknownAction, pack, unpack
from model.errors import BadInput, shown
from model.events import Signal, StepReport
from model.handoff.coordinator import (
    ACTIVE,
    DESTINATION_FIRST,
    DESTINATIONS,
    GONE,
    HELD,
    LIVE,
    PENDING,
    RESERVED,
    SOURCE_FIRST,
    SOURCES,
    Record,
)
from model.requests import RequestSpec
from model.views import EngineView

PREFILL, DECODE = 0, 1
"""Positions of the two workers."""

WORKER_OF: Mapping[str, int] = {
    "submit_prefill": PREFILL,
    "release_source": PREFILL,
    "cancel_source": PREFILL,
    "reserve_destination": DECODE,
    "activate_destination": DECODE,
    "cancel_destination": DECODE,
}
"""Which worker a command goes to."""


def prefill_part(request: RequestSpec) -> RequestSpec:
    """What the prefill worker is asked for: the prompt and one token."""
    planned = None if request.output_tokens is None else request.output_tokens[:1]
    return RequestSpec(request.id, request.prompt, min(request.output, 1), planned)


class DisaggregatedEngine(Engine):
    """See the module docstring."""

    __slots__ = ("config", "order", "records", "registry", "workers")

    def __init__(self, config: EngineConfig, workers: tuple[Engine, Engine]) -> None:
        """An idle system of two idle workers, which share a registry."""
        self._adopt(config, workers, {})

    def _adopt(self, config: EngineConfig, workers: tuple[Engine, Engine], records: dict[str, Record]) -> None:
        assert workers[PREFILL].registry is workers[DECODE].registry
        self.config = config
        self.workers = workers
        self.registry = workers[DECODE].registry
        self.observes = workers[PREFILL].observes & workers[DECODE].observes
        self.order = DESTINATION_FIRST if config.scheduler == "sglang" else SOURCE_FIRST
        self.records = records
        """Every hand-off that is not settled, by request."""

    def apply(self, action: Action) -> StepReport:
        """Carry out one action; see ``Engine.apply``."""
        if isinstance(action, Submit):
            report = self._submit(action.request)
        elif isinstance(action, Cancel):
            report = self._cancel(action)
        elif isinstance(action, Handoff):
            report = self._hand_off(action)
        elif isinstance(action, Step | Advance):
            if action.worker >= len(self.workers):
                raise BadInput("worker", shown(action.worker), f"an integer from 0 to {len(self.workers) - 1}")
            report = self._tell(action.worker, action)
        else:
            raise UnknownAction("action", type(action).__name__, "submit, cancel, step, advance, handoff")
        report.action = action
        for id_ in [id_ for id_, record in self.records.items() if record.settled]:
            del self.records[id_]
        return report

    def _submit(self, spec: RequestSpec) -> StepReport:
        if spec.id in self.records:
            raise BadInput("submit", shown(spec.id), "an id that no live request has")
        record = Record(spec, self.registry.number(spec))
        # Known before the worker is told, since its report may speak of the request already.
        self.records[spec.id] = record
        (command,) = record.owed(self.order)
        return self._give(command, record)

    def _cancel(self, action: Cancel) -> StepReport:
        report = self._nothing_done(PREFILL, action)
        record = self.records.get(action.id)
        if record is not None and not record.over:
            record.over = True
            report.cancelled.append(action.id)
        return report

    def _hand_off(self, action: Handoff) -> StepReport:
        record = self.records.get(action.id)
        enabled = () if record is None else record.owed(self.order) + record.mishaps()
        if record is None or action.verb not in enabled:
            raise BadInput("handoff", shown(action.verb), " or ".join(enabled) or f"nothing for {shown(action.id)} now")
        if action.verb not in MISHAPS:
            return self._give(action.verb, record)
        record.over = True
        report = self._nothing_done(PREFILL, action)
        report.notes.append((action.verb, action.id))
        return report

    def _nothing_done(self, worker: int, action: Action) -> StepReport:
        now = self.workers[worker].view(blocks=False).now_ns
        return StepReport(action, worker=worker, start_ns=now, end_ns=now)

    def _give(self, command: str, record: Record) -> StepReport:
        """Give a command about a hand-off to the worker it is for."""
        request = record.request
        if command == "submit_prefill":
            record.source = LIVE
            return self._tell(PREFILL, Handoff(command, request.id, prefill_part(request)))
        if command == "reserve_destination":
            return self._reserve(record)
        report = self._tell(WORKER_OF[command], Handoff(command, request.id))
        if command == "activate_destination":
            record.destination = ACTIVE
        elif command == "cancel_destination":
            record.destination = GONE
        else:
            record.source = GONE
        return report

    def _reserve(self, record: Record) -> StepReport:
        """Ask for a destination; one that the decode worker refuses is over, and told so where the request is known."""
        record.destination = PENDING
        command = Handoff("reserve_destination", record.request.id, record.request)
        try:
            return self._tell(DECODE, command)
        except BadInput:
            record.destination = GONE
            record.over = True
            report = self._nothing_done(PREFILL if record.source == HELD else DECODE, command)
            report.signals.append(Signal(record.request.id, token=False, completed=True, rejected=True))
            return report

    def _tell(self, worker: int, action: Action) -> StepReport:
        """Have a worker carry out an action, and take in what it says of hand-offs."""
        report = self.workers[worker].apply(action)
        report.worker = worker
        for kind, details in report.notes:
            if kind == "source-held":
                self.records[details].source = HELD
            elif kind == "destination-reserved":
                self.records[details[0]].destination = RESERVED
        for signal in report.signals:
            if not signal.completed:
                continue
            record = self.records[signal.id]
            if worker == DECODE:
                record.destination = GONE
            elif signal.rejected:
                record.source = GONE
                record.over = True
        return report

    @property
    def busy(self) -> bool:
        """A hand-off is not settled, or a worker has something left."""
        return bool(self.records) or any(worker.busy for worker in self.workers)

    def live(self) -> tuple[str, ...]:
        """Requests that are under way."""
        return tuple(id_ for id_, record in self.records.items() if not record.over)

    def at_work(self) -> tuple[int, ...]:
        """The workers that have something left."""
        return tuple(number for number, worker in enumerate(self.workers) if worker.busy)

    def choices(self) -> tuple[Action, ...]:
        """The commands owed, the ends of transfers among them; then what may go wrong."""
        records = sorted(self.records.values(), key=lambda record: record.number)
        owed = [Handoff(verb, record.request.id) for record in records for verb in record.owed(self.order)]
        return (*owed, *(Handoff(verb, record.request.id) for record in records for verb in record.mishaps()))

    def speculating(self) -> tuple[str, ...]:
        """As the decode worker says."""
        return self.workers[DECODE].speculating()

    def servable(self, request: RequestSpec) -> bool:
        """Both workers can do their part."""
        return self.workers[PREFILL].servable(prefill_part(request)) and self.workers[DECODE].servable(request)

    def configs(self) -> Sequence[EngineConfig]:
        """Of the prefill worker, then of the decode worker."""
        return tuple(worker.config for worker in self.workers)

    def view(self, blocks: bool = True) -> EngineView:
        """The decode worker."""
        return self.views(blocks)[DECODE]

    def views(self, blocks: bool = True) -> Sequence[EngineView]:
        """One view per worker; ``extra`` tells of every hand-off how far its sides are, and whether it is over."""
        handoffs = {id_: (record.source, record.destination, record.over) for id_, record in self.records.items()}
        views = tuple(worker.view(blocks) for worker in self.workers)
        for number, view in enumerate(views):
            view.worker = number
            view.extra = {**view.extra, "handoffs": handoffs}
        return views

    def freeze(self) -> bytes:
        """The states of the coordinator and of both workers, each behind its length. Hand-offs go by number of their request."""
        numbers: list[int] = []
        for record in sorted(self.records.values(), key=lambda record: record.number):
            numbers += (record.number, SOURCES.index(record.source), DESTINATIONS.index(record.destination), record.over)
        parts = (pack(numbers), *(worker.freeze() for worker in self.workers))
        return b"".join(len(part).to_bytes(LENGTH_BYTES, "little") + part for part in parts)

    def thaw(self, state: bytes) -> DisaggregatedEngine:
        """A new system in ``state``, sharing configuration and registry."""
        parts = []
        at = 0
        while at < len(state):
            start = at + LENGTH_BYTES
            at = start + int.from_bytes(state[at:start], "little")
            parts.append(state[start:at])
        numbers = unpack(parts[0])
        records = {}
        for position in range(0, len(numbers), 4):
            number, source, destination, over = numbers[position : position + 4]
            request = self.registry.specs[number]
            records[request.id] = Record(request, number, SOURCES[source], DESTINATIONS[destination], bool(over))
        other = DisaggregatedEngine.__new__(DisaggregatedEngine)
        prefill, decode = (worker.thaw(part) for worker, part in zip(self.workers, parts[1:], strict=True))
        other._adopt(self.config, (prefill, decode), records)
        return other


LENGTH_BYTES = 4
"""Bytes of the length in front of each part of a state."""
