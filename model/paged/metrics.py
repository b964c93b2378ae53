"""Forward-pass metrics: one pass in a few sums and variances (vLLM specification 3.11, "FPM snapshot fields").

The figures of the scheduled requests are those of the moment they were scheduled, so a request that ended in the pass is
among them, and so is one preempted while tokens were emitted; the queues are read after the pass. All figures are exact;
variances are those of the whole population, 0 for none. A pass without any effect (``StepReport.had_effect``) has no
metrics upstream; to leave it out is up to the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from attrs import frozen

from model.actions import Nanoseconds
from model.events import StepReport
from model.views import PREEMPTED, WAITING, EngineView


@frozen
class ForwardMetrics:
    """The metrics of one pass.

    Attributes:
        num_prefill_requests: scheduled requests that computed prompt tokens.
        sum_prefill_tokens: tokens these computed, generated ones that were computed again included.
        sum_prefill_kv_tokens: prompt tokens of theirs that were there before: cached, or computed by earlier passes.
        var_prefill_length: variance of their prompt lengths.
        num_decode_requests: scheduled requests that computed no prompt token and were not complete before.
        sum_decode_kv_tokens, var_decode_kv_tokens: sum and variance of their sequence lengths.
        num_queued_prefill: requests that wait for their prefill and never ran.
        sum_queued_prefill_tokens, var_queued_prefill_length: sum and variance of their prompt lengths.
        num_queued_decode: requests that wait after a preemption, with their KV from another worker, or for that KV.
        sum_queued_decode_kv_tokens, var_queued_decode_kv_tokens: sum and variance of their sequence lengths.
        wall_time_ns: virtual duration of the pass.
    """

    num_prefill_requests: int
    sum_prefill_tokens: int
    sum_prefill_kv_tokens: int
    var_prefill_length: Fraction
    num_decode_requests: int
    sum_decode_kv_tokens: int
    var_decode_kv_tokens: Fraction
    num_queued_prefill: int
    sum_queued_prefill_tokens: int
    var_queued_prefill_length: Fraction
    num_queued_decode: int
    sum_queued_decode_kv_tokens: int
    var_queued_decode_kv_tokens: Fraction
    wall_time_ns: Nanoseconds


def forward_metrics(report: StepReport, after: EngineView) -> ForwardMetrics:
    """The metrics of the pass that made ``report``.

    Args:
        report: of a scheduler pass.
        after: the view right after it; the block table is not read.
    """
    prefills = [work for work in report.work.values() if work.prompt_tokens]
    decodes = [work.length for work in report.work.values() if not work.prompt_tokens and not work.terminal]
    waiting = [after.requests[id_] for id_ in after.waiting]
    arrived = after.extra.get("active_destinations", ())
    fresh = [request.prompt for request in waiting if request.status == WAITING and request.id not in arrived]
    to_decode = [request.length for request in waiting if request.status == PREEMPTED or request.id in arrived]
    coming = (*after.extra.get("pending_destinations", ()), *after.extra.get("destination_holds", ()))
    to_decode += [after.requests[id_].prompt for id_ in coming]
    return ForwardMetrics(
        num_prefill_requests=len(prefills),
        sum_prefill_tokens=sum(work.total for work in prefills),
        sum_prefill_kv_tokens=sum(work.prefix_tokens for work in prefills),
        var_prefill_length=variance([work.prompt for work in prefills]),
        num_decode_requests=len(decodes),
        sum_decode_kv_tokens=sum(decodes),
        var_decode_kv_tokens=variance(decodes),
        num_queued_prefill=len(fresh),
        sum_queued_prefill_tokens=sum(fresh),
        var_queued_prefill_length=variance(fresh),
        num_queued_decode=len(to_decode),
        sum_queued_decode_kv_tokens=sum(to_decode),
        var_queued_decode_kv_tokens=variance(to_decode),
        wall_time_ns=report.end_ns - report.start_ns,
    )


def variance(values: Sequence[int]) -> Fraction:
    """The population variance of ``values``; 0 for none."""
    if not values:
        return Fraction(0)
    count = len(values)
    return Fraction(sum(value * value for value in values), count) - Fraction(sum(values), count) ** 2
