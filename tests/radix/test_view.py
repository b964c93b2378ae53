"""What a radix engine shows of itself."""

from __future__ import annotations

from model.views import BlockView, PoolView, TreeNodeView
from tests.radix.driver import drain, radix, step, submit, text


def test_a_partial_a_running_request_and_a_cached_one() -> None:
    engine = radix("2/16/6", schedule_conservativeness=0)
    submit(engine, "cached", text(("A", 4)))
    drain(engine)
    submit(engine, "running", text(("A", 2), ("B", 1)), 3)
    submit(engine, "partial", 8, 2)
    submit(engine, "waiting", 2, 1)
    step(engine)
    view = engine.view()
    assert (view.running, view.waiting) == (("running",), ("partial", "waiting"))
    running, partial, waiting = (view.requests[id_] for id_ in ("running", "partial", "waiting"))
    assert (running.status, running.computed, running.allocated, running.generated) == ("running", 4, 4, 1)
    assert (partial.status, partial.computed, partial.allocated, partial.generated) == ("waiting", 4, 4, 0)
    assert (waiting.status, waiting.computed, waiting.blocks) == ("waiting", 0, ())
    assert (running.cached_tokens, partial.cached_tokens) == (2, 0)
    # Tokens computed by the first token are cached with it, so nothing is private here.
    (a1, a2), (_, b2) = engine.registry.chain(0, 2)[:2], engine.registry.chain(1, 2)[:2]
    p1, p2 = engine.registry.chain(2, 2)[:2]
    assert view.blocks is not None
    assert [view.blocks[number] for number in running.blocks] == [BlockView(a1, 1, 0, False), BlockView(b2, 1, 0, False)]
    assert [view.blocks[number].identity for number in partial.blocks] == [p1, p2]
    assert view.cached == frozenset({a1, a2, b2, p1, p2})
    assert view.pool == PoolView(total=16, free=11, active=4, inactive=1)
    assert view.tree is not None
    by_last = {node.pages[-1]: node for node in view.tree}
    upper = view.tree.index(by_last[a1])
    assert by_last[a2] == TreeNodeView(upper, (a2,), 0, 2, True, by_last[a2].blocks, 0)
    assert by_last[b2].locks == by_last[a1].locks == 1
    assert by_last[p2].pages == (p1, p2)
    assert view.extra["leases"] == {
        "running": (4, view.tree.index(by_last[b2])),
        "partial": (4, view.tree.index(by_last[p2])),
    }
    assert (view.extra["evictable_tokens"], view.extra["protected_tokens"]) == (2, 8)
    assert (view.extra["ratio"], view.extra["interval"]) == (0, 0)
    assert view.costs == {"radix_capacity": 5, "radix_stored": 5}


def test_a_private_page_is_shown_without_an_identity() -> None:
    engine = radix("4/16/64")
    submit(engine, "a", 4, 3)
    step(engine)
    view = engine.view()
    assert view.blocks is not None
    assert [view.blocks[number].identity for number in view.requests["a"].blocks] == [engine.registry.chain(0, 1)[0], 0]
    assert view.pool == PoolView(total=16, free=14, active=2, inactive=0)


def test_with_caching_off_every_page_is_private() -> None:
    engine = radix("4/16/64", prefix_caching=False)
    submit(engine, "a", 8, 3)
    step(engine)
    view = engine.view()
    assert view.blocks == (BlockView(0, 1, 0, False),) * 3
    assert view.cached == frozenset()
    assert view.tree == ()


def test_a_page_that_two_requests_hold_counts_them() -> None:
    engine = radix("2/16/64", schedule_conservativeness=0)
    for id_ in "ab":
        submit(engine, id_, text(("A", 2), (id_, 1)), 3)
    step(engine)
    view = engine.view()
    assert view.blocks is not None
    assert view.requests["a"].blocks[0] == view.requests["b"].blocks[0]
    assert view.blocks[view.requests["a"].blocks[0]].refs == 2


def test_a_page_that_nobody_holds_and_the_pool_lacks_is_shown() -> None:
    engine = radix("2/16/64")
    engine.core.pool.allocate(1)
    view = engine.view()
    assert view.blocks == (BlockView(0, 0, 0, False),)


def test_a_view_without_blocks_leaves_out_what_is_as_large_as_the_cache() -> None:
    engine = radix("2/16/64")
    submit(engine, "a", 4, 3)
    step(engine)
    view = engine.view(blocks=False)
    assert (view.blocks, view.cached, view.tree) == (None, None, None)
    assert view.requests["a"].blocks == ()
    assert view.pool == engine.view().pool
