"""Finding 8: the prefix of a split keeps the vectors of the whole edge (SGLang specification 5.3).

The tables on single trees stand in ``test_tree``; here requests make the splits.
"""

from __future__ import annotations

import pytest

from model.radix.engine import RadixEngine
from tests.radix.driver import FINDING_8, drain, radix, submit, text, work_per_pass


def capacity(engine: RadixEngine) -> tuple[int, int]:
    """Retained and stored elements of one vector of every edge."""
    costs = engine.view(blocks=False).costs
    return costs["radix_capacity"], costs["radix_stored"]


@pytest.mark.parametrize(
    ("pages", "every", "faulty", "right"),
    [(2, 1, 3, 2), (4, 1, 10, 4), (6, 2, 12, 6), (8, 2, 20, 8), (16, 4, 40, 16)],
)
def test_requests_that_share_ever_longer_parts_of_a_prompt(pages: int, every: int, faulty: int, right: int) -> None:
    for defects, expected in (([FINDING_8], faulty), ([], right)):
        engine = radix("4/64/256", schedule_conservativeness=0, defects=defects)
        submit(engine, "seed", text(("A", 4 * pages)))
        drain(engine)
        for shared in range(every, pages, every):
            submit(engine, f"r{shared}", text(("A", 4 * shared)))
            assert work_per_pass(engine) == [0]
        assert capacity(engine) == (expected, pages)


def test_row_61() -> None:
    engines = [radix("4/64/256", schedule_conservativeness=0, defects=defects) for defects in ([], [FINDING_8])]
    for engine in engines:
        submit(engine, "seed", text(("A", 64)))
        assert work_per_pass(engine) == [64]
        for shared in range(4, 61, 4):
            submit(engine, f"r{shared}", text(("A", shared), (f"tail {shared}", 4)))
            assert work_per_pass(engine) == [4]
    # 16 pages of the seed and 15 tails of a page; each split hands on a vector for all that followed.
    assert capacity(engines[0]) == (31, 31)
    assert capacity(engines[1]) == (sum(range(1, 17)) + 15, 31)
    for engine in engines:
        submit(engine, "stranger", 252)
        assert sum(work_per_pass(engine)) == 252
        submit(engine, "again", text(("A", 64)))
        drain(engine)
        submit(engine, "last", text(("A", 32), ("new tail", 4)))
        assert work_per_pass(engine) == [4]
        assert not engine.busy
    right, faulty = (engine.view() for engine in engines)
    assert right.pool == faulty.pool
    assert right.tree is not None
    assert faulty.tree is not None
    assert [node.pages for node in right.tree] == [node.pages for node in faulty.tree]


def test_a_workload_without_a_match_inside_an_edge_shows_no_difference() -> None:
    for defects in ([], [FINDING_8]):
        engine = radix("4/64/256", defects=defects)
        for number in range(3):
            submit(engine, f"r{number}", text(("A", 16)), 2)
            drain(engine)
        nodes = engine.view().tree
        assert nodes is not None
        assert all(node.capacity <= 4 * len(node.pages) for node in nodes)


def test_the_smallest_split_as_a_view_shows_it() -> None:
    for defects, prefix in (([FINDING_8], 4), ([], 2)):
        engine = radix("4/64/256", defects=defects)
        submit(engine, "seed", text(("A", 8)))
        drain(engine)
        submit(engine, "half", text(("A", 4)))
        drain(engine)
        nodes = engine.view().tree
        assert nodes is not None
        # Both vectors together.
        assert [(len(node.pages), node.capacity) for node in nodes] == [(1, prefix), (1, 2)]
