from __future__ import annotations

import sys
from pathlib import Path

import pytest

from adapters.dynamo.wheel import Wheel, WheelMissing
from adapters.observation import BOUNDED, FINISHED, HANG, INVALID, OK, REJECTED, STUCK, UNFINISHED
from adapters.workload import TimedRequest, Workload
from model import engine as parts
from model.config import Speculation, Timing
from model.errors import BadInput
from model.requests import Prompt, RequestSpec
from tests.dynamo.support import MS, arriving, sglang, vllm

CAP = 1000 * MS
DEADLOCK = sglang(1, 4, chunked_prefill_size=1, clip_max_new_tokens=1)
TWO_IN_THE_WAY = arriving((0, 1, 3), (0, 2, 2))


def test_an_interpreter_without_the_wheel_is_told_so(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(WheelMissing, match="No module named 'dynamo'"):
        Wheel(str(bare))


def test_a_request_keeps_its_name_whatever_it_is_and_whoever_looks_like_it(wheel: Wheel) -> None:
    names = ["x" * 300, "sentinel", '"', "1", "0"]
    workload = Workload(TimedRequest(RequestSpec(name, Prompt.of_streams([("A", 4)]), 2), 0) for name in names)
    seen = wheel.run(vllm(4, 32, max_num_seqs=1), workload, cap_ns=CAP)
    assert [record.id for record in seen.requests] == names
    firsts = [record.first_token_ns for record in seen.requests]
    assert None not in firsts
    assert firsts == sorted(firsts, key=lambda at: at or 0)


def test_every_pass_is_seen_to_the_last_one(wheel: Wheel) -> None:
    seen = wheel.run(vllm(4, 16), arriving((0, 8, 3), (100, 4, 1)), cap_ns=CAP)
    assert seen.outcome == OK
    assert [record.metrics.num_prefill_requests for record in seen.passes or ()] == [1, 0, 0, 1]
    assert (seen.passes or ())[-1].end_ns == max(record.terminal_ns or 0 for record in seen.requests)


def test_a_refused_request_is_rejected_and_others_go_on(wheel: Wheel) -> None:
    seen = wheel.run(vllm(4, 2), arriving((0, 12, 1), (0, 4, 1)), cap_ns=CAP)
    assert [record.status for record in seen.requests] == [REJECTED, FINISHED]


def test_a_refused_configuration_is_invalid_and_says_why(wheel: Wheel) -> None:
    seen = wheel.run(vllm(1, 4), arriving((0, 2, 1)), cap_ns=CAP)
    assert (seen.outcome, seen.requests) == (INVALID, ())
    assert "block_size" in seen.detail


def test_a_livelock_that_takes_time_is_bounded_by_the_cap(wheel: Wheel) -> None:
    seen = wheel.run(vllm(4, 2, speculation=Speculation(1)), arriving((0, 8, 1)), cap_ns=CAP)
    assert (seen.outcome, seen.unfinished) == (BOUNDED, ("r0",))
    assert {record.metrics.sum_prefill_tokens for record in seen.passes or ()} == {8}


def test_a_dead_end_is_stuck_in_the_words_of_the_engine(wheel: Wheel) -> None:
    seen = wheel.run(vllm(4, 8, chunked_prefill=False, max_num_batched_tokens=4), arriving((0, 8, 1)), cap_ns=CAP)
    assert (seen.outcome, seen.unfinished) == (STUCK, ("r0",))
    assert "effect-free" in seen.detail


def test_of_a_replay_that_fails_on_the_spot_what_came_before_is_seen(wheel: Wheel) -> None:
    seen = wheel.run(sglang(4, 2), arriving((0, 4, 1), (20, 8, 1)), cap_ns=CAP)
    assert seen.outcome == STUCK
    assert [record.status for record in seen.requests] == [FINISHED, UNFINISHED]
    assert seen.cap_ns < 20 * MS
    assert len(seen.passes or ()) == 1


def test_a_hang_is_killed_with_what_came_before_and_the_next_run_works(wheel: Wheel) -> None:
    kills = wheel.kills
    seen = wheel.run(DEADLOCK, TWO_IN_THE_WAY, cap_ns=CAP)
    assert (seen.outcome, seen.unfinished) == (HANG, ("r0", "r1"))
    assert wheel.kills > kills
    assert seen.cap_ns > 0
    # The older release ends its first pass with a token, the newer one prefills once more.
    assert len(seen.passes or ()) in (1, 2)
    assert wheel.run(vllm(4, 16), arriving((0, 8, 1)), cap_ns=CAP).outcome == OK


def test_a_hang_at_the_very_start_shows_nothing(wheel: Wheel) -> None:
    timing = Timing(prefill_ms=0, prefill_ms_per_token=0, decode_ms=5)
    seen = wheel.run(vllm(4, 2, speculation=Speculation(1), timing=timing), arriving((0, 8, 1)), cap_ns=CAP)
    assert (seen.outcome, seen.cap_ns) == (HANG, 0)


def test_nothing_that_the_engine_prints_is_seen(wheel: Wheel, capfd: pytest.CaptureFixture[str]) -> None:
    wheel.run(DEADLOCK, TWO_IN_THE_WAY, cap_ns=CAP, before_hang=False)
    assert capfd.readouterr() == ("", "")


def test_what_is_not_shown_is_named(wheel: Wheel) -> None:
    seen = wheel.run(vllm(4, 16), arriving((0, 8, 1)), cap_ns=CAP)
    assert {parts.BLOCKS, parts.EVENTS, parts.WORK, parts.TREE, parts.STATE} <= seen.not_observable
    assert (parts.POOL in seen.not_observable) is not wheel.release.shows_counters
    assert (seen.samples is not None) is wheel.release.shows_counters


def test_a_run_without_recording_sees_the_same_fates(wheel: Wheel) -> None:
    config, workload = vllm(4, 6, max_num_batched_tokens=16), arriving((0, 8, 8), (0, 8, 8), (7, 4, 2))
    recorded = wheel.run(config, workload, cap_ns=CAP)
    plain = wheel.run(config, workload, cap_ns=CAP, record=False)
    assert plain.requests == recorded.requests
    assert (plain.passes, plain.samples, plain.accepts) == (None, None, None)


def test_planned_tokens_of_an_answer_are_found_by_the_prompt_that_continues_it(wheel: Wheel) -> None:
    first = RequestSpec("first", Prompt.of_tokens([1, 2, 3, 4]), 5, (5, 6, 7, 8, 9))
    second = RequestSpec("second", Prompt.of_tokens([1, 2, 3, 4, 5, 6, 7, 8, 10]), 1)
    workload = Workload([TimedRequest(first, 0), TimedRequest(second, 100 * MS)])
    seen = wheel.run(vllm(4, 16, prefix_caching=True), workload, cap_ns=CAP)
    assert seen.requests[1].reused == 8


def test_a_workload_without_requests_is_refused(wheel: Wheel) -> None:
    with pytest.raises(BadInput, match="at least one"):
        wheel.run(vllm(4, 16), arriving(), cap_ns=CAP)
