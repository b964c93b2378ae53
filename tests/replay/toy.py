"""The toy engine of replay specification 12: whole prompts, no cache, no queueing for a slot, a pass of P + D milliseconds."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define

from model import engine as parts
from model.actions import Action, Advance, Cancel, Step, Submit
from model.config import NANOSECONDS_PER_MS, EngineConfig
from model.engine import Engine, UnknownAction
from model.errors import BadInput, shown
from model.events import Admission, Signal, StepReport, Work
from model.registry import Registry
from model.requests import RequestSpec
from model.views import RUNNING, WAITING, EngineView, PoolView, RequestView


@define
class _Request:
    spec: RequestSpec
    limit: int
    generated: int = 0
    running: bool = False


class ToyEngine(Engine):
    """Takes every waiting prompt whole and gives every running request one decode a pass."""

    observes = frozenset({parts.WORK, parts.SIGNALS, parts.QUEUES, parts.REQUESTS})

    def __init__(self, *, prefill_ms: float = 10, decode_ms: float = 2, burst: int = 1, max_model_len: int | None = None) -> None:
        """An idle engine; a decode samples ``burst`` tokens."""
        self.config = EngineConfig("vllm", 1, 1 << 20, max_model_len=max_model_len)
        self.registry = Registry(1)
        self.now = 0
        self.prefill_ns = round(prefill_ms * NANOSECONDS_PER_MS)
        self.decode_ns = round(decode_ms * NANOSECONDS_PER_MS)
        self.burst = burst
        self.max_model_len = max_model_len
        self.requests: dict[str, _Request] = {}

    def apply(self, action: Action) -> StepReport:
        report = StepReport(action, start_ns=self.now, end_ns=self.now)
        if isinstance(action, Submit):
            self._submit(action.request)
        elif isinstance(action, Cancel):
            if self.requests.pop(action.id, None):
                report.cancelled.append(action.id)
        elif isinstance(action, Step):
            self._step(report)
        elif isinstance(action, Advance):
            self.now += int(action.by_ns or 0)
        else:
            raise UnknownAction("action", type(action).__name__, "submit, cancel, step, advance")
        report.end_ns = self.now
        return report

    def _submit(self, spec: RequestSpec) -> None:
        if spec.id in self.requests:
            raise BadInput("submit", shown(spec.id), "an id that no live request has")
        room = spec.output if self.max_model_len is None else max(self.max_model_len - spec.prompt.length, 0)
        self.requests[spec.id] = _Request(spec, min(spec.output, room))

    def _step(self, report: StepReport) -> None:
        report.is_pass = True
        prefills = decodes = 0
        for id_, request in list(self.requests.items()):
            prompt = request.spec.prompt.length
            if self.max_model_len is not None and prompt >= self.max_model_len:
                report.signals.append(Signal(id_, token=False, completed=True, rejected=True))
                del self.requests[id_]
                continue
            length = prompt + request.generated
            if request.running:
                tokens = self.burst
                decodes += 1
                report.work[id_] = Work(id_, 1, 0, prompt, False, prompt, length, request.generated)
                report.accept_tokens += tokens
                report.accept_forwards += 1
            else:
                tokens = 1
                prefills += 1
                request.running = True
                report.admissions.append(Admission(id_, 0))
                report.work[id_] = Work(id_, prompt, prompt, 0, not request.limit, prompt, length, 0)
            self._emit(report, request, min(tokens, request.limit - request.generated))
        report.decode_batch = decodes
        self.now += self.prefill_ns * bool(prefills) + self.decode_ns * bool(decodes)

    def _emit(self, report: StepReport, request: _Request, tokens: int) -> None:
        id_ = request.spec.id
        if not request.limit:
            report.signals.append(Signal(id_, token=False, completed=True))
            del self.requests[id_]
            return
        for _ in range(tokens):
            request.generated += 1
            done = request.generated == request.limit
            report.signals.append(Signal(id_, token=True, completed=done))
            if done:
                del self.requests[id_]

    @property
    def busy(self) -> bool:
        return bool(self.requests)

    def view(self, blocks: bool = True) -> EngineView:
        shown_requests: Mapping[str, RequestView] = {
            id_: RequestView(
                id_,
                RUNNING if one.running else WAITING,
                one.spec.prompt.length,
                one.limit,
                one.generated,
                one.spec.prompt.length if one.running else 0,
                one.spec.prompt.length if one.running else 0,
            )
            for id_, one in self.requests.items()
        }
        waiting = tuple(id_ for id_, one in self.requests.items() if not one.running)
        running = tuple(id_ for id_, one in self.requests.items() if one.running)
        return EngineView(self.now, shown_requests, waiting, running, PoolView(1 << 20, 1 << 20, 0, 0))

    def freeze(self) -> bytes:
        raise NotImplementedError

    def thaw(self, state: bytes) -> Engine:
        raise NotImplementedError

    def servable(self, request: RequestSpec) -> bool:
        return self.max_model_len is None or request.prompt.length < self.max_model_len
