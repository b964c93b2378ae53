"""What a run leaves behind, action by action, and its parts of the result in the case format (section 2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen

from invariants.framework import Violation
from model.actions import Submit
from model.case import to_ms
from model.events import KvEvent, Removed, StepReport, Stored, block_names
from model.registry import NO_BLOCK
from model.views import RUNNING, EngineView, RequestView

COSTS = ("handoff_scan_visits", "session_visits", "ended_history_capacity", "radix_capacity", "radix_stored")
"""Cost counts that every result holds, 0 where the engine does not keep them."""


@frozen
class Moment:
    """One applied action, and what the engine showed after it.

    Attributes:
        number: of the action, counted from 1.
        report: what it did.
        views: one per worker, without block tables.
        violations: what it broke.
    """

    number: int
    report: StepReport
    views: Sequence[EngineView]
    violations: Sequence[Violation]


def pass_json(report: StepReport) -> dict[str, Any]:
    """A pass as the case format has it."""
    return {
        "scheduled": report.scheduled,
        "emitted": report.emitted,
        "preempted": [preemption.victim for preemption in report.preemptions],
        "finished": report.finished,
        "rejected": report.rejected,
        "events": [event_json(event) for event in report.events],
        "start_ms": to_ms(report.start_ns),
        "end_ms": to_ms(report.end_ns),
    }


def event_json(event: KvEvent) -> dict[str, Any]:
    """A KV event as the case format has it; the tier is named where it is not the GPU's."""
    names = block_names(event.blocks)
    if isinstance(event, Stored):
        parent = None if event.parent == NO_BLOCK else block_names((event.parent,))[0]
        written: dict[str, Any] = {"stored": names, "parent": parent}
    else:
        written = {"removed": names}
    if event.tier != "gpu":
        written["tier"] = event.tier
    return written


def final_state(runs: Iterable[Sequence[Moment]], views: Sequence[EngineView]) -> dict[str, Any]:
    """Every request ever submitted, ended ones as they were when they ended, and the block counts at the end.

    Args:
        runs: the moments of each engine that ran by itself; a system of several engines is one.
        views: of all workers at the end.
    """
    requests: dict[str, dict[str, Any]] = {}
    preemptions = 0
    for moments in runs:
        requests.update(_requests(moments))
        preemptions += sum(len(moment.report.preemptions) for moment in moments)
    return {
        "requests": requests,
        "active_blocks": sum(view.pool.active for view in views),
        "cached_blocks": sum(view.pool.inactive for view in views),
        "free_blocks": sum(view.pool.free for view in views),
        "preemptions": preemptions,
    }


def _requests(moments: Sequence[Moment]) -> dict[str, dict[str, Any]]:
    """What became of each request; a live one is as the last view shows it."""
    requests: dict[str, dict[str, Any]] = {}
    before: dict[str, RequestView] = {}
    for moment in moments:
        report = moment.report
        if isinstance(report.action, Submit) and report.action.request.id in requests:
            # The id of a request that ended is used again.
            requests[report.action.request.id] = {}
        finished = [id_ for id_ in report.finished if id_ not in report.handed_over]
        for status, ids in (("finished", finished), ("rejected", report.rejected), ("cancelled", report.cancelled)):
            for id_ in ids:
                if id_ in before and requests.get(id_, {}).get("status") != "rejected":
                    requests[id_] = _ended(before[id_], report, status)
                elif status == "rejected":
                    # Refused on arrival.
                    requests[id_] = _account(status, 0, 0, 0, 0)
        now = _shown(moment.views, requests)
        released = [details for kind, details in report.notes if kind == "source-released"]
        for id_ in released:
            if id_ not in now and not requests.get(id_):
                requests[id_] = _ended(before[id_], report, "finished")
        for id_ in now:
            # Entered in the order of submission; the last view is written over it below.
            requests.setdefault(id_, {})
        before = now
    for id_, request in before.items():
        status = "running" if request.status == RUNNING else "waiting"
        requests[id_] = _account(status, request.generated, request.computed, request.cached_tokens, request.preemptions)
    return requests


def _shown(views: Sequence[EngineView], ended: Mapping[str, Mapping[str, Any]]) -> dict[str, RequestView]:
    """The requests of all workers, one that moved on as the last of them shows it.

    What a prefill worker still holds of a request that ended elsewhere is not a request any more.
    """
    shown = {}
    for view in views:
        held = view.extra.get("held_sources", ())
        shown.update({id_: request for id_, request in view.requests.items() if id_ not in held or not ended.get(id_)})
    return shown


def _account(status: str, emitted: int, computed: int, cached_tokens: int, preemptions: int) -> dict[str, Any]:
    return {
        "status": status,
        "emitted": emitted,
        "computed": computed,
        "cached_tokens": cached_tokens,
        "preemptions": preemptions,
    }


def _ended(before: RequestView, report: StepReport, status: str) -> dict[str, Any]:
    """A request that ended in a step: as it was before, and what the step did for it."""
    id_ = before.id
    admission = next((admission for admission in report.admissions if admission.id == id_), None)
    reused = admission.reused if admission else 0
    emitted = report.emitted.get(id_, 0)
    computed = before.computed + reused + report.scheduled.get(id_, 0) + max(emitted - 1, 0)
    return _account(
        status,
        before.generated + emitted,
        computed,
        reused if admission and admission.first else before.cached_tokens,
        before.preemptions + sum(1 for preemption in report.preemptions if preemption.victim == id_),
    )


def costs_of(views: Sequence[EngineView]) -> dict[str, int]:
    """Ghost counts of all workers, by name."""
    total = Counter(dict.fromkeys(COSTS, 0))
    for view in views:
        for name, count in view.costs.items():
            total[name] += count
    return dict(total)


def report_of(moments: Sequence[Moment]) -> dict[str, Any]:
    """Accept length (null without a decode forward), arrivals, and the number of passes."""
    reports = [moment.report for moment in moments]
    forwards = sum(report.accept_forwards for report in reports)
    return {
        "accept_length": sum(report.accept_tokens for report in reports) / forwards if forwards else None,
        "arrivals_ms": {
            report.action.request.id: to_ms(report.start_ns) for report in reports if isinstance(report.action, Submit)
        },
        "passes": sum(report.is_pass for report in reports),
    }


def exercised_in(moments: Iterable[Moment]) -> dict[str, int]:
    """How often the subjects of the invariants came up."""
    subjects = Counter({"preemption": 0, "prefix-hit": 0, "eviction": 0, "refusal": 0, "burst": 0})
    for moment in moments:
        report = moment.report
        subjects["preemption"] += len(report.preemptions)
        subjects["prefix-hit"] += sum(1 for admission in report.admissions if admission.reused)
        subjects["eviction"] += sum(len(event.blocks) for event in report.events if isinstance(event, Removed))
        subjects["refusal"] += len(report.rejected)
        subjects["burst"] += sum(1 for count in report.emitted.values() if count > 1)
    return dict(subjects)
