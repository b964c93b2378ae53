"""The process that holds the simulated engine: reads one JSON request a line, answers each with one JSON line.

It is run by path with whatever interpreter has the wheel, so it imports the standard library and ``dynamo._core`` alone. The
engine may loop for ever inside native code, where no callback and no signal handler runs; ``adapters.dynamo.wheel`` then
kills this process. Whatever the engine prints goes to ``/dev/null``: the answers go out by a duplicate of standard output
that was taken before.

A run is made up to three times, each about a tenth of a millisecond for a small workload:

* plain, up to the time cap, which gives the fate of every request;
* when a request did not end, again without the sentinel, since only then the engine says whether it is at a dead end;
* when passes are wanted, again with a tick at every instant at which a pass may end, up to the end of the last request.

When the engine gives up on the spot (SGLang at a dead end) it tells nothing of what was before; a run with ticks shows how
far it came, and one that is cut off there tells the rest. The last tick is kept in a file too, for whoever kills this process.

The *sentinel* is a session of two turns that arrives after the cap. It keeps the run from being over, so that the
last pass is shown; and as it has two turns, the replay keeps to sessions, and tells the session of every request. (A file of
single turns is told without any name, and rows of one arrival time in random order.)
"""

from __future__ import annotations

import heapq
import inspect
import json
import mmap
import os
import struct
import sys
import traceback
from typing import Any

SENTINEL = "sentinel"
SENTINEL_AFTER_CAP_MS = 1e6
LAST_TICK = "last-tick"
TICK = struct.Struct("d")
NO_TICK = TICK.pack(float("nan"))
DEAD_END = ("replay invariant violated", "dead end", "livelock")

Document = dict[str, Any]


def hello(core: Any) -> Document:
    """What the host needs to know this release by."""
    return {
        "version": core.__version__,
        "mapping": hasattr(core, "_normalize_mocker_config"),
        "parameters": list(inspect.signature(core.run_mocker_trace_replay).parameters),
    }


class Recorder:
    """A scaling policy that never scales: it ticks where a pass may end, and keeps what it is shown.

    A pass starts where one ended or a request arrived, and takes the prefill time, the decode time or both; so these three
    sums are the next instants to look at. An observer that looks less often sees only the last pass of those in between.
    Where passes start at ends of transfers too, it ticks at equal steps instead, shorter than a pass.
    """

    def __init__(self, asked: Document, last_tick: mmap.mmap) -> None:
        """For the pass times, the arrivals (at least one) and the figures of passes wanted, as ``asked``.

        Every tick is noted in ``last_tick``.
        """
        self.prefill_ms = asked["prefill_ms"]
        self.decode_ms = asked["decode_ms"]
        self.arrivals: frozenset[float] = frozenset(asked["arrivals_ms"])
        self.step_ms: float | None = asked["step_ms"]
        self.metrics: list[str] = asked["metrics"]
        self.last_tick = last_tick
        self.last_ms: float | None = None
        self.due: list[float] = sorted(self.arrivals)
        self.planned = set(self.due)
        self.passes: list[tuple[float, list[Any]]] = []
        self.accepts: list[tuple[float, float, int]] = []

    def initial_tick_ms(self) -> float:
        """The first arrival."""
        return self.due[0]

    def on_tick(self, snapshot: Document) -> Document:
        """Keep the passes and accepted tokens since the last tick, and say when to call again."""
        now = self.last_ms = snapshot["now_ms"]
        self.last_tick[:8] = TICK.pack(now)
        records = snapshot["decode_fpm_snapshots"]
        self.passes += [(now, [record[name] for name in self.metrics]) for record in records]
        traffic = snapshot["traffic"]
        forwards = traffic["accept_length_forward_count"]
        if forwards:
            self.accepts.append((now, traffic["avg_accept_length"] * forwards, forwards))
        while self.due and self.due[0] <= now:
            heapq.heappop(self.due)
        if self.step_ms:
            following = now + self.step_ms
            return {"next_tick_ms": following, "target_prefill": None, "target_decode": None}
        if records or now in self.arrivals:
            for end in (now + self.prefill_ms, now + self.decode_ms, now + self.prefill_ms + self.decode_ms):
                if end > now and end not in self.planned:
                    self.planned.add(end)
                    heapq.heappush(self.due, end)
        following = self.due[0] if self.due else now + SENTINEL_AFTER_CAP_MS
        return {"next_tick_ms": following, "target_prefill": None, "target_decode": None}


class Sampler:
    """A telemetry callback that keeps the counters of the one worker where they change."""

    def __init__(self) -> None:
        """Nothing seen yet."""
        self.samples: list[tuple[float, ...]] = []
        self.preemptions = 0
        self.last: tuple[int, ...] | None = None

    def __call__(self, snapshot: Document) -> None:
        """Take one sample."""
        self.preemptions += snapshot["decode_interval_metrics"]["preemptions"]
        for metrics in snapshot["decode_scheduler_metrics"]:
            counters = (
                metrics["active_blocks"],
                metrics["inactive_blocks"],
                metrics["total_blocks"],
                metrics["running_requests"],
                metrics["waiting_requests"],
                self.preemptions,
            )
            if counters != self.last:
                self.last = counters
                self.samples.append((snapshot["sampled_at_ms"], *counters))


class Runner:
    """Runs workloads, each as one request describes it."""

    def __init__(self, core: Any, folder: str) -> None:
        """Trace files go into ``folder``."""
        self.core = core
        self.path = os.path.join(folder, "trace.jsonl")
        with open(os.path.join(folder, LAST_TICK), "w+b") as out:
            out.write(NO_TICK)
            out.flush()
            self.last_tick = mmap.mmap(out.fileno(), len(NO_TICK))
        self.written: str | None = None
        self.engine_text: str | None = None
        self.engine: Any = None

    def configure(self, text: str) -> None:
        """Take a configuration, unless it is the one of the last run."""
        if text == self.engine_text:
            return
        if hasattr(self.core, "_normalize_mocker_config"):
            engine = json.loads(text)
            self.core._normalize_mocker_config(engine)
        else:
            engine = self.core.MockEngineArgs.from_json(text)
        self.engine, self.engine_text = engine, text

    def requests(self, rows: str, cap_ms: float, **more: Any) -> list[Document]:
        """One run over ``rows``, sentinel included: the requests that ended, in order of their sessions."""
        ended = [_request(row) for row in self.replay(rows, cap_ms, **more).per_request]
        return sorted(ended, key=lambda request: int(request["session"]))

    def replay(self, rows: str, cap_ms: float, **more: Any) -> Any:
        """One run over ``rows``."""
        if rows != self.written:
            with open(self.path, "w") as out:
                out.write(rows)
            self.written = rows
        return self.core.run_mocker_trace_replay(
            [self.path],
            extra_engine_args=self.engine,
            trace_block_size=1,
            capture_per_request=True,
            max_sim_time_ms=cap_ms,
            **more,
        )

    def observe(self, asked: Document) -> Document:
        """Answer one request; the module docstring tells the runs this takes."""
        try:
            self.configure(asked["engine"])
        except Exception as error:
            return {"outcome": "invalid", "detail": str(error)}
        rows, cap_ms = asked["rows"], asked["cap_ms"]
        followed = rows + _sentinel(cap_ms)
        if asked["until_killed"]:
            return self.record(asked, followed, cap_ms)
        try:
            requests = self.requests(followed, cap_ms)
        except Exception as error:
            if not _is_dead_end(error):
                return {"outcome": "invalid", "detail": str(error)}
            return {**self.before_dead_end(asked, followed), "outcome": "stuck", "detail": str(error)}
        answer = {"outcome": "ok", "detail": "", "seen_ms": cap_ms, "requests": requests}
        if len(requests) < asked["count"]:
            answer.update(self.dead_end(rows, cap_ms))
        if asked["record"]:
            end_ms = max((request["terminal_ms"] for request in requests), default=0.0)
            if answer["outcome"] != "ok":
                latest_ms = max(end_ms, *asked["recorder"]["arrivals_ms"])
                end_ms = cap_ms if asked["tail_ms"] is None else min(cap_ms, latest_ms + asked["tail_ms"])
            recorded = self.record(asked, followed, end_ms)
            shown = [request for request in requests if request["terminal_ms"] <= end_ms]
            if recorded.pop("requests") != shown:
                return {"outcome": "error", "detail": "the run differs when it is watched"}
            answer.update(recorded)
        return answer

    def dead_end(self, rows: str, cap_ms: float) -> Document:
        """Whether the engine, left alone with its requests, calls it a dead end."""
        try:
            self.replay(rows, cap_ms)
        except Exception as error:
            return {"outcome": "stuck" if _is_dead_end(error) else "error", "detail": str(error)}
        return {"outcome": "bounded"}

    def before_dead_end(self, asked: Document, rows: str) -> Document:
        """What there was to see up to the last tick before the engine gives up."""
        recorder = Recorder(asked["recorder"], self.last_tick)
        try:
            self.replay(rows, asked["cap_ms"], scaling_policy=recorder)
        except Exception:
            if recorder.last_ms is None:
                nothing: Document = {"seen_ms": None, "requests": []}
                return {**nothing, "passes": [], "accepts": [], "samples": None} if asked["record"] else nothing
        seen_ms = recorder.last_ms
        assert seen_ms is not None
        shown: Document = {"seen_ms": seen_ms}
        if asked["record"]:
            return {**shown, **self.record(asked, rows, seen_ms)}
        return {**shown, "requests": self.requests(rows, seen_ms)}

    def record(self, asked: Document, rows: str, end_ms: float) -> Document:
        """A run up to ``end_ms`` with its passes and counters."""
        recorder = Recorder(asked["recorder"], self.last_tick)
        more: Document = {"scaling_policy": recorder}
        samples = None
        if asked["sample_ms"]:
            sampler = Sampler()
            samples = sampler.samples
            more.update(telemetry_callback=sampler, telemetry_sample_interval_ms=asked["sample_ms"])
        requests = self.requests(rows, end_ms, **more)
        return {"requests": requests, "passes": recorder.passes, "accepts": recorder.accepts, "samples": samples}


def _sentinel(cap_ms: float) -> str:
    turn = {"session_id": SENTINEL, "input_length": 1, "output_length": 1, "hash_ids": [0]}
    arrival = {**turn, "timestamp": cap_ms + SENTINEL_AFTER_CAP_MS}
    return f"{json.dumps(arrival)}\n{json.dumps({**turn, 'delay': 1.0})}\n"


def _is_dead_end(error: Exception) -> bool:
    return any(words in str(error) for words in DEAD_END)


def _request(row: Document) -> Document:
    return {
        "session": row["session_id"],
        "arrival_ms": row["arrival_time_ms"],
        "status": row["terminal_status"],
        "terminal_ms": row["terminal_time_ms"],
        "first_token_ms": row["first_token_ms"],
        "last_token_ms": row["last_token_ms"],
        "tokens": row["output_length"],
        "reused": row["reused_input_tokens"],
        "admissions": [
            (entry["at_ms"], entry["reused_input_tokens"], entry["is_readmission"]) for entry in row["admission_history"]
        ],
    }


def main() -> None:
    """Serve until the input ends; the one argument is the folder for trace files."""
    answers = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)

    def answer(document: Document) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    try:
        import dynamo._core as core
    except ImportError as error:
        answer({"missing": str(error)})
        return
    answer(hello(core))
    runner = Runner(core, folder=sys.argv[1])
    for line in sys.stdin:
        try:
            answer(runner.observe(json.loads(line)))
        except Exception:
            answer({"outcome": "error", "detail": traceback.format_exc()})


if __name__ == "__main__":
    main()
