"""Each invariant over states and steps fires on a hand-made view or report that breaks it, and not on the right one beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

import invariants.monitor  # noqa: F401  (declares every invariant)
from invariants.framework import CATALOGUE, Suite, Transition, Violation
from model.actions import Step, Submit
from model.config import EngineConfig, Speculation
from model.engine import PARTS
from model.events import Admission, Preemption, Removed, Signal, StepReport, Stored, Work
from model.requests import Prompt, RequestSpec
from model.views import PREEMPTED, RUNNING, WAITING, BlockView, EngineView, PoolView, RequestView, TreeNodeView

VLLM = EngineConfig(scheduler="vllm", block_size=4, num_blocks=4, max_num_batched_tokens=8, max_num_seqs=2)
SGLANG = EngineConfig(scheduler="sglang", block_size=4, num_blocks=4, chunked_prefill_size=8)
EVERYTHING = frozenset(PARTS)


def running(id_: str = "a", prompt: int = 4, output: int = 3, **more: Any) -> RequestView:
    values = {"generated": 1, "computed": 4, "allocated": 4, "blocks": (0,), **more}
    return RequestView(id_, RUNNING, prompt, output, **values)


def waiting(id_: str = "b", prompt: int = 4, output: int = 1, **more: Any) -> RequestView:
    values = {"generated": 0, "computed": 0, "allocated": 0, **more}
    return RequestView(id_, more.pop("status", WAITING), prompt, output, **{k: v for k, v in values.items() if k != "status"})


def view(*requests: RequestView, **more: Any) -> EngineView:
    queue = tuple(request.id for request in requests if request.status != RUNNING)
    run = tuple(request.id for request in requests if request.status == RUNNING)
    used = sum(len(request.blocks) for request in requests)
    values: dict[str, Any] = {
        "waiting": queue,
        "running": run,
        "pool": PoolView(4, 4 - used, used, 0),
        "blocks": tuple(BlockView(0, 1, 0, False) for _ in range(used)),
        "cached": frozenset(),
    }
    values.update(more)
    return EngineView(0, {request.id: request for request in requests}, **values)


def found(config: EngineConfig, before: EngineView, report: StepReport | None, after: EngineView) -> dict[str, list[str]]:
    suite = Suite.of(config, EVERYTHING)
    violations: list[Violation] = list(suite.judge_state(after))
    if report is not None:
        violations += suite.judge_step(Transition(config, before, report, after))
    messages: dict[str, list[str]] = {}
    for violation in violations:
        messages.setdefault(violation.invariant, []).append(violation.message)
    return messages


RIGHT = view(running())
STATES: list[tuple[str, EngineConfig, EngineView, str]] = [
    ("block-conservation", VLLM, view(running(), pool=PoolView(4, 2, 1, 0)), "are not the 4 there are"),
    ("block-conservation", VLLM, view(running(), pool=PoolView(4, -1, 5, 0)), "a block count is negative"),
    ("block-conservation", VLLM, view(running(), pool=PoolView(4, 2, 2, 0)), "1 blocks are in use, the counts say 2"),
    ("refcount-exact", VLLM, view(running(), blocks=(BlockView(7, 2, 0, False),), cached=frozenset({7})), "2 references"),
    ("refcount-exact", VLLM, view(running(), blocks=(BlockView(7, 1, 1, False),), cached=frozenset({7})), "1 pins"),
    ("single-owner", VLLM, view(running(), blocks=(BlockView(0, 1, 0, True),)), "private and evictable"),
    ("single-owner", VLLM, view(running(), blocks=(BlockView(7, 1, 0, True),), cached=frozenset({7})), "is evictable with 1"),
    ("single-owner", VLLM, view(running(), blocks=(BlockView(7, 1, 0, False),)), "not those of the cached blocks"),
    ("request-shape", VLLM, view(running(computed=6)), "but 6 computed"),
    ("request-shape", VLLM, view(running(allocated=5, blocks=(0, 1))), "the last one dangles"),
    ("request-shape", VLLM, view(waiting(computed=2)), "is waiting, with 2 computed tokens"),
    ("queue-membership", VLLM, view(running(), running=("a", "a")), "queued twice"),
    ("queue-membership", VLLM, view(running(), running=()), "in no queue"),
    ("queue-membership", VLLM, view(waiting(), running=("b",), waiting=()), "is not a running request"),
    ("slot-limit", VLLM, view(*[running(name, blocks=(at,)) for at, name in enumerate("abc")]), "3 requests run, the limit is 2"),
    ("drains-empty", VLLM, view(pool=PoolView(4, 3, 1, 0), blocks=(BlockView(0, 1, 0, False),)), "1 blocks are active"),
    ("request-shape", SGLANG, view(running(computed=4, allocated=12)), "in room for 12"),
]


@pytest.mark.parametrize(("id_", "config", "broken", "message"), STATES)
def test_a_broken_state_is_reported(id_: str, config: EngineConfig, broken: EngineView, message: str) -> None:
    messages = found(config, broken, None, broken)
    assert any(message in text for text in messages.get(id_, [])), messages


def test_the_right_state_breaks_nothing() -> None:
    assert found(VLLM, RIGHT, None, RIGHT) == {}
    assert found(VLLM, view(), None, view()) == {}
    suite = Suite.of(VLLM, EVERYTHING)
    suite.judge_state(RIGHT)
    assert suite.exercised["request-shape"] == 1
    assert suite.exercised["drains-empty"] == 0


def work(id_: str, total: int, prompt_tokens: int, prefix: int = 0, **more: Any) -> Work:
    values = {"terminal": False, "prompt": 4, "length": 4, "generated": 0, **more}
    return Work(id=id_, total=total, prompt_tokens=prompt_tokens, prefix_tokens=prefix, **values)


def report(**more: Any) -> StepReport:
    return StepReport(Step(), is_pass=True, **more)


ADMITTED = report(
    work={"b": work("b", 4, 4)}, admissions=[Admission("b", 0)], signals=[Signal("b", token=True, completed=True)]
)
BEFORE = view(waiting("b"))
IDLE = view()
SPECULATIVE = evolve(VLLM, speculation=Speculation(2))
EMPTY = PoolView(4, 4, 0, 0)


def emitted(id_: str, **more: Any) -> Signal:
    return Signal(id_, token=True, **{"completed": False, **more})


TREE = TreeNodeView(-1, (1, 2), 0, 4, True, (0, 1))
EVICTABLE = (BlockView(1, 0, 0, True), BlockView(2, 0, 0, True))


def tree_view(*nodes: TreeNodeView, blocks: tuple[BlockView, ...] = EVICTABLE, **extra: Any) -> EngineView:
    told = {"evictable_tokens": 8, "protected_tokens": 0, "leases": {}, **extra}
    pool = PoolView(4, 4 - len(blocks), 0, len(blocks))
    cached = frozenset(block.identity for block in blocks)
    return view(pool=pool, blocks=blocks, cached=cached, tree=nodes, extra=told)


STEPS: list[tuple[str, EngineConfig, EngineView, StepReport, EngineView, str]] = [
    ("token-budget", VLLM, BEFORE, report(work={"b": work("b", 9, 9)}), view(waiting("b")), "9 tokens, the budget is 8"),
    ("token-budget", SGLANG, BEFORE, report(work={"b": work("b", 9, 9)}), view(waiting("b")), "12 tokens (whole pages)"),
    (
        "arrival-order",
        VLLM,
        view(waiting("b"), waiting("c")),
        report(admissions=[Admission("c", 0)]),
        view(waiting("b")),
        "c left the queue before one ahead of it",
    ),
    (
        "arrival-order",
        VLLM,
        view(waiting("b")),
        StepReport(Submit(RequestSpec("c", Prompt.of_tokens([1]), 1))),
        view(waiting("c"), waiting("b")),
        "after the arrival of c",
    ),
    ("terminal-once", VLLM, IDLE, report(signals=[emitted("b")]), IDLE, "which is not live"),
    (
        "terminal-once",
        VLLM,
        BEFORE,
        report(signals=[emitted("b", completed=True), emitted("b")]),
        IDLE,
        "behind the one that completed it",
    ),
    ("terminal-once", VLLM, BEFORE, report(), IDLE, "gone without a completing signal"),
    ("terminal-once", VLLM, BEFORE, report(signals=[emitted("b", completed=True)]), BEFORE, "completed and is still live"),
    ("output-exact", VLLM, BEFORE, report(signals=[emitted("b"), emitted("b")]), BEFORE, "2 tokens of 1"),
    ("output-exact", VLLM, BEFORE, report(signals=[Signal("b", token=False, completed=True)]), IDLE, "finished with 0 tokens"),
    ("prefix-hit-truth", VLLM, BEFORE, report(admissions=[Admission("b", 3)]), BEFORE, "not whole blocks"),
    ("prefix-hit-truth", VLLM, BEFORE, report(admissions=[Admission("b", 4)]), BEFORE, "at most 0 may be reused"),
    (
        "prefix-hit-truth",
        evolve(VLLM, prefix_caching=False),
        BEFORE,
        report(admissions=[Admission("b", 4)]),
        BEFORE,
        "with prefix caching off",
    ),
    ("stored-needs-caching", VLLM, BEFORE, report(events=[Stored(0, (5,))]), BEFORE, "promises 1 blocks that no lookup finds"),
    (
        "stored-needs-caching",
        evolve(VLLM, prefix_caching=False),
        BEFORE,
        report(events=[Stored(0, (5,)), Removed((5,))]),
        BEFORE,
        "with prefix caching off",
    ),
    ("events-mirror-cache", VLLM, BEFORE, report(events=[Removed((5,))]), BEFORE, "a block that is not stored"),
    ("events-mirror-cache", VLLM, BEFORE, report(), view(waiting("b"), cached=frozenset({5})), "no event told it"),
    ("work-conservation", VLLM, BEFORE, report(), BEFORE, "waits at the head of the queue and got nothing"),
    (
        "no-needless-preemption",
        SPECULATIVE,
        view(running("a", prompt=8, output=1, generated=0, computed=8, allocated=8, blocks=(0, 1))),
        report(preemptions=[Preemption("a", None, "emission", 1, 0, ("a",))]),
        view(waiting("a", status=PREEMPTED)),
        "no more than 0 were needed",
    ),
    (
        "admission-preempts-nobody",
        VLLM,
        view(running("a"), waiting("b")),
        report(preemptions=[Preemption("a", "b", "schedule", 1, 0, ("b",))]),
        view(waiting("a", status=PREEMPTED), waiting("b")),
        "admitting b preempted a",
    ),
    ("accept-length", VLLM, IDLE, report(accept_tokens=3, accept_forwards=2), IDLE, "each accepts 1 to 1"),
    (
        "metrics-identity",
        VLLM,
        view(running("a", generated=1, computed=4)),
        report(work={"a": work("a", 2, 0, 4)}, signals=[emitted("a")]),
        view(running("a", generated=2, computed=5, allocated=5, blocks=(0, 1))),
        "the reports add up to 6",
    ),
    ("clock-monotone", VLLM, IDLE, report(start_ns=0, end_ns=5), IDLE, "time runs"),
    (
        "radix-capacity-tight",
        SGLANG,
        tree_view(TREE),
        report(),
        tree_view(
            TreeNodeView(-1, (1,), 0, 4, False, (0,)), TreeNodeView(0, (2,), 0, 2, True, (1,)), evictable_tokens=8
        ),
        "the prefix of a split edge of 2 pages has 1 pages and retains room for 2",
    ),
]


@pytest.mark.parametrize(("id_", "config", "before", "done", "after", "message"), STEPS)
def test_a_broken_step_is_reported(
    id_: str, config: EngineConfig, before: EngineView, done: StepReport, after: EngineView, message: str
) -> None:
    messages = found(config, before, done, after)
    assert any(message in text for text in messages.get(id_, [])), messages


def test_the_right_step_breaks_nothing() -> None:
    assert found(VLLM, BEFORE, ADMITTED, IDLE) == {}


TREES: list[tuple[str, EngineView, str]] = [
    ("tree-shape", tree_view(evolve(TREE, evictable_leaf=False)), "does not stand in the eviction index"),
    ("tree-shape", tree_view(evolve(TREE, blocks=(0,))), "has 2 keys and 1 pages"),
    ("refcount-exact", tree_view(evolve(TREE, locks=1, evictable_leaf=False)), "counts 1 locks, 0 requests lean on it"),
    ("block-conservation", tree_view(TREE, evictable_tokens=4), "4 evictable and 0 protected tokens are told"),
    ("prefix-hit-truth", tree_view(TREE), "with prefix caching off"),
    (
        "single-owner",
        view(
            running("a", prompt=8, computed=8, allocated=8, blocks=(0, 1)),
            tree=(evolve(TREE, locks=1, evictable_leaf=False, blocks=(1, 0)),),
            blocks=(BlockView(1, 1, 0, False), BlockView(2, 1, 0, False)),
            cached=frozenset({1, 2}),
            extra={"evictable_tokens": 0, "protected_tokens": 8, "leases": {"a": (8, 0)}},
        ),
        "are not the pages on the path of its node",
    ),
    (
        "one-partial",
        view(waiting("b"), waiting("c", computed=4, allocated=4, blocks=(0,)), extra={"leases": {}}),
        "is partly prefilled and waits behind b",
    ),
]


@pytest.mark.parametrize(("id_", "broken", "message"), TREES)
def test_a_broken_tree_is_reported(id_: str, broken: EngineView, message: str) -> None:
    config = evolve(SGLANG, prefix_caching=False) if id_ == "prefix-hit-truth" else SGLANG
    messages = found(config, broken, None, broken)
    assert any(message in text for text in messages.get(id_, [])), messages


def test_the_right_tree_breaks_nothing() -> None:
    assert found(SGLANG, tree_view(TREE), None, tree_view(TREE)) == {}


def _module(check: Callable[..., object] | None) -> str:
    return "" if check is None else check.__module__


def test_every_invariant_over_states_and_steps_is_in_a_table() -> None:
    modules = {"invariants.states", "invariants.steps", "invariants.tree"}
    declared = {
        invariant.id for invariant in CATALOGUE if {_module(invariant.state), _module(invariant.step)} & modules
    }
    fired = {row[0] for row in STATES} | {row[0] for row in STEPS} | {row[0] for row in TREES}
    assert declared <= fired


def test_what_an_engine_does_not_show_is_not_observable() -> None:
    suite = Suite.of(VLLM, frozenset())
    assert "token-budget" in suite.not_observable
    assert found(VLLM, BEFORE, report(work={"b": work("b", 9, 9)}), BEFORE)
    assert not suite.judge_step(Transition(VLLM, BEFORE, report(work={"b": work("b", 9, 9)}), BEFORE))
