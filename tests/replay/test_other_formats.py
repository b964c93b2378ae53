"""Applied compute, synthetic and flat traces (replay specification 1.3, 1.8, 1.9)."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import attrs
import pytest

from model.errors import BadInput
from model.replay.applied_compute import load_applied_compute
from model.replay.draws import Draws
from model.replay.errors import TraceError
from model.replay.flat import length_only_prompt, load_flat, load_flat_file, read_requests
from model.replay.reader import rows_of
from model.replay.synthetic import Arrivals, Delays, Lengths, Synthetic, synthesize
from model.replay.trace import Trace
from tests.replay.support import Row, refused, replay


def applied(**changes: Any) -> Row:
    """A row with two tool calls."""
    return {
        "num_turns": 2,
        "input_prompt_length": 100,
        "assistant_response_length": [10, 20],
        "tool_call_output_length": [30, 40],
        "tool_call_latency": [0.5, 1.25],
        "final_assistant_response_length": 50,
        **changes,
    }


def test_an_applied_compute_row_is_a_session_that_grows() -> None:
    (session,) = load_applied_compute(rows_of([applied()]), 64).sessions
    assert session.session_id == "applied_compute_agentic_session_1"
    assert session.first_arrival_timestamp_ms is None
    assert [turn.input_length for turn in session.turns] == [100, 140, 200]
    assert [turn.max_output_tokens for turn in session.turns] == [10, 20, 50]
    assert [turn.delay_after_previous_ms for turn in session.turns] == [0, 500, 1250]


def test_applied_compute_hashes_are_prefix_stable() -> None:
    rows = [applied(input_prompt_length=600, assistant_response_length=[40, 50], tool_call_output_length=[40, 50])]
    (session,) = load_applied_compute(rows_of(rows), 256).sessions
    assert [turn.hash_ids for turn in session.turns] == [(0, 1, 2), (0, 1, 2), (0, 1, 2, 3)]


def test_applied_compute_sessions_of_a_group_share_the_start_of_their_prompt() -> None:
    rows = rows_of([applied(input_prompt_length=8)] * 4)
    sessions = load_applied_compute(rows, 2, shared_prefix_ratio=0.5, num_prefix_groups=2).sessions
    first = [session.turns[0].hash_ids for session in sessions]
    assert first[0][:2] == first[2][:2]
    assert first[1][:2] == first[3][:2]
    assert set(first[0]) & set(first[1]) == set()
    assert set(first[0][2:]) & set(first[2][2:]) == set()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"assistant_response_length": [1]}, "E_ARRAY_LEN"),
        ({"tool_call_latency": [0.5, 1, 2]}, "E_ARRAY_LEN"),
        ({"num_turns": 3}, "E_ARRAY_LEN"),
        ({"input_prompt_length": 0}, "E_ZERO_PROMPT"),
        ({"tool_call_latency": [0.5, -0.1]}, "E_BAD_LATENCY"),
        ({"num_turns": None}, "E_PARSE"),
        ({"final_assistant_response_length": -1}, "E_PARSE"),
    ],
)
def test_a_bad_applied_compute_row_names_its_line(changes: Row, code: str) -> None:
    with refused(code, 2):
        load_applied_compute(rows_of([applied(), applied(**changes)]), 64)


def test_an_applied_compute_session_may_have_no_tool_call_and_no_output() -> None:
    empty: Row = {"assistant_response_length": [], "tool_call_output_length": [], "tool_call_latency": []}
    rows = [applied(num_turns=0, final_assistant_response_length=0, extra=1, **empty)]
    (session,) = load_applied_compute(rows_of(rows), 64).sessions
    assert [turn.max_output_tokens for turn in session.turns] == [0]


def test_applied_compute_has_no_arrivals() -> None:
    with refused("E_NEEDS_CONCURRENCY"):
        replay([applied()], format="applied_compute_agentic")


def synthetic(**changes: Any) -> Synthetic:
    """Four sessions of one turn, 8 tokens in and 2 out."""
    settings: dict[str, Any] = {"block_size": 4, "sessions": 4, "input": Lengths(8), "output": Lengths(2), **changes}
    return Synthetic(**settings)


def starts(trace: Trace) -> list[float]:
    """First arrivals."""
    return [session.first_arrival_timestamp_ms or 0.0 for session in trace.sessions]


@pytest.mark.parametrize(
    ("arrivals", "expected"),
    [
        (Arrivals(), [0, 0, 0, 0]),
        (Arrivals("constant", 10), [0, 100, 200, 300]),
        (Arrivals("constant", 3), [number * (1000 / 3) for number in range(4)]),
    ],
)
def test_arrivals_of_a_burst_and_at_a_constant_rate(arrivals: Arrivals, expected: list[float]) -> None:
    assert starts(synthesize(synthetic(arrivals=arrivals))) == expected


@pytest.mark.parametrize(("arrivals", "spread"), [(Arrivals("poisson", 10), 1.0), (Arrivals("gamma", 10, 4), 0.25)])
def test_random_arrivals_have_their_rate_and_spread(arrivals: Arrivals, spread: float) -> None:
    times = starts(synthesize(synthetic(sessions=4000, arrivals=arrivals)))
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert times[0] == 0
    assert fmean(gaps) == pytest.approx(100, rel=0.1)
    assert fmean([(gap - 100) ** 2 for gap in gaps]) / 100**2 == pytest.approx(spread, rel=0.2)


def test_another_arrival_law_or_seed_changes_timestamps_alone() -> None:
    base = synthetic(input=Lengths(40, 10), output=Lengths(9, 3), turns=2, delays=Delays("exponential", 5))
    plain = synthesize(base)
    for changed in (
        attrs.evolve(base, arrivals=Arrivals("poisson", 5)),
        attrs.evolve(base, arrivals=Arrivals("poisson", 5), arrival_seed=7),
    ):
        assert [session.turns for session in synthesize(changed).sessions] == [session.turns for session in plain.sessions]
    assert synthesize(attrs.evolve(base, seed=1)) != plain


def test_lengths_are_drawn_around_their_mean_and_never_below_one() -> None:
    draws = Draws(3)
    lengths = [Lengths(10, 4).draw(draws) for _ in range(4000)]
    assert min(lengths) >= 1
    assert fmean(lengths) == pytest.approx(10, abs=0.3)
    assert Lengths(0.2).draw(draws) == 1


def test_sessions_share_the_cached_prefix_and_groups_share_more() -> None:
    spec = synthetic(input=Lengths(16), cached_prefix_tokens=4, shared_prefix_ratio=0.5, num_prefix_groups=1, turns=2)
    turns = [turn.hash_ids for session in synthesize(spec).sessions for turn in session.turns]
    assert {hashes[:3] for hashes in turns} == {turns[0][:3]}
    assert len({hashes[3] for hashes in turns}) == len(turns)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"sessions": 0}, "E_SIZE"),
        ({"turns": 0}, "E_SIZE"),
        ({"input": Lengths(0.5)}, "E_SIZE"),
        ({"output": Lengths(2, -1)}, "E_SIZE"),
        ({"shared_prefix_ratio": 1.5, "num_prefix_groups": 1}, "E_RATIO"),
        ({"shared_prefix_ratio": 0.5}, "E_RATIO"),
        ({"cached_prefix_tokens": 3}, "E_PREFIX"),
        ({"cached_prefix_tokens": 12}, "E_PREFIX"),
        ({"block_size": 0}, "E_BLOCK_SIZE"),
        ({"arrivals": Arrivals("constant", 5e-324)}, "E_BAD_TIME"),
    ],
)
def test_a_synthetic_trace_refuses(changes: Row, code: str) -> None:
    with refused(code):
        synthesize(synthetic(**changes))


@pytest.mark.parametrize("bad", [0, -1, float("inf"), float("nan")])
def test_rates_shapes_and_delays_are_finite(bad: float) -> None:
    with refused("E_RATE"):
        Arrivals("poisson", bad)
    with refused("E_RATE"):
        Arrivals("gamma", 1, bad)
    if bad:
        with refused("E_BAD_DELAY"):
            Delays("constant", bad)
    with refused("E_RATE"):
        Arrivals("uniform")
    with refused("E_BAD_DELAY"):
        Delays("uniform")


def request(**changes: Any) -> Row:
    """A flat request."""
    return {"id": "a", "arrival_time_ms": 0, "input_tokens": 4, "output_tokens": 1, **changes}


def document(*requests: Row, **changes: Any) -> Row:
    """A document of version 1."""
    return {"version": 1, "requests": list(requests or (request(),)), **changes}


def test_a_document_says_workers_bounds_and_goodput(tmp_path: Path) -> None:
    given = document(
        request(id="late", arrival_time_ms=5),
        request(id="early", input_token_ids=[7, 7, 8, 9], session_id="s", turn_index=2, metadata={"x": 1}, dp_rank=0),
        topology={"aggregated": {"workers": {"initial_workers": 2, "startup_delay_ms": 0}}},
        engine={"anything": 1},
        adapters={"placement": {"provider": "round_robin"}, "scaling": {"provider": "none"}},
        max_in_flight=3,
        max_sim_time_ms=99,
        record_per_request=True,
        sla={"ttft_ms": 5},
    )
    path = tmp_path / "flat.json"
    path.write_text(json.dumps(given))
    trace = load_flat_file(path)
    assert [one.id for one in trace.requests_in_order] == ["early", "late"]
    assert (trace.workers, trace.max_in_flight, trace.max_sim_time_ms, trace.sla.ttft_ms) == (2, 3, 99, 5)
    assert list(trace.requests_in_order[0].prompt().tokens()) == [7, 7, 8, 9]


def test_prompts_of_a_known_length_are_distinct_tokens() -> None:
    assert list(length_only_prompt(2, 3).tokens()) == [2000006, 2000007, 2000008]
    assert next(length_only_prompt(4294, 3).tokens()) == 4294 * 1_000_003 % (1 << 32)
    (only,) = read_requests([request()])
    assert list(only.prompt().tokens()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"id": ""}, "E_BLANK"),
        ({"id": None}, "E_PARSE"),
        ({"id": "first"}, "E_DUPLICATE_ID"),
        ({"arrival_time_ms": -1}, "E_BAD_TIME"),
        ({"arrival_time_ms": "0"}, "E_PARSE"),
        ({"input_token_ids": [1]}, "E_TOKEN_LEN"),
        ({"output_token_ids": [1, 2]}, "E_PLAN_LEN"),
        ({"dp_rank": 1}, "E_RANK"),
        ({"prefill_dp_rank": 0}, "E_RANK"),
        ({"input_tokens": None}, "E_PARSE"),
    ],
)
def test_a_bad_flat_request_names_its_position(changes: Row, code: str) -> None:
    with refused(code, 2):
        load_flat(document(request(id="first"), request(**changes)))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"version": 2}, "E_VERSION"),
        ({"version": None}, "E_PARSE"),
        ({"max_in_flight": 0}, "E_IN_FLIGHT"),
        ({"topology": {"disaggregated": {}}}, "E_TOPOLOGY"),
        ({"topology": {"aggregated": {"workers": {"initial_workers": 0}}}}, "E_TOPOLOGY"),
        ({"adapters": {"placement": {"provider": "random"}}}, "E_TOPOLOGY"),
        ({"adapters": {"scaling": {"provider": "planner"}}}, "E_TOPOLOGY"),
        ({"sla": {"e2e_ms": 5, "ttft_ms": 5}}, "E_SLA"),
        ({"sla": {"itl_ms": 0}}, "E_SLA"),
        ({"sla": {"itl_ms": -1}}, "E_SLA"),
    ],
)
def test_a_bad_document_is_refused(changes: Row, code: str) -> None:
    with refused(code):
        load_flat(document(**changes))


def test_a_flat_request_without_arrival_is_refused_in_trace_mode_alone() -> None:
    requests = [request(arrival_time_ms=None)]
    with refused("E_BAD_TIME"):
        replay(requests, format="flat")
    assert replay(requests, format="flat", mode={"concurrency": 1}).complete


def test_capped_flat_requests_run_one_behind_the_other() -> None:
    requests = [request(id=name) for name in "abc"]
    result = replay(requests, format="flat", mode={"concurrency": 1})
    assert [one["arrival_time_ms"] for one in result.rows] == [0, 10, 20]


def test_a_missing_document_is_bad_input() -> None:
    with pytest.raises(BadInput, match="No such file"):
        load_flat_file("/nonexistent")


def test_a_document_that_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "flat.json"
    path.write_text("{")
    with pytest.raises(TraceError, match="E_PARSE"):
        load_flat_file(path)
