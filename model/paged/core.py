"""The working state of a paged engine, and what is done to single requests: release, preemption, completion.

Only the functions of this package change it. Between actions these hold:

* a request is in ``requests`` exactly when it is in one of ``waiting`` and ``running``;
* its ``blocks`` are ``cdiv(allocated, block_size)`` copies of the pool; a waiting one holds none and has computed nothing, unless
  its whole prompt came from another worker;
* *dangling token*: after sampling, ``length = computed + 1``: the sampled token is not computed, and its block not taken,
  before the next pass that schedules it. A terminal token is never computed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from model.actions import Nanoseconds
from model.events import Preemption, Removed, Signal, StepReport, Stored, Work
from model.paged.pool import BlockPool, Copy
from model.paged.rules import PagedRules
from model.registry import NO_BLOCK, Registry
from model.requests import RequestSpec
from model.views import PARKED, PREEMPTED, RUNNING, WAITING

__all__ = ["PARKED", "PREEMPTED", "RUNNING", "WAITING", "Core", "Handoffs", "Hold", "Pass", "Request"]


class Request:
    """A live request (vLLM specification 2.1).

    ``limit`` is the most it may produce: ``output`` cut by ``PagedRules.output_limit``. ``identified`` counts the leading
    blocks whose identity is known: the full ones of the prompt from the start, a generated one once it was computed.
    ``order`` is where it stands in the order of arrival, for one that leaves the queue's care while its KV is on its way.
    """

    __slots__ = (
        "allocated",
        "blocks",
        "cached_tokens",
        "chain",
        "computed",
        "generated",
        "id",
        "identified",
        "limit",
        "number",
        "order",
        "output",
        "preemptions",
        "prompt",
        "status",
    )

    def __init__(self, spec: RequestSpec, number: int, chain: list[int], rules: PagedRules) -> None:
        """A request that has just arrived."""
        self.id = spec.id
        self.number = number
        self.order = 0
        self.chain = chain
        self.prompt = spec.prompt.length
        self.output = spec.output
        self.limit = rules.output_limit(self.prompt, spec.output)
        self.generated = 0
        self.computed = 0
        self.allocated = 0
        self.identified = self.prompt // rules.block_size if rules.caching else 0
        self.blocks: list[Copy] = []
        self.status = WAITING
        self.preemptions = 0
        self.cached_tokens: int | None = None

    @property
    def length(self) -> int:
        """Prompt and generated tokens."""
        return self.prompt + self.generated

    @property
    def prebuilt(self) -> bool:
        """The KV of its whole prompt is there."""
        return self.computed >= self.prompt

    @property
    def complete(self) -> bool:
        """It produced all it may."""
        return self.generated >= self.limit


class Cadence:
    """Where a rank of several stands in its wave (vLLM specification 3.10).

    Attributes:
        step: of the wave, modulo the interval between steps that prefill.
        bound: requests were left waiting when they could last be admitted, so prefills are not put off now.
    """

    __slots__ = ("bound", "step")

    def __init__(self) -> None:
        """At the start of a wave."""
        self.step = 0
        self.bound = False


class Hold:
    """Room set aside for a request whose KV is on its way: cached blocks that are pinned, and a number of fresh ones."""

    __slots__ = ("fresh", "hits", "request")

    def __init__(self, request: Request, hits: list[Copy], fresh: int) -> None:
        """For ``request``."""
        self.request = request
        self.hits = hits
        self.fresh = fresh

    @property
    def blocks(self) -> int:
        """How many there are."""
        return len(self.hits) + self.fresh


class Handoffs:
    """Who takes part in a hand-off between workers, by request id (vLLM specification 2.4).

    A request is in at most one of these, but for ``sources`` and ``active``, whose requests are live.

    Attributes:
        sources: live requests whose blocks are to be kept when they complete.
        held: completed ones whose blocks are kept.
        pending: accepted destinations that have no room yet, first come first.
        reserved: destinations that have room, with the transfer on its way.
        active: destinations whose KV has come, until they end.
        tried: there was no room for the first pending one, and no room has come free since. (The specification counts capacity
            changes and remembers the count of the last attempt; nothing else of that count matters.)
    """

    __slots__ = ("active", "held", "pending", "reserved", "sources", "tried")

    def __init__(self) -> None:
        """No hand-off."""
        self.sources: dict[str, Request] = {}
        self.held: dict[str, Request] = {}
        self.pending: dict[str, Request] = {}
        self.reserved: dict[str, Hold] = {}
        self.active: dict[str, Request] = {}
        self.tried = False


class Core:
    """The mutable state of one engine; see the module docstring."""

    __slots__ = (
        "arrivals",
        "cadence",
        "handoffs",
        "now",
        "pool",
        "preemptions",
        "registry",
        "requests",
        "rules",
        "running",
        "scan_visits",
        "waiting",
    )

    def __init__(self, rules: PagedRules, registry: Registry) -> None:
        """An idle engine."""
        self.rules = rules
        self.registry = registry
        self.pool = BlockPool(rules.num_blocks)
        self.requests: dict[str, Request] = {}
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.now: Nanoseconds = 0
        self.preemptions = 0
        self.arrivals = 0
        self.cadence = Cadence()
        self.handoffs = Handoffs()
        self.scan_visits = 0
        """Ghost: requests looked at to find how much room hand-offs need to complete."""

    def leave_queue(self, request: Request) -> None:
        """Take a request that waits out of its queue."""
        self.waiting.remove(request)

    def drop(self, request: Request) -> None:
        """Forget a request and give its blocks back. The caller takes it out of its queue."""
        handoffs = self.handoffs
        handoffs.sources.pop(request.id, None)
        handoffs.active.pop(request.id, None)
        if request.blocks or request.status == RUNNING:
            handoffs.tried = False
        del self.requests[request.id]
        self.release(request)

    def release(self, request: Request) -> None:
        """Give the blocks of a request back."""
        self.pool.release(request.blocks)
        request.blocks = []
        request.allocated = 0

    def complete(self, request: Request, report: StepReport) -> None:
        """A running request has produced all it may: its blocks are given back, or kept for the worker that goes on (3.9)."""
        handoffs = self.handoffs
        if request.id not in handoffs.sources:
            self.drop(request)
            return
        del self.requests[request.id]
        handoffs.held[request.id] = handoffs.sources.pop(request.id)
        handoffs.tried = False
        request.status = PARKED
        report.handed_over.append(request.id)
        report.notes.append(("source-held", request.id))


class Pass:
    """The locals of one scheduler pass (vLLM specification 3)."""

    __slots__ = ("accepted", "batch", "batch_end", "batch_prefix", "budget", "preempted_any", "rejected", "report", "throttled")

    def __init__(self, rules: PagedRules, report: StepReport, accepted: Mapping[str, int]) -> None:
        """The start of a pass in which ``accepted`` drafts are accepted, by request."""
        self.report = report
        self.accepted = accepted
        self.budget = rules.budget
        self.preempted_any = False
        self.throttled = False
        self.rejected: list[str] = []
        # The prefill batch: how many requests, and the sums of where their chunks end and begin.
        self.batch = 0
        self.batch_end = 0
        self.batch_prefix = 0


def record(step: Pass, core: Core, work: Work) -> None:
    """Enter the work of a request into the pass."""
    step.report.work[work.id] = work
    if work.prompt_tokens and not core.rules.decode_role:
        step.batch += 1
        step.batch_end += work.prefix_tokens + work.prompt_tokens
        step.batch_prefix += work.prefix_tokens


def refund(step: Pass, core: Core, victim: Request) -> None:
    """Undo the record of a request that was preempted after it was scheduled in this pass."""
    work = step.report.work.pop(victim.id, None)
    if work is None:
        return
    step.budget += work.total
    if work.prompt_tokens and not core.rules.decode_role:
        step.batch -= 1
        step.batch_end -= work.prefix_tokens + work.prompt_tokens
        step.batch_prefix -= work.prefix_tokens


def preempt(
    core: Core, report: StepReport, cause: Request | None, phase: str, needed: int, wanting: tuple[str, ...]
) -> Request:
    """Take all blocks from the last running request (``fifo``: the first) and put it at the head of the queue.

    Its generated tokens stay; they are computed again when it is admitted again (vLLM specification 3.7). With ``fifo`` the
    first request is passed over while it alone could produce a token and others hold blocks: taking it leaves a pass with
    nothing to emit, and two requests can then take turns for ever (defect ``fifo-preempts-last-ready``).
    """
    pool = core.pool
    position = -1
    if core.rules.fifo:
        sole = wanting == (core.running[0].id,) and len(core.running) > 1 and phase == "emission"
        position = 1 if sole and not core.rules.takes_last_ready else 0
    victim = core.running.pop(position)
    report.preemptions.append(
        Preemption(
            victim=victim.id,
            cause=cause.id if cause else None,
            phase=phase,
            needed=needed,
            free=pool.free + len(pool.inactive),
            requests=wanting,
        )
    )
    victim.status = PREEMPTED
    victim.computed = 0
    victim.preemptions += 1
    core.preemptions += 1
    core.handoffs.tried = False
    pool.release(victim.blocks)
    victim.blocks = []
    victim.allocated = 0
    core.waiting.appendleft(victim)
    return victim


def finalize(core: Core, report: StepReport, request: Request, first: int, end: int) -> None:
    """Tokens ``first`` to ``end`` of a request are computed: its blocks filled by them get their identity and become reusable.

    Neighbouring blocks that become visible form one Stored event; a block whose identity was visible already splits it.
    """
    size = core.rules.block_size
    low, high = first // size, end // size
    if low == high or not core.rules.caching:
        return
    if high > request.identified:
        request.chain = core.registry.chain(request.number, high)
        request.identified = high
    group: list[int] = []
    for position in range(low, high):
        copy = request.blocks[position]
        if copy.identity == NO_BLOCK and core.pool.cache(copy, request.chain[position]):
            group.append(position)
        elif group:
            announce(core, report, request, group)
            group = []
    if group:
        announce(core, report, request, group)


def announce(core: Core, report: StepReport, request: Request, positions: list[int]) -> None:
    """Tell that neighbouring blocks of a request became reusable."""
    if core.rules.events:
        chain = request.chain
        parent = chain[positions[0] - 1] if positions[0] else NO_BLOCK
        report.events.append(Stored(parent, tuple(chain[position] for position in positions)))


def evicted(core: Core, report: StepReport, identities: list[int]) -> None:
    """Tell that identities lost their last copy."""
    if identities and core.rules.events:
        report.events.append(Removed(tuple(identities)))


def signal_end(core: Core, report: StepReport, request: Request, token: bool) -> None:
    """The last signal of a request that completed."""
    delay = core.rules.config.handoff_delay_ns(request.prompt)
    report.signals.append(Signal(request.id, token=token, completed=True, handoff_delay_ns=delay))
