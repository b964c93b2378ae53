"""What is written down of each request while a run goes on, and the report made of it (replay specification 6).

The summary speaks of requests that completed and were admitted. Token times of a request are kept until it ends; their gaps
then go into the sketches, and what stays is a row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import Any

from attrs import define, field

from model.replay.driver import COMPLETED, STATUSES
from model.replay.flat import Sla
from model.replay.statistics import Sketch, mean_of, summary

MS_PER_S = 1000.0
S_PER_HOUR = 3600.0
_LEAST_DURATION_S = 1e-9


@define
class RequestRecord:
    """One request.

    Attributes:
        uid, name: how the run names it.
        session_id, turn_index: None where the trace leaves them out.
        worker: where it was placed.
        authored: rows are ordered by name first.
        input_length, requested_output_length: tokens.
        arrival_ms: as recorded by the mode.
        admissions: times and reused tokens.
        first_token_ms, second_token_ms, last_token_ms, output_length: of the tokens it produced.
        times: token times until it ends, None then.
        status: how it ended; None while it has not.
        terminal_ms: when it ended.
    """

    uid: int
    name: str
    session_id: str | None
    turn_index: int | None
    worker: int
    input_length: int
    requested_output_length: int
    arrival_ms: float
    authored: bool = False
    admissions: list[tuple[float, int]] = field(factory=list)
    times: list[float] | None = field(factory=list)
    first_token_ms: float | None = None
    second_token_ms: float | None = None
    last_token_ms: float | None = None
    output_length: int = 0
    status: str | None = None
    terminal_ms: float | None = None

    @property
    def included(self) -> bool:
        """The summary speaks of it."""
        return self.status == COMPLETED and bool(self.admissions)

    @property
    def reused(self) -> int:
        """Most tokens reused at an admission."""
        return max((reused for _, reused in self.admissions), default=0)

    @property
    def ttft_ms(self) -> float | None:
        """Arrival to first token."""
        return None if self.first_token_ms is None else max(0.0, self.first_token_ms - self.arrival_ms)

    @property
    def ttst_ms(self) -> float | None:
        """First to second token."""
        if self.second_token_ms is None or self.first_token_ms is None:
            return None
        return self.second_token_ms - self.first_token_ms

    @property
    def tpot_ms(self) -> float | None:
        """Mean gap between tokens."""
        if self.output_length < 2 or self.first_token_ms is None or self.last_token_ms is None:
            return None
        return (self.last_token_ms - self.first_token_ms) / (self.output_length - 1)

    @property
    def e2e_ms(self) -> float | None:
        """Arrival to last token."""
        return None if self.last_token_ms is None else self.last_token_ms - self.arrival_ms

    def meets(self, sla: Sla) -> bool:
        """It is good under ``sla``; without tokens, only under an end-to-end bound."""
        ttft, e2e = self.ttft_ms, self.e2e_ms
        if ttft is None or e2e is None:
            terminal = self.terminal_ms
            return sla.e2e_ms is not None and terminal is not None and terminal - self.arrival_ms <= sla.e2e_ms
        if sla.ttft_ms is not None and ttft > sla.ttft_ms:
            return False
        if sla.e2e_ms is not None and e2e > sla.e2e_ms:
            return False
        gaps = self.output_length - 1
        return sla.itl_ms is None or gaps < 1 or (e2e - ttft) / gaps <= sla.itl_ms

    def row(self) -> dict[str, Any]:
        """The request as it stands in the report."""
        return {
            "id": self.name,
            "session_id": self.session_id,
            "turn_index": self.turn_index,
            "arrival_time_ms": self.arrival_ms,
            "first_admit_ms": self.admissions[0][0] if self.admissions else None,
            "first_token_ms": self.first_token_ms,
            "last_token_ms": self.last_token_ms,
            "terminal_time_ms": self.terminal_ms,
            "terminal_status": self.status,
            "ttft_ms": self.ttft_ms,
            "ttst_ms": self.ttst_ms,
            "itl_ms": self.tpot_ms,
            "e2e_latency_ms": self.e2e_ms,
            "input_length": self.input_length,
            "requested_output_length": self.requested_output_length,
            "output_length": self.output_length,
            "reused_input_tokens": self.reused,
            "admission_count": len(self.admissions),
            "worker": self.worker,
        }


@define
class Window:
    """Traffic between two ticks of the scaling policy. What a request brings enters the window of its completion.

    Attributes:
        start_ms, end_ms: of the window.
        offered: arrivals.
        shape_count: completed requests that were not refused, over which ``isl`` and ``osl`` are means.
        ttft_count, itl_count: requests behind ``ttft_ms`` (a token) and ``itl_ms`` (more than one).
        hit_count: admissions of prompts of at least one block, behind ``kv_hit_rate``.
        accept_tokens, accept_forwards: sums of the samples of accept length.
    """

    start_ms: float = 0.0
    end_ms: float = 0.0
    offered: int = 0
    shape_count: int = 0
    ttft_count: int = 0
    itl_count: int = 0
    hit_count: int = 0
    isl: float = 0.0
    osl: float = 0.0
    ttft_ms: float = 0.0
    itl_ms: float = 0.0
    kv_hit_rate: float = 0.0
    accept_tokens: int = 0
    accept_forwards: int = 0

    @property
    def accept_length(self) -> float | None:
        """Tokens over forwards; None without a forward."""
        return self.accept_tokens / self.accept_forwards if self.accept_forwards else None


_MEANS: Mapping[str, str] = {
    "isl": "shape_count",
    "osl": "shape_count",
    "ttft_ms": "ttft_count",
    "itl_ms": "itl_count",
    "kv_hit_rate": "hit_count",
}
"""Each mean of a window, and the count behind it."""


def merge(windows: Iterable[Window]) -> Window:
    """The window that spans ``windows``: counts add up, and so do means times counts."""
    windows = list(windows)
    whole = Window(
        start_ms=min((window.start_ms for window in windows), default=0.0),
        end_ms=max((window.end_ms for window in windows), default=0.0),
        offered=sum(window.offered for window in windows),
        accept_tokens=sum(window.accept_tokens for window in windows),
        accept_forwards=sum(window.accept_forwards for window in windows),
    )
    for mean, count in _MEANS.items():
        total = sum(getattr(window, count) for window in windows)
        setattr(whole, count, total)
        if total:
            setattr(whole, mean, sum(getattr(window, mean) * getattr(window, count) for window in windows) / total)
    return whole


@define
class _Traffic:
    """The window that is open."""

    start_ms: float = 0.0
    offered: int = 0
    lengths: list[tuple[int, int]] = field(factory=list)
    ttfts: list[float] = field(factory=list)
    itls: list[float] = field(factory=list)
    hits: list[float] = field(factory=list)
    accept_tokens: int = 0
    accept_forwards: int = 0

    def close(self, now: float) -> Window:
        """Its numbers."""
        return Window(
            start_ms=self.start_ms,
            end_ms=now,
            offered=self.offered,
            shape_count=len(self.lengths),
            ttft_count=len(self.ttfts),
            itl_count=len(self.itls),
            hit_count=len(self.hits),
            isl=mean_of([length for length, _ in self.lengths]),
            osl=mean_of([output for _, output in self.lengths]),
            ttft_ms=mean_of(self.ttfts),
            itl_ms=mean_of(self.itls),
            kv_hit_rate=mean_of(self.hits),
            accept_tokens=self.accept_tokens,
            accept_forwards=self.accept_forwards,
        )


class Collector:
    """The records of a run, its sketches and its windows."""

    def __init__(self, *, windows: bool = False) -> None:
        """Nothing has happened. Traffic is kept when ``windows`` are to be drained."""
        self.records: list[RequestRecord] = []
        self.itl = Sketch()
        self.rate_per_user = Sketch()
        self.committed_prefill_tokens = 0
        self._traffic = _Traffic() if windows else None

    def arrived(self, record: RequestRecord) -> None:
        """A request arrived."""
        self.records.append(record)
        if self._traffic is not None:
            self._traffic.offered += 1

    def admitted(self, record: RequestRecord, now: float, reused: int) -> None:
        """A request was admitted, with ``reused`` tokens of its prompt in the cache."""
        record.admissions.append((now, reused))

    def hit(self, overlap_blocks: int, blocks: int) -> None:
        """A prompt of ``blocks`` full blocks found ``overlap_blocks`` of them; a prompt below a block is no sample."""
        if self._traffic is not None and blocks:
            self._traffic.hits.append(overlap_blocks / blocks)

    def accepted(self, tokens: int, forwards: int) -> None:
        """A pass had a sample of accept length."""
        if self._traffic is not None and tokens and forwards:
            self._traffic.accept_tokens += tokens
            self._traffic.accept_forwards += forwards

    def ended(self, record: RequestRecord, now: float, status: str) -> None:
        """A request ended."""
        record.status = status
        record.terminal_ms = now
        times = record.times or []
        record.times = None
        record.output_length = len(times)
        if times:
            record.first_token_ms, record.last_token_ms = times[0], times[-1]
        if len(times) > 1:
            record.second_token_ms = times[1]
        if record.included:
            gaps = [later - earlier for earlier, later in pairwise(times)]
            self.itl.add(gaps)
            self.rate_per_user.add([MS_PER_S / gap for gap in gaps if gap > 0])
        if self._traffic is not None and status == COMPLETED:
            self._completed_in_window(self._traffic, record)

    def _completed_in_window(self, traffic: _Traffic, record: RequestRecord) -> None:
        traffic.lengths.append((record.input_length, record.output_length))
        if record.ttft_ms is not None:
            traffic.ttfts.append(record.ttft_ms)
        if record.tpot_ms is not None:
            traffic.itls.append(record.tpot_ms)

    def drain_window(self, now: float) -> Window:
        """Close the open window and open the next one."""
        assert self._traffic is not None
        window = self._traffic.close(now)
        self._traffic = _Traffic(start_ms=now)
        return window

    def counts(self) -> dict[str, int]:
        """Requests by how they ended; ``unfinished`` for those that did not."""
        found = dict.fromkeys((*STATUSES, "unfinished"), 0)
        for record in self.records:
            found[record.status or "unfinished"] += 1
        return found

    def report(
        self, *, worker_ms: float, gpus_per_worker: int, sla: Sla, trajectories: Collection[float] | None
    ) -> dict[str, Any]:
        """The summary.

        Args:
            worker_ms: provisioned workers, integrated over time.
            gpus_per_worker: GPUs of each.
            sla: bounds of goodput.
            trajectories: end-to-end times of completed plays; None for a workload without plays.
        """
        included = [record for record in self.records if record.included]
        inputs = sum(record.input_length for record in included)
        outputs = sum(record.output_length for record in included)
        duration_ms = max((record.terminal_ms or 0.0 for record in included), default=0.0)
        duration_s = max(duration_ms / MS_PER_S, _LEAST_DURATION_S)
        first_reused = sum(record.admissions[0][1] for record in included)
        report: dict[str, Any] = {
            "num_requests": len(self.records),
            "completed_requests": len(included),
            "total_input_tokens": inputs,
            "total_output_tokens": outputs,
            "processed_tokens": inputs + outputs,
            "committed_prefill_tokens": self.committed_prefill_tokens,
            "duration_ms": duration_ms,
            "request_throughput_rps": len(included) / duration_s,
            "input_throughput_tok_s": inputs / duration_s,
            "output_throughput_tok_s": outputs / duration_s,
            "total_throughput_tok_s": (inputs + outputs) / duration_s,
            "prefix_cache_reused_ratio": sum(record.reused for record in included) / inputs if inputs else 0.0,
            "first_admission_prefix_cache_reused_ratio": first_reused / inputs if inputs else 0.0,
            "worker_seconds": worker_ms / MS_PER_S,
            "gpu_hours": worker_ms / MS_PER_S * gpus_per_worker / S_PER_HOUR,
        }
        for name, values in (
            ("ttft", [record.ttft_ms for record in included]),
            ("ttst", [record.ttst_ms for record in included]),
            ("tpot", [record.tpot_ms for record in included]),
            ("e2e_latency", [record.e2e_ms for record in included]),
        ):
            samples = [value for value in values if value is not None]
            report |= {f"{statistic}_{name}_ms": value for statistic, value in summary(samples).items()}
            if name != "ttst":
                report[f"num_{name}_samples"] = len(samples)
        report |= {f"{statistic}_itl_ms": value for statistic, value in self.itl.summary().items()}
        per_user = self.rate_per_user.summary()
        report |= {f"{statistic}_output_token_throughput_per_user": value for statistic, value in per_user.items()}
        if sla.given:
            good = [record for record in included if record.meets(sla)]
            report["goodput_completed_requests"] = len(good)
            report["goodput_request_throughput_rps"] = len(good) / duration_s
            report["goodput_output_throughput_tok_s"] = sum(record.output_length for record in good) / duration_s
        if trajectories is not None:
            report |= {f"{statistic}_trajectory_e2e_latency_ms": value for statistic, value in summary(trajectories).items()}
            report["p50_trajectory_e2e_latency_ms"] = report["median_trajectory_e2e_latency_ms"]
        return report
