"""One case on the simulated engine, judged: with so much virtual time that running out of it means no progress."""

from __future__ import annotations

from adapters.cases import fixed_times, workload_of
from adapters.dynamo.judge import PERIOD_MAX, REPEATS, Judgement, judge
from adapters.dynamo.wheel import Wheel
from adapters.observation import Observation
from adapters.workload import Workload
from model.case import Case
from model.config import NANOSECONDS_PER_MS, EngineConfig, nanoseconds


def run_case(case: Case, wheel: Wheel) -> tuple[Observation, Judgement]:
    """Run and judge a case of the case format, under fixed pass times.

    Raises:
        BadInput: for what a timed workload cannot hold, or the engine cannot be told.
    """
    return run_judged(fixed_times(case.engine), workload_of(case), wheel)


def patience_ns(config: EngineConfig, workload: Workload) -> int:
    """Virtual time in which every request ends if there is any progress at all.

    A pass that makes progress computes a token or produces one; a preemption may have everything that a request computed
    computed again, and is paid for by a token of another.
    """
    timing = config.timing
    longest_pass = max(nanoseconds(timing.prefill_ms + timing.decode_ms), NANOSECONDS_PER_MS)
    tokens = sum(timed.prompt.length + timed.output for timed in workload.requests)
    passes = 64 + 2 * tokens * (1 + len(workload.requests))
    return int(workload.last_arrival_ns) + passes * longest_pass


def run_judged(
    config: EngineConfig, workload: Workload, wheel: Wheel, *, before_hang: bool = True
) -> tuple[Observation, Judgement]:
    """Run a case on the engine and judge it by all that can be seen.

    Args:
        config: of the engine.
        workload: what arrives.
        wheel: the engine.
        before_hang: as for ``Wheel.run``.

    Raises:
        BadInput: for what the engine cannot be told.
    """
    cap, tail = patience_ns(config, workload), tail_ns(config)
    seen = wheel.run(config, workload, cap_ns=cap, tail_ns=tail, before_hang=before_hang)
    return seen, judge(config, workload, seen)


def tail_ns(config: EngineConfig) -> int:
    """Virtual time in which a cycle of passes shows."""
    return PERIOD_MAX * REPEATS * nanoseconds(config.timing.prefill_ms + config.timing.decode_ms + 1)
