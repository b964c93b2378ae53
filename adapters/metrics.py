"""The sums that simulators report of a pass, for every scheduler of the model.

What they count differs by scheduler: vLLM specification 3.11 (``model.paged.metrics``), SGLang specification 2.6.
"""

from __future__ import annotations

from attrs import evolve

from model.config import EngineConfig
from model.events import StepReport
from model.paged.metrics import ForwardMetrics, forward_metrics, variance
from model.views import PARKED, PREEMPTED, WAITING, EngineView


def pass_metrics(config: EngineConfig, before: EngineView, report: StepReport, after: EngineView) -> ForwardMetrics:
    """The metrics of the pass that made ``report`` between the two views."""
    if config.scheduler == "sglang":
        return radix_metrics(before, report, after)
    return forward_metrics(report, after if config.tiers is None else _with_connector(after))


def queued(view: EngineView) -> tuple[str, ...]:
    """Who waits: in the queue, or for a transfer between tiers."""
    connector: tuple[str, ...] = view.extra.get("connector", ())
    return (*view.waiting, *connector)


def _with_connector(view: EngineView) -> EngineView:
    """The view with those who wait for a transfer in the queue, as the forward-pass metrics count them."""
    requests = {
        id_: evolve(request, status=PREEMPTED if request.preemptions else WAITING) if request.status == PARKED else request
        for id_, request in view.requests.items()
    }
    return evolve(view, waiting=queued(view), requests=requests)


def radix_metrics(before: EngineView, report: StepReport, after: EngineView) -> ForwardMetrics:
    """The metrics of a pass of SGLang's policy (SGLang specification 2.6).

    A pass either prefills or decodes. What a prefill found computed is counted whole, also beyond the prompt. Those
    about to decode are counted before any is retracted, and stay counted when then nobody can grow.
    """
    decoding = [work.length for work in report.work.values()] if report.accept_forwards else []
    prefills = [] if report.accept_forwards else [work for work in report.work.values() if work.total]
    if not report.work:
        decoding = [after.requests[id_].length for id_ in after.running]
    decoding += [before.requests[preemption.victim].length for preemption in report.preemptions]
    reused = {admission.id: admission.reused for admission in report.admissions}
    prefixes = [reused.get(work.id, before.requests[work.id].computed) for work in prefills]
    waiting = [after.requests[id_] for id_ in after.waiting]
    fresh = [request.prompt for request in waiting if not request.generated]
    retracted = [request.length for request in waiting if request.generated]
    return ForwardMetrics(
        num_prefill_requests=len(prefills),
        sum_prefill_tokens=sum(work.total for work in prefills),
        sum_prefill_kv_tokens=sum(prefixes),
        var_prefill_length=variance([work.prompt for work in prefills]),
        num_decode_requests=len(decoding),
        sum_decode_kv_tokens=sum(decoding),
        var_decode_kv_tokens=variance(decoding),
        num_queued_prefill=len(fresh),
        sum_queued_prefill_tokens=sum(fresh),
        var_queued_prefill_length=variance(fresh),
        num_queued_decode=len(retracted),
        sum_queued_decode_kv_tokens=sum(retracted),
        var_queued_decode_kv_tokens=variance(retracted),
        wall_time_ns=report.end_ns - report.start_ns,
    )
