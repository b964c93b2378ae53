"""A prefill and a decode engine, and the coordinator between them, behind the engine interface.

Worker 0 prefills, worker 1 decodes; each has a clock of its own. A pass is one of a worker, chosen by the action. Every other
step is a command to one of the two, or something that befalls a hand-off: the actions that ``choices`` names, and the
cancelling of a request. So an action touches one worker, and its report names that one.

The prefill worker is asked for one token, which nobody outside sees; the decode worker produces all of them (as the replay of
public simulators has it). A request ends where the decode worker ends it, where a worker refuses it, or with the last cancel
command.

An action leaves one of the workers as it was. A thawed system therefore thaws a worker when it is first needed, and remembers
views of workers by their states.
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

    __slots__ = ("_idle", "_seen", "_states", "_workers", "config", "order", "records", "registry")

    def __init__(self, config: EngineConfig, workers: tuple[Engine, Engine]) -> None:
        """An idle system of two idle workers, which share a registry."""
        assert workers[PREFILL].registry is workers[DECODE].registry
        self._idle = workers
        self._seen: dict[object, EngineView] = {}
        self.config = config
        self.registry = workers[DECODE].registry
        self.observes = workers[PREFILL].observes & workers[DECODE].observes
        self.order = DESTINATION_FIRST if config.scheduler == "sglang" else SOURCE_FIRST
        self._begin({}, [worker.freeze() for worker in workers])

    def _begin(self, records: dict[str, Record], states: list[bytes | None]) -> None:
        self.records = records
        """Every hand-off that is not settled, by request."""
        self._states = states
        """The frozen workers; None for one that was touched since."""
        self._workers: list[Engine | None] = [None, None]

    def worker(self, number: int) -> Engine:
        """A worker as it is now. Only the system may change it."""
        found = self._workers[number]
        if found is None:
            state = self._states[number]
            assert state is not None
            found = self._workers[number] = self._idle[number].thaw(state)
        return found

    def apply(self, action: Action) -> StepReport:
        """Carry out one action; see ``Engine.apply``."""
        if isinstance(action, Submit):
            report = self._submit(action.request)
        elif isinstance(action, Cancel):
            report = self._cancel(action)
        elif isinstance(action, Handoff):
            report = self._hand_off(action)
        elif isinstance(action, Step | Advance):
            if action.worker > DECODE:
                raise BadInput("worker", shown(action.worker), f"an integer from {PREFILL} to {DECODE}")
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
        now = self.worker(worker).view(blocks=False).now_ns
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
        engine = self.worker(worker)
        report = engine.apply(action)
        self._states[worker] = None
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
        """A hand-off is not settled."""
        return bool(self.records)

    def live(self) -> tuple[str, ...]:
        """Requests that are under way."""
        return tuple(id_ for id_, record in self.records.items() if not record.over)

    def at_work(self) -> tuple[int, ...]:
        """The workers that can do something: a source is live, a destination waits for room or has its KV."""
        prefills = any(record.source == LIVE for record in self.records.values())
        decodes = any(record.destination in (PENDING, ACTIVE) for record in self.records.values())
        return (PREFILL,) * prefills + (DECODE,) * decodes

    def choices(self) -> tuple[Action, ...]:
        """The commands owed, the ends of transfers among them; then what may go wrong."""
        records = sorted(self.records.values(), key=lambda record: record.number)
        owed = [Handoff(verb, record.request.id) for record in records for verb in record.owed(self.order)]
        return (*owed, *(Handoff(verb, record.request.id) for record in records for verb in record.mishaps()))

    def speculating(self) -> tuple[str, ...]:
        """As the decode worker says."""
        return self.worker(DECODE).speculating() if self.config.speculation else ()

    def servable(self, request: RequestSpec) -> bool:
        """Both workers can do their part."""
        return self._idle[PREFILL].servable(prefill_part(request)) and self._idle[DECODE].servable(request)

    def configs(self) -> Sequence[EngineConfig]:
        """Of the prefill worker, then of the decode worker."""
        return tuple(worker.config for worker in self._idle)

    def view(self, blocks: bool = True) -> EngineView:
        """The decode worker."""
        return self.views(blocks)[DECODE]

    def views(self, blocks: bool = True) -> Sequence[EngineView]:
        """One view per worker. ``extra["followed"]`` tells of every hand-off that is not settled whether it is over.

        A worker that was left as it was is shown by the same view again.
        """
        followed = {id_: record.over for id_, record in self.records.items()}
        return tuple(self._view(number, blocks, followed) for number in (PREFILL, DECODE))

    def _view(self, number: int, blocks: bool, followed: dict[str, bool]) -> EngineView:
        state = self._states[number]
        key = (number, state, blocks, *followed.items())
        known = self._seen.get(key) if state is not None else None
        if known is not None:
            return known
        view = self.worker(number).view(blocks)
        view.worker = number
        view.extra = {**view.extra, "followed": followed}
        if state is not None and self._workers[number] is not None:
            if len(self._seen) >= MOST_SEEN:
                self._seen.clear()
            self._seen[key] = view
        return view

    def freeze(self) -> bytes:
        """The states of the coordinator and of both workers, each behind its length. Hand-offs go by number of their request."""
        numbers: list[int] = []
        for record in sorted(self.records.values(), key=lambda record: record.number):
            numbers += (record.number, SOURCES.index(record.source), DESTINATIONS.index(record.destination), record.over)
        parts = (pack(numbers), *(self._state(number) for number in (PREFILL, DECODE)))
        return b"".join(len(part).to_bytes(LENGTH_BYTES, "little") + part for part in parts)

    def _state(self, number: int) -> bytes:
        state = self._states[number]
        return self.worker(number).freeze() if state is None else state

    def thaw(self, state: bytes) -> DisaggregatedEngine:
        """A new system in ``state``, sharing configuration and registry."""
        parts: list[bytes | None] = []
        at = 0
        while at < len(state):
            start = at + LENGTH_BYTES
            at = start + int.from_bytes(state[at:start], "little")
            parts.append(state[start:at])
        assert parts[0] is not None
        numbers = unpack(parts[0])
        records = {}
        for position in range(0, len(numbers), 4):
            number, source, destination, over = numbers[position : position + 4]
            request = self.registry.specs[number]
            records[request.id] = Record(request, number, SOURCES[source], DESTINATIONS[destination], bool(over))
        other = DisaggregatedEngine.__new__(DisaggregatedEngine)
        for name in ("_idle", "_seen", "config", "registry", "observes", "order"):
            setattr(other, name, getattr(self, name))
        other._begin(records, parts[1:])
        return other


MOST_SEEN = 256
"""Views remembered at a time."""

LENGTH_BYTES = 4
"""Bytes of the length in front of each part of a state."""
