"""Configurations: what is refused and how it is told, and that JSON and configuration say the same."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config import EngineConfig, Speculation, Timing, nanoseconds
from model.defects import complete, known_ids, named_set
from model.errors import BadInput

MINIMAL = {"scheduler": "vllm", "block_size": 4, "num_blocks": 2}
COUNT = "an integer ≥ 1"
COUNT_OR_NULL = "an integer ≥ 1 or null"
SWITCH = "true or false"
DURATION = "a finite number of milliseconds ≥ 0"
DEFECT_LIST = 'a list of defect ids, or "seed" or "upstream"'
SGLANG_ONLY = "only with scheduler sglang; here it is vllm"

BAD = [
    # fields, path of the offending one, what was found, what is allowed
    ({"block_size": 0}, "engine.block_size", "0", COUNT),
    ({"block_size": -4}, "engine.block_size", "-4", COUNT),
    ({"block_size": 4.0}, "engine.block_size", "4.0", COUNT),
    ({"block_size": True}, "engine.block_size", "true", COUNT),
    ({"block_size": "4"}, "engine.block_size", "'4'", COUNT),
    ({"num_blocks": None}, "engine.num_blocks", "null", COUNT),
    ({"num_blocks": [2]}, "engine.num_blocks", "[2]", COUNT),
    ({"scheduler": "vLLM"}, "engine.scheduler", "'vLLM'", '"vllm" or "trtllm" or "sglang"'),
    ({"scheduler": None}, "engine.scheduler", "null", '"vllm" or "trtllm" or "sglang"'),
    ({"scheduler": "vlm", "defects": ["admits-unservable"]}, "engine.scheduler", "'vlm'", '"vllm" or "trtllm" or "sglang"'),
    ({"role": "router"}, "engine.role", "'router'", '"aggregated" or "prefill" or "decode" or "disaggregated"'),
    ({"preemption": []}, "engine.preemption", "[]", '"lifo" or "fifo"'),
    ({"max_num_batched_tokens": 0}, "engine.max_num_batched_tokens", "0", COUNT_OR_NULL),
    ({"max_num_seqs": False}, "engine.max_num_seqs", "false", COUNT_OR_NULL),
    ({"max_model_len": 1.5}, "engine.max_model_len", "1.5", COUNT_OR_NULL),
    ({"chunked_prefill": 1}, "engine.chunked_prefill", "1", SWITCH),
    ({"prefix_caching": None}, "engine.prefix_caching", "null", SWITCH),
    ({"kv_events": "yes"}, "engine.kv_events", "'yes'", SWITCH),
    ({"implementation": ""}, "engine.implementation", "''", '"model" or the name of an adapter'),
    ({"implementation": None}, "engine.implementation", "null", '"model" or the name of an adapter'),
    # parts that are objects of their own
    ({"speculation": 2}, "engine.speculation", "2", "an object {…}"),
    ({"speculation": {}}, "engine.speculation.draft_tokens", "nothing", "an integer ≥ 1"),
    ({"speculation": {"draft_tokens": 0}}, "engine.speculation.draft_tokens", "0", COUNT),
    ({"speculation": {"draft_tokens": 1, "accepted": -1}}, "engine.speculation.accepted", "-1", "an integer ≥ 0"),
    (
        {"speculation": {"draft_tokens": 1, "accepted": 2}},
        "engine.speculation.accepted",
        "2",
        "an integer from 0 to draft_tokens (1)",
    ),
    ({"speculation": {"draft_tokens": 1, "k": 2}}, "engine.speculation.k", "an unknown field", "accepted, draft_tokens"),
    ({"timing": None}, "engine.timing", "null", "an object {…}"),
    ({"timing": {"decode_ms": -1}}, "engine.timing.decode_ms", "-1", DURATION),
    ({"timing": {"decode_ms": float("nan")}}, "engine.timing.decode_ms", "nan", DURATION),
    ({"timing": {"prefill_ms": float("inf")}}, "engine.timing.prefill_ms", "inf", DURATION),
    ({"timing": {"prefill_ms": True}}, "engine.timing.prefill_ms", "true", DURATION),
    ({"timing": {"prefill_ms_per_token": "1"}}, "engine.timing.prefill_ms_per_token", "'1'", DURATION),
    # fields of other schedulers
    ({"chunked_prefill_size": 64}, "engine.chunked_prefill_size", "64", SGLANG_ONLY),
    ({"schedule_policy": "lpm"}, "engine.schedule_policy", "'lpm'", SGLANG_ONLY),
    (
        {"scheduler": "sglang", "chunked_prefill": False},
        "engine.chunked_prefill",
        "false",
        "only with scheduler vllm or trtllm; here it is sglang",
    ),
    ({"scheduler": "trtllm", "preemption": "fifo"}, "engine.preemption", "'fifo'", "only with scheduler vllm; here it is trtllm"),
    # defects
    ({"defects": "all"}, "engine.defects", "'all'", DEFECT_LIST),
    ({"defects": None}, "engine.defects", "null", DEFECT_LIST),
    ({"defects": {"seed": True}}, "engine.defects", "{'seed': True}", DEFECT_LIST),
    (
        {"defects": ["admits-unservable", "speculative-terminal-block", "speculative-terminal-block:reservation-only"]},
        "engine.defects[2]",
        "'speculative-terminal-block:reservation-only'",
        "one of speculative-terminal-block and speculative-terminal-block:reservation-only, not both",
    ),
    (
        {"scheduler": "sglang", "defects": ["admits-unservable"]},
        "engine.defects[0]",
        "'admits-unservable'",
        "with scheduler sglang, only defects that touch it",
    ),
]


@pytest.mark.parametrize(("fields", "path", "found", "allowed"), BAD)
def test_a_wrong_field_is_refused_with_its_path_what_was_found_and_what_is_allowed(
    fields: dict[str, Any], path: str, found: str, allowed: str
) -> None:
    with pytest.raises(BadInput) as caught:
        EngineConfig.from_json({**MINIMAL, **fields})
    assert (caught.value.path, caught.value.found, caught.value.allowed) == (path, found, allowed)


@pytest.mark.parametrize("name", sorted(MINIMAL))
def test_a_missing_field_is_named(name: str) -> None:
    given_fields = {field: value for field, value in MINIMAL.items() if field != name}
    with pytest.raises(BadInput) as caught:
        EngineConfig.from_json(given_fields)
    assert (caught.value.path, caught.value.found) == (f"engine.{name}", "nothing")


def test_an_unknown_field_is_refused_and_the_known_ones_are_listed() -> None:
    with pytest.raises(BadInput) as caught:
        EngineConfig.from_json({**MINIMAL, "blocksize": 4})
    assert (caught.value.path, caught.value.found) == ("engine.blocksize", "an unknown field")
    assert caught.value.allowed.split(", ") == sorted(field.name for field in attrs.fields(EngineConfig))


def test_an_unknown_defect_is_refused_and_the_known_ones_are_listed() -> None:
    for name in ("speculative", "admits-unservable:half", "admits-unservable:", 3, None, ["seed"]):
        with pytest.raises(BadInput) as caught:
            EngineConfig.from_json({**MINIMAL, "defects": [name]})
        assert caught.value.path == "engine.defects[0]"
        assert caught.value.allowed == ", ".join(known_ids())


@pytest.mark.parametrize("document", [None, [], "vllm", 3])
def test_a_configuration_is_an_object(document: object) -> None:
    with pytest.raises(BadInput) as caught:
        EngineConfig.from_json(document)
    assert (caught.value.path, caught.value.allowed) == ("engine", "an object {…}")


def test_the_path_starts_where_the_document_stands() -> None:
    with pytest.raises(BadInput) as caught:
        EngineConfig.from_json({**MINIMAL, "speculation": {"draft_tokens": 0}}, "cases[3].engine")
    assert caught.value.path == "cases[3].engine.speculation.draft_tokens"


def test_a_configuration_made_in_python_is_checked_in_the_same_words() -> None:
    with pytest.raises(BadInput) as caught:
        EngineConfig("vllm", 4, 0)
    assert (caught.value.path, caught.value.found, caught.value.allowed) == ("num_blocks", "0", COUNT)


# --- JSON and back ----------------------------------------------------------------------------------------------------


def counts(least: int = 1) -> st.SearchStrategy[int]:
    return st.integers(least, 1 << 40)


def optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


NUMBERS = st.integers(0, 1 << 70) | st.floats(0, allow_nan=False, allow_infinity=False)
SPECULATION = counts().flatmap(
    lambda k: st.fixed_dictionaries({"draft_tokens": st.just(k)}, optional={"accepted": st.integers(0, k)})
)
SHARED = {
    "role": st.sampled_from(["aggregated", "prefill", "decode"]),
    "max_num_seqs": st.none() | counts(),
    "prefix_caching": st.booleans(),
    "kv_events": st.booleans(),
    "speculation": st.none() | SPECULATION,
    "timing": optional(**dict.fromkeys(attrs.fields_dict(Timing), NUMBERS)),
    "implementation": st.text(min_size=1),
}
PAGED = {"max_num_batched_tokens": st.none() | counts(), "chunked_prefill": st.booleans()}
OF_SCHEDULER: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "vllm": {**SHARED, **PAGED, "max_model_len": st.none() | counts(), "preemption": st.sampled_from(["lifo", "fifo"])},
    "trtllm": {**SHARED, **PAGED},
    "sglang": {
        **SHARED,
        "chunked_prefill_size": counts(),
        "max_prefill_tokens": counts(),
        "schedule_policy": st.sampled_from(["fcfs", "lpm"]),
        "schedule_conservativeness": NUMBERS,
        "clip_max_new_tokens": counts(),
        "prefill_decode_interval": counts(0),
        "max_model_len": st.none() | counts(),
    },
}


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Configurations as JSON objects, defects by name or by set."""
    scheduler = draw(st.sampled_from(sorted(OF_SCHEDULER)))
    plain = [defect for defect in complete().values() if scheduler in defect.schedulers]
    choices = [[], *(list(defect.ids()) for defect in plain)]
    defects = draw(st.sampled_from(["seed", "upstream"]) | st.sampled_from(choices).flatmap(_at_most_one))
    return {
        "scheduler": scheduler,
        "block_size": draw(counts()),
        "num_blocks": draw(counts()),
        "defects": defects,
        **draw(optional(**OF_SCHEDULER[scheduler])),
    }


def _at_most_one(ids: list[str]) -> st.SearchStrategy[list[str]]:
    return st.just([]) if not ids else st.sampled_from([[id_] for id_ in ids])


@settings(deadline=None, derandomize=True, max_examples=200)
@given(document=documents())
def test_a_configuration_written_as_json_reads_back_equal(document: dict[str, Any]) -> None:
    config = EngineConfig.from_json(document)
    written = config.to_json()
    assert EngineConfig.from_json(json.loads(json.dumps(written))) == config
    assert EngineConfig.from_json(written).to_json() == written
    assert hash(EngineConfig.from_json(written)) == hash(config)
    for name, value in document.items():
        if name not in ("defects", "speculation", "timing"):
            assert getattr(config, name) == value


@settings(deadline=None, derandomize=True, max_examples=200)
@given(document=documents())
def test_only_what_differs_from_the_default_is_written(document: dict[str, Any]) -> None:
    written = EngineConfig.from_json(document).to_json()
    default = {field.name: field.default for field in attrs.fields(EngineConfig)}
    for name, value in written.items():
        assert default[name] is attrs.NOTHING or value != default[name]
    assert written.get("timing") != {}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["vllm", "seed", *known_ids()]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
NAMES = st.sampled_from(sorted(field.name for field in attrs.fields(EngineConfig)))


@settings(deadline=None, derandomize=True, max_examples=400)
@given(changes=st.dictionaries(NAMES | st.text(max_size=3), JSON, max_size=3))
def test_whatever_json_is_given_it_is_read_or_refused_in_words(changes: dict[str, Any]) -> None:
    document = {**MINIMAL, **changes}
    refusal = None
    try:
        config = EngineConfig.from_json(document)
    except BadInput as error:
        refusal = error
    if refusal is None:
        assert EngineConfig.from_json(config.to_json()) == config
    else:
        assert refusal.path.startswith("engine")
        assert refusal.found
        assert refusal.allowed


def test_nothing_but_the_required_fields_is_written_of_a_default_configuration() -> None:
    assert EngineConfig.from_json(MINIMAL).to_json() == MINIMAL
    assert EngineConfig.from_json({**MINIMAL, "timing": {}, "speculation": None, "defects": []}).to_json() == MINIMAL


def test_the_defaults_are_those_of_the_case_format() -> None:
    config = EngineConfig.from_json(MINIMAL)
    assert config.role == "aggregated"
    assert (config.max_num_batched_tokens, config.max_num_seqs, config.max_model_len) == (None, None, None)
    assert (config.chunked_prefill, config.prefix_caching, config.kv_events) == (True, True, True)
    assert (config.preemption, config.speculation, config.implementation) == ("lifo", None, "model")
    assert config.timing == Timing(prefill_ms=0, prefill_ms_per_token=1, decode_ms=1, decode_ms_per_request=0)
    assert config.defects == frozenset()
    sglang = EngineConfig("sglang", 4, 2)
    assert (sglang.chunked_prefill_size, sglang.max_prefill_tokens, sglang.clip_max_new_tokens) == (8192, 16384, 4096)
    assert (sglang.schedule_policy, sglang.schedule_conservativeness) == ("fcfs", 1.0)


def test_a_named_set_stands_for_its_members_and_is_written_as_them() -> None:
    for name in ("seed", "upstream"):
        config = EngineConfig.from_json({**MINIMAL, "defects": name})
        assert config.defects == named_set(name, "vllm")
        assert config.to_json()["defects"] == sorted(config.defects)


def test_parts_may_be_given_as_objects_or_as_values() -> None:
    as_json = EngineConfig("vllm", 4, 2, speculation={"draft_tokens": 2, "accepted": 1}, timing={"decode_ms": 5})
    as_values = EngineConfig("vllm", 4, 2, speculation=Speculation(2, 1), timing=Timing(decode_ms=5))
    assert as_json == as_values


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [(0, 0), (1, 1_000_000), (0.1, 100_000), (1e-6, 1), (4e-7, 0), (1 / 128, 7812), (3 / 128, 23438), (10**30, 10**36)],
)
def test_milliseconds_become_whole_nanoseconds_rounded_half_to_even(milliseconds: float, expected: int) -> None:
    assert nanoseconds(milliseconds) == expected
