"""Fuzzing the simulated engine: random cases it accepts, the invariants that can be seen, the smallest case that breaks one.

Every request is servable by itself unless asked otherwise. A case is run plain first, with so much virtual time that
running out of it means no progress; only then its passes are looked at.

What is found is *attributed*: to the defects of our catalogue that, each switched on alone in the right model, break the same
invariant on the same case. So findings known already can be left aside by name, and what no defect explains stands out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from itertools import groupby
from typing import Any

import attrs
from attrs import define, field, frozen
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st

from adapters.cases import case_of
from adapters.dynamo.compare import Difference, compare, observe_model
from adapters.dynamo.judge import Judgement, judge
from adapters.dynamo.release import Release
from adapters.dynamo.run import patience_ns, run_judged, tail_ns
from adapters.dynamo.wheel import Wheel
from adapters.observation import HANG, INVALID, Observation
from adapters.workload import TimedRequest, Workload
from model.build import build_engine
from model.case import Case
from model.config import NANOSECONDS_PER_MS, EngineConfig, Speculation, Timing
from model.defects import CATALOGUE, named_set
from model.requests import Prompt, RequestSpec

QUIET = settings(
    deadline=None,
    database=None,
    print_blob=False,
    report_multiple_bugs=False,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
DRAFTS_MAX = 3
REQUESTS_MAX = 6
BLOCKS_MAX = 8
LENGTH_MAX = 24
GAP_MS_MAX = 30
CONSEQUENCES = frozenset({"servable-finishes", "unservable-refused", "no-starvation"})
STORY_LINES_MAX = 40
TOGETHER = "several defects together"
UNEXPLAINED = "unexplained"
REPORTED = "accept-length-denominator"
"""Finding 3: the right model shows it too once forwards are counted as the older release counts them."""


@st.composite
def configs(draw: st.DrawFn, release: Release, scheduler: str, speculation: bool | None = None) -> EngineConfig:
    """Configurations that ``release`` accepts, small ones first.

    Args:
        draw: given by Hypothesis.
        release: of the engine.
        scheduler: whose policy.
        speculation: with it (True), without (False), or both.
    """
    radix = scheduler == "sglang"
    block_size = draw(st.sampled_from((1, 2, 3, 4) if radix else (2, 3, 4)))
    num_blocks = draw(st.integers(1, BLOCKS_MAX))
    capacity = block_size * num_blocks
    options: dict[str, Any] = {}
    if radix:
        options["chunked_prefill_size"] = block_size * draw(st.integers(1, num_blocks))
        options["max_prefill_tokens"] = draw(st.sampled_from((16384, capacity, block_size)))
        options["schedule_policy"] = draw(st.sampled_from(("fcfs", "lpm")))
        options["schedule_conservativeness"] = draw(st.sampled_from((1.0, 0.5, 0.0)))
        options["clip_max_new_tokens"] = draw(st.sampled_from((4096, 4, 1)))
        if release.mapping:
            options["prefill_decode_interval"] = draw(st.integers(0, 2))
    else:
        options["max_num_batched_tokens"] = draw(st.one_of(st.none(), st.integers(1, capacity + block_size)))
        options["chunked_prefill"] = draw(st.sampled_from((True, True, False)))
    if scheduler == "vllm":
        options["preemption"] = draw(st.sampled_from(("lifo", "fifo")))
    if scheduler == "vllm" or (radix and release.mapping):
        options["max_model_len"] = draw(st.one_of(st.none(), st.integers(2, capacity + 2)))
    if draw(st.booleans()) if speculation is None else speculation:
        drafts = draw(st.integers(1, DRAFTS_MAX))
        options["speculation"] = Speculation(drafts, draw(st.integers(0, drafts)))
    return EngineConfig(
        scheduler=scheduler,
        block_size=block_size,
        num_blocks=num_blocks,
        max_num_seqs=draw(st.one_of(st.none(), st.integers(1, 4))),
        prefix_caching=draw(st.booleans()),
        timing=Timing(
            prefill_ms=draw(st.sampled_from((10, 3, 1))), prefill_ms_per_token=0, decode_ms=draw(st.sampled_from((5, 2, 1)))
        ),
        implementation="dynamo",
        **options,
    )


@st.composite
def workloads(draw: st.DrawFn, config: EngineConfig, satisfiable: bool = True) -> Workload:
    """Requests for ``config``, few and short ones first; many prompts begin alike.

    The bounds of what is drawn do not depend on the geometry, and output is drawn as what is left of the room for it: so a
    case keeps its edges while the geometry shrinks. A request is few draws, so that shrinking can leave it out.

    Args:
        draw: given by Hypothesis.
        config: of the engine.
        satisfiable: each could be served alone.
    """
    capacity = config.block_size * config.num_blocks
    right = build_engine(attrs.evolve(config, implementation="model"))
    arrival_ms = 0
    requests = []
    lengths = st.integers(0, LENGTH_MAX)
    request = st.tuples(st.integers(0, GAP_MS_MAX), lengths, lengths, lengths)
    for number, (gap_ms, more, own, unused) in enumerate(draw(st.lists(request, min_size=1, max_size=REQUESTS_MAX))):
        arrival_ms += gap_ms
        name = f"r{number}"
        length = min(1 + more, capacity if satisfiable else capacity + 2)
        prompt = Prompt.of_streams([("A", max(length - own, 0)), (name, min(own, length))])
        room = capacity + 1 - length if satisfiable else capacity + 3 - length
        fitting = (RequestSpec(name, prompt, output) for output in range(max(room - unused, 0), -1, -1))
        spec = next((spec for spec in fitting if not satisfiable or right.servable(spec)), None)
        assume(spec is not None)
        assert spec is not None
        requests.append(TimedRequest(spec, arrival_ms * NANOSECONDS_PER_MS))
    return Workload(requests)


def attribution(
    config: EngineConfig, workload: Workload, release: Release, ids: Iterable[str], candidates: Iterable[str] | None = None
) -> tuple[str, ...]:
    """The defects that explain what broke: each of them alone, in the right model, breaks one of ``ids`` on this case.

    Args:
        config: of the engine.
        workload: what arrived.
        release: whose timing and counting the model takes on.
        ids: what is broken.
        candidates: the defects to try; all of the scheduler by default.

    Returns:
        Their ids, sorted: those that the newest release still has, else older ones. ``REPORTED`` when the count of the
        release is enough, ``TOGETHER`` when it takes several that the newest release has, ``UNEXPLAINED`` when nothing will do.
    """
    # That requests are left is a consequence; what shows itself in a cycle or a pass tells defects better apart.
    broken = frozenset(ids) - CONSEQUENCES or frozenset(ids)
    patience = patience_ns(config, workload)
    right = observe_model(attrs.evolve(config, defects=frozenset()), workload, release, patience)
    if not broken.isdisjoint(judge(config, workload, right).ids):
        return (REPORTED,)
    ended = max((int(record.terminal_ns or 0) for record in right.requests), default=0)
    cap = patience if broken <= CONSEQUENCES else min(patience, 2 * ended + tail_ns(config))

    def breaks(*defects: str) -> bool:
        faulty = attrs.evolve(config, defects=frozenset(defects))
        return not broken.isdisjoint(judge(faulty, workload, observe_model(faulty, workload, release, cap)).ids)

    if candidates is not None:
        return tuple(filter(breaks, candidates)) or (UNEXPLAINED,)
    touching = sorted(id_ for id_, defect in CATALOGUE.items() if config.scheduler in defect.schedulers)
    newest = [id_ for id_ in touching if CATALOGUE[id_].upstream]
    older = [id_ for id_ in touching if id_ not in newest]
    alone = tuple(filter(breaks, newest)) or tuple(filter(breaks, older))
    return alone or ((TOGETHER,) if breaks(*named_set("upstream", config.scheduler)) else (UNEXPLAINED,))


@frozen
class Failure:
    """A case that breaks something on the engine.

    Attributes:
        case: the case, to be replayed.
        config, workload: what it holds.
        seen: what came of it.
        judgement: what is broken.
        attributed: to which defects; see ``attribution``.
    """

    case: Case
    config: EngineConfig
    workload: Workload
    seen: Observation
    judgement: Judgement
    attributed: tuple[str, ...]

    def story(self) -> str:
        """The case and what is wrong with it, for a reader."""
        config = ", ".join(f"{name} {value}" for name, value in self.config.to_json().items() if name != "implementation")
        lines = [f"{self.seen.source}: {config}"]
        for timed in self.workload.requests:
            at = f"{timed.arrival_ns / NANOSECONDS_PER_MS:g} ms"
            lines.append(f"  {at}: {timed.id} arrives, prompt {timed.prompt.length} tokens, output {timed.output}")
        for metrics, group in groupby(self.seen.passes or (), key=lambda record: record.metrics):
            ends = [f"{record.end_ns / NANOSECONDS_PER_MS:g}" for record in group]
            until = ends[0] if len(ends) == 1 else f"{ends[0]} … {ends[-1]}"
            lines.append(
                f"  {until} ms: {'a pass ends' if len(ends) == 1 else f'{len(ends)} passes end'}, "
                f"prefill {metrics.num_prefill_requests} ({metrics.sum_prefill_tokens} tokens), "
                f"decode {metrics.num_decode_requests}, queued {metrics.num_queued_prefill} new and "
                f"{metrics.num_queued_decode} preempted"
            )
            if len(lines) > STORY_LINES_MAX:
                lines.append("  …")
                break
        lines += [f"{violation.invariant}: {violation.message}" for violation in self.judgement.violations]
        return "\n".join(lines)


@define
class FuzzResult:
    """What a campaign came to.

    Attributes:
        examples: cases run, those of shrinking included.
        found_after: cases run when the failure was met first; None without one.
        seconds: wall time.
        failure: the smallest failing case.
        hits: how often each attribution was met, those left aside included, shrinking not.
        refused: cases that the engine did not accept.
        exercised: how often each invariant met its subject.
        not_observable: ids that cannot be judged.
    """

    examples: int = 0
    found_after: int | None = None
    seconds: float = 0.0
    failure: Failure | None = None
    hits: Counter[tuple[str, ...]] = field(factory=Counter)
    refused: int = 0
    exercised: Counter[str] = field(factory=Counter)
    not_observable: tuple[str, ...] = ()


class _Broken(AssertionError):
    """A case broke an invariant."""


def fuzz(
    wheel: Wheel,
    scheduler: str,
    *,
    examples: int = 500,
    speculation: bool | None = None,
    satisfiable: bool = True,
    known: Iterable[str] = (),
    ignored: Iterable[str] = (),
    seed_value: int = 0,
    seconds: float | None = None,
) -> FuzzResult:
    """Look for a case that breaks an invariant, and shrink it.

    Args:
        wheel: the engine.
        scheduler: whose policy.
        examples: how many cases to try.
        speculation: with it, without it, or (None) both.
        satisfiable: every request could be served alone.
        known: defects whose findings are counted and left aside.
        ignored: invariants that are not judged.
        seed_value: of the random choices; equal seeds try equal cases.
        seconds: stop trying after so much time.
    """
    aside, unjudged = frozenset(known), frozenset(ignored)
    result = FuzzResult()
    start = time.monotonic()
    wanted: set[str] = set()

    @seed(seed_value)
    @settings(QUIET, max_examples=examples)
    @given(st.data())
    def attempt(data: st.DataObject) -> None:
        shrinking = result.failure is not None
        if not shrinking and seconds is not None and time.monotonic() - start > seconds:
            return
        config = data.draw(configs(wheel.release, scheduler, speculation))
        workload = data.draw(workloads(config, satisfiable))
        seen, judgement = run_judged(config, workload, wheel, before_hang=False)
        result.examples += 1
        if seen.outcome == INVALID:
            result.refused += 1
            return
        result.not_observable = judgement.not_observable
        if not shrinking:
            result.exercised.update(judgement.exercised)
        ids = set(judgement.ids) - unjudged
        if not ids or (wanted and wanted.isdisjoint(ids)):
            return
        if result.failure is not None:
            # Shrinking stays with what was found first.
            attributed = result.failure.attributed
            if attribution(config, workload, wheel.release, ids, _named(attributed)) != attributed:
                return
        else:
            attributed = attribution(config, workload, wheel.release, ids)
            result.hits[attributed] += 1
            if not aside.isdisjoint(attributed):
                return
            result.found_after = result.examples
            wanted.update(ids)
        result.failure = _failure(config, workload, seen, judgement, attributed)
        raise _Broken

    with suppress(_Broken):
        attempt()
    found = result.failure
    if found is not None and found.seen.outcome == HANG:
        again = run_judged(found.config, found.workload, wheel)
        result.failure = _failure(found.config, found.workload, *again, found.attributed)
    result.seconds = time.monotonic() - start
    return result


def _failure(
    config: EngineConfig, workload: Workload, seen: Observation, judgement: Judgement, attributed: tuple[str, ...]
) -> Failure:
    first = judgement.violations[0]
    title = f"{first.invariant} on {seen.source}: {first.message}"
    case = case_of(config, workload, title=title, source=f"fuzzing {seen.source}", violates=judgement.ids)
    return Failure(case, config, workload, seen, judgement, attributed)


def find_difference(
    wheel: Wheel,
    scheduler: str,
    *,
    examples: int = 500,
    speculation: bool | None = None,
    satisfiable: bool = True,
    defects: object = "upstream",
    seed_value: int = 0,
) -> Difference | None:
    """Look for a case on which our model and the engine differ, and shrink it; None when there is none.

    Args:
        wheel: the engine.
        scheduler: whose policy.
        examples: how many cases to try.
        speculation: with it, without it, or (None) both.
        satisfiable: every request could be served alone.
        defects: of our model.
        seed_value: of the random choices.
    """
    found: list[Difference] = []

    @seed(seed_value)
    @settings(QUIET, max_examples=examples)
    @given(st.data())
    def attempt(data: st.DataObject) -> None:
        config = attrs.evolve(data.draw(configs(wheel.release, scheduler, speculation)), defects=defects)
        difference = compare(data.draw(workloads(config, satisfiable)), config, wheel)
        if difference is not None:
            found.append(difference)
            raise _Broken

    with suppress(_Broken):
        attempt()
    return found[-1] if found else None


@define
class Campaign:
    """What was found in one scheduler, the smallest case of each kind.

    Attributes:
        failures: one for each attribution.
        last: the run in which all of them were left aside, with how often each was met; it failed to find another, unless
            ``complete`` is false.
        complete: nothing but what is in ``failures`` was met in the last run.
    """

    failures: list[Failure]
    last: FuzzResult
    complete: bool


def campaign(wheel: Wheel, scheduler: str, *, known: Iterable[str] = (), seed_value: int = 0, **options: Any) -> Campaign:
    """Fuzz again and again, leaving aside what was found, until a whole run finds nothing new.

    Args:
        wheel: the engine.
        scheduler: whose policy.
        known: defects left aside from the start.
        seed_value: of the first run; each later one takes the next.
        options: as ``fuzz`` takes them.
    """
    aside = list(known)
    failures: list[Failure] = []
    while True:
        result = fuzz(wheel, scheduler, known=aside, seed_value=seed_value + len(failures), **options)
        if result.failure is None:
            return Campaign(failures, result, complete=True)
        failures.append(result.failure)
        if result.failure.attributed in ((UNEXPLAINED,), (TOGETHER,)):
            return Campaign(failures, result, complete=False)
        aside += result.failure.attributed


def _named(attributed: tuple[str, ...]) -> tuple[str, ...] | None:
    """The defects to try again; None for all, where none was named."""
    return None if attributed in ((UNEXPLAINED,), (TOGETHER,), (REPORTED,)) else attributed
