"""The order of the waiting queue (SGLang specification 4)."""

from __future__ import annotations

from collections import deque

from model.radix.core import Core, Request
from model.radix.rules import LPM_IN_BATCH_TOKENS, LPM_MOST_WAITING


def order_waiting(core: Core) -> None:
    """Sort the queue by longest cached prefix, if that is the policy.

    Of requests that share their first tokens and have little of them cached, all but the first go behind the others, so that
    they find the tokens cached by it. The sort is stable. A partial keeps its place at the head: were it sorted like any other,
    several could hold pages, and none of them find room to go on.
    """
    rules = core.rules
    if not rules.lpm or len(core.waiting) > LPM_MOST_WAITING:
        return
    size = rules.page_size
    lead = -(-LPM_IN_BATCH_TOKENS // size)
    seen: set[int] = set()
    ranks: dict[str, tuple[bool, bool, int]] = {}
    for request in core.waiting:
        full = request.length // size
        keys = core.registry.chain(request.number, full)
        cached = core.tree.match_length(keys, full)
        follows = False
        if cached * size <= LPM_IN_BATCH_TOKENS and full >= lead:
            follows = keys[lead - 1] in seen
            seen.add(keys[lead - 1])
        ranks[request.id] = (rules.sorts_partials or not request.computed, follows, -cached)

    def rank(request: Request) -> tuple[bool, bool, int]:
        return ranks[request.id]

    core.waiting = deque(sorted(core.waiting, key=rank))
