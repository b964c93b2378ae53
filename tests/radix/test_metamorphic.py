"""Relations between runs (SGLang specification 8: m1 to m3, L2, L4, S17), and what every run of the right engine keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from model.events import Admission, StepReport
from model.radix.engine import RadixEngine
from model.requests import Prompt, RequestSpec
from tests.radix.driver import FINDING_4, Mirror, cancel, drain, radix, step, submit, text

AMPLE = 4096

Tokens = list[int]
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9)


def stretched(tokens: Tokens, factor: int) -> Prompt:
    """Every token ``factor`` times."""
    return Prompt.of_tokens(token for token in tokens for _ in range(factor))


@settings(deadline=None)
@given(
    size=st.integers(1, 4),
    pages=st.integers(2, 12),
    chunk=st.integers(1, 12),
    inputs=st.integers(1, 12),
    factor=st.integers(2, 3),
    prompts=st.lists(TOKENS, min_size=1, max_size=4),
    caching=st.booleans(),
)
def test_m1_scaling_pages_budgets_and_prompts_alike_keeps_the_pattern(
    size: int, pages: int, chunk: int, inputs: int, factor: int, prompts: list[Tokens], caching: bool
) -> None:
    patterns = []
    for scale in (1, factor):
        engine = radix(f"{scale * size}/{pages}/{scale * chunk}", max_prefill_tokens=scale * inputs, prefix_caching=caching)
        for number, tokens in enumerate(prompts):
            submit(engine, f"r{number}", stretched(tokens, scale))
        patterns.append(
            [
                (
                    {id_: total // scale for id_, total in report.scheduled.items()},
                    [(admission.id, admission.reused // scale) for admission in report.admissions],
                    report.finished,
                    report.rejected,
                    [(type(event_).__name__, len(event_.blocks)) for event_ in report.events],
                )
                for report in drain(engine)
            ]
        )
    assert patterns[0] == patterns[1]


@settings(deadline=None)
@given(
    size=st.integers(1, 4),
    pages=st.integers(2, 10),
    chunk=st.integers(1, 10),
    length=st.integers(1, 9),
    output=st.integers(0, 4),
    order=st.permutations(range(4)),
)
def test_m2_disjoint_prompts_of_equal_length_are_alike(
    size: int, pages: int, chunk: int, length: int, output: int, order: list[int]
) -> None:
    runs = []
    for numbers in (range(4), order):
        engine = radix(f"{size}/{pages}/{chunk}", schedule_conservativeness=0)
        for number in numbers:
            submit(engine, f"r{number}", length, output)
        names = {f"r{number}": place for place, number in enumerate(numbers)}
        runs.append(
            [
                (
                    {names[id_]: total for id_, total in report.scheduled.items()},
                    [(names[signal.id], signal.token, signal.completed) for signal in report.signals],
                    [names[preemption.victim] for preemption in report.preemptions],
                )
                for report in drain(engine)
            ]
        )
    assert runs[0] == runs[1]


def told_without_time(reports: Sequence[StepReport]) -> list[dict[str, Any]]:
    """Reports without the clock and the identities of pages, which count from the first request on."""
    told = []
    for report in reports:
        fields = attrs.asdict(report, recurse=False)
        fields["end_ns"] -= fields["start_ns"]
        del fields["start_ns"]
        fields["events"] = [(type(event_).__name__, len(event_.blocks)) for event_ in report.events]
        told.append(fields)
    return told


@settings(deadline=None)
@given(
    size=st.integers(1, 4),
    chunk=st.integers(4, 12),
    workload=st.lists(st.tuples(TOKENS, st.integers(0, 4)), min_size=1, max_size=4),
    length=st.integers(1, 20),
)
def test_m3_an_unrelated_finished_request_changes_nothing_but_what_is_evictable(
    size: int, chunk: int, workload: list[tuple[Tokens, int]], length: int
) -> None:
    runs = []
    pools = []
    for before in (False, True):
        engine = radix(f"{size}/{AMPLE}/{chunk}")
        if before:
            submit(engine, "unrelated", length)
            drain(engine)
        for number, (tokens, output) in enumerate(workload):
            submit(engine, f"r{number}", tokens, output)
        runs.append(told_without_time(drain(engine)))
        pools.append(engine.view(blocks=False).pool)
    assert runs[0] == runs[1]
    assert pools[1].active == pools[0].active == 0
    assert pools[1].inactive == pools[0].inactive + length // size


@settings(deadline=None)
@given(
    size=st.integers(1, 4),
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    chunks=st.tuples(st.integers(4, 30), st.integers(4, 30)),
    slots=st.none() | st.integers(1, 3),
)
def test_l4_a_larger_chunk_budget_never_takes_more_passes(
    size: int, lengths: list[int], chunks: tuple[int, int], slots: int | None
) -> None:
    passes = []
    for chunk in sorted(chunks):
        engine = radix(f"{size}/{AMPLE}/{chunk}", max_num_seqs=slots)
        for number, length in enumerate(lengths):
            submit(engine, f"r{number}", length)
        passes.append(len(drain(engine)))
    assert passes[0] >= passes[1]


@settings(deadline=None)
@given(
    size=st.integers(1, 4),
    pages=st.integers(1, 12),
    chunk=st.integers(1, 12),
    inputs=st.integers(1, 12),
    length=st.integers(1, 20),
    output=st.integers(0, 9),
    caching=st.booleans(),
)
def test_l2_a_request_alone_is_served_in_so_many_passes_or_refused_in_the_first(
    size: int, pages: int, chunk: int, inputs: int, length: int, output: int, caching: bool
) -> None:
    engine = radix(f"{size}/{pages}/{chunk}", max_prefill_tokens=inputs, prefix_caching=caching)
    submit(engine, "a", length, output)
    servable = engine.servable(engine.registry.specs[0])
    reports = drain(engine)
    event(f"servable: {servable}")
    if not servable:
        assert [report.rejected for report in reports] == [["a"]]
        return
    assert reports[-1].finished == ["a"]
    budget = min(chunk, inputs) // size * size
    assert len(reports) == -(-length // budget) + max(output - 1, 0)


@st.composite
def workloads(draw: st.DrawFn) -> tuple[str, dict[str, Any], list[RequestSpec]]:
    """Geometries too small for their requests, and requests that share prefixes."""
    size = draw(st.sampled_from([1, 2, 4]))
    geometry = f"{size}/{draw(st.integers(3, 9))}/{draw(st.integers(1, 9))}"
    options = {
        "prefix_caching": draw(st.booleans()),
        "schedule_policy": draw(st.sampled_from(["fcfs", "lpm"])),
        "schedule_conservativeness": draw(st.sampled_from([0, 0.5, 1.0])),
        "max_num_seqs": draw(st.none() | st.integers(1, 3)),
        "max_prefill_tokens": draw(st.sampled_from([16384, 16384, 5, 3])),
        "prefill_decode_interval": draw(st.sampled_from([0, 0, 0, 1, 2])),
        "clip_max_new_tokens": draw(st.sampled_from([4096, 4096, 2])),
        "speculation": draw(st.none() | st.integers(1, 2).map(lambda k: {"draft_tokens": k, "accepted": k})),
    }
    requests = [
        RequestSpec(f"r{number}", text(("A", draw(st.integers(0, 6))), (f"B{number}", draw(st.integers(1, 4)))), output)
        for number, output in enumerate(draw(st.lists(st.integers(0, 6), min_size=1, max_size=5)))
    ]
    return geometry, options, requests


def arrive(engine: RadixEngine, requests: Sequence[RequestSpec], gaps: Sequence[int]) -> list[StepReport]:
    """Submit each request after some passes, then drain."""
    reports = []
    for request, gap in zip(requests, gaps, strict=True):
        for _ in range(gap):
            if engine.busy:
                reports.append(step(engine))
        submit(engine, request.id, request.prompt, request.output)
    return reports + drain(engine)


@settings(max_examples=200, deadline=None)
@given(workload=workloads(), data=st.data())
def test_the_right_engine_serves_what_it_can_and_refuses_the_rest(
    workload: tuple[str, dict[str, Any], list[RequestSpec]], data: st.DataObject
) -> None:
    geometry, options, requests = workload
    engine = radix(geometry, **options)
    gaps = [data.draw(st.integers(0, 4)) for _ in requests]
    reports = arrive(engine, requests, gaps)
    finished = {id_ for report in reports for id_ in report.finished}
    refused = {id_ for report in reports for id_ in report.rejected}
    assert finished == {request.id for request in requests if engine.servable(request)}
    assert refused == {request.id for request in requests} - finished
    for request in requests:
        produced = sum(report.emitted.get(request.id, 0) for report in reports)
        assert produced == (request.output if request.id in finished else 0)
    view = engine.view()
    assert view.pool.active == 0
    mirror = Mirror()
    for report in reports:
        mirror.follow(report.events)
    assert frozenset(mirror.stored) == view.cached
    if any(report.preemptions for report in reports):
        event("retracts")
    computes_what_was_not_reused(reports)


def computes_what_was_not_reused(reports: Sequence[StepReport]) -> None:
    """From an admission to the end of its prefill, a request computes its length less what it reuses (S16)."""
    open_: dict[str, tuple[Admission, int]] = {}
    for report in reports:
        for admission in report.admissions:
            open_[admission.id] = (admission, 0)
        for id_, work in report.work.items():
            if id_ not in open_:
                continue
            admission, computed = open_[id_]
            computed += work.total
            assert admission.reused + computed <= work.length
            open_[id_] = (admission, computed)
            if admission.reused + computed == work.length:
                del open_[id_]
            elif report.decode_batch:
                raise AssertionError(f"{id_} decodes before its prefill is complete")
        for preemption in report.preemptions:
            open_.pop(preemption.victim, None)
    assert not open_


@settings(deadline=None)
@given(workload=workloads(), data=st.data())
def test_s17_events_change_nothing_but_the_events(
    workload: tuple[str, dict[str, Any], list[RequestSpec]], data: st.DataObject
) -> None:
    geometry, options, requests = workload
    gaps = [data.draw(st.integers(0, 4)) for _ in requests]
    runs = []
    for events, defects in ((True, []), (False, []), (True, [FINDING_4]), (False, [FINDING_4])):
        reports = arrive(radix(geometry, kv_events=events, defects=defects, **options), requests, gaps)
        runs.append([attrs.evolve(report, events=[]) for report in reports])
    assert runs[1:] == runs[:1] * 3


@settings(deadline=None)
@given(workload=workloads(), passes=st.integers(0, 6), data=st.data())
def test_a_cancelled_request_leaves_nothing_held(
    workload: tuple[str, dict[str, Any], list[RequestSpec]], passes: int, data: st.DataObject
) -> None:
    geometry, options, requests = workload
    engine = radix(geometry, **options)
    for request in requests:
        submit(engine, request.id, request.prompt, request.output)
    for _ in range(passes):
        step(engine)
    assume(engine.core.requests)
    victim = data.draw(st.sampled_from(sorted(engine.core.requests)))
    assert cancel(engine, victim).cancelled == [victim]
    drain(engine)
    assert engine.view(blocks=False).pool.active == 0
