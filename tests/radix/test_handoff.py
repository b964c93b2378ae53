"""Hand-off commands on one radix worker (SGLang specification 7), and the conformance row about them."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from invariants.monitor import Monitor
from model.actions import Action, Cancel, Handoff, Step, Submit
from model.config import EngineConfig
from model.errors import BadInput
from model.events import StepReport, Stored
from model.radix.engine import RadixEngine
from model.requests import Prompt, RequestSpec


def worker(role: str, pages: int, size: int = 4, **options: Any) -> RadixEngine:
    """An idle worker with pages of ``size`` tokens."""
    return RadixEngine(EngineConfig(scheduler="sglang", role=role, block_size=size, num_blocks=pages, **options))


def text(*pieces: tuple[str, int]) -> Prompt:
    """A prompt of stretches of named streams."""
    return Prompt.of_streams(pieces)


def command(engine: RadixEngine, verb: str, id_: str, prompt: int | Prompt | None = None, output: int = 1) -> StepReport:
    """A hand-off command; a prompt given as a length shares nothing with any other."""
    request = None
    if prompt is not None:
        request = RequestSpec(id_, prompt if isinstance(prompt, Prompt) else text((id_, prompt)), output)
    return engine.apply(Handoff(verb, id_, request))


def submit(engine: RadixEngine, id_: str, prompt: int | Prompt, output: int) -> StepReport:
    """Queue an ordinary request."""
    return engine.apply(Submit(RequestSpec(id_, prompt if isinstance(prompt, Prompt) else text((id_, prompt)), output)))


def noted(report: StepReport, kind: str) -> list[Any]:
    """The details of the notes of one kind."""
    return [details for name, details in report.notes if name == kind]


def reserved(engine: RadixEngine, id_: str, prompt: int | Prompt, output: int = 1) -> list[tuple[str, int]]:
    """Ask for a destination; which destinations got room by it, with the tokens to transfer."""
    return noted(command(engine, "reserve_destination", id_, prompt, output), "destination-reserved")


def drain(engine: RadixEngine, most: int = 50) -> list[StepReport]:
    """Passes until nothing is left that a pass could do."""
    reports: list[StepReport] = []
    while engine.busy:
        assert len(reports) < most
        reports.append(engine.apply(Step()))
    return reports


def pages(engine: RadixEngine) -> tuple[int, int, int]:
    """Free, active and evictable pages."""
    pool = engine.view().pool
    return pool.free, pool.active, pool.inactive


def test_row_t7_a_completed_source_is_held_until_it_is_released() -> None:
    engine = worker("prefill", 16, chunked_prefill_size=16, max_num_seqs=1)
    command(engine, "submit_prefill", "r", 8, 2)
    first, second = engine.apply(Step()), engine.apply(Step())
    assert (first.emitted, noted(first, "source-held")) == ({"r": 1}, [])
    assert noted(second, "source-held") == second.finished == second.handed_over == ["r"]
    view = engine.view()
    assert (view.running, view.extra["held_sources"], view.requests["r"].status) == ((), ("r",), "parked")
    assert pages(engine) == (13, 3, 0)
    assert noted(command(engine, "release_source", "r"), "source-released") == ["r"]
    # As after an ordinary completion: two full pages stay cached, eight tokens.
    assert pages(engine) == (14, 0, 2)
    assert not engine.busy
    ordinary = worker("prefill", 16, chunked_prefill_size=16, max_num_seqs=1)
    submit(ordinary, "r", 8, 2)
    drain(ordinary)
    assert pages(ordinary) == (14, 0, 2)
    assert noted(command(engine, "release_source", "r"), "no-effect") == ["release_source"]


@pytest.mark.parametrize(("seed", "prompt", "tokens"), [(None, 10, 12), (4, 10, 8), (8, 8, 0)])
def test_whole_pages_that_are_not_cached_are_transferred(seed: int | None, prompt: int, tokens: int) -> None:
    engine = worker("decode", 8)
    if seed is not None:
        submit(engine, "seed", text(("A", seed)), 0)
        drain(engine)
    assert reserved(engine, "r", text(("A", prompt))) == [("r", tokens)]


def test_pages_are_told_and_cached_when_the_kv_has_come() -> None:
    engine = worker("decode", 8)
    assert command(engine, "reserve_destination", "r", text(("A", 10))).events == []
    assert (pages(engine), engine.view().cached) == ((5, 3, 0), frozenset())
    (event,) = command(engine, "activate_destination", "r").events
    assert isinstance(event, Stored)
    assert (event.parent, len(event.blocks)) == (0, 2)
    assert engine.view().cached == frozenset(event.blocks)


def test_with_caching_off_nothing_is_told() -> None:
    engine = worker("decode", 8, prefix_caching=False)
    reserved(engine, "r", 10)
    assert command(engine, "activate_destination", "r").events == []
    assert engine.view().tree == ()


def test_a_destination_with_its_kv_runs_as_soon_as_there_is_a_slot_and_computes_nothing() -> None:
    engine = worker("decode", 8, max_num_seqs=1)
    for id_ in ("a", "b"):
        reserved(engine, id_, 4, 2)
        command(engine, "activate_destination", id_)
    submit(engine, "fresh", 4, 1)
    assert engine.view().waiting == ("fresh", "a", "b")
    first = engine.apply(Step())
    assert ([admission.id for admission in first.admissions], first.admissions[0].reused) == (["a"], 0)
    assert first.emitted == {"a": 1}
    assert first.end_ns - first.start_ns == 1_000_000
    # Nobody is prefilled while one that has its KV waits.
    reports = drain(engine)
    assert [id_ for report in reports for id_ in report.finished] == ["a", "b", "fresh"]


def test_a_decode_worker_takes_no_time_for_a_prefill() -> None:
    engine = worker("decode", 8)
    submit(engine, "r", 8, 1)
    report = engine.apply(Step())
    assert (report.scheduled, report.end_ns) == ({"r": 8}, 0)


def test_a_pending_destination_keeps_others_from_being_prefilled() -> None:
    engine = worker("decode", 2)
    reserved(engine, "a", 8, 0)
    assert reserved(engine, "b", 8, 0) == []
    submit(engine, "fresh", 1, 1)
    assert engine.apply(Step()).work == {}
    command(engine, "activate_destination", "a")
    report = engine.apply(Step())
    assert (report.finished, noted(report, "destination-reserved")) == (["a"], [("b", 8)])
    assert engine.apply(Step()).work == {}
    command(engine, "cancel_destination", "b")
    assert engine.apply(Step()).finished == ["fresh"]


def test_room_is_looked_for_in_order_and_again_only_when_some_came_free() -> None:
    engine = worker("decode", 4)
    assert reserved(engine, "a", 12, 0) == [("a", 12)]
    assert reserved(engine, "b", 8, 0) == []
    assert reserved(engine, "c", 4, 0) == []
    assert engine.view().extra["head_tried"]
    assert noted(command(engine, "cancel_destination", "a"), "destination-reserved") == [("b", 8)]
    assert noted(engine.apply(Step()), "destination-reserved") == [("c", 4)]


def test_pages_that_come_free_by_an_activation_wake_who_waits() -> None:
    engine = worker("decode", 3)
    for id_ in ("a", "b"):
        reserved(engine, id_, text(("A", 4)), 0)
    assert pages(engine) == (1, 2, 0)
    assert reserved(engine, "c", 8, 0) == []
    command(engine, "activate_destination", "a")
    # The tree has a's page already, so b gives its own back, and there are two.
    assert noted(command(engine, "activate_destination", "b"), "destination-reserved") == [("c", 8)]


@pytest.mark.parametrize("phase", ["pending", "reserved", "ready", "running"])
def test_cancelling_a_destination_gives_everything_back_and_a_second_time_does_nothing(phase: str) -> None:
    engine = worker("decode", 2, max_num_seqs=1)
    if phase == "pending":
        reserved(engine, "other", 8, 0)
    reserved(engine, "r", text(("A", 5)), 3)
    if phase in ("ready", "running"):
        command(engine, "activate_destination", "r")
    if phase == "running":
        engine.apply(Step())
        assert engine.view().running == ("r",)
    report = command(engine, "cancel_destination", "r")
    assert (report.cancelled, report.events) == (["r"], [])
    assert "r" not in engine.view().requests
    assert pages(engine)[1] == (2 if phase == "pending" else 0)
    before = engine.freeze()
    assert noted(command(engine, "cancel_destination", "r"), "no-effect") == ["cancel_destination"]
    assert engine.freeze() == before


@pytest.mark.parametrize("verb", ["release_source", "cancel_source", "cancel_request"])
def test_a_source_that_is_not_finished(verb: str) -> None:
    engine = worker("prefill", 8, chunked_prefill_size=4)
    command(engine, "submit_prefill", "r", 8, 1)
    engine.apply(Step())
    report = command(engine, verb, "r")
    assert report.cancelled == ([] if verb == "release_source" else ["r"])
    assert [id_ for report in drain(engine) for id_ in report.finished] == (["r"] if verb == "release_source" else [])
    assert engine.view().extra["held_sources"] == ()


def test_a_source_that_is_refused_is_forgotten() -> None:
    engine = worker("prefill", 2)
    command(engine, "submit_prefill", "r", 9, 1)
    assert engine.apply(Step()).rejected == ["r"]
    assert engine.view().extra["sources"] == ()


@pytest.mark.parametrize(
    ("prompt", "output", "accepted"), [(8, 0, True), (7, 1, True), (8, 1, False), (5, 3, True), (9, 0, False)]
)
def test_a_destination_that_could_not_finish_alone_is_refused(prompt: int, output: int, accepted: bool) -> None:
    engine = worker("decode", 2)
    spec = RequestSpec("r", text(("A", prompt)), output)
    assert engine.servable(spec) is accepted
    if not accepted:
        with pytest.raises(BadInput, match="prompt"):
            engine.apply(Handoff("reserve_destination", "r", spec))
        assert not engine.busy
        return
    engine.apply(Handoff("reserve_destination", "r", spec))
    command(engine, "activate_destination", "r")
    assert [id_ for report in drain(engine) for id_ in report.finished] == ["r"]


def test_the_specified_worker_looks_at_the_prompt_alone() -> None:
    engine = worker("decode", 2, defects=["radix-admits-unservable"])
    assert reserved(engine, "r", 8, 5) == [("r", 8)]
    with pytest.raises(BadInput, match="prompt"):
        command(engine, "reserve_destination", "s", 9)
    engine = worker("decode", 4, max_model_len=8)
    with pytest.raises(BadInput, match="max_model_len"):
        command(engine, "reserve_destination", "s", 8)


def test_a_held_prompt_serves_others_and_no_promise_is_empty() -> None:
    reused = {}
    for defects in ([], ["held-prompt-not-cached"]):
        engine = worker("prefill", 8, defects=defects)
        monitor = Monitor(engine)
        monitor.apply(Handoff("submit_prefill", "a", RequestSpec("a", text(("A", 8)), 1)))
        monitor.apply(Step())
        broken = {violation.invariant for violation in monitor.violations}
        assert broken == ({"stored-needs-caching", "events-mirror-cache"} if defects else set())
        submit(engine, "b", text(("A", 8), ("B", 1)), 1)
        reused[bool(defects)] = engine.apply(Step()).admissions[0].reused
    assert reused == {False: 8, True: 0}


def test_a_running_request_makes_way_for_the_one_whose_pages_it_needs() -> None:
    outcomes = {}
    for defects in ([], ["ready-starves-running"]):
        engine = worker("decode", 2, max_num_seqs=1, defects=defects)
        reserved(engine, "a", 4, 2)
        command(engine, "activate_destination", "a")
        reserved(engine, "b", 4, 0)
        command(engine, "activate_destination", "b")
        monitor = Monitor(engine)
        for _ in range(4):
            monitor.apply(Step())
        outcomes[bool(defects)] = (engine.busy, [violation.invariant for violation in monitor.violations])
        if not defects:
            assert engine.view().requests == {}
    assert outcomes[False] == (False, [])
    assert outcomes[True] == (True, ["no-stall", "servable-finishes", "servable-finishes"])


def test_delays_are_told_with_the_last_signal_of_a_prefill_worker() -> None:
    engine = worker("prefill", 8, kv_transfer_gbps=2, kv_bytes_per_token=1000)
    submit(engine, "r", 8, 1)
    submit(engine, "s", 4, 0)
    signals = engine.apply(Step()).signals
    assert {signal.id: signal.handoff_delay_ns for signal in signals} == {"r": 4000, "s": 2000}


def test_roles_know_their_commands() -> None:
    for role, verb in (("aggregated", "release_source"), ("prefill", "activate_destination"), ("decode", "submit_prefill")):
        with pytest.raises(BadInput, match="handoff"):
            command(worker(role, 4), verb, "r", 4)
    engine = worker("decode", 4)
    reserved(engine, "r", 4)
    for again in (lambda: submit(engine, "r", 4, 1), lambda: reserved(engine, "r", 4)):
        with pytest.raises(BadInput, match="no live request"):
            again()
    assert engine.choices() == (Handoff("activate_destination", "r"),)


HISTORY: tuple[Action, ...] = (
    *(Handoff("reserve_destination", id_, RequestSpec(id_, text(("A", 5), (id_, 2)), 4)) for id_ in "ab"),
    Handoff("activate_destination", "a"),
    Step(),
    Handoff("reserve_destination", "c", RequestSpec("c", text(("A", 4)), 3)),
    Step(),
    Handoff("activate_destination", "b"),
    Handoff("reserve_destination", "d", RequestSpec("d", text(("D", 8)), 2)),
    Step(),
    Submit(RequestSpec("e", text(("A", 5)), 2)),
    Handoff("activate_destination", "c"),
    Step(),
    Step(),
    Cancel("b"),
    *([Step()] * 6),
    Handoff("activate_destination", "d"),
    *([Step()] * 6),
)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("seqs", [1, 2, None])
def test_a_thawed_worker_goes_on_like_the_one_that_was_frozen(caching: bool, seqs: int | None) -> None:
    for done in range(len(HISTORY)):
        engine = worker("decode", 6, 2, prefix_caching=caching, max_num_seqs=seqs)
        for action in HISTORY[:done]:
            outcome(engine, action)
        fork = engine.thaw(engine.freeze())
        for action in HISTORY[done:]:
            assert outcome(fork, action) == outcome(engine, action)


def outcome(engine: RadixEngine, action: Action) -> object:
    """All that an action did, without the clock; a refusal in its words."""
    try:
        report = engine.apply(action)
    except BadInput as error:
        return str(error)
    told = attrs.asdict(report, recurse=False)
    told["end_ns"] -= told.pop("start_ns")
    return told, engine.freeze()
