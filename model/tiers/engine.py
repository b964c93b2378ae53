"""The paged engine with host and disk tiers, behind the engine interface (offload specification 5.1).

A pass is that of ``model.paged.engine`` with another waiting phase. Behind it, the prompt blocks just computed are offered to
host memory; the pass begins to compute when no copy to host memory reads a block it takes, or one of a preempted request; and
at its end the transfers catch up. ``Advance`` brings time to the next deadline, or past several, one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define

from model.actions import Action, Advance, Cancel, Nanoseconds, Step, Submit
from model.config import EngineConfig
from model.engine import UnknownAction
from model.errors import BadInput, shown
from model.events import StepReport
from model.paged.core import Pass
from model.paged.engine import PagedEngine
from model.paged.pool import Copy
from model.paged.rules import PagedRules
from model.paged.scheduling import running_phase
from model.registry import Registry
from model.requests import Prompt, RequestSpec
from model.tiers.core import Offload, TieredCore, TieredRequest
from model.tiers.notes import CapacityRetry
from model.tiers.rules import TierRules
from model.tiers.scheduling import tiered_waiting_phase
from model.tiers.state import freeze, thaw
from model.tiers.transfers import advance, offer_stores, settle, still_read
from model.tiers.views import EXTRA, tiers_view
from model.views import PARKED, RUNNING, EngineView


@define
class TieredReport(StepReport):
    """A report whose transfers count as an effect, so that a pass which only begins a read is not taken for idle."""

    @property
    def had_effect(self) -> bool:
        """The pass did anything at all, or began or ended a transfer."""
        return StepReport.had_effect.__get__(self) or any(not isinstance(told, CapacityRetry) for _, told in self.notes)


class TieredEngine(PagedEngine):
    """One worker with vLLM's scheduling policy, host memory and perhaps a disk."""

    core: TieredCore

    __slots__ = ("tier_rules",)

    def __init__(self, config: EngineConfig, offload: Offload | None = None) -> None:
        """An idle engine; ``offload`` when its disk is shared with other workers. The tiers hold what is preloaded."""
        rules = PagedRules(config)
        self.tier_rules = TierRules.of(config)
        registry = Registry(config.block_size)
        offload = offload or Offload(self.tier_rules)
        self._adopt(rules, registry, TieredCore(rules, registry, offload))
        tiers = config.tiers
        assert tiers is not None
        offload.host.preload(self._preloaded(tiers.preloaded_host))
        if offload.disk is not None:
            offload.disk.preload(offload.worker, self._preloaded(tiers.preloaded_disk))

    def _preloaded(self, prompts: Sequence[Prompt]) -> list[int]:
        """The blocks of ``prompts`` in order of age."""
        registry = self.registry
        return [
            block for prompt in prompts for block in reversed(registry.chained(prompt.blocks(registry.block_size)[0]))
        ]

    def apply(self, action: Action) -> StepReport:
        """Carry out one action; see ``Engine.apply``."""
        core = self.core
        report = TieredReport(action, start_ns=core.now, end_ns=core.now)
        core.offload.host.journal = report.notes
        if isinstance(action, Step):
            self._step(action, report)
        elif isinstance(action, Advance):
            self._advance(action.by_ns, report)
        elif isinstance(action, Submit):
            self._submit(action.request)
            core.offload.got_on()
        elif isinstance(action, Cancel):
            self._cancel(action.id, report)
            core.offload.got_on()
        else:
            raise UnknownAction("action", type(action).__name__, "submit, cancel, step, advance")
        return report

    def _submit(self, spec: RequestSpec) -> None:
        core = self.core
        if spec.id in core.requests:
            raise BadInput("submit", shown(spec.id), "an id that no live request has")
        number = self.registry.number(spec)
        request = TieredRequest(spec, number, self.registry.chains[number], self.rules)
        core.requests[spec.id] = request
        core.waiting.append(request)

    def _cancel(self, id_: str, report: StepReport) -> None:
        core = self.core
        request = core.requests.get(id_)
        if request is None:
            return
        if request.status == RUNNING:
            core.running.remove(request)
        else:
            core.leave_queue(request)
        core.drop(request)
        report.cancelled.append(id_)

    def _step(self, action: Step, report: StepReport) -> None:
        core = self.core
        start = core.now
        core.pool.taken.clear()
        super()._step(action, report)
        core.now += self._fence(report, start) - start
        for preemption in report.preemptions:
            # A preempted request begins to wait anew.
            victim = core.requests[preemption.victim]
            victim.rounds = 0
            victim.bypasses_disk = False
        if report.work or report.signals:
            self._got_on()
        settle(core, report, core.now)
        report.end_ns = core.now

    def _fence(self, report: StepReport, start: Nanoseconds) -> Nanoseconds:
        """When the pass may begin to compute (5.7): no copy to host memory reads a slot it takes, nor a preempted request."""
        core = self.core
        due = still_read(core, core.pool.taken)
        transfers = core.offload.host.transfers
        for preemption in report.preemptions:
            store = core.requests[preemption.victim].latest_store
            if store in transfers:
                ends = transfers[store].due
                due += [] if ends is None else [ends]
        return max([start, *due])

    def _schedule(self, step: Pass) -> None:
        core = self.core
        running_phase(core, step)
        if step.report.work:
            core.offload.got_on()
        tiered_waiting_phase(core, step)
        offer_stores(core, step.report)

    def _got_on(self) -> None:
        """Work was done: rounds of promotion are counted anew."""
        core = self.core
        core.offload.got_on()
        if self.tier_rules.bounded:
            for request in core.requests.values():
                request.rounds = 0

    def _advance(self, by_ns: Nanoseconds | None, report: StepReport) -> None:
        core = self.core
        target = None if by_ns is None else core.now + by_ns
        while True:
            due = core.offload.next_deadline()
            if due is None or (target is not None and due > target):
                break
            core.now = max(core.now, due)
            advance(core, report, core.now)
            if target is None:
                break
        if target is not None:
            core.now = target
            if core.offload.disk is not None:
                core.offload.disk.advance(target)
        report.end_ns = core.now

    @property
    def busy(self) -> bool:
        """A request is live, or a transfer is under way."""
        return bool(self.core.requests) or self.core.offload.next_deadline() is not None

    @property
    def ready(self) -> bool:
        """A pass would have somebody to look at: a driver that steps only then wakes on completions alone."""
        core = self.core
        return bool(core.running or core.waiting or any(not request.asleep for request in core.connector.values()))

    def freeze(self) -> bytes:
        """The canonical state; ``model.tiers.state`` tells what is in it."""
        return freeze(self.core)

    def thaw(self, state: bytes) -> TieredEngine:
        """A new engine in ``state``; the tiers are its own."""
        other = TieredEngine.__new__(TieredEngine)
        other.tier_rules = self.tier_rules
        other._adopt(self.rules, self.registry, thaw(self.rules, self.tier_rules, self.registry, state))
        return other

    def _pinned(self) -> Mapping[str, Sequence[Copy]]:
        return {
            request.id: [*request.load.hits, *request.load.fresh]
            for request in self.core.connector.values()
            if request.load is not None and not request.load.ended
        }

    def view(self, blocks: bool = True) -> EngineView:
        """A snapshot; see ``Engine.view``. Requests in the connector queue are parked."""
        core = self.core
        view = super().view(blocks)
        for id_ in core.connector:
            view.requests[id_].status = PARKED
        view.extra = {**view.extra, "connector": tuple(core.connector), EXTRA: tiers_view(core)}
        view.next_deadline_ns = core.offload.next_deadline()
        return view
