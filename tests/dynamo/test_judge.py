from __future__ import annotations

from typing import Any

import attrs
import pytest

from adapters.dynamo.classes import CLASSES
from adapters.dynamo.compare import observe_model
from adapters.dynamo.judge import OBSERVABLE, judge
from adapters.observation import HANG, INVALID, STUCK, UNFINISHED, AcceptSample, AdmissionRecord, Observation
from adapters.workload import Workload
from invariants.framework import known_ids
from model.config import EngineConfig, Speculation
from model.requests import Prompt
from tests.dynamo.support import MS, NEW, arriving, sglang, vllm

LONG_NS = 10_000 * MS
CONFIG = vllm(4, 32, max_num_seqs=4, max_num_batched_tokens=16)
WORKLOAD = arriving((0, 8, 3), (0, 8, 3), (40, 4, 2))


def seen_of(config: EngineConfig, workload: Workload) -> Observation:
    return observe_model(config, workload, NEW, LONG_NS)


SEEN = seen_of(CONFIG, WORKLOAD)


def changed(part: str, position: int, **values: Any) -> Observation:
    entries = list(getattr(SEEN, part))
    entries[position] = attrs.evolve(entries[position], **values)
    replaced: dict[str, Any] = {part: tuple(entries)}
    return attrs.evolve(SEEN, **replaced)


def with_metrics(position: int, **values: Any) -> Observation:
    assert SEEN.passes is not None
    return changed("passes", position, metrics=attrs.evolve(SEEN.passes[position].metrics, **values))


@pytest.mark.parametrize("case_class", CLASSES, ids=lambda case_class: f"{case_class.scheduler}-{case_class.name}")
def test_the_right_model_breaks_nothing(case_class: Any) -> None:
    for number in range(6):
        case = case_class.case(number)
        config = attrs.evolve(case.config, defects=frozenset())
        assert judge(config, case.workload, seen_of(config, case.workload)).violations == ()


@pytest.mark.parametrize(
    ("seen", "id_"),
    [
        (with_metrics(0, sum_prefill_tokens=17), "token-budget"),
        (with_metrics(1, num_decode_requests=5), "slot-limit"),
        (changed("samples", 1, running=5), "slot-limit"),
        (changed("samples", 1, active_blocks=30, inactive_blocks=3), "block-conservation"),
        (changed("samples", 1, active_blocks=-1), "block-conservation"),
        (with_metrics(0, sum_prefill_tokens=8, num_prefill_requests=1, num_queued_prefill=1), "work-conservation"),
        (changed("requests", 0, admissions=(AdmissionRecord(12 * MS, 0, again=False),)), "arrival-order"),
        (changed("requests", 0, status="cancelled"), "terminal-once"),
        (changed("requests", 0, tokens=2), "output-exact"),
        (changed("requests", 0, terminal_ns=1), "clock-monotone"),
        (changed("requests", 2, arrival_ns=41 * MS), "clock-monotone"),
        (changed("requests", 0, admissions=(AdmissionRecord(0, 4, again=False),)), "prefix-hit-truth"),
        (attrs.evolve(SEEN, accepts=(AcceptSample(10 * MS, 3, 2),)), "accept-length"),
        (changed("samples", -1, preemptions=1), "metrics-identity"),
        (changed("samples", -1, active_blocks=1), "drains-empty"),
        (changed("requests", 1, status="rejected", tokens=0, admissions=()), "servable-finishes"),
        (attrs.evolve(SEEN, outcome=STUCK), "no-stall"),
        (attrs.evolve(SEEN, outcome=HANG), "finite-passes-per-instant"),
        (attrs.evolve(SEEN, outcome=HANG), "no-livelock"),
    ],
)
def test_a_figure_that_is_wrong_breaks_its_invariant(seen: Observation, id_: str) -> None:
    assert judge(CONFIG, WORKLOAD, SEEN).ids == ()
    assert id_ in judge(CONFIG, WORKLOAD, seen).ids


@pytest.mark.parametrize(
    ("reused", "broken"), [(8, None), (6, "not whole blocks"), (12, "it shares 10 with any other"), (32, "it has 12")]
)
def test_reuse_is_whole_blocks_that_somebody_shares(reused: int, broken: str | None) -> None:
    config = attrs.evolve(CONFIG, prefix_caching=True)
    one, two = arriving((0, 12, 1), (30, 12, 1)).requests
    shared = attrs.evolve(two, request=attrs.evolve(two.request, prompt=prompt_sharing(10, 12)))
    first = attrs.evolve(one, request=attrs.evolve(one.request, prompt=prompt_sharing(12, 12)))
    workload = Workload([first, shared])
    seen = seen_of(config, workload)
    record = attrs.evolve(seen.requests[1], admissions=(AdmissionRecord(30 * MS, reused, again=False),))
    messages = [
        violation.message
        for violation in judge(config, workload, attrs.evolve(seen, requests=(seen.requests[0], record))).violations
    ]
    assert (broken is None) is (not messages)
    assert broken is None or broken in messages[0]


def prompt_sharing(common: int, length: int) -> Prompt:
    return Prompt.of_streams([("A", common), (f"own {common}", length - common)])


@pytest.mark.parametrize(
    ("config", "workload", "defect", "ids"),
    [
        (vllm(4, 2, speculation=Speculation(1)), arriving((0, 8, 1)), "speculative-terminal-block", ("no-livelock",)),
        (sglang(4, 64, chunked_prefill_size=8), arriving((0, 4, 1), (0, 8, 1)), "sglang-chunk-budget", ("work-conservation",)),
    ],
)
def test_a_finding_of_the_catalogue_is_seen_from_outside(
    config: EngineConfig, workload: Workload, defect: str, ids: tuple[str, ...]
) -> None:
    assert judge(config, workload, seen_of(config, workload)).ids == ()
    faulty = seen_of(attrs.evolve(config, defects=[defect]), workload)
    assert set(ids) <= set(judge(config, workload, faulty).ids)


def test_requests_that_cannot_be_served_are_told_apart_from_those_that_can() -> None:
    config = vllm(4, 4, max_num_seqs=1, defects=["admits-unservable"])
    workload = arriving((0, 16, 9), (0, 4, 1))
    judgement = judge(config, workload, seen_of(config, workload))
    assert {(violation.invariant, violation.message.split()[0]) for violation in judgement.violations} >= {
        ("unservable-refused", "r0"),
        ("servable-finishes", "r1"),
        ("no-starvation", "r1"),
    }


def test_a_refused_configuration_is_nobodys_fault() -> None:
    refused = Observation("dynamo 1.6.1", INVALID, 0, detail="no")
    judgement = judge(CONFIG, WORKLOAD, refused)
    assert (judgement.violations, judgement.exercised) == ((), {})


def test_every_id_judged_is_in_the_catalogue_and_the_others_are_not_observable() -> None:
    assert set(known_ids()) >= OBSERVABLE
    judgement = judge(CONFIG, WORKLOAD, SEEN)
    assert set(judgement.not_observable) == set(known_ids()) - OBSERVABLE
    assert {"refcount-exact", "events-mirror-cache"} <= set(judgement.not_observable)
    assert set(judgement.exercised) <= OBSERVABLE


def test_unfinished_requests_of_a_long_run_are_a_livelock_only_when_passes_recur() -> None:
    config = vllm(4, 64)
    workload = arriving((0, 8, 100))
    short = observe_model(config, workload, NEW, 300 * MS)
    assert short.requests[0].status == UNFINISHED
    assert judge(config, workload, short).ids == ("servable-finishes",)
