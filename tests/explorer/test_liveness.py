"""Stalls, fair livelocks, shortest lassos and drains, on systems small enough to see through, and on random ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer import (
    Lasso,
    Limits,
    Problem,
    StateGraph,
    Verdict,
    check,
    cyclic_components,
    drain_check,
    explore,
    find_livelocks,
    find_stalls,
    name_lasso,
)
from explorer.system import K, TransitionSystem
from tests.explorer.toys import Edges, Table, chain, grid


def _livelocks(system: Table[K], **options: int) -> list[Lasso[K]]:
    return find_livelocks(explore(system).graph, system, **options)


def _is_a_run(lasso: Lasso[K], edges: Edges[K]) -> bool:
    """Every step is an edge, and the cycle ends where it began."""
    state = lasso.start
    for label, following in lasso.stem + lasso.cycle:
        if (label, following) not in edges.get(state, ()):
            return False
        state = following
    return state == lasso.entry


# --- Livelocks ---


def test_a_system_without_cycles_has_no_livelock() -> None:
    system = Table(grid(20), initial=[(0, 0)], goals=[(19, 19)])
    assert _livelocks(system) == []
    assert check(system).verdict is Verdict.HOLDS


def test_the_lasso_is_the_shortest_stem_then_the_shortest_cycle_from_there() -> None:
    edges = {0: [(0, 1)], 1: [(1, 2), (2, 5)], 2: [(3, 3)], 3: [(4, 1), (5, 3)], 5: [(6, 6)], 6: [(7, 1)]}
    (lasso,) = _livelocks(Table(edges, initial=[0]))
    assert lasso.kind == "livelock"
    assert lasso.stem == ((0, 1),)
    assert lasso.cycle == ((1, 2), (3, 3), (4, 1))
    assert lasso.entry == 1


def test_of_several_ways_in_at_the_same_distance_the_one_with_the_shortest_cycle_is_taken() -> None:
    edges = {0: [(0, 1), (0, 2)], 1: [(1, 3)], 3: [(1, 2)], 2: [(2, 1), (3, 4)], 4: [(4, 2)]}
    (lasso,) = _livelocks(Table(edges, initial=[0]))
    assert (lasso.entry, lasso.cycle) == (2, ((3, 4), (4, 2)))


def test_lassos_of_several_components_come_shortest_stem_first_then_shortest_cycle() -> None:
    edges = {
        0: [(0, 10), (0, 20), (0, 30)],
        10: [(0, 11)],
        11: [(0, 12)],
        12: [(0, 10)],
        20: [(0, 21)],
        21: [(0, 20)],
        30: [(0, 40)],
        40: [(0, 40)],
    }
    system = Table(edges, initial=[0])
    assert [(lasso.entry, len(lasso.stem), len(lasso.cycle)) for lasso in _livelocks(system)] == [
        (20, 1, 2),
        (10, 1, 3),
        (40, 2, 1),
    ]
    assert [lasso.entry for lasso in _livelocks(system, most=1)] == [20]
    assert [lasso.kind for lasso in _livelocks(system)] == ["livelock", "livelock", "stall"]


def test_a_cycle_through_progress_is_no_livelock() -> None:
    edges = {0: [(0, 1)], 1: [(9, 0)]}
    assert len(_livelocks(Table(edges, initial=[0]))) == 1
    assert _livelocks(Table(edges, initial=[0], progress=[9])) == []


def test_a_run_that_visits_a_goal_again_and_again_is_no_livelock() -> None:
    edges = {0: [(0, 1)], 1: [(0, 0), (0, 2)], 2: [(0, 1)]}
    (lasso,) = _livelocks(Table(edges, initial=[0], goals=[0]))
    assert lasso.cycle == ((0, 2), (0, 1))
    assert _livelocks(Table(edges, initial=[0], goals=[1])) == []


def test_a_self_loop_is_a_stall_with_a_cycle_of_one() -> None:
    system = Table({0: [(0, 1)], 1: [(4, 1)]}, initial=[0])
    (lasso,) = _livelocks(system)
    assert (lasso.kind, lasso.stem, lasso.cycle) == ("stall", ((0, 1),), ((4, 1),))
    assert name_lasso(lasso, system) == "stall after 1 (0): for ever 1 (4)"


def test_an_initial_state_on_the_cycle_has_an_empty_stem() -> None:
    system = Table({0: [(3, 1)], 1: [(3, 0)]}, initial=[0])
    (lasso,) = _livelocks(system)
    assert (lasso.stem, lasso.entry) == ((), 0)
    assert name_lasso(lasso, system) == "livelock from the start: for ever 2 (3 x2)"


def test_a_ring_of_many_states_takes_no_recursion() -> None:
    size = 30_000
    system = Table({state: [(0, (state + 1) % size)] for state in range(size)}, initial=[0])
    (lasso,) = _livelocks(system)
    assert (len(lasso.stem), len(lasso.cycle)) == (0, size)


# --- Fairness: label 0 steps, label 1 arrives ---

ARRIVAL = 1
WAITING_FOR_ARRIVAL: Edges[int] = {0: [(0, 1), (ARRIVAL, 2)], 1: [(0, 0), (ARRIVAL, 2)], 2: []}


def test_a_cycle_that_an_arrival_must_end_is_excused() -> None:
    assert _livelocks(Table(WAITING_FOR_ARRIVAL, initial=[0], fair={0: 0, ARRIVAL: 1})) == []


def test_the_same_cycle_is_a_livelock_when_nothing_obliges_the_arrival() -> None:
    assert len(_livelocks(Table(WAITING_FOR_ARRIVAL, initial=[0], fair={0: 0}))) == 1


def test_the_arrival_excuses_even_where_its_edges_are_cut_as_input() -> None:
    assert _livelocks(Table(WAITING_FOR_ARRIVAL, initial=[0], fair={0: 0, ARRIVAL: 1}, progress=[ARRIVAL])) == []


def test_a_class_that_is_disabled_somewhere_on_the_cycle_excuses_nothing() -> None:
    edges = {0: [(0, 1), (ARRIVAL, 2)], 1: [(0, 0)], 2: []}
    (lasso,) = _livelocks(Table(edges, initial=[0], fair={0: 0, ARRIVAL: 1}))
    assert lasso.cycle == ((0, 1), (0, 0))


def test_an_excused_component_is_still_listed_as_unfair() -> None:
    system = Table(WAITING_FOR_ARRIVAL, initial=[0], fair={0: 0, ARRIVAL: 1})
    (component,) = cyclic_components(explore(system).graph, system)
    assert (component.states, component.is_fair) == ((0, 1), False)


def test_the_reported_cycle_takes_the_detour_that_fairness_demands() -> None:
    # 0 <-> 1 neglects label 7, which is enabled in both; a fair run must go round by 2 now and then.
    edges = {0: [(0, 1), (7, 2)], 1: [(0, 0), (7, 2)], 2: [(0, 0)]}
    (unfair,) = _livelocks(Table(edges, initial=[0]))
    assert unfair.cycle == ((0, 1), (0, 0))
    (fair,) = _livelocks(Table(edges, initial=[0], fair={7: 3}))
    assert fair.cycle == ((7, 2), (0, 0))


def test_a_fair_cycle_may_pass_its_entry_to_satisfy_two_classes() -> None:
    # Both classes are enabled everywhere; each is taken on one of two loops through 0.
    edges = {0: [(1, 1), (2, 2)], 1: [(0, 0), (1, 1), (2, 2)], 2: [(0, 0), (2, 2), (1, 1)]}
    (lasso,) = _livelocks(Table(edges, initial=[0], fair={1: 0, 2: 1}))
    assert len(lasso.cycle) == 3
    assert {1, 2} <= {label for label, _ in lasso.cycle}
    assert _is_a_run(lasso, edges)


# --- Stalls ---


def test_a_state_without_successors_is_a_stall_unless_it_is_a_goal() -> None:
    edges = {0: [(0, 1), (0, 2)], 2: [(0, 3)]}
    system = Table(edges, initial=[0], goals=[1])
    (stall,) = find_stalls(explore(system).graph, system)
    assert (stall.kind, stall.entry, stall.cycle) == ("stall", 3, ())
    assert name_lasso(stall, system) == "stall after 2 (0 x2): nothing is enabled"


def test_a_state_that_leads_to_itself_alone_is_a_stall_even_where_input_could_move_it() -> None:
    edges = {0: [(0, 0), (ARRIVAL, 1)], 1: []}
    system = Table(edges, initial=[0], goals=[1], progress=[ARRIVAL], fair={0: 0, ARRIVAL: 1})
    (stall,) = find_stalls(explore(system).graph, system)
    assert (stall.entry, stall.cycle) == (0, ((0, 0),))
    assert _livelocks(system) == []


@pytest.mark.parametrize(
    ("edges", "progress"),
    [
        ({0: [(0, 0), (1, 1)], 1: []}, []),  # Something else can happen.
        ({0: [(0, 0), (1, 1)], 1: []}, [0, 1]),  # Going round is progress.
        ({0: [(0, 1)], 1: [(0, 1)]}, []),  # The goal may idle.
    ],
)
def test_a_state_that_can_move_or_gets_work_done_or_is_done_is_no_stall(edges: Edges[int], progress: list[int]) -> None:
    system = Table(edges, initial=[0], goals=[1], progress=progress)
    assert find_stalls(explore(system).graph, system) == []


def test_stalls_come_nearest_first_and_no_more_than_asked_for() -> None:
    edges = {0: [(0, 1), (0, 2), (0, 3)], 1: [(0, 4)], 2: [(0, 2)], 3: [], 4: []}
    system = Table(edges, initial=[0])
    graph = explore(system).graph
    assert [stall.entry for stall in find_stalls(graph, system)] == [2, 3, 4]
    assert [stall.entry for stall in find_stalls(graph, system, most=2)] == [2, 3]


# --- Verdicts of a whole check ---


def test_a_livelock_makes_a_check_violated_though_the_search_holds() -> None:
    result = check(Table({0: [(0, 1)], 1: [(0, 0)]}, initial=[0]))
    assert (result.search.verdict, result.verdict) == (Verdict.HOLDS, Verdict.VIOLATED)
    assert (len(result.stalls), len(result.livelocks)) == (0, 1)


def test_states_a_limit_left_unexpanded_are_neither_stalls_nor_passed() -> None:
    result = check(Table(chain(1_000), initial=[0], goals=[1_000]), limits=Limits(states=10))
    assert result.stalls == ()
    assert result.verdict is Verdict.UNKNOWN
    assert result.reason == "limit of 10 states"


def test_a_livelock_in_the_part_that_a_limit_left_is_real() -> None:
    edges = {**chain(1_000), 3: [(0, 4), (5, 2)]}
    result = check(Table(edges, initial=[0], goals=[1_000]), limits=Limits(states=10))
    assert result.verdict is Verdict.VIOLATED
    assert result.livelocks[0].cycle == ((0, 3), (5, 2))
    assert result.reason == "limit of 10 states"


# --- Drain: label 0 drains, label 1 arrives ---


def _loop_after(steps: int) -> dict[int, list[tuple[int, int]]]:
    """A chain whose last state leads back three states."""
    return {**chain(steps), steps: [(0, steps - 3)]}


def test_a_drain_that_goes_round_is_met_from_the_first_state() -> None:
    system = Table(_loop_after(50), initial=[0])
    result = explore(system, drain=True, stop_at_first=True)
    assert result.verdict is Verdict.VIOLATED
    assert result.first_drain_states == 1
    assert result.states == 1
    (lasso,) = result.drain_lassos
    assert (len(lasso.stem), len(lasso.cycle)) == (47, 4)
    assert _is_a_run(lasso, system.edges)


def test_a_drain_to_a_stuck_state_is_a_stall() -> None:
    result = explore(Table({0: [(0, 1)], 1: [(0, 1)]}, initial=[0]), drain=True)
    assert [(lasso.kind, len(lasso.stem)) for lasso in result.drain_lassos] == [("stall", 1)]


def test_a_drain_that_ends_is_no_finding() -> None:
    result = explore(Table(grid(12), initial=[(0, 0)]), drain=True)
    assert (result.verdict, result.drain_lassos, result.first_drain_states) == (Verdict.HOLDS, (), None)


def test_the_stem_of_a_drain_lasso_goes_on_from_the_path_to_its_state() -> None:
    edges = {0: [(ARRIVAL, 1)], 1: [(ARRIVAL, 2)], 2: [(0, 3)], 3: [(0, 4)], 4: [(0, 3)]}
    result = explore(Table(edges, initial=[0], drain_labels=[0]), drain=True)
    (lasso,) = result.drain_lassos
    assert lasso.stem == ((ARRIVAL, 1), (ARRIVAL, 2), (0, 3))
    assert lasso.cycle == ((0, 4), (0, 3))
    assert result.first_drain_states == 3


def test_every_state_is_drained_once_however_many_drains_pass_it() -> None:
    system = Table(grid(25), initial=[(0, 0)])
    result = explore(system, drain=True)
    assert len(system.drained) == len(set(system.drained)) == result.states == 625


def test_each_cycle_is_reported_once_however_many_drains_run_into_it() -> None:
    system = Table(_loop_after(20), initial=[0, 5, 10])
    result = explore(system, drain=True)
    assert len(result.drain_lassos) == 1
    assert len(system.drained) == 21


def test_problems_seen_on_a_drain_are_left_to_the_search() -> None:
    class Judging(Table[int]):
        def drain(self, state: int) -> tuple[int, int] | None:
            list(self.successors(state))
            return super().drain(state)

    result = explore(Judging(chain(5), initial=[0], problems_at={3: [Problem("p", "m")]}), drain=True)
    assert [(found.property_id, len(found.path)) for found in result.violations] == [("p", 3)]


def test_a_drain_longer_than_its_limit_is_unknown() -> None:
    result = explore(Table(chain(200), initial=[0], goals=[200]), drain=True, walk_limit=50)
    assert result.verdict is Verdict.UNKNOWN
    assert result.reason is not None
    assert "walk limit" in result.reason
    assert result.is_complete


def test_a_finished_graph_can_be_drained_too() -> None:
    edges = {0: [(ARRIVAL, 1), (ARRIVAL, 3)], 1: [(0, 2)], 2: [(0, 1)], 3: [(0, 4)], 4: [(0, 4)]}
    system = Table(edges, initial=[0], drain_labels=[0])
    graph = explore(system).graph
    first = drain_check(graph, system)
    assert (first.states, [len(lasso.cycle) for lasso in first.lassos]) == (2, [2])
    every = drain_check(graph, system, most=5)
    assert (every.states, [lasso.kind for lasso in every.lassos]) == (5, ["livelock", "stall"])
    assert drain_check(graph, system, most=5, walk_limit=1).unfinished > 0


# --- Against networkx and brute force, on random systems ---

LABELS = st.integers(0, 4)


@st.composite
def tables(draw: st.DrawFn) -> Table[int]:
    """Up to nine states and twenty edges with labels 0 to 4, some of them progress, some fair; a few goals."""
    states = st.integers(0, 8)
    edges: dict[int, list[tuple[int, int]]] = {}
    for source, label, target in draw(st.lists(st.tuples(states, LABELS, states), max_size=20)):
        edges.setdefault(source, []).append((label, target))
    return Table(
        edges,
        initial=draw(st.lists(states, min_size=1, max_size=2)),
        goals=draw(st.sets(states, max_size=2)),
        progress=draw(st.sets(LABELS, max_size=2)),
        fair=draw(st.dictionaries(LABELS, st.integers(0, 2), max_size=4)),
    )


def _kept_graph(graph: StateGraph[int], system: Table[int]) -> nx.MultiDiGraph[int]:
    """States that are no goals and edges that are no progress, built edge by edge."""
    kept: nx.MultiDiGraph[int] = nx.MultiDiGraph()
    kept.add_nodes_from(state for state in range(len(graph)) if graph.keys[state] not in system.goals)
    for source in list(kept):
        for label, target in graph.edges_of(source):
            if target in kept and label not in system.progress:
                kept.add_edge(source, target, label=label)
    return kept


@given(tables())
def test_components_are_those_that_networkx_finds(system: Table[int]) -> None:
    graph = explore(system).graph
    kept = _kept_graph(graph, system)
    expected = {
        tuple(sorted(members))
        for members in nx.strongly_connected_components(kept)
        if len(members) > 1 or kept.has_edge(min(members), min(members))
    }
    found = [component.states for component in cyclic_components(graph, system)]
    assert found == sorted(expected)


def _fair_cycle_length(entry: int, kept: nx.MultiDiGraph[int], graph: StateGraph[int], system: Table[int]) -> int | None:
    """Length of the shortest fair closed walk from a state: over sets of all that was taken and all that was disabled."""
    classes = frozenset(system.fair.values())

    def disabled(state: int) -> frozenset[int]:
        return classes - {system.fair.get(label) for label, _ in graph.edges_of(state)}

    first = (entry, disabled(entry))
    todo = deque([(first, 0)])
    seen = {first}
    while todo:
        (state, satisfied), length = todo.popleft()
        for _, target, facts in kept.out_edges(state, data=True):
            label = facts["label"]
            taken = {system.fair[label]} if label in system.fair else set()
            reached = (target, satisfied | taken | disabled(target))
            if reached == (entry, classes):
                return length + 1
            if reached not in seen:
                seen.add(reached)
                todo.append((reached, length + 1))
    return None


@settings(max_examples=300)
@given(tables())
def test_the_first_lasso_is_the_shortest_that_brute_force_finds(system: Table[int]) -> None:
    graph = explore(system).graph
    kept = _kept_graph(graph, system)
    best = min(
        (
            (graph.depth_of(entry), length)
            for entry in kept
            if (length := _fair_cycle_length(entry, kept, graph, system)) is not None
        ),
        default=None,
    )
    lassos = _livelocks(system)
    assert (best is None) == (not lassos)
    if best is not None:
        assert (len(lassos[0].stem), len(lassos[0].cycle)) == best
    assert all(_is_a_run(lasso, system.edges) for lasso in lassos)


@given(tables())
def test_every_lasso_neglects_no_class_and_makes_no_progress(system: Table[int]) -> None:
    for lasso in _livelocks(system):
        states = [state for _, state in lasso.cycle]
        taken = {system.fair.get(label) for label, _ in lasso.cycle}
        always = [
            fair
            for fair in system.fair.values()
            if all(any(system.fair.get(label) == fair for label, _ in system.edges[state]) for state in states)
        ]
        assert set(always) <= taken
        assert not system.progress & {label for label, _ in lasso.cycle}
        assert not system.goals & set(states)


@given(tables())
def test_drains_find_a_cycle_exactly_where_following_first_edges_does(system: Table[int]) -> None:
    def goes_round(state: int) -> bool:
        seen: set[int] = set()
        while state not in seen:
            seen.add(state)
            edges: Sequence[tuple[int, int]] = system.edges.get(state, ())
            if not edges:
                return False
            state = edges[0][1]
        return True

    result = explore(system, drain=True)
    round_from = [number for number, key in enumerate(result.graph.keys, start=1) if goes_round(key)]
    assert result.first_drain_states == (round_from[0] if round_from else None)
    assert all(_is_a_run(lasso, system.edges) for lasso in result.drain_lassos)


def test_a_table_is_a_transition_system() -> None:
    system: TransitionSystem[int] = Table(chain(1), initial=[0], goals=[1])
    assert check(system).verdict is Verdict.HOLDS
