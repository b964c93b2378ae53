"""The working state of a radix engine.

Only the functions of this package change it. Between actions these hold:

* a request is in ``requests`` exactly when it is in one of ``waiting``, ``running`` and ``handoffs.ready``;
* a running request has computed at least its prompt; a waiting one that has computed anything is a *partial*: it was admitted
  with a chunk of its tokens and keeps them, and takes no slot;
* ``pages`` hold the ``computed`` tokens and are ``cdiv(computed, page_size)`` in number; the first ``cached`` tokens are pages of
  the tree, on the path that ends at ``node``, which the request locks while it has computed anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from model.actions import Nanoseconds
from model.events import Signal, StepReport
from model.radix.pool import PagePool
from model.radix.publisher import Publisher
from model.radix.rules import RadixRules
from model.radix.tree import Node, RadixTree
from model.registry import Registry
from model.requests import RequestSpec
from model.views import PARKED, PREEMPTED, RUNNING, WAITING

__all__ = ["PARKED", "PREEMPTED", "RUNNING", "WAITING", "Core", "Handoffs", "Pass", "Request"]


class Request:
    """A live request and its lease (SGLang specification 1).

    ``limit`` is the most it may produce: ``output`` cut by the cap on model length.
    """

    __slots__ = (
        "cached",
        "cached_tokens",
        "computed",
        "generated",
        "id",
        "limit",
        "node",
        "number",
        "pages",
        "preemptions",
        "prompt",
        "status",
    )

    def __init__(self, spec: RequestSpec, number: int, rules: RadixRules, root: Node) -> None:
        """A request that has just arrived."""
        self.id = spec.id
        self.number = number
        self.prompt = spec.prompt.length
        self.limit = min(spec.output, max(rules.max_length - self.prompt, 0))
        self.generated = 0
        self.computed = 0
        self.cached = 0
        self.pages: list[int] = []
        self.node = root
        self.status = WAITING
        self.preemptions = 0
        self.cached_tokens: int | None = None

    @property
    def length(self) -> int:
        """Prompt and generated tokens."""
        return self.prompt + self.generated

    @property
    def remaining(self) -> int:
        """Tokens it may still produce."""
        return self.limit - self.generated


class Handoffs:
    """Who takes part in a hand-off between workers, by request id (SGLang specification 7).

    A request is in at most one of these, but for ``sources``, ``active`` and ``ready``, whose requests are live.

    Attributes:
        sources: live requests whose pages are to be kept when they complete.
        held: completed ones whose pages are kept.
        pending: accepted destinations that have no room yet, first come first.
        reserved: destinations that have their pages, with the transfer on its way.
        active: destinations whose KV has come, until they end.
        ready: of these, the ones that have not run yet, in the order in which their KV came.
        tried: there was no room for the first pending one, and no room has come free since.
    """

    __slots__ = ("active", "held", "pending", "ready", "reserved", "sources", "tried")

    def __init__(self) -> None:
        """No hand-off."""
        self.sources: dict[str, Request] = {}
        self.held: dict[str, Request] = {}
        self.pending: dict[str, Request] = {}
        self.reserved: dict[str, Request] = {}
        self.active: dict[str, Request] = {}
        self.ready: deque[Request] = deque()
        self.tried = False


class Core:
    """The mutable state of one engine; see the module docstring."""

    __slots__ = (
        "deferred_passes",
        "handoffs",
        "now",
        "pool",
        "publisher",
        "ratio",
        "refused",
        "registry",
        "requests",
        "rules",
        "running",
        "tree",
        "waiting",
    )

    def __init__(self, rules: RadixRules, registry: Registry) -> None:
        """An idle engine."""
        self.rules = rules
        self.registry = registry
        self.pool = PagePool(rules.num_pages)
        self.tree = RadixTree(tight_splits=not rules.split_keeps_capacity, tight_truncation=not rules.truncation_keeps_capacity)
        self.publisher = Publisher(registry) if rules.publishes else None
        self.requests: dict[str, Request] = {}
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.refused: list[Request] = []
        """Waiting requests that the next pass refuses."""
        self.ratio = rules.initial_ratio
        self.deferred_passes = 0
        """Passes still to come in which nothing is admitted (prefill/decode interval)."""
        self.now: Nanoseconds = 0
        self.handoffs = Handoffs()

    @property
    def obtainable(self) -> int:
        """Pages that are free or can be made so."""
        return self.pool.available + self.tree.evictable


class Pass:
    """The locals of one scheduler pass."""

    __slots__ = ("accepted", "admitted", "end_sum", "prefix_sum", "report")

    def __init__(self, report: StepReport, accepted: Mapping[str, int]) -> None:
        """The start of a pass in which ``accepted`` drafts are accepted, by request."""
        self.report = report
        self.accepted = accepted
        self.admitted: list[Request] = []
        """The prefill batch, in the order of admission."""
        # Of the prefill batch: the sums of where the chunks end and begin.
        self.end_sum = 0
        self.prefix_sum = 0


def emit(core: Core, report: StepReport, request: Request) -> bool:
    """Tell of one more token of ``request``; whether it was the last one."""
    request.generated += 1
    complete = request.generated >= request.limit
    delay = core.rules.config.handoff_delay_ns(request.prompt) if complete else None
    report.signals.append(Signal(request.id, True, complete, handoff_delay_ns=delay))
    return complete
