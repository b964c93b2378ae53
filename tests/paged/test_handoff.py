"""Hand-off commands on one worker (vLLM specification 4), the conformance rows about them, and the rules they follow."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from model.actions import Handoff
from model.config import EngineConfig
from model.errors import BadInput
from model.events import Removed, Stored
from model.paged.engine import PagedEngine
from model.requests import RequestSpec
from tests.paged.driver import (
    Mirror,
    command,
    drain,
    measured,
    noted,
    paged,
    preempted,
    step,
    steps,
    submit,
    submit_all,
    text,
    told,
)


def prefill(geometry: str, **options: Any) -> PagedEngine:
    """An idle prefill worker."""
    return paged(geometry, **{"role": "prefill", **options})


def decode(geometry: str, **options: Any) -> PagedEngine:
    """An idle decode worker."""
    return paged(geometry, **{"role": "decode", **options})


def reserved(engine: PagedEngine, id_: str, prompt: int | Any, output: int = 1) -> list[tuple[str, int]]:
    """Ask for a destination; which destinations got room by it, with the tokens to transfer."""
    return noted(command(engine, "reserve_destination", id_, prompt, output), "destination-reserved")


def owners(engine: PagedEngine) -> dict[str, Any]:
    """The owner collections that are not empty."""
    names = ("sources", "held_sources", "pending_destinations", "destination_holds", "active_destinations")
    return {name: engine.view().extra[name] for name in names if engine.view().extra[name]}


# Rows of vLLM specification 8.


def test_row_16_a_cancelled_reservation_leaves_the_leaf_to_be_evicted_first() -> None:
    engine = decode("4/3/16/1", prefix_caching=True)
    submit(engine, "seed", text(("A", 8)), 1)
    reports = drain(engine)
    assert reserved(engine, "dest", text(("A", 8))) == [("dest", 0)]
    reports.append(command(engine, "cancel_destination", "dest"))
    submit(engine, "other", text(("B", 8)), 1)
    reports += drain(engine)
    stored = [event.blocks for report in reports for event in report.events if isinstance(event, Stored)]
    removed = [event.blocks for report in reports for event in report.events if isinstance(event, Removed)]
    seed = stored[0]
    assert removed == [(seed[1],)]
    assert len(seed) == 2
    assert seed[0] in Mirror().follow(reports)


@pytest.mark.parametrize(
    ("gbps", "size", "delay"), [(1, 1_000_000, 8_000_000), (3, 1, Fraction(8, 3)), (0, 1, None), (1, None, None)]
)
def test_row_17_the_last_signal_of_a_prefill_worker_tells_how_long_its_kv_takes(
    gbps: float, size: int | None, delay: object
) -> None:
    engine = prefill("4/8/8/1", kv_transfer_gbps=gbps, kv_bytes_per_token=size)
    submit(engine, "r", 8, 1)
    (signal,) = step(engine).signals
    assert (signal.completed, signal.handoff_delay_ns) == (True, delay)


def test_only_a_prefill_worker_tells_a_delay_and_only_with_the_last_signal() -> None:
    options = {"kv_transfer_gbps": 1, "kv_bytes_per_token": 1}
    aggregated, worker = paged("4/8/8/1", **options), prefill("4/8/8/1", **options)
    for engine in (aggregated, worker):
        submit(engine, "r", 8, 2)
    assert [signal.handoff_delay_ns for report in steps(aggregated, 2) for signal in report.signals] == [None, None]
    assert [signal.handoff_delay_ns for report in steps(worker, 2) for signal in report.signals] == [None, 8]


def test_row_18_a_completed_source_keeps_its_blocks_until_it_is_released() -> None:
    engine = prefill("4/8/8/1")
    command(engine, "submit_prefill", "r", 8, 2)
    assert owners(engine) == {"sources": ("r",)}
    first, second = steps(engine, 2)
    assert noted(first, "source-held") == []
    assert noted(second, "source-held") == second.handed_over == second.finished == ["r"]
    assert owners(engine) == {"held_sources": ("r",)}
    # Nine of ten tokens are computed.
    assert (engine.view().pool.active, engine.busy) == (3, True)
    assert noted(command(engine, "release_source", "r"), "source-released") == ["r"]
    assert (engine.view().pool.active, engine.busy) == (0, False)
    empty = engine.freeze()
    assert noted(command(engine, "release_source", "r"), "no-effect") == ["release_source"]
    assert engine.freeze() == empty


@pytest.mark.parametrize("output", [1, 5, 30])
def test_row_19_whole_blocks_of_the_prompt_are_transferred_whatever_the_output(output: int) -> None:
    engine = decode("4/12/16/1", prefix_caching=True)
    assert reserved(engine, "r", 10, output) == [("r", 12)]


def test_row_20_destinations_are_counted_as_queued_decodes_until_they_run() -> None:
    engine = decode("4/6/32/1", prefix_caching=True)
    assert reserved(engine, "a", 4) == [("a", 4)]
    assert queued(engine) == (1, 4, 0, 1)
    assert reserved(engine, "b", 24) == []
    assert queued(engine) == (2, 28, 100, 2)
    command(engine, "cancel_destination", "b")
    submit(engine, "blocker", 4, 2)
    assert queued(engine) == (1, 4, 0, 1)
    command(engine, "activate_destination", "a")
    assert engine.view().waiting == ("a",)
    assert queued(engine) == (1, 4, 0, 1)
    assert told(step(engine)) == ["a done"]
    assert not engine.busy
    assert queued(engine) == (0, 0, 0, 0)


def queued(engine: PagedEngine) -> tuple[float, ...]:
    """Of one pass: queued decodes with the sum and variance of their lengths, and who waits in all."""
    metrics = measured(engine)
    view = engine.view()
    coming = len(view.extra["pending_destinations"]) + len(view.extra["destination_holds"])
    waits = len(view.waiting) + coming
    variance = float(metrics.var_queued_decode_kv_tokens)
    return metrics.num_queued_decode, metrics.sum_queued_decode_kv_tokens, variance, waits


@pytest.mark.parametrize("verb", ["cancel_destination", "cancel_request"])
def test_row_21_cancelling_a_running_request_makes_room_at_once(verb: str) -> None:
    engine = decode("4/12/16/1")
    reserved(engine, "first", 4, 8)
    command(engine, "activate_destination", "first")
    step(engine)
    assert engine.view().running == ("first",)
    assert reserved(engine, "second", 4, 2) == []
    report = command(engine, verb, "first")
    assert report.cancelled == ["first"]
    assert noted(report, "destination-reserved") == [("second", 4)]


def test_row_22_vllm_transfers_only_what_is_not_cached() -> None:
    engine = decode("4/1/32/2", prefix_caching=True)
    assert reserved(engine, "a", text(("A", 4))) == [("a", 4)]
    command(engine, "activate_destination", "a")
    assert reserved(engine, "b", text(("A", 4))) == [("b", 0)]
    assert engine.view().pool.active == 1


def test_row_23_tensorrt_transfers_all_and_waits_for_room_for_the_whole_output() -> None:
    engine = decode("4/7/32/2", scheduler="trtllm", prefix_caching=True)
    assert reserved(engine, "a", text(("A", 4)), 12) == [("a", 4)]
    assert reserved(engine, "b", text(("A", 4)), 12) == []
    command(engine, "activate_destination", "a")
    reports = [step(engine)]
    while "a" in engine.view().requests:
        assert [note for report in reports for note in noted(report, "destination-reserved")] == []
        reports.append(step(engine))
    assert noted(reports[-1], "destination-reserved") == [("b", 4)]


def test_row_24_an_ordinary_request_waits_for_what_an_accepted_hand_off_will_take() -> None:
    engine = decode("4/4/16/2", scheduler="trtllm")
    assert reserved(engine, "dest", 4, 8) == [("dest", 4)]
    submit(engine, "ordinary", 4, 4)
    # It needs two blocks; one is reserved and two more are promised.
    assert told(step(engine)) == []
    assert (engine.view().waiting, engine.view().extra["headroom"]) == (("ordinary",), 2)
    command(engine, "activate_destination", "dest")
    # It takes the place it had when it arrived.
    assert engine.view().waiting == ("dest", "ordinary")
    reports = drain(engine)
    assert [report.finished for report in reports if report.finished] == [["dest"], ["ordinary"]]
    assert preempted(reports) == []


@pytest.mark.parametrize("prompt", [8, 9])
def test_row_25_a_destination_beyond_the_model_length_is_refused_before_anything_is_touched(prompt: int) -> None:
    engine = decode("4/12/16/1", max_model_len=8)
    before = engine.freeze()
    with pytest.raises(BadInput, match="max_model_len"):
        command(engine, "reserve_destination", "r", prompt)
    assert engine.freeze() == before
    assert reserved(engine, "r", 7) == [("r", 8)]
    command(engine, "activate_destination", "r")
    assert told(step(engine)) == ["r done"]


# Destinations.


def test_an_activated_destination_runs_without_computing_anything() -> None:
    engine = decode("4/4/16/2")
    reserved(engine, "r", 6, 2)
    command(engine, "activate_destination", "r")
    view = engine.view()
    assert (view.requests["r"].computed, view.requests["r"].allocated, view.extra["prebuilt"]) == (6, 6, ("r",))
    report = step(engine)
    assert (report.scheduled, report.emitted, report.admissions[0].reused) == ({"r": 0}, {"r": 1}, 0)
    assert told(step(engine)) == ["r done"]
    assert engine.view().pool.active == 0


def test_activation_moves_what_was_reserved_and_caches_the_full_blocks_at_once() -> None:
    engine = decode("4/6/16/2", prefix_caching=True)
    submit(engine, "seed", text(("A", 4)), 1)
    drain(engine)
    assert reserved(engine, "r", text(("A", 4), ("B", 6))) == [("r", 8)]
    held = engine.view().pool
    assert (held.active, held.reserved) == (3, 2)
    report = command(engine, "activate_destination", "r")
    assert (engine.view().pool.active, engine.view().pool.reserved) == (3, 0)
    (event,) = report.events
    assert isinstance(event, Stored)
    assert len(event.blocks) == 1
    assert event.blocks[0] in (engine.view().cached or ())


def test_with_caching_off_activation_tells_nothing() -> None:
    engine = decode("4/6/16/2")
    reserved(engine, "r", 10)
    assert command(engine, "activate_destination", "r").events == []


def test_destinations_get_room_in_order_and_one_at_a_time() -> None:
    engine = decode("4/4/16/4")
    assert reserved(engine, "a", 12) == [("a", 12)]
    assert reserved(engine, "b", 8) == []
    # One block would do for it, but it is not its turn.
    assert reserved(engine, "c", 4) == []
    assert noted(command(engine, "cancel_destination", "a"), "destination-reserved") == [("b", 8)]
    assert owners(engine) == {"pending_destinations": ("c",), "destination_holds": {"b": (0, 2)}}
    assert noted(step(engine), "destination-reserved") == [("c", 4)]


def test_a_pending_destination_keeps_fresh_requests_out() -> None:
    engine = decode("4/2/16/4")
    reserved(engine, "a", 8)
    reserved(engine, "b", 4)
    submit(engine, "fresh", 1, 1)
    command(engine, "activate_destination", "a")
    report = step(engine)
    # The one with its KV overtakes, and makes room for the next destination.
    assert ([admission.id for admission in report.admissions], told(report)) == (["a"], ["a done"])
    assert noted(report, "destination-reserved") == [("b", 4)]
    assert told(step(engine)) == ["fresh done"]


def test_no_room_is_looked_for_while_all_slots_are_taken() -> None:
    engine = decode("4/8/16/1")
    submit(engine, "busy", 4, 3)
    step(engine)
    assert reserved(engine, "r", 4) == []
    assert engine.view().extra["head_tried"]
    assert noted(step(engine), "destination-reserved") == []
    assert noted(step(engine), "destination-reserved") == [("r", 4)]


def test_what_was_tried_in_vain_is_tried_again_once_room_may_have_come_free() -> None:
    engine = decode("4/3/16/4")
    submit_all(engine, {"long": (4, 3), "short": (4, 2)})
    step(engine)
    assert reserved(engine, "r", 8) == []
    tried = [engine.view().extra["head_tried"]]
    reports = []
    for _ in range(2):
        reports.append(step(engine))
        tried.append(engine.view().extra["head_tried"])
    # short ends in the first of these passes and frees a block, which is not enough; long in the second.
    assert tried == [True, True, False]
    assert [noted(report, "destination-reserved") for report in reports] == [[], [("r", 8)]]


def test_a_reservation_is_not_evicted_and_evicts() -> None:
    engine = decode("4/2/16/4", prefix_caching=True)
    submit(engine, "seed", text(("A", 8)), 1)
    drain(engine)
    report = command(engine, "reserve_destination", "r", text(("A", 4), ("B", 4)))
    assert [type(event) for event in report.events] == [Removed]
    assert engine.view().extra["destination_holds"] == {"r": (1, 1)}
    submit(engine, "other", 4, 1)
    assert told(step(engine)) == []
    assert engine.view().waiting == ("other",)


@pytest.mark.parametrize(
    ("prompt", "output"),
    [(9, 0), (9, 1), (8, 2)],
)
def test_a_destination_that_cannot_be_served_is_refused(prompt: int, output: int) -> None:
    engine = decode("4/2/16/4")
    with pytest.raises(BadInput, match="prompt"):
        command(engine, "reserve_destination", "r", prompt, output)
    assert not engine.busy


def test_the_specified_worker_accepts_a_destination_that_it_can_never_serve() -> None:
    engine = decode("4/2/16/4", defects=["admits-unservable"])
    assert reserved(engine, "r", 8, 2) == [("r", 8)]
    with pytest.raises(BadInput, match="prompt"):
        command(engine, "reserve_destination", "s", 9)


# Cancelling.


@pytest.mark.parametrize("phase", ["pending", "reserved", "waiting", "running"])
def test_cancelling_a_destination_gives_everything_back_and_a_second_time_does_nothing(phase: str) -> None:
    engine = decode("4/2/16/4", prefix_caching=True)
    other = phase == "pending"
    if other:
        reserved(engine, "other", 8)
    reserved(engine, "r", 8)
    if phase in ("waiting", "running"):
        command(engine, "activate_destination", "r")
    if phase == "running":
        engine = engine.thaw(engine.freeze())
        submit(engine, "probe", 1, 1)
        assert engine.view().waiting == ("r", "probe")
        command(engine, "cancel_request", "probe")
    assert command(engine, "cancel_destination", "r").cancelled == ["r"]
    assert "r" not in engine.view().requests
    assert engine.view().pool.active == (2 if other else 0)
    before = engine.freeze()
    assert noted(command(engine, "cancel_destination", "r"), "no-effect") == ["cancel_destination"]
    assert engine.freeze() == before


def test_cancel_request_does_not_reach_a_destination_whose_kv_has_not_come() -> None:
    engine = decode("4/2/16/4")
    reserved(engine, "a", 8)
    reserved(engine, "b", 8)
    before = engine.freeze()
    for id_ in ("a", "b", "nobody"):
        assert noted(command(engine, "cancel_request", id_), "no-effect") == ["cancel_request"]
    assert engine.freeze() == before


@pytest.mark.parametrize("verb", ["release_source", "cancel_source"])
def test_a_source_that_is_not_finished(verb: str) -> None:
    engine = prefill("4/4/4/2")
    command(engine, "submit_prefill", "r", 8, 1)
    step(engine)
    report = command(engine, verb, "r")
    if verb == "cancel_source":
        assert (report.cancelled, engine.busy, engine.view().pool.active) == (["r"], False, 0)
        return
    # Only forgotten as a source: it ends as any request does.
    assert report.cancelled == []
    assert (told(step(engine)), engine.busy) == (["r done"], False)


def test_cancelling_a_finished_source_gives_its_blocks_back() -> None:
    engine = prefill("4/4/8/2", prefix_caching=True)
    command(engine, "submit_prefill", "r", 8, 1)
    step(engine)
    assert command(engine, "cancel_source", "r").cancelled == ["r"]
    pool = engine.view().pool
    assert (pool.active, pool.inactive, engine.busy) == (0, 2, False)


def test_a_finished_source_is_not_live_but_its_id_is_taken() -> None:
    engine = prefill("4/4/8/2")
    command(engine, "submit_prefill", "r", 8, 1)
    step(engine)
    assert noted(command(engine, "cancel_request", "r"), "no-effect") == ["cancel_request"]
    with pytest.raises(BadInput, match="no live request"):
        command(engine, "submit_prefill", "r", 8, 1)
    with pytest.raises(BadInput, match="no live request"):
        submit(engine, "r", 8, 1)


# What cannot be carried out.


@pytest.mark.parametrize(
    ("role", "verb", "allowed"),
    [
        ("aggregated", "release_source", "role prefill or decode"),
        ("prefill", "reserve_destination", "submit_prefill, release_source, cancel_source, cancel_request"),
        ("decode", "submit_prefill", "reserve_destination, activate_destination, cancel_destination, cancel_request"),
        ("decode", "fetch", "reserve_destination, activate_destination, cancel_destination, cancel_request"),
    ],
)
def test_a_command_that_the_worker_does_not_know_is_refused(role: str, verb: str, allowed: str) -> None:
    engine = paged("4/4/8/2", role=role)
    with pytest.raises(BadInput) as caught:
        command(engine, verb, "r", 4)
    assert allowed in caught.value.allowed


def test_a_command_that_brings_a_request_needs_one_of_its_id() -> None:
    engine = decode("4/4/8/2")
    with pytest.raises(BadInput, match=r"prompt: found nothing"):
        command(engine, "reserve_destination", "r")
    with pytest.raises(BadInput, match=r"id: found 'r'"):
        engine.apply(Handoff("reserve_destination", "r", RequestSpec("s", text(("A", 4)), 1)))


def test_what_the_other_worker_owes_comes_as_choices() -> None:
    source, destination = prefill("4/4/16/2"), decode("4/4/16/2")
    for id_ in ("b", "a"):
        command(source, "submit_prefill", id_, 4, 1)
        command(destination, "reserve_destination", id_, 4)
        step(destination)
    assert source.choices() == ()
    step(source)
    assert source.choices() == (Handoff("release_source", "a"), Handoff("release_source", "b"))
    assert destination.choices() == (Handoff("activate_destination", "a"), Handoff("activate_destination", "b"))
    assert paged("4/4/16/2").choices() == ()


def test_bandwidth_and_size_are_checked() -> None:
    for field, value in (("kv_transfer_gbps", -1), ("kv_bytes_per_token", 0)):
        options: dict[str, Any] = {field: value}
        with pytest.raises(BadInput, match=field):
            EngineConfig(scheduler="vllm", block_size=4, num_blocks=4, **options)
