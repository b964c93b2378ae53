"""Breadth-first search: counts, paths, verdicts, limits, interrupts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import count, pairwise
from types import FrameType

import pytest

from explorer import BaseSystem, Limits, Problem, Progress, Verdict, check, explore, from_actions
from tests.explorer.toys import Table, chain, grid


class Counter(BaseSystem[int]):
    """0, 1, 2 and so on without end; may be interrupted, or sleep, or report a problem, at a given state."""

    def __init__(self, *, interrupt_at: int = -1, sleep_s: float = 0.0, problem_at: int = -1) -> None:
        super().__init__()
        self.interrupt_at = interrupt_at
        self.sleep_s = sleep_s
        self.problem_at = problem_at

    def initial_states(self) -> Iterable[int]:
        return (0,)

    def successors(self, state: int) -> Iterator[tuple[int, int]]:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        yield 0, state + 1
        yield 1, state + 2
        if state == self.interrupt_at:
            raise KeyboardInterrupt
        if state == self.problem_at:
            self.problems.append(Problem("at-most", f"{state} is too many"))


def test_states_are_numbered_in_breadth_first_order_and_edges_kept_in_theirs() -> None:
    system = Table({"a": [(2, "c"), (1, "b")], "b": [(0, "d")], "c": [(5, "d"), (5, "a")]}, initial=["a"])
    graph = explore(system).graph
    assert graph.keys == ["a", "c", "b", "d"]
    assert [list(graph.edges_of(state)) for state in range(4)] == [[(2, 1), (1, 2)], [(5, 3), (5, 0)], [(0, 3)], []]
    assert list(graph.sources()) == [0, 0, 1, 1, 2]
    assert [graph.depth_of(state) for state in range(4)] == [0, 1, 1, 2]


def test_a_whole_grid_is_counted_exactly() -> None:
    result = explore(Table(grid(30), initial=[(0, 0)]))
    assert (result.states, result.transitions, result.depth) == (900, 2 * 30 * 29, 58)
    assert result.verdict is Verdict.HOLDS
    assert result.reason is None
    assert result.is_complete


def test_every_path_is_as_long_as_its_state_is_deep() -> None:
    result = explore(Table(grid(9), initial=[(0, 0)]))
    for number, (x, y) in enumerate(result.graph.keys):
        start, path = result.graph.path_to(number)
        assert start == (0, 0)
        assert len(path) == x + y == result.graph.depth_of(number)
        assert [label for label, _ in path].count(0) == x


def test_several_initial_states_are_all_at_depth_0_and_repetitions_are_one() -> None:
    result = explore(Table({"a": [(0, "c")], "b": [(0, "c"), (0, "d")]}, initial=["a", "b", "a"]))
    assert result.graph.keys == ["a", "b", "c", "d"]
    assert result.graph.level_starts() == [0, 2]
    assert result.graph.path_to(3) == ("b", ((0, "d"),))
    assert result.graph.path_to(1) == ("b", ())


def test_a_system_without_initial_states_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one is needed"):
        explore(Table({}, initial=()))


@pytest.mark.parametrize(("limit", "label"), [(2**8, 256), (2**16, 2**16), (2**32, 2**32), (2**8, -1)])
def test_a_label_beyond_the_declared_limit_is_refused_by_name(limit: int, label: int) -> None:
    system = Table({0: [(label, 1)]}, initial=[0])
    system.label_limit = limit
    with pytest.raises(ValueError, match=f"gave label {label}; labels must be from 0 to {limit - 1}"):
        explore(system)


@pytest.mark.parametrize(("limit", "bytes_per_label"), [(2**8, 1), (2**16, 2), (2**32, 4)])
def test_a_label_takes_the_bytes_that_its_limit_needs(limit: int, bytes_per_label: int) -> None:
    system = Table({0: [(limit - 1, 1)]}, initial=[0])
    system.label_limit = limit
    labels = explore(system).graph.labels
    assert labels.itemsize == bytes_per_label
    assert list(labels) == [limit - 1]


def test_defaults_say_nothing_about_liveness() -> None:
    system = Counter()
    assert (system.is_progress(0), system.fairness(0), system.is_goal(0), system.drain(0)) == (False, None, False, None)
    assert system.describe(17) == "17"


def test_errors_of_the_system_pass_through() -> None:
    class Broken(Counter):
        def successors(self, state: int) -> Iterator[tuple[int, int]]:
            yield 0, state + 1
            raise OverflowError("in the system")

    with pytest.raises(OverflowError, match="in the system"):
        explore(Broken())


# --- What the system judges ---


def test_a_violation_of_a_state_comes_with_the_shortest_path_to_it() -> None:
    wrong = {(x, y): [Problem("below", f"{x}, {y}")] for x, y in grid(8) if x + y >= 5}
    result = explore(Table(grid(8), initial=[(0, 0)], problems_at=wrong))
    assert result.verdict is Verdict.VIOLATED
    assert result.is_complete
    (violation,) = result.violations
    assert violation.property_id == "below"
    assert len(violation.path) == 5
    assert violation.message == "5, 0"
    assert violation.path[-1] == (0, (5, 0))
    assert violation.label is None


def test_a_violation_on_an_edge_ends_with_that_edge() -> None:
    edges = {0: [(0, 1)], 1: [(7, 2), (8, 3), (8, 4)]}
    by_label = explore(Table(edges, initial=[0], problems_at={1: [Problem("p", "m", label=8)]}))
    assert by_label.violations[0].path == ((0, 1), (8, 3))
    assert by_label.violations[0].label == 8
    by_position = explore(Table(edges, initial=[0], problems_at={1: [Problem("p", "m", label=8, successor=2)]}))
    assert by_position.violations[0].path == ((0, 1), (8, 4))


def test_an_action_that_failed_ends_the_path_where_it_was_tried() -> None:
    result = explore(Table(chain(3), initial=[0], problems_at={2: [Problem("no-crash", "boom", label=9)]}))
    (violation,) = result.violations
    assert violation.path == ((0, 1), (0, 2))
    assert (violation.label, violation.completed) == (9, False)


def test_a_problem_with_an_initial_state_has_an_empty_path() -> None:
    class Born(Table[str]):
        def initial_states(self) -> Iterable[str]:
            self.problems.append(Problem("born-well", "not", successor=2))
            return self.initial

    (violation,) = explore(Born({}, initial=["a", "a", "b"])).violations
    assert (violation.start, violation.path) == ("b", ())


def test_a_problem_that_names_an_initial_state_there_is_not_is_refused() -> None:
    class Born(Table[str]):
        def initial_states(self) -> Iterable[str]:
            self.problems.append(Problem("born-well", "not", successor=2))
            return self.initial

    with pytest.raises(ValueError, match="names initial state 2; there are 2"):
        explore(Born({}, initial=["a", "b"]))


@pytest.mark.parametrize("problem", [Problem("p", "m", label=0, successor=1), Problem("p", "m", label=0, successor=-1)])
def test_a_problem_that_names_a_successor_there_is_not_is_refused(problem: Problem) -> None:
    with pytest.raises(ValueError, match="names successor"):
        explore(Table(chain(2), initial=[0], problems_at={1: [problem]}))


def test_each_property_is_reported_once_in_the_order_first_seen() -> None:
    problems = {
        1: [Problem("b", "first"), Problem("b", "same state")],
        2: [Problem("a", "second"), Problem("b", "later")],
    }
    result = explore(Table(chain(4), initial=[0], problems_at=problems))
    assert [(found.property_id, found.message) for found in result.violations] == [("b", "first"), ("a", "second")]
    assert result.states == 5


def test_a_states_own_problem_seen_later_at_the_same_depth_is_the_shorter_one() -> None:
    edges = {0: [(0, 1), (0, 2)], 1: [(3, 4)]}
    problems = {1: [Problem("p", "on the edge", label=3)], 2: [Problem("p", "in the state")]}
    (violation,) = explore(Table(edges, initial=[0], problems_at=problems)).violations
    assert (violation.message, len(violation.path)) == ("in the state", 1)


def test_a_check_that_stops_at_the_first_violation_looks_no_further() -> None:
    system = Table({0: [(0, 0)]}, initial=[0], problems_at={0: [Problem("p", "m")]})
    stopped = check(system, stop_at_first=True)
    assert (stopped.verdict, stopped.stalls, stopped.livelocks) == (Verdict.VIOLATED, (), ())
    assert len(check(system).stalls) == 1


def test_stopping_at_the_first_violation_leaves_the_rest_unexplored() -> None:
    result = explore(Counter(problem_at=600), stop_at_first=True)
    assert result.verdict is Verdict.VIOLATED
    assert result.reason == "stopped at the first violation"
    assert result.graph.expanded == 601
    assert len(result.violations[0].path) == 300


def test_problems_left_by_an_earlier_run_are_not_reported_again() -> None:
    system = Table(chain(2), initial=[0])
    system.problems.append(Problem("old", "left over"))
    assert explore(system).verdict is Verdict.HOLDS


# --- Limits: unknown, never a pass ---


def test_a_limit_on_states_gives_unknown_and_keeps_within_it() -> None:
    result = explore(Table(grid(40), initial=[(0, 0)]), limits=Limits(states=100))
    assert result.verdict is Verdict.UNKNOWN
    assert result.reason == "limit of 100 states"
    assert not result.is_complete
    assert 98 <= result.states <= 100
    assert result.graph.expanded < result.states


@pytest.mark.parametrize("size", [1, 2, 17, 40])
def test_a_system_of_exactly_the_limit_is_explored_to_the_end(size: int) -> None:
    system = Table(grid(size), initial=[(0, 0)])
    assert explore(system, limits=Limits(states=size * size)).verdict is Verdict.HOLDS
    if size > 1:
        assert explore(system, limits=Limits(states=size * size - 1)).verdict is Verdict.UNKNOWN


def test_a_limit_below_the_initial_states_expands_nothing() -> None:
    result = explore(Table({}, initial=range(5)), limits=Limits(states=3))
    assert (result.verdict, result.states, result.graph.expanded) == (Verdict.UNKNOWN, 5, 0)


@pytest.mark.parametrize("limit", [1, 2, 3, 50, 255, 256, 257, 700])
def test_what_a_limit_on_states_keeps_is_a_prefix_of_the_whole(limit: int) -> None:
    whole = explore(Table(grid(40), initial=[(0, 0)])).graph
    part = explore(Table(grid(40), initial=[(0, 0)]), limits=Limits(states=limit)).graph
    assert part.keys == whole.keys[: len(part)]
    assert part.parents == whole.parents[: len(part)]
    assert part.offsets == whole.offsets[: part.expanded + 1]
    assert part.targets == whole.targets[: part.transitions]
    assert part.labels == whole.labels[: part.transitions]
    assert max(part.targets, default=0) < len(part) <= limit


@pytest.mark.parametrize(("limit", "verdict"), [(500, Verdict.UNKNOWN), (501, Verdict.VIOLATED)])
def test_a_violation_counts_only_if_the_limit_on_states_let_its_state_be_expanded(limit: int, verdict: Verdict) -> None:
    # 0 leads to 300 states, each of which leads to one more: expanding state 200 adds state number 500.
    edges = {0: [(0, state) for state in range(1, 301)], **{state: [(0, 300 + state)] for state in range(1, 301)}}
    system = Table(edges, initial=[0], problems_at={200: [Problem("p", "m")]})
    assert explore(system, limits=Limits(states=limit)).verdict is verdict


def test_a_violation_within_a_limit_is_a_violation_though_the_search_is_incomplete() -> None:
    result = explore(Counter(problem_at=3), limits=Limits(states=100))
    assert result.verdict is Verdict.VIOLATED
    assert result.reason == "limit of 100 states"


def test_a_limit_on_memory_gives_unknown() -> None:
    result = explore(Counter(), limits=Limits(memory_bytes=1_000_000))
    assert result.verdict is Verdict.UNKNOWN
    assert result.reason == "limit of 1000000 bytes"
    assert 1_000_000 < result.memory_bytes < 2_000_000


def test_a_limit_on_seconds_gives_unknown() -> None:
    result = explore(Counter(sleep_s=0.001), limits=Limits(seconds=0.05))
    assert result.verdict is Verdict.UNKNOWN
    assert result.reason == "limit of 0.05 seconds"
    assert result.graph.expanded >= 1


@pytest.mark.parametrize("field", ["states", "memory_bytes", "seconds"])
def test_a_limit_that_allows_nothing_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be greater than 0"):
        Limits(**{field: 0})


@pytest.mark.parametrize("limits", [Limits(memory_bytes=1), Limits(seconds=1e-9)])
def test_a_search_that_was_done_anyway_is_not_cut_off(limits: Limits) -> None:
    assert explore(Table({}, initial=[0]), limits=limits).verdict is Verdict.HOLDS


def test_the_memory_estimate_counts_what_a_state_takes() -> None:
    keys = [number.to_bytes(40, "big") for number in range(20_000)]
    edges = {key: [(0, following)] for key, following in pairwise(keys)}
    result = explore(Table(edges, initial=keys[:1]))
    per_state = result.memory_bytes / result.states
    assert sys.getsizeof(keys[0]) + 32 + 8 + 4 + 4 + 4 + 4 < per_state < 300


# --- Interrupts ---


@pytest.mark.parametrize("at", [0, 1, 255, 256, 1000])
def test_an_interrupt_leaves_a_usable_part(at: int) -> None:
    result = explore(Counter(interrupt_at=at))
    assert result.verdict is Verdict.UNKNOWN
    assert result.reason == "interrupted"
    graph = result.graph
    assert graph.expanded == at
    assert len(graph) == (at + 2 if at else 1)
    assert max(graph.targets, default=0) < len(graph)
    assert len(graph.parents) == len(graph)
    assert len(graph.labels) == len(graph.targets) == graph.offsets[-1]
    assert len(graph.path_to(len(graph) - 1)[1]) == len(graph) // 2


@pytest.mark.parametrize("after_s", [0.011, 0.023, 0.037, 0.052])
def test_a_signal_between_any_two_instructions_leaves_a_usable_part(after_s: float) -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        result = explore(Counter())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    graph = result.graph
    assert result.reason == "interrupted"
    assert len(graph.keys) == len(graph.parents) == (graph.expanded + 2 if graph.expanded else 1)
    assert len(graph.labels) == len(graph.targets) == graph.offsets[-1] == 2 * graph.expanded
    assert graph.keys == list(range(len(graph)))
    assert max(graph.targets, default=0) == len(graph) - 1


def test_an_interrupt_keeps_the_violations_found_before() -> None:
    result = explore(Counter(interrupt_at=900, problem_at=300))
    assert result.verdict is Verdict.VIOLATED
    assert result.reason == "interrupted"


def test_an_interrupt_among_the_initial_states_leaves_an_empty_graph() -> None:
    class Early(Counter):
        def initial_states(self) -> Iterator[int]:
            yield 0
            raise KeyboardInterrupt

    result = explore(Early())
    assert (result.verdict, result.states, result.depth) == (Verdict.UNKNOWN, 0, 0)


def test_a_whole_check_survives_an_interrupt_in_its_liveness_part() -> None:
    class Nervous(Table[int]):
        def is_progress(self, label: int) -> bool:
            raise KeyboardInterrupt

    result = check(Nervous(chain(3), initial=[0], goals=[3]))
    assert result.verdict is Verdict.UNKNOWN
    assert result.reason == "interrupted while looking for stalls and livelocks"
    assert result.search.verdict is Verdict.HOLDS


# --- Progress, determinism, actions ---


def test_progress_is_reported_and_grows() -> None:
    seen: list[Progress] = []
    result = explore(Counter(), limits=Limits(states=5_000), progress=seen.append, progress_seconds=0)
    assert len(seen) > 2
    assert [at.expanded for at in seen] == sorted({at.expanded for at in seen})
    assert all(before.depth <= after.depth for before, after in pairwise(seen))
    assert seen[-1].states <= result.states
    assert seen[-1].depth <= result.depth


def test_progress_may_interrupt_the_search() -> None:
    def stop(progress: Progress) -> None:
        if progress.states > 1_000:
            raise KeyboardInterrupt

    result = explore(Counter(), progress=stop, progress_seconds=0)
    assert result.verdict is Verdict.UNKNOWN
    assert result.states > 1_000


HASH_SEED_SCRIPT = """
from explorer import check, name_lasso
from explorer.export import cyclic_core, to_json
from tests.explorer.toys import Table
edges = {f"s{i}": [(j % 3, f"s{(i * i * j + j + 7 * i) % 61}") for j in range(4)] for i in range(61)}
system = Table(edges, initial=["s1", "s2"], fair={0: 5, 2: 1}, goals=["s9"], progress=[1])
result = check(system, drain=True)
graph = result.search.graph
print(graph.keys, graph.targets, graph.labels, result.stalls, result.livelocks, result.search.drain_lassos)
print([name_lasso(lasso, system) for lasso in result.livelocks], to_json(cyclic_core(graph, system)))
"""


def test_the_result_is_the_same_under_any_hash_seed() -> None:
    outputs = []
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", HASH_SEED_SCRIPT]
        outputs.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert "livelock" in outputs[0]
    assert outputs[0] == outputs[1] == outputs[2]


def test_a_model_of_actions_and_next_states_is_explored_like_any_other() -> None:
    def pour(state: tuple[int, int], action: str) -> tuple[int, int] | None:
        small, big = state
        to_big, to_small = min(small, 5 - big), min(big, 3 - small)
        following = {
            "fill small": (3, big),
            "fill big": (small, 5),
            "empty small": (0, big),
            "empty big": (small, 0),
            "small to big": (small - to_big, big + to_big),
            "big to small": (small + to_small, big - to_small),
        }[action]
        return None if following == state else following

    actions = ("fill small", "fill big", "empty small", "empty big", "small to big", "big to small")
    invariants = {"never-four": lambda state: state[1] != 4}
    system = from_actions([(0, 0)], lambda state: actions, pour, invariants=invariants, describe=str.upper)
    result = explore(system)
    assert result.states == 16
    (violation,) = result.violations
    assert violation.property_id == "never-four"
    assert [system.describe(label) for label, _ in violation.path] == [
        "FILL BIG",
        "BIG TO SMALL",
        "EMPTY SMALL",
        "BIG TO SMALL",
        "FILL BIG",
        "BIG TO SMALL",
    ]
    assert violation.path[-1][1] == (3, 4)


def test_actions_are_labelled_in_the_order_they_are_met() -> None:
    numbers = count()
    system = from_actions(
        ["start"],
        lambda state: ("go", "wait") if state == "start" else ("wait",),
        lambda state, action: "end" if action == "go" else state,
        is_progress=lambda action: action == "go",
        fairness=lambda action: next(numbers) if action == "go" else None,
        is_goal=lambda state: state == "end",
        drain=lambda state: "go" if state == "start" else None,
    )
    graph = explore(system).graph
    assert list(graph.labels) == [0, 1, 1]
    assert (system.action_of(0), system.label_of("wait")) == ("go", 1)
    assert (system.is_progress(0), system.is_progress(1)) == (True, False)
    assert (system.fairness(0), system.fairness(1)) == (0, None)
    assert (system.is_goal("end"), system.is_goal("start")) == (True, False)
    assert (system.drain("start"), system.drain("end")) == ((0, "end"), None)
