"""One workload that makes a cost or a memory finding of the simulated engine show, run once in a process of its own.

    python trigger.py NAME N

prints one JSON line: CPU seconds of the replay, growth of the peak resident size by it in MB, and what the finding needs
from the report. It is run by path with the interpreter that has the wheel, and imports nothing of ours. Each workload has a
size ``N`` and, where the finding is about memory, a control that holds as much at the same time whatever the version.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

Row = dict[str, Any]

FIXED = {"type": "fixed", "prefill_ms": 10.0, "decode_ms": 5.0}
HISTORY_BLOCK = 512
HISTORY_TOKENS = 125 * HISTORY_BLOCK
SPLIT_TOKENS = 8_192


def queued_burst(n: int) -> tuple[Row, Iterable[Row], Row]:
    """``n`` requests at once, of which one at a time fits the cache: the head of a long queue is looked at in every pass."""
    engine = {"num_gpu_blocks": 3, "block_size": 4, "max_num_seqs": None, "max_num_batched_tokens": 64}
    rows = ({"timestamp": 0.0, "input_length": 8, "output_length": 3, "hash_ids": [2 * at, 2 * at + 1]} for at in range(n))
    return {"backend": "vllm", **engine}, rows, {"trace_block_size": 4}


def sparse_sessions(n: int) -> tuple[Row, Iterable[Row], Row]:
    """``n`` requests so far apart that the engine is idle in between. One session of two turns brings the driver in."""
    engine = {"num_gpu_blocks": 16, "block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 64}
    turn = {"input_length": 4, "output_length": 1}
    rows = [{**turn, "timestamp": 100.0 * at, "hash_ids": [at], "session_id": f"s{at}"} for at in range(n)]
    rows.append({**turn, "delay": 1.0, "hash_ids": [n], "session_id": "s0"})
    return {"backend": "vllm", **engine}, rows, {"trace_block_size": 4}


def histories_in_turn(n: int) -> tuple[Row, Iterable[Row], Row]:
    """``n`` sessions one after the other, each with a long history, in a trace of increments."""
    return _histories(n, apart_ms=1000.0)


def histories_at_once(n: int) -> tuple[Row, Iterable[Row], Row]:
    """The same sessions all at once, so that all their histories are alive together: the control."""
    return _histories(n, apart_ms=0.0)


def _histories(n: int, apart_ms: float) -> tuple[Row, Iterable[Row], Row]:
    blocks = HISTORY_TOKENS // HISTORY_BLOCK
    engine = {"num_gpu_blocks": 2 * blocks, "block_size": HISTORY_BLOCK, "max_num_seqs": 4, "max_num_batched_tokens": None}

    def rows() -> Iterator[Row]:
        for at in range(n):
            ids = list(range(at * blocks, (at + 1) * blocks))
            session = {"session_id": f"s{at}", "timestamp": apart_ms * at}
            yield {**session, "input_length": HISTORY_BLOCK * blocks, "output_length": 1, "hash_ids": ids}
        yield {"session_id": "s0", "delay": 1.0, "input_length": 1, "output_length": 1, "hash_ids": [0]}

    return {"backend": "vllm", **engine}, rows(), {"trace_block_size": HISTORY_BLOCK, "trace_format": "mooncake-delta"}


def ascending_splits(n: int) -> tuple[Row, Iterable[Row], Row]:
    """A long prompt, then requests that share more and more of it: each splits the rest of one edge of the radix tree."""
    return _splits(n, range(1, n))


def descending_splits(n: int) -> tuple[Row, Iterable[Row], Row]:
    """The same requests in the other order, each of which splits the beginning."""
    return _splits(n, range(n - 1, 0, -1))


def _splits(n: int, order: Iterable[int]) -> tuple[Row, Iterable[Row], Row]:
    step = SPLIT_TOKENS // n
    engine = {"num_gpu_blocks": 4 * SPLIT_TOKENS, "block_size": 1, "max_num_seqs": 1}
    sglang = {"chunked_prefill_size": SPLIT_TOKENS, "max_prefill_tokens": SPLIT_TOKENS, "schedule_policy": "fifo"}

    def rows() -> Iterator[Row]:
        prompts = chain([range(SPLIT_TOKENS)], ([*range(at * step), SPLIT_TOKENS + at] for at in order))
        for at, prompt in enumerate(prompts):
            yield {"timestamp": 1000.0 * at, "input_length": len(prompt), "output_length": 1, "hash_ids": list(prompt)}

    return {"backend": "sglang", **engine, "sglang": sglang}, rows(), {"trace_block_size": 1}


def restores(n: int) -> tuple[Row, Iterable[Row], Row]:
    """Two blocks that only the disk holds any more, asked for again through a host tier of ``n`` blocks.

    The geometry is that of offload specification 6.1.
    """
    engine = {
        "num_gpu_blocks": 4,
        "block_size": 4,
        "max_num_seqs": 1,
        "max_num_batched_tokens": 4,
        "kv_cache_bytes_per_token": 250_000,
        "native_host_offload": {
            "scope": "dp_rank_local",
            "num_host_blocks": n,
            "d2h_bandwidth_gbps": 0.0,
            "h2d_bandwidth_gbps": 1.0,
        },
        "g3_offload": {
            "scope": "worker_local",
            "num_g3_blocks": 8,
            "latency_to_first_byte_ms": 0.0,
            "read_bandwidth_gbps": 1.0,
            "write_bandwidth_gbps": 0.0,
        },
    }
    prompts = ((0.0, [1, 2], 0), (200.0, [11, 12, 13, 14], 0), (600.0, [1, 2], 1))
    rows = [
        {"timestamp": at, "input_length": 4 * len(ids), "output_length": output, "hash_ids": ids} for at, ids, output in prompts
    ]
    return {"backend": "vllm", **engine}, rows, {"trace_block_size": 4}


WORKLOADS = {
    workload.__name__: workload
    for workload in (
        queued_burst,
        sparse_sessions,
        histories_in_turn,
        histories_at_once,
        ascending_splits,
        descending_splits,
        restores,
    )
}


def run(name: str, n: int) -> Row:
    """Run a workload of size ``n`` and measure it."""
    import dynamo._core as core

    config, rows, arguments = WORKLOADS[name](n)
    config = {**config, "enable_prefix_caching": name in CACHED, "timing_model": FIXED}
    with tempfile.TemporaryDirectory(prefix="infercheck-") as folder:
        path = os.path.join(folder, "trace.jsonl")
        with open(path, "w") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows)
        del rows
        if hasattr(core, "_normalize_mocker_config"):
            engine: Any = {"engine": config}
        else:
            engine = core.MockEngineArgs.from_json(json.dumps({"engine_type": config.pop("backend"), **config}))
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.process_time()
        result = core.run_mocker_trace_replay([path], extra_engine_args=engine, capture_per_request=name in REPORTED, **arguments)
        seconds = time.process_time() - start
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    summary = dict(result.summary)
    measured = {"cpu_seconds": seconds, "grown_mb": grown_kb / 1024, "completed": summary["completed_requests"]}
    if name in REPORTED:
        measured["g3_offload"] = summary.get("g3_offload")
        measured["ttft_ms"] = [row["ttft_ms"] for row in result.per_request]
    return measured


CACHED = ("ascending_splits", "descending_splits", "restores")
REPORTED = ("restores",)


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]))))
