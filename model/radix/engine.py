"""The radix engine: SGLang's policy over a radix tree of pages, behind the engine interface.

A pass (SGLang specification 2) is: refusals, the order of the queue, prefill admission, then the first tokens of what was
admitted or, when nothing was, a decode step of all that run; last the new-token ratio. Its phases are functions of this
package, each to be read beside the specification: ``policy``, ``admission``, ``lease``, ``decode``.

A worker with role ``prefill`` or ``decode`` takes part in hand-offs (``handoff``).
"""

from __future__ import annotations

from collections.abc import Mapping

from model import engine as parts
from model.actions import Action, Advance, Cancel, Handoff, Step, Submit, brought, unknown_verb
from model.config import EngineConfig
from model.engine import Engine, UnknownAction
from model.errors import BadInput, shown
from model.events import DEFERRED, StepReport
from model.radix import defects as _declared  # noqa: F401  (declares the defects of this scheduler)
from model.radix.admission import admit_prefills, can_decode, can_serve, is_refused, refuse_waiting
from model.radix.core import RUNNING, Core, Pass, Request
from model.radix.decode import decode, first_tokens
from model.radix.handoff import (
    DESTINATION_COMMANDS,
    SOURCE_COMMANDS,
    Command,
    accept_destination,
    check_destination,
    is_known,
    promote_ready,
    retry_pending,
    withdraw,
)
from model.radix.lease import cache_prefix
from model.radix.policy import order_waiting
from model.radix.rules import RadixRules
from model.radix.state import freeze, thaw
from model.radix.view import snapshot
from model.registry import Registry
from model.requests import RequestSpec
from model.views import EngineView

HANDOFF_COMMANDS: Mapping[str, tuple[str, Mapping[str, Command]]] = {
    "prefill": ("submit_prefill", SOURCE_COMMANDS),
    "decode": ("reserve_destination", DESTINATION_COMMANDS),
}
"""Per role: the command that brings a request, and those about one that is there."""


class RadixEngine(Engine):
    """One worker with SGLang's scheduling policy."""

    observes = frozenset(parts.PARTS)

    __slots__ = ("config", "core", "registry", "rules")

    def __init__(self, config: EngineConfig, registry: Registry | None = None) -> None:
        """An idle engine; ``registry`` when it shares one with other workers."""
        self._adopt(RadixRules(config), registry or Registry(config.block_size), None)

    def _adopt(self, rules: RadixRules, registry: Registry, core: Core | None) -> None:
        self.config = rules.config
        self.rules = rules
        self.registry = registry
        self.core = core or Core(rules, registry)

    def apply(self, action: Action) -> StepReport:
        """Carry out one action; see ``Engine.apply``."""
        now = self.core.now
        report = StepReport(action, start_ns=now, end_ns=now)
        if isinstance(action, Step):
            self._step(action, report)
            retry_pending(self.core, report)
        elif isinstance(action, Submit):
            self._submit(action.request)
        elif isinstance(action, Cancel):
            if withdraw(self.core, report, action.id):
                retry_pending(self.core, report)
        elif isinstance(action, Handoff):
            self._hand_off(action, report)
        elif isinstance(action, Advance):
            # Nothing falls due by itself in this engine.
            self.core.now += action.by_ns or 0
            report.end_ns = self.core.now
        else:
            raise UnknownAction("action", type(action).__name__, "submit, cancel, step, advance, handoff")
        return report

    def _request(self, spec: RequestSpec, path: str) -> Request:
        """A request that is new here.

        Raises:
            BadInput: if its id is in use.
        """
        if is_known(self.core, spec.id):
            raise BadInput(path, shown(spec.id), "an id that no live request has")
        return Request(spec, self.registry.number(spec), self.rules, self.core.tree.root)

    def _submit(self, spec: RequestSpec) -> None:
        core = self.core
        request = self._request(spec, "submit")
        core.requests[spec.id] = request
        core.waiting.append(request)
        if is_refused(self.rules, request):
            core.refused.append(request)

    def _hand_off(self, action: Handoff, report: StepReport) -> None:
        """Carry out a command of the hand-off (SGLang specification 7); one that has no effect says so in the notes.

        Raises:
            BadInput: for a command that this role does not know, an id in use, or a destination that cannot be served.
        """
        core, verb = self.core, action.verb
        begins, commands = HANDOFF_COMMANDS.get(self.config.role, ("", {}))
        if verb == begins:
            spec = brought(action)
            if self.rules.decode_role:
                request = self._request(spec, "id")
                check_destination(core, request)
                accept_destination(core, report, request)
            else:
                self._submit(spec)
                core.handoffs.sources[spec.id] = core.requests[spec.id]
                return
        elif verb not in commands:
            raise unknown_verb(verb, (begins, *commands) if commands else ())
        elif not commands[verb](core, report, action.id):
            report.notes.append(("no-effect", verb))
            return
        retry_pending(core, report)

    def _step(self, action: Step, report: StepReport) -> None:
        core = self.core
        report.is_pass = True
        step = Pass(report, action.accepted)
        refuse_waiting(core, step)
        promote_ready(core, step)
        order_waiting(core)
        deferred = core.deferred_passes > 0
        if deferred:
            core.deferred_passes -= 1
            report.notes.append((DEFERRED, core.deferred_passes))
        elif not core.handoffs.ready and not core.handoffs.pending:
            admit_prefills(core, step)
        if step.admitted:
            self._prefill(step)
        else:
            self._decode(step, deferred)
        report.end_ns = core.now

    def _prefill(self, step: Pass) -> None:
        """The pass admitted something: its time, the queues, and the first tokens (2, steps 4 to 7)."""
        core, rules = self.core, self.rules
        batch = len(step.admitted)
        computed = step.end_sum - step.prefix_sum
        # The time model sees the two means as whole numbers, so that few tokens in a batch may take no time.
        if step.end_sum // batch > step.prefix_sum // batch and not rules.decode_role:
            core.now += rules.prefill_ns
        if not rules.decode_role:
            core.now += rules.prefill_token_ns * computed
        fresh = []
        for request in step.admitted:
            if request.computed < request.length:
                cache_prefix(core, step.report, request)
                core.waiting.appendleft(request)
            else:
                request.status = RUNNING
                core.running.append(request)
                fresh.append(request)
        first_tokens(core, step, fresh)
        if computed:
            core.deferred_passes = rules.interval

    def _decode(self, step: Pass, deferred: bool) -> None:
        """The pass admitted nothing: decode, and let the new-token ratio fall (2, steps 7 to 9)."""
        core, rules = self.core, self.rules
        idle = not core.running
        if decode(core, step):
            return
        if deferred and idle:
            core.ratio = rules.initial_ratio
        else:
            core.ratio = max(rules.minimal_ratio, core.ratio - rules.ratio_step)

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
        """The running requests that may produce more than one further token."""
        if not self.rules.draft_tokens:
            return ()
        return tuple(request.id for request in self.core.running if request.remaining > 1)

    def servable(self, request: RequestSpec) -> bool:
        """Its prompt is below the model length, some of it fits a pass, and all of it and its output fit the pool alone.

        A decode worker is asked about a request that comes with its KV.
        """
        rules = self.rules
        prompt = request.prompt.length
        limit = min(request.output, max(rules.max_length - prompt, 0))
        suffices = can_decode if rules.decode_role else can_serve
        return prompt < rules.max_length and suffices(rules, prompt, limit)

    def freeze(self) -> bytes:
        """The canonical state; ``model.radix.state`` tells what is in it."""
        return freeze(self.core)

    def thaw(self, state: bytes) -> RadixEngine:
        """A new engine in ``state``."""
        other = RadixEngine.__new__(RadixEngine)
        other._adopt(self.rules, self.registry, thaw(self.rules, self.registry, state))
        return other

    def view(self, blocks: bool = True) -> EngineView:
        """A snapshot; see ``Engine.view``."""
        return snapshot(self.core, blocks)
