from __future__ import annotations

from fractions import Fraction
from typing import Any

import attrs
import pytest

from adapters.dynamo.compare import CAP_NS, Difference, difference, observe_model
from adapters.observation import STUCK, Observation
from model.config import EngineConfig
from tests.dynamo.support import MS, NEW, OLD, arriving, sglang, vllm

CONFIG = vllm(4, 6, max_num_seqs=2, max_num_batched_tokens=16)
WORKLOAD = arriving((0, 8, 8), (0, 8, 8), (40, 4, 2))
SEEN = observe_model(CONFIG, WORKLOAD, NEW)


def compared(theirs: Observation, config: EngineConfig = CONFIG) -> Difference | None:
    return difference(SEEN, theirs, config, WORKLOAD)


def changed(part: str, position: int, **values: Any) -> Observation:
    """The observation with one entry of a part changed."""
    entries = list(getattr(SEEN, part))
    entries[position] = attrs.evolve(entries[position], **values)
    replaced: dict[str, Any] = {part: tuple(entries)}
    return attrs.evolve(SEEN, **replaced)


def test_equal_observations_do_not_differ() -> None:
    assert compared(attrs.evolve(SEEN, source="dynamo 1.6.1")) is None


@pytest.mark.parametrize(
    ("theirs", "what"),
    [
        (attrs.evolve(SEEN, outcome=STUCK), "outcome"),
        (changed("requests", 1, reused=4), "reused of request r1"),
        (changed("requests", 0, terminal_ns=0), "terminal_ns of request r0"),
        (changed("samples", 2, preemptions=9), "preemptions of counters 2"),
        (changed("accepts", 0, tokens=5), "tokens of accepted 0"),
        (attrs.evolve(SEEN, passes=(SEEN.passes or ())[:-1]), "one more pass"),
    ],
)
def test_the_figure_that_differs_is_named(theirs: Observation, what: str) -> None:
    found = compared(theirs)
    assert found is not None
    assert found.what == what


def test_the_first_difference_in_time_is_told_with_the_passes_before_it() -> None:
    assert SEEN.passes is not None
    late, early = SEEN.passes[4], SEEN.passes[2]
    passes = list(SEEN.passes)
    passes[4] = attrs.evolve(late, metrics=attrs.evolve(late.metrics, num_decode_requests=7))
    passes[2] = attrs.evolve(early, metrics=attrs.evolve(early.metrics, sum_decode_kv_tokens=1))
    found = compared(attrs.evolve(SEEN, passes=tuple(passes)))
    assert found is not None
    assert (found.what, found.at_ns) == ("sum_decode_kv_tokens of pass 2", early.end_ns)
    assert len(found.before) == 2
    assert "sum_decode_kv_tokens" in found.story()


def test_variances_differ_only_beyond_rounding() -> None:
    assert SEEN.passes is not None
    first = SEEN.passes[0]
    for off, differs in ((1e-13, False), (1e-3, True)):
        metrics = attrs.evolve(first.metrics, var_prefill_length=first.metrics.var_prefill_length + Fraction(off))
        theirs = attrs.evolve(SEEN, passes=(attrs.evolve(first, metrics=metrics), *SEEN.passes[1:]))
        assert (compared(theirs) is not None) is differs


def test_what_one_side_does_not_show_is_not_compared() -> None:
    assert compared(attrs.evolve(SEEN, samples=None, accepts=None, passes=None)) is None


def test_with_sglang_cached_pages_may_count_as_active_and_retractions_not_at_all() -> None:
    assert SEEN.samples is not None
    config = sglang(4, 6)
    folded = [
        attrs.evolve(sample, active_blocks=sample.active_blocks + sample.inactive_blocks, inactive_blocks=0, preemptions=0)
        for sample in SEEN.samples
    ]
    assert compared(attrs.evolve(SEEN, samples=tuple(folded))) is not None
    assert compared(attrs.evolve(SEEN, samples=tuple(folded)), config) is None


def test_an_older_release_adds_decode_time_to_first_tokens_and_has_a_least_one() -> None:
    workload = arriving((0, 8, 2))
    newer, older = (observe_model(vllm(4, 16), workload, release).requests[0] for release in (NEW, OLD))
    assert (newer.first_token_ns, newer.last_token_ns) == (10 * MS, 15 * MS)
    assert (older.first_token_ns, older.last_token_ns) == (15 * MS, 20 * MS)
    quick = attrs.evolve(vllm(4, 16), timing=attrs.evolve(CONFIG.timing, decode_ms=0))
    assert observe_model(quick, workload, OLD).requests[0].last_token_ns == 12 * MS


def test_an_older_release_counts_first_tokens_as_accepted() -> None:
    seen = observe_model(vllm(4, 16), arriving((0, 4, 2), (5, 4, 1)), OLD)
    assert [(sample.tokens, sample.forwards) for sample in seen.accepts or ()] == [(2, 1)]


def test_runs_are_followed_up_to_the_cap() -> None:
    assert SEEN.cap_ns == CAP_NS
