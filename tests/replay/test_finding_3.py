"""Finding 3: what accept length divides by what (replay specification 7.3)."""

from __future__ import annotations

from typing import Any

import pytest

from model.replay.accept import DECODE_PROVENANCE, DEFINITIONS, DISTINCT_IDS, FPM_DENOMINATOR
from tests.replay.support import Row, replay, row

DEFECT_OF = {
    DECODE_PROVENANCE: (),
    DISTINCT_IDS: ("accept-length-denominator:distinct-ids",),
    FPM_DENOMINATOR: ("accept-length-denominator",),
}


def requests(*outputs_and_times: tuple[int, float]) -> list[Row]:
    """One request of four tokens for each (output, arrival)."""
    return [row(time, output_length=output, hash_ids=[number]) for number, (output, time) in enumerate(outputs_and_times)]


def accept_length(rows: list[Row], name: str, *, by_defect: bool = False, **more: Any) -> tuple[float | None, int]:
    """Accept length and forwards under a definition, chosen by name or by the defect that puts it there."""
    if by_defect:
        report = replay(rows, defects=DEFECT_OF[name], **more).report
    else:
        report = replay(rows, accept_length=name, **more).report
    return report["accept_length"], report["accept_forwards"]


@pytest.mark.parametrize("by_defect", [False, True])
@pytest.mark.parametrize(
    ("outputs_and_times", "buggy", "seed_proposal", "right"),
    [
        ([(2, 0), (1, 5)], (2.0, 1), (1.0, 3), (1.0, 1)),
        ([(3, 0), (1, 5)], (1.5, 2), (1.0, 4), (1.0, 2)),
        ([(7, 0), (2, 5)], (8 / 7, 7), (1.0, 9), (1.0, 7)),
        ([(2, 0), (1, 5), (1, 6)], (3.0, 1), (1.0, 4), (1.0, 1)),
        ([(2, 0)], (1.0, 1), (1.0, 2), (1.0, 1)),
        ([(1, 0)], (None, 0), (1.0, 1), (None, 0)),
        ([(0, 0)], (None, 0), (None, 0), (None, 0)),
    ],
)
def test_without_speculation(
    outputs_and_times: list[tuple[int, float]],
    buggy: tuple[float | None, int],
    seed_proposal: tuple[float | None, int],
    right: tuple[float | None, int],
    by_defect: bool,
) -> None:
    rows = requests(*outputs_and_times)
    assert accept_length(rows, FPM_DENOMINATOR, by_defect=by_defect) == buggy
    assert accept_length(rows, DISTINCT_IDS, by_defect=by_defect) == seed_proposal
    assert accept_length(rows, DECODE_PROVENANCE, by_defect=by_defect) == right


@pytest.mark.parametrize("name", list(DEFINITIONS))
def test_the_smallest_run_pass_by_pass(name: str) -> None:
    samples: list[tuple[int, int]] = []

    def watch(observation: Any) -> None:
        if hasattr(observation, "sample"):
            samples.append(observation.sample)

    replay(requests((2, 0), (1, 5)), accept_length=name, observer=watch)
    expected = {
        FPM_DENOMINATOR: [(1, 0), (2, 1)],
        DISTINCT_IDS: [(1, 1), (2, 2)],
        DECODE_PROVENANCE: [(0, 0), (1, 1)],
    }
    assert samples == expected[name]


@pytest.mark.parametrize(
    ("accepted", "output", "forwards", "length"),
    [
        (2, 1, 0, None),
        (2, 4, 1, 3.0),
        (2, 7, 2, 3.0),
        (2, 8, 2, 3.0),
        (1, 7, 3, 2.0),
        (0, 7, 6, 1.0),
    ],
)
def test_vllm_with_two_drafts(accepted: int, output: int, forwards: int, length: float | None) -> None:
    engine = {"speculation": {"draft_tokens": 2, "accepted": accepted}}
    assert accept_length(requests((output, 0)), DECODE_PROVENANCE, engine=engine) == (length, forwards)


@pytest.mark.parametrize(
    ("accepted", "output", "forwards", "length"),
    [(2, 1, 0, None), (2, 4, 1, 3.0), (2, 7, 2, 3.0), (2, 8, 3, 3.0), (1, 7, 3, 2.0), (0, 7, 6, 1.0)],
)
def test_sglang_with_two_drafts(accepted: int, output: int, forwards: int, length: float | None) -> None:
    # The toy engine gives a prefill one token and a decode a burst, as SGLang does.
    assert accept_length(requests((output, 0)), DECODE_PROVENANCE, toy={"burst": accepted + 1}) == (length, forwards)


def test_prefill_only_and_refused_requests_leave_the_accept_length_alone() -> None:
    rows = [*requests((7, 0), (1, 5)), row(5, input_length=65, hash_ids=list(range(100, 117)))]
    result = replay(rows, engine={"max_model_len": 64, "speculation": {"draft_tokens": 2, "accepted": 2}})
    report = result.report
    assert (report["completed_count"], report["rejected_count"]) == (2, 1)
    assert report["total_output_tokens"] == 8
    assert (report["accept_length"], report["accept_forwards"]) == (3.0, 2)


@pytest.mark.parametrize("workers", [1, 2])
def test_two_requests_on_one_worker_or_two(workers: int) -> None:
    engine = {"speculation": {"draft_tokens": 2, "accepted": 2}}
    rows = requests((4, 0), (4, 5))
    assert accept_length(rows, DECODE_PROVENANCE, engine=engine, workers=workers) == (3.0, 2)


def test_distinct_ids_are_too_few_accepted_tokens_under_speculation() -> None:
    length, forwards = accept_length(requests((7, 0)), DISTINCT_IDS, toy={"burst": 3})
    assert (length, forwards) == (7 / 3, 3)


@pytest.mark.parametrize(
    ("name", "expected"), [(DECODE_PROVENANCE, (3.0, 1)), (FPM_DENOMINATOR, (2.0, 1)), (DISTINCT_IDS, (1.5, 2))]
)
def test_a_burst_cut_by_the_output_limit_counts_whole(name: str, expected: tuple[float, int]) -> None:
    assert accept_length(requests((3, 0)), name, toy={"burst": 3}) == expected


def test_a_chunk_that_emits_nothing_contributes_nothing() -> None:
    rows = [row(0, input_length=16, hash_ids=[1, 2, 3, 4], output_length=2)]
    for name in DEFINITIONS:
        whole = accept_length(rows, name, engine={"max_num_batched_tokens": 64})
        assert accept_length(rows, name, engine={"max_num_batched_tokens": 4}) == whole


def test_every_window_has_the_accept_length_of_its_passes() -> None:
    engine = {"speculation": {"draft_tokens": 2, "accepted": 2}}
    result = replay(requests((4, 0), (4, 5)), engine=engine, window_ms=5)
    lengths = {window.accept_length for window in result.windows if window.accept_forwards}
    assert lengths == {3.0}
