from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.dynamo.mapping import engine_argument, trace_text
from adapters.dynamo.release import Release
from adapters.workload import TimedRequest, Workload
from model.config import EngineConfig, Speculation, Timing
from model.errors import BadInput
from model.requests import Prompt, RequestSpec
from tests.dynamo.support import MS, NEW, OLD, sglang, vllm

TIMES = {"type": "fixed", "prefill_ms": 10, "decode_ms": 5}


def test_a_paged_engine_is_a_nested_mapping_in_1_6() -> None:
    config = vllm(4, 16, max_num_batched_tokens=8, max_num_seqs=2, chunked_prefill=False, preemption="fifo", max_model_len=9)
    assert engine_argument(config, NEW) == {
        "engine": {
            "backend": "vllm",
            "num_gpu_blocks": 16,
            "block_size": 4,
            "max_num_seqs": 2,
            "max_num_batched_tokens": 8,
            "enable_chunked_prefill": False,
            "enable_prefix_caching": False,
            "preemption_mode": "fifo",
            "max_model_len": 9,
            "timing_model": TIMES,
        }
    }


def test_the_same_keys_are_flat_in_1_5() -> None:
    nested = engine_argument(vllm(4, 16), NEW)["engine"]
    flat = engine_argument(vllm(4, 16), OLD)
    assert flat.pop("engine_type") == nested.pop("backend")
    assert flat == nested


def test_no_limit_is_told_and_not_left_to_the_default() -> None:
    words = engine_argument(vllm(4, 16), NEW)["engine"]
    assert (words["max_num_seqs"], words["max_num_batched_tokens"]) == (None, None)


def test_a_radix_engine_has_its_own_section() -> None:
    config = sglang(4, 16, chunked_prefill_size=8, max_prefill_tokens=32, schedule_policy="lpm", prefill_decode_interval=2)
    words = engine_argument(config, NEW)["engine"]
    assert words["sglang"] == {
        "schedule_policy": "lpm",
        "chunked_prefill_size": 8,
        "max_prefill_tokens": 32,
        "schedule_conservativeness": 1.0,
        "clip_max_new_tokens": 4096,
    }
    assert words["prefill_decode_interval"] == 2
    assert "preemption_mode" not in words


@pytest.mark.parametrize(("accepted", "rates"), [(0, "0,0,0"), (1, "1,0,0"), (3, "1,1,1")])
def test_accepted_drafts_are_rates_of_one_and_zero(accepted: int, rates: str) -> None:
    words = engine_argument(vllm(4, 16, speculation=Speculation(3, accepted)), NEW)["engine"]
    assert (words["aic_nextn"], words["aic_nextn_accept_rates"]) == (3, rates)


@pytest.mark.parametrize(
    ("config", "release", "path"),
    [
        (vllm(4, 16, role="prefill"), NEW, "engine.role"),
        (vllm(4, 16, dp_size=2), NEW, "engine.dp_size"),
        (vllm(4, 16, timing=Timing()), NEW, "engine.timing.prefill_ms_per_token"),
        (vllm(4, 16, timing=Timing(prefill_ms_per_token=0, decode_ms_per_request=1)), NEW, "engine.timing.decode_ms_per_request"),
        (sglang(4, 16, prefill_decode_interval=1), OLD, "engine.prefill_decode_interval"),
        (sglang(4, 16, max_model_len=8), OLD, "engine.max_model_len"),
    ],
)
def test_what_the_engine_cannot_be_told_is_refused_by_name(config: EngineConfig, release: Release, path: str) -> None:
    with pytest.raises(BadInput) as refused:
        engine_argument(config, release)
    assert refused.value.path == path


def rows(*requests: RequestSpec) -> list[dict[str, Any]]:
    text = trace_text(Workload(TimedRequest(request, number * MS) for number, request in enumerate(requests)))
    return [json.loads(line) for line in text.splitlines()]


def test_a_trace_row_is_a_session_with_a_block_for_every_token() -> None:
    assert rows(RequestSpec("first", Prompt.of_tokens([7, 7, 9]), 2), RequestSpec("second", Prompt.of_tokens([9]), 0)) == [
        {
            "session_id": "0",
            "request_id": "first",
            "timestamp": 0,
            "input_length": 3,
            "output_length": 2,
            "hash_ids": [0, 0, 1],
        },
        {"session_id": "1", "request_id": "second", "timestamp": 1, "input_length": 1, "output_length": 0, "hash_ids": [1]},
    ]


def test_prompts_share_ids_exactly_where_they_share_tokens() -> None:
    one, other = rows(
        RequestSpec("a", Prompt.of_streams([("A", 3), ("B", 2)]), 1), RequestSpec("b", Prompt.of_streams([("A", 4)]), 1)
    )
    assert one["hash_ids"][:3] == other["hash_ids"][:3]
    assert other["hash_ids"][3] not in one["hash_ids"]


def test_a_planned_output_token_has_the_id_of_the_prompt_token_it_equals() -> None:
    first, second = rows(
        RequestSpec("a", Prompt.of_tokens([5]), 2, (6, 8)),
        RequestSpec("b", Prompt.of_tokens([5, 6]), 1),
    )
    assert second["hash_ids"] == [0, 1]
    assert first["output_token_ids"] == [1, 2]
