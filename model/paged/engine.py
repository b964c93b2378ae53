"""The paged engine: vLLM's or TensorRT-LLM's policy over a block pool, behind the engine interface.

A pass (vLLM specification 3) is: the running phase, the waiting phase, emission, refusals, the end time. Its phases are
functions of this package, each to be read beside the specification: ``scheduling``, ``admission``, ``emission``,
``speculation``. A worker with role ``prefill`` or ``decode`` takes part in hand-offs (``handoff``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from model import engine as parts
from model.actions import Action, Advance, Cancel, Handoff, Step, Submit, brought, unknown_verb
from model.config import EngineConfig
from model.engine import Engine, UnknownAction
from model.errors import BadInput, shown
from model.events import Signal, StepReport
from model.paged import defects as _declared  # noqa: F401  (declares the defects of this scheduler)
from model.paged.admission import can_serve
from model.paged.cadence import end_wave_step, throttles
from model.paged.core import Core, Pass, Request
from model.paged.emission import emit
from model.paged.handoff import (
    DESTINATION_COMMANDS,
    SOURCE_COMMANDS,
    Command,
    accept_destination,
    check_destination,
    is_known,
    owners,
    parties,
    retry_pending,
    withdraw,
)
from model.paged.pool import Copy
from model.paged.rules import PagedRules
from model.paged.scheduling import running_phase, waiting_phase
from model.paged.speculation import emit_bursts
from model.paged.state import freeze, thaw
from model.registry import NO_BLOCK, Registry
from model.requests import RequestSpec
from model.views import BlockView, EngineView, PoolView, RequestView

HANDOFF_COMMANDS: Mapping[str, tuple[str, Mapping[str, Command]]] = {
    "prefill": ("submit_prefill", SOURCE_COMMANDS),
    "decode": ("reserve_destination", DESTINATION_COMMANDS),
}
"""Per role: the command that brings a request, and those about one that is there."""

SCAN_VISITS = "handoff_scan_visits"


class PagedEngine(Engine):
    """One worker with vLLM's or TensorRT-LLM's scheduling policy."""

    observes = frozenset(parts.PARTS) - {parts.TREE}

    __slots__ = ("config", "core", "registry", "rules")

    def __init__(self, config: EngineConfig, registry: Registry | None = None) -> None:
        """An idle engine; ``registry`` when it shares one with other workers."""
        self._adopt(PagedRules(config), registry or Registry(config.block_size), None)

    def _adopt(self, rules: PagedRules, registry: Registry, core: Core | None) -> None:
        self.config = rules.config
        self.rules = rules
        self.registry = registry
        self.core = core or Core(rules, registry)

    def apply(self, action: Action) -> StepReport:
        """Carry out one action; see ``Engine.apply``."""
        core = self.core
        report = StepReport(action, start_ns=core.now, end_ns=core.now)
        visits = core.scan_visits
        if isinstance(action, Step):
            self._step(action, report)
            retry_pending(core, report)
        elif isinstance(action, Submit):
            self._submit(action.request)
        elif isinstance(action, Cancel):
            self._cancel(action.id, report)
        elif isinstance(action, Handoff):
            self._hand_off(action, report)
        elif isinstance(action, Advance):
            # Nothing falls due by itself in this engine.
            core.now += action.by_ns or 0
            report.end_ns = core.now
        else:
            raise UnknownAction("action", type(action).__name__, "submit, cancel, step, advance, handoff")
        if core.scan_visits != visits:
            report.costs[SCAN_VISITS] = core.scan_visits - visits
        return report

    def _request(self, spec: RequestSpec, path: str) -> Request:
        """A request that is new here.

        Raises:
            BadInput: if its id is in use.
        """
        if is_known(self.core, spec.id):
            raise BadInput(path, shown(spec.id), "an id that no live request has")
        number = self.registry.number(spec)
        request = Request(spec, number, self.registry.chains[number], self.rules)
        request.order = self.core.arrivals
        self.core.arrivals += 1
        return request

    def _submit(self, spec: RequestSpec) -> None:
        request = self._request(spec, "submit")
        self.core.requests[spec.id] = request
        self.core.waiting.append(request)

    def _cancel(self, id_: str, report: StepReport) -> None:
        if withdraw(self.core, report, id_):
            retry_pending(self.core, report)

    def _hand_off(self, action: Handoff, report: StepReport) -> None:
        """Carry out a command of the hand-off (vLLM specification 4.1, 4.2); one that has no effect says so in the notes.

        Raises:
            BadInput: for a command that this role does not know, an id in use, or a destination that cannot be served.
        """
        core, verb = self.core, action.verb
        role = self.config.role
        begins, commands = HANDOFF_COMMANDS.get(role, ("", {}))
        if verb == begins:
            spec = brought(action)
            if role == "prefill":
                self._submit(spec)
                core.handoffs.sources[spec.id] = core.requests[spec.id]
                return
            request = self._request(spec, "id")
            check_destination(core, request)
            accept_destination(core, report, request)
        elif verb not in commands:
            raise unknown_verb(verb, (begins, *commands) if commands else ())
        elif not commands[verb](core, report, action.id):
            report.notes.append(("no-effect", verb))
            return
        retry_pending(core, report)

    def _step(self, action: Step, report: StepReport) -> None:
        core, rules = self.core, self.rules
        report.is_pass = True
        step = Pass(rules, report, action.accepted)
        if rules.cadence > 1:
            step.throttled = throttles(core)
        self._schedule(step)
        decoding = emit_bursts(core, step) if rules.speculative else emit(core, step)
        for id_ in step.rejected:
            report.signals.append(Signal(id_, token=False, completed=True, rejected=True))
        report.decode_batch = decoding
        if rules.cadence > 1:
            end_wave_step(core, step)
        if step.batch:
            computed = step.batch_end - step.batch_prefix
            core.now += rules.prefill_ns + rules.prefill_token_ns * computed
        # The first token is what a prefill worker ends with; it decodes nothing.
        if decoding and not rules.prefill_role:
            core.now += rules.decode_ns + rules.decode_request_ns * decoding
        report.end_ns = core.now

    def _schedule(self, step: Pass) -> None:
        running_phase(self.core, step)
        waiting_phase(self.core, step)

    @property
    def busy(self) -> bool:
        """A request is live, or takes part in a hand-off."""
        handoffs = self.core.handoffs
        return bool(self.core.requests or handoffs.held or handoffs.pending or handoffs.reserved)

    def choices(self) -> tuple[Action, ...]:
        """What the worker at the other end of a hand-off owes: that a transfer ends, that a source is let go."""
        handoffs = self.core.handoffs
        activations = tuple(Handoff("activate_destination", id_) for id_ in sorted(handoffs.reserved))
        return activations + tuple(Handoff("release_source", id_) for id_ in sorted(handoffs.held))

    def speculating(self) -> tuple[str, ...]:
        """Every live request may emit in the next pass, but for those that ask for no token."""
        if not self.rules.speculative:
            return ()
        return tuple(request.id for request in self.core.requests.values() if request.limit - request.generated > 1)

    def servable(self, request: RequestSpec) -> bool:
        """Its prompt is below the model length, and could finish alone (``can_serve``)."""
        rules = self.rules
        prompt = request.prompt.length
        limit = rules.output_limit(prompt, request.output)
        return prompt < rules.max_length and can_serve(rules, prompt, limit)

    def freeze(self) -> bytes:
        """The canonical state; ``model.paged.state`` tells what is in it."""
        return freeze(self.core)

    def thaw(self, state: bytes) -> PagedEngine:
        """A new engine in ``state``."""
        other = PagedEngine.__new__(PagedEngine)
        other._adopt(self.rules, self.registry, thaw(self.rules, self.registry, state))
        return other

    def _pinned(self) -> Mapping[str, Sequence[Copy]]:
        """Blocks held by reservations, by owner."""
        return {id_: hold.hits for id_, hold in self.core.handoffs.reserved.items() if hold.hits}

    def view(self, blocks: bool = True) -> EngineView:
        """A snapshot; see ``Engine.view``."""
        core = self.core
        pool = core.pool
        table: dict[Copy, int] = {}
        requests = {}
        for request in parties(core) if self.rules.hands_off else core.requests.values():
            held = tuple([table.setdefault(copy, len(table)) for copy in request.blocks]) if blocks else ()
            requests[request.id] = RequestView(
                request.id,
                request.status,
                request.prompt,
                request.limit,
                request.generated,
                request.computed,
                request.allocated,
                held,
                request.cached_tokens or 0,
                request.preemptions,
            )
        view = EngineView(
            core.now,
            requests,
            tuple([request.id for request in core.waiting]),
            tuple([request.id for request in core.running]),
            PoolView(pool.total, pool.free, pool.active, len(pool.inactive), pool.reserved),
        )
        if core.scan_visits:
            view.costs = {SCAN_VISITS: core.scan_visits}
        if self.rules.hands_off:
            view.extra = owners(core)
        if blocks:
            pinned = {
                id_: tuple([table.setdefault(copy, len(table)) for copy in copies]) for id_, copies in self._pinned().items()
            }
            if pinned:
                view.extra = {**view.extra, "pinned_blocks": pinned}
            # A block that the pool knows and no request holds is seen here too, so that a leak shows.
            for copies in pool.index.values():
                for copy in copies:
                    table.setdefault(copy, len(table))
            for copy in pool.inactive:
                table.setdefault(copy, len(table))
            view.blocks = tuple([BlockView(copy.identity, copy.refs, copy.pins, copy in pool.inactive) for copy in table])
            view.cached = frozenset(pool.index) - {NO_BLOCK}
        return view
