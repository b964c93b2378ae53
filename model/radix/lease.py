"""What a request holds of the cache: allocation, caching, completion, release (SGLang specification 2.1 to 2.3, 3 step 7).

A page of a request is *private* until the tree takes it, and then the tree's own. With caching off the tree stays empty, so that
every page is private.
"""

from __future__ import annotations

from collections.abc import Sequence

from model.events import StepReport
from model.radix.core import Core, Request


def evict_for(core: Core, report: StepReport, pages: int) -> None:
    """Evict what is missing for ``pages`` free pages."""
    missing = pages - core.pool.available
    if missing > 0:
        free_pages(core, report, core.tree.evict(missing))


def free_pages(core: Core, report: StepReport, pages: Sequence[int]) -> None:
    """Give pages back to the pool and withdraw what was announced of them."""
    core.pool.free(pages)
    if core.publisher is not None:
        event = core.publisher.removed(pages)
        if event is not None:
            report.events.append(event)


def announce(core: Core, report: StepReport, request: Request, first: int, end: int) -> None:
    """Announce the full pages of a request between token ``first`` and token ``end``."""
    size = core.rules.page_size
    if core.publisher is not None:
        event = core.publisher.stored(request.number, request.pages, first // size, end // size)
        if event is not None:
            report.events.append(event)


def cached_prefix(core: Core, request: Request) -> int:
    """Tokens that a fresh request would find cached; changes nothing.

    One that still needs logits leaves out its last token, hence its last page when everything is cached.
    """
    if not core.rules.caching:
        return 0
    size = core.rules.page_size
    full = request.length // size
    usable = full if request.limit == 0 else (request.length - 1) // size
    return core.tree.match_length(core.registry.chain(request.number, full), usable) * size


def begin(core: Core, report: StepReport, request: Request, prefix: int, end: int) -> bool:
    """The first allocation of a lease: lock the cached ``prefix`` and take pages for the tokens up to ``end``.

    Returns:
        Whether there was room. If not, the lock is gone again; what the lookup split and touched stays so.
    """
    size = core.rules.page_size
    matched, node = core.tree.match(core.registry.chain(request.number, prefix // size), prefix // size)
    assert matched * size == prefix
    core.tree.lock(node)
    fresh = -(-end // size) - matched
    if fresh > core.obtainable:
        core.tree.unlock(node)
        return False
    request.node = node
    request.cached = prefix
    request.pages = core.tree.pages_to(node) + take(core, report, fresh)
    announce(core, report, request, prefix, end)
    request.computed = end
    return True


def extend(core: Core, report: StepReport, request: Request, end: int) -> bool:
    """Take pages for the tokens of a partial up to ``end``, with no new lookup; whether there was room."""
    fresh = -(-end // core.rules.page_size) - len(request.pages)
    if fresh > core.obtainable:
        return False
    request.pages += take(core, report, fresh)
    announce(core, report, request, request.computed, end)
    request.computed = end
    return True


def take(core: Core, report: StepReport, count: int) -> list[int]:
    """``count`` pages that are known to be obtainable."""
    evict_for(core, report, count)
    pages = core.pool.allocate(count)
    assert pages is not None
    return pages


def cache_prefix(core: Core, report: StepReport, request: Request) -> None:
    """Put the full pages of a live request into the tree (2.1).

    Where the tree has another page for the same tokens, the request takes that one and gives its own back.
    """
    size = core.rules.page_size
    end = core.rules.whole_pages(request.computed)
    if not core.rules.caching or end <= request.cached:
        return
    announce(core, report, request, request.cached, end)
    node, first = request.node, request.cached // size
    keys = core.registry.chain(request.number, end // size)
    reached = core.tree.insert(node, first, keys, end // size, request.pages)
    if reached is not node:
        core.tree.lock(reached)
    duplicates = []
    at = end // size
    above = reached
    while at > first:
        for page in reversed(above.pages[-(at - first) :]):
            at -= 1
            if request.pages[at] != page:
                duplicates.append(request.pages[at])
                request.pages[at] = page
        assert above.parent is not None
        above = above.parent
    free_pages(core, report, duplicates[::-1])
    if reached is not node:
        core.tree.unlock(node)
    request.node = reached
    request.cached = end


def finish(core: Core, report: StepReport, request: Request) -> None:
    """End the lease of a completed request: its full computed pages stay in the tree, the rest becomes free (2.2)."""
    size = core.rules.page_size
    end = core.rules.whole_pages(request.computed)
    if not core.rules.caching:
        free_pages(core, report, request.pages)
    else:
        free_pages(core, report, request.pages[end // size :])
        del request.pages[end // size :]
        cache_prefix(core, report, request)
    core.tree.unlock(request.node)
    clear(core, request)


def release(core: Core, report: StepReport, request: Request) -> None:
    """Take everything from a request that is retracted or cancelled: its cached pages stay in the tree (2.3)."""
    free_pages(core, report, request.pages[request.cached // core.rules.page_size :])
    core.tree.unlock(request.node)
    clear(core, request)


def clear(core: Core, request: Request) -> None:
    """The lease is over."""
    request.pages = []
    request.node = core.tree.root
    request.computed = 0
    request.cached = 0
