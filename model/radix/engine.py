"""The radix engine: SGLang's policy over a radix tree of pages, behind the engine interface.

A pass (SGLang specification 2) is: refusals, the order of the queue, prefill admission, then the first tokens of what was
admitted or, when nothing was, a decode step of all that run; last the new-token ratio. Its phases are functions of this
package, each to be read beside the specification: ``policy``, ``admission``, ``lease``, ``decode``.

One aggregated worker: the hand-off commands of section 7 are not part of it.
"""

from __future__ import annotations

from model import engine as parts
from model.actions import Action, Advance, Cancel, Step, Submit
from model.config import EngineConfig
from model.engine import Engine, UnknownAction
from model.errors import BadInput, shown
from model.events import DEFERRED, StepReport
from model.radix import defects as _declared  # noqa: F401  (declares the defects of this scheduler)
from model.radix.admission import admit_prefills, can_serve, is_refused, refuse_waiting
from model.radix.core import RUNNING, Core, Pass, Request
from model.radix.decode import decode, first_tokens
from model.radix.lease import cache_prefix, release
from model.radix.policy import order_waiting
from model.radix.rules import RadixRules
from model.radix.state import freeze, thaw
from model.radix.view import snapshot
from model.registry import Registry
from model.requests import RequestSpec
from model.views import EngineView


class RadixEngine(Engine):
    """One aggregated worker with SGLang's scheduling policy."""

    observes = frozenset(parts.PARTS)

    __slots__ = ("config", "core", "registry", "rules")

    def __init__(self, config: EngineConfig) -> None:
        """An idle engine.

        Raises:
            BadInput: for a role other than ``aggregated``.
        """
        if config.role != "aggregated":
            raise BadInput("role", shown(config.role), '"aggregated" with scheduler sglang')
        self._adopt(RadixRules(config), Registry(config.block_size), None)

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
        elif isinstance(action, Submit):
            self._submit(action.request)
        elif isinstance(action, Cancel):
            self._cancel(action.id, report)
        elif isinstance(action, Advance):
            # Nothing falls due by itself in this engine.
            self.core.now += action.by_ns or 0
            report.end_ns = self.core.now
        else:
            raise UnknownAction("action", type(action).__name__, "submit, cancel, step, advance")
        return report

    def _submit(self, spec: RequestSpec) -> None:
        core = self.core
        if spec.id in core.requests:
            raise BadInput("submit", shown(spec.id), "an id that no live request has")
        request = Request(spec, self.registry.number(spec), self.rules, core.tree.root)
        core.requests[spec.id] = request
        core.waiting.append(request)
        if is_refused(self.rules, request):
            core.refused.append(request)

    def _cancel(self, id_: str, report: StepReport) -> None:
        core = self.core
        request = core.requests.pop(id_, None)
        if request is None:
            return
        queue = core.running if request.status == RUNNING else core.waiting
        queue.remove(request)
        if request in core.refused:
            core.refused.remove(request)
        release(core, report, request)
        report.cancelled.append(id_)

    def _step(self, action: Step, report: StepReport) -> None:
        core = self.core
        report.is_pass = True
        step = Pass(report, action.accepted)
        refuse_waiting(core, step)
        order_waiting(core)
        deferred = core.deferred_passes > 0
        if deferred:
            core.deferred_passes -= 1
            report.notes.append((DEFERRED, core.deferred_passes))
        else:
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
        if step.end_sum // batch > step.prefix_sum // batch:
            core.now += rules.prefill_ns
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
        """A request is live."""
        return bool(self.core.requests)

    def speculating(self) -> tuple[str, ...]:
        """The running requests that may produce more than one further token."""
        if not self.rules.draft_tokens:
            return ()
        return tuple(request.id for request in self.core.running if request.remaining > 1)

    def servable(self, request: RequestSpec) -> bool:
        """Its prompt is below the model length, some of it fits a pass, and all of it and its output fit the pool alone."""
        rules = self.rules
        prompt = request.prompt.length
        limit = min(request.output, max(rules.max_length - prompt, 0))
        return prompt < rules.max_length and can_serve(rules, prompt, limit)

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
