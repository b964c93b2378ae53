from __future__ import annotations

import attrs
import pytest

from adapters.observation import BOUNDED, FINISHED, HANG, OK, REJECTED, STUCK, UNFINISHED, Observation
from adapters.timed import run_timed
from adapters.workload import Workload
from model.build import build_engine
from model.config import EngineConfig, Speculation, Timing
from tests.dynamo.support import MS, arriving, sglang, vllm


def run(config: EngineConfig, workload: Workload, cap_ms: int = 1000) -> Observation:
    return run_timed(build_engine(config), workload, cap_ns=cap_ms * MS)


def test_admissions_carry_the_start_of_their_pass_and_tokens_its_end() -> None:
    seen = run(vllm(4, 16), arriving((0, 8, 2)))
    (record,) = seen.requests
    assert [admission.at_ns for admission in record.admissions] == [0]
    assert (record.first_token_ns, record.last_token_ns, record.terminal_ns) == (10 * MS, 15 * MS, 15 * MS)
    assert (record.status, record.tokens, seen.outcome) == (FINISHED, 2, OK)


@pytest.mark.parametrize(("arrival_ms", "admitted_ms"), [(0, 0), (3, 10), (10, 10), (11, 15)])
def test_an_arrival_not_after_the_end_of_a_pass_joins_the_next(arrival_ms: int, admitted_ms: int) -> None:
    seen = run(vllm(4, 16), arriving((0, 8, 3), (arrival_ms, 4, 1)))
    assert seen.requests[1].admissions[0].at_ns == admitted_ms * MS


def test_an_idle_engine_starts_at_the_arrival() -> None:
    seen = run(vllm(4, 16), arriving((0, 8, 1), (123, 8, 1)))
    assert seen.requests[1].first_token_ns == 133 * MS


def test_a_pass_record_holds_the_queue_behind_the_pass_without_later_arrivals() -> None:
    seen = run(vllm(4, 16, max_num_seqs=1), arriving((0, 8, 1), (0, 4, 1), (5, 4, 1)))
    assert seen.passes is not None
    first = seen.passes[0]
    assert (first.end_ns, first.metrics.num_queued_prefill, first.metrics.sum_queued_prefill_tokens) == (10 * MS, 1, 4)


def test_counters_change_at_ends_of_passes_and_at_arrivals_which_see_the_pass_under_way() -> None:
    seen = run(vllm(4, 16), arriving((0, 8, 2), (4, 4, 1)))
    assert seen.samples is not None
    shown = [(sample.at_ns // MS, sample.active_blocks, sample.running, sample.waiting) for sample in seen.samples]
    assert shown == [(0, 0, 0, 1), (4, 2, 1, 1), (25, 0, 0, 0)]


def test_a_request_that_is_refused_ends_with_the_pass_and_without_admission() -> None:
    seen = run(vllm(4, 2), arriving((0, 12, 1)))
    (record,) = seen.requests
    assert (record.status, record.terminal_ns, record.admissions) == (REJECTED, 0, ())


def test_a_paged_engine_that_does_nothing_goes_on_with_the_next_arrival() -> None:
    config = vllm(4, 8, chunked_prefill=False, max_num_batched_tokens=4, defects=["admits-unservable"])
    seen = run(config, arriving((0, 8, 1), (50, 4, 1)))
    assert (seen.outcome, seen.unfinished, seen.cap_ns) == (STUCK, ("r0", "r1"), 1000 * MS)
    assert seen.passes == ()


def test_a_radix_engine_that_does_nothing_ends_the_run_there() -> None:
    config = sglang(4, 2, defects=["radix-admits-unservable"])
    seen = run(config, arriving((0, 4, 1), (20, 8, 1), (50, 1, 1)))
    assert (seen.outcome, seen.cap_ns) == (STUCK, 20 * MS)
    assert [record.status for record in seen.requests] == [FINISHED, UNFINISHED, UNFINISHED]


def test_passes_that_lead_nowhere_in_no_time_are_a_hang_at_their_instant() -> None:
    timing = Timing(prefill_ms=0, prefill_ms_per_token=0, decode_ms=5)
    config = vllm(4, 2, speculation=Speculation(1), timing=timing, defects=["speculative-terminal-block"])
    seen = run(config, arriving((0, 4, 1), (30, 8, 1)))
    assert (seen.outcome, seen.cap_ns, seen.unfinished) == (HANG, 30 * MS, ("r1",))


def test_what_ends_at_the_cap_is_seen_and_nothing_behind_it() -> None:
    seen = run(vllm(4, 16), arriving((0, 8, 1), (0, 8, 2), (100, 8, 1)), cap_ms=10)
    assert seen.outcome == BOUNDED
    assert [record.status for record in seen.requests] == [FINISHED, UNFINISHED, UNFINISHED]
    assert seen.passes is not None
    assert [record.end_ns for record in seen.passes] == [10 * MS]


def test_of_passes_at_one_instant_the_last_is_seen() -> None:
    timing = Timing(prefill_ms=10, prefill_ms_per_token=0, decode_ms=0)
    seen = run(vllm(4, 16, timing=timing), arriving((0, 8, 3)))
    assert seen.passes is not None
    (record,) = seen.passes
    assert (record.end_ns, record.metrics.num_decode_requests, record.metrics.sum_decode_kv_tokens) == (10 * MS, 1, 10)
    assert seen.accepts is not None
    assert [(sample.tokens, sample.forwards) for sample in seen.accepts] == [(2, 2)]


def test_a_request_admitted_again_says_so() -> None:
    seen = run(vllm(4, 6, max_num_seqs=2, max_num_batched_tokens=16), arriving((0, 8, 8), (0, 8, 8)))
    assert [admission.again for admission in seen.requests[1].admissions] == [False, True]
    assert seen.samples is not None
    assert seen.samples[-1].preemptions == 1


def test_the_run_of_a_fresh_engine_is_repeatable() -> None:
    config, workload = vllm(2, 5, prefix_caching=True), arriving((0, 4, 3), (7, 5, 2), (7, 2, 4))
    assert run(config, workload) == run(config, workload)
    assert attrs.evolve(run(config, workload), cap_ns=0) != run(config, workload)
