"""The simulated engine of the ``ai-dynamo-runtime`` wheel in a worker process that may be killed.

A worker serves many runs, each within a limit of its own CPU time; one that passes it is killed (the observation
*hang*), and the next run starts another. The limit counts the CPU seconds of the worker, so that a busy machine alone is
no hang; a worker that sleeps is given up after a minute.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from math import gcd, isnan
from pathlib import Path
from types import TracebackType
from typing import Any

import attrs

from adapters.dynamo.mapping import engine_argument, milliseconds, trace_text
from adapters.dynamo.release import Release, identify
from adapters.dynamo.worker import LAST_TICK, TICK
from adapters.observation import (
    FINISHED,
    HANG,
    INVALID,
    REJECTED,
    UNFINISHED,
    AcceptSample,
    AdmissionRecord,
    Observation,
    PassRecord,
    PoolSample,
    RequestRecord,
)
from adapters.workload import Workload
from model import engine as parts
from model.actions import Nanoseconds
from model.config import NANOSECONDS_PER_MS, EngineConfig, nanoseconds
from model.errors import BadInput
from model.paged.metrics import ForwardMetrics

WORKER = Path(__file__).with_name("worker.py")
START_SECONDS_MAX = 60.0
POLL_SECONDS = 0.1
WALL_SECONDS_MAX = 60.0
"""How long a worker may sleep."""
SAMPLES_MAX = 100_000
LOOKS_PER_PASS = 4
NANOSECONDS_PER_SECOND = 1_000_000_000
METRICS = tuple(attribute.name for attribute in attrs.fields(ForwardMetrics))[:-1]
"""Figures that the engine reports under the names we use, variances as floats; the last of ours is the duration."""
WALL_TIME = "wall_time"
STATUSES = {"completed": FINISHED, "rejected": REJECTED}
SHOWN = frozenset({parts.SIGNALS, parts.POOL, parts.PREEMPTIONS})
"""What of ``model.engine.PARTS`` is shown at all, in sums and at the end: no ids within a pass, no block, no event."""


class WheelMissing(Exception):
    """The interpreter has no usable wheel."""


class EngineError(Exception):
    """The worker did something that the adapter has no name for."""


class Wheel:
    """A simulated engine, ready to run workloads. Use it as a context manager, or ``close`` it.

    Attributes:
        release: what the worker runs.
        kills: how many workers were killed.
    """

    release: Release

    def __init__(self, python: str | None = None, *, cpu_seconds_max: float = 0.5) -> None:
        """Start a worker.

        Args:
            python: an interpreter that has the wheel; the running one by default.
            cpu_seconds_max: CPU time for one run, after which it counts as a hang.

        Raises:
            WheelMissing: if the interpreter has no wheel.
            UnknownRelease: if it has one that the adapter does not know.
        """
        self.python = python or sys.executable
        self.cpu_seconds_max = cpu_seconds_max
        self.kills = 0
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self._folder = tempfile.TemporaryDirectory(prefix="infercheck-", dir=memory)
        self._worker: subprocess.Popen[bytes] | None = None
        self._read = b""
        self._start()

    def __enter__(self) -> Wheel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the worker and remove its folder."""
        self._kill()
        self._folder.cleanup()

    def cpu_seconds(self) -> float:
        """CPU time that the present worker has used."""
        return _cpu_seconds(self._worker.pid) if self._worker else 0.0

    def run(
        self,
        config: EngineConfig,
        workload: Workload,
        *,
        cap_ns: Nanoseconds,
        record: bool = True,
        counters: bool = True,
        tail_ns: Nanoseconds | None = None,
        before_hang: bool = True,
    ) -> Observation:
        """Run a workload.

        Args:
            config: the engine; its defects and implementation are of no concern here.
            workload: at least one request.
            cap_ns: virtual time after which the run is cut off.
            record: see the passes too, not only the fate of requests.
            counters: with ``record``, sample block counters too, where the release has them.
            tail_ns: where requests are left, record only so long behind the last arrival and the last end.
            before_hang: of a run that hangs, find out what came before, which takes as long as the hang again.

        Raises:
            BadInput: for what this engine cannot be told.
            EngineError: if the run differs when it is watched, or the worker dies by itself.
        """
        if not workload.requests:
            raise BadInput("requests", "none", "at least one")
        asked = self._request(config, workload, cap_ns)
        asked["record"] = record
        asked["tail_ms"] = None if tail_ns is None else milliseconds(tail_ns)
        asked["sample_ms"] = self._sample_ms(config, workload, cap_ns) if counters else None
        answer = self._ask(asked)
        if answer is None:
            seen_ms = self._hangs_at(asked) if record and before_hang else None
            answer = None if seen_ms is None else self._ask({**asked, "cap_ms": seen_ms})
            hung = {"requests": (), **(answer or {}), "outcome": HANG, "detail": "", "seen_ms": seen_ms}
            return self._observation(hung, workload)
        if answer["outcome"] == "error":
            raise EngineError(answer["detail"])
        return self._observation(answer, workload)

    def _request(self, config: EngineConfig, workload: Workload, cap_ns: Nanoseconds) -> dict[str, Any]:
        timing = config.timing
        return {
            "engine": json.dumps(engine_argument(config, self.release)),
            "rows": trace_text(workload),
            "count": len(workload.requests),
            "cap_ms": milliseconds(cap_ns),
            "recorder": {
                "prefill_ms": milliseconds(nanoseconds(timing.prefill_ms)),
                "decode_ms": max(milliseconds(nanoseconds(timing.decode_ms)), self.release.decode_ms_least),
                "arrivals_ms": [milliseconds(timed.arrival_ns) for timed in workload.requests],
                "metrics": [*METRICS, WALL_TIME],
                "step_ms": None if config.tiers is None else milliseconds(look_every_ns(config, workload)) or None,
            },
            "until_killed": False,
        }

    def _hangs_at(self, asked: dict[str, Any]) -> float | None:
        """The last tick before a hang, in ms; None when there was none."""
        self._ask({**asked, "until_killed": True})
        (at,) = TICK.unpack(Path(self._folder.name, LAST_TICK).read_bytes())
        return None if isnan(at) else float(at)

    def _sample_ms(self, config: EngineConfig, workload: Workload, cap_ns: Nanoseconds) -> float | None:
        """A sampling interval that meets every instant at which something can happen; None if that were too often."""
        step = look_every_ns(config, workload)
        if not self.release.shows_counters or not step or cap_ns / step > SAMPLES_MAX:
            return None
        return milliseconds(step)

    def _observation(self, answer: dict[str, Any], workload: Workload) -> Observation:
        if answer["outcome"] == INVALID:
            return Observation(self.release.name, INVALID, 0, detail=answer["detail"])
        ended = {int(row["session"]): row for row in answer["requests"]}
        records = []
        for position, (timed, blank) in enumerate(zip(workload.requests, _unfinished(workload), strict=True)):
            row = ended.get(position)
            records.append(_request_record(row, timed.id) if row else blank)
        samples = answer.get("samples")
        return Observation(
            source=self.release.name,
            outcome=answer["outcome"],
            cap_ns=0 if answer["seen_ms"] is None else _ns(answer["seen_ms"]),
            requests=tuple(records),
            passes=tuple(_pass_record(at, row) for at, row in answer["passes"]) if "passes" in answer else None,
            samples=None if samples is None else tuple(PoolSample(_ns(at), *counts) for at, *counts in samples),
            accepts=_accept_samples(answer["accepts"]) if "accepts" in answer else None,
            detail=answer["detail"],
            not_observable=_hidden(samples is not None),
        )

    # The worker process.

    def _start(self) -> None:
        self._read = b""
        self._worker = subprocess.Popen(
            [self.python, str(WORKER), self._folder.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "DYN_LOG": "error", "PYTHONSAFEPATH": "1"},
        )
        words = self._answer(START_SECONDS_MAX)
        if words is None or "missing" in words:
            reason = words["missing"] if words else "its worker process does not start"
            self.close()
            raise WheelMissing(f"{self.python} cannot run the simulated engine: {reason}")
        try:
            self.release = identify(words["version"], words["mapping"], words["parameters"])
        except Exception:
            self.close()
            raise

    def _kill(self) -> None:
        worker, self._worker = self._worker, None
        if worker is None:
            return
        worker.kill()
        worker.wait()
        for stream in (worker.stdin, worker.stdout):
            assert stream is not None
            stream.close()

    def _ask(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        """The answer to one request; None for a hang."""
        if self._worker is None:
            self._start()
        worker = self._worker
        assert worker is not None
        assert worker.stdin is not None
        worker.stdin.write(json.dumps(asked).encode() + b"\n")
        worker.stdin.flush()
        answer = self._answer(self.cpu_seconds_max)
        if answer is None:
            self.kills += 1
            self._kill()
        return answer

    def _answer(self, cpu_seconds_max: float) -> dict[str, Any] | None:
        worker = self._worker
        assert worker is not None
        assert worker.stdout is not None
        stream = worker.stdout.fileno()
        used: float | None = None
        latest = time.monotonic() + WALL_SECONDS_MAX + cpu_seconds_max
        while b"\n" not in self._read:
            readable, _, _ = select.select([stream], [], [], POLL_SECONDS)
            if not readable:
                # The clock of a run starts at the first look at it that finds it unfinished, to save the others the look.
                now = _cpu_seconds(worker.pid)
                used = now if used is None else used
                if now - used > cpu_seconds_max or time.monotonic() > latest:
                    return None
                continue
            more = os.read(stream, 1 << 20)
            if not more:
                self._kill()
                raise EngineError("the worker of the simulated engine died")
            self._read += more
        line, self._read = self._read.split(b"\n", 1)
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer


def look_every_ns(config: EngineConfig, workload: Workload) -> int:
    """A step of time that every pass and every arrival is a multiple of; 0 when all of them take none.

    Transfers between tiers end at other instants too, and passes begin then; the step is only shorter than a pass.
    """
    instants = [nanoseconds(config.timing.prefill_ms), nanoseconds(config.timing.decode_ms)]
    step = gcd(*instants, *(int(timed.arrival_ns) for timed in workload.requests))
    return step if config.tiers is None else step // LOOKS_PER_PASS


def _cpu_seconds(pid: int) -> float:
    """CPU time that a process used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _hidden(counters: bool) -> frozenset[str]:
    shown = SHOWN if counters else frozenset({parts.SIGNALS})
    return frozenset(parts.PARTS) - shown


def _ns(milliseconds: float) -> int:
    return round(milliseconds * NANOSECONDS_PER_MS)


def _unfinished(workload: Workload) -> tuple[RequestRecord, ...]:
    return tuple(RequestRecord(timed.id, timed.arrival_ns, UNFINISHED) for timed in workload.requests)


def _request_record(row: dict[str, Any], id_: str) -> RequestRecord:
    def instant(name: str) -> int | None:
        return None if row[name] is None else _ns(row[name])

    return RequestRecord(
        id=id_,
        arrival_ns=_ns(row["arrival_ms"]),
        status=STATUSES.get(row["status"], row["status"]),
        admissions=tuple(AdmissionRecord(_ns(at), reused, again) for at, reused, again in row["admissions"]),
        first_token_ns=instant("first_token_ms"),
        last_token_ns=instant("last_token_ms"),
        terminal_ns=instant("terminal_ms"),
        tokens=row["tokens"],
        reused=row["reused"],
    )


def _pass_record(at_ms: float, figures: list[Any]) -> PassRecord:
    sums = dict(zip(METRICS, figures, strict=False))
    return PassRecord(_ns(at_ms), ForwardMetrics(**sums, wall_time_ns=round(figures[-1] * NANOSECONDS_PER_SECOND)))


def _accept_samples(rows: list[tuple[float, float, int]]) -> tuple[AcceptSample, ...]:
    return tuple(AcceptSample(_ns(at), round(tokens), forwards) for at, tokens, forwards in rows)
