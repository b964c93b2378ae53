"""Hand-off of a request from a prefill worker to a decode worker, as each of the two sees it (vLLM specification 4).

A *source* is a request of a prefill worker whose blocks are kept when it completes, until the other side has their content. A
*destination* is a request that a decode worker accepts before its KV is there::

    pending    accepted, and waits for room; first come, first served
    reserved   has room: cached blocks pinned, others promised; the transfer is on its way
    active     the KV is there: a live request that waits with its whole prompt computed, and then runs like any other

Room is looked for when a command had an effect and behind every pass, for one pending destination at a time, and only if some
may have come free since the last attempt. While any is pending, no request without KV is admitted.

TensorRT-LLM's policy sets aside room for the whole output: what accepted hand-offs will still take (*headroom*) is kept from
others. Finding 5 is to compute that where nobody needs it, by a look at every request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

from model.errors import BadInput
from model.events import StepReport
from model.paged.admission import (
    cached_run,
    can_serve,
    handoff_room,
    headroom,
    scan_needlessly,
    still_to_take,
    to_completion_blocks,
)
from model.paged.core import PARKED, RUNNING, WAITING, Core, Hold, Request, evicted, finalize
from model.paged.rules import cdiv

Command = Callable[[Core, StepReport, str], bool]
"""Carries out a command for the request of an id; whether it had an effect."""


def is_known(core: Core, id_: str) -> bool:
    """Whether a request of this id is live, or takes part in a hand-off."""
    handoffs = core.handoffs
    return id_ in core.requests or id_ in handoffs.held or id_ in handoffs.pending or id_ in handoffs.reserved


def withdraw(core: Core, report: StepReport, id_: str) -> bool:
    """Drop a live request, whatever its state; others are left alone."""
    request = core.requests.get(id_)
    if request is None:
        return False
    queue = core.running if request.status == RUNNING else core.waiting
    queue.remove(request)
    core.drop(request)
    report.cancelled.append(id_)
    return True


def release_source(core: Core, report: StepReport, id_: str) -> bool:
    """Give back the blocks of a completed source, or forget that those of a live one are to be kept."""
    if core.handoffs.sources.pop(id_, None) is not None:
        return True
    if not give_back(core, id_):
        return False
    report.notes.append(("source-released", id_))
    return True


def cancel_source(core: Core, report: StepReport, id_: str) -> bool:
    """Give back the blocks of a completed source, or drop a live one."""
    if id_ in core.handoffs.sources:
        return withdraw(core, report, id_)
    if not give_back(core, id_):
        return False
    report.cancelled.append(id_)
    return True


def give_back(core: Core, id_: str) -> bool:
    """Give back the blocks of a completed source; False if there is none."""
    held = core.handoffs.held.pop(id_, None)
    if held is None:
        return False
    core.release(held)
    core.handoffs.tried = False
    return True


def check_destination(core: Core, request: Request) -> None:
    """Refuse a destination that could not be served alone; nothing has changed then.

    The specification looks at the prompt alone (with TensorRT-LLM's policy, at the whole sequence): defect ``admits-unservable``.

    Raises:
        BadInput: naming the length that is too long.
    """
    rules = core.rules
    if request.prompt >= rules.max_length:
        raise BadInput("prompt", f"{request.prompt} tokens", f"fewer than max_model_len ({rules.max_length})")
    wanted = to_completion_blocks(core, request) if rules.guaranteed else cdiv(request.prompt, rules.block_size)
    unservable = not rules.admits_unservable and not can_serve(rules, request.prompt, request.limit)
    if wanted > rules.num_blocks or unservable:
        found = f"{request.prompt} tokens and {request.limit} to come"
        raise BadInput("prompt", found, f"what {rules.num_blocks} blocks of {rules.block_size} tokens can serve")


def accept_destination(core: Core, report: StepReport, request: Request) -> None:
    """Put a checked destination behind those that are pending."""
    handoffs = core.handoffs
    request.status = PARKED
    if not handoffs.pending:
        handoffs.tried = False
    handoffs.pending[request.id] = request
    report.notes.append(("destination-accepted", request.id))


def activate_destination(core: Core, report: StepReport, id_: str) -> bool:
    """The KV of a reserved destination has come: it waits, with its whole prompt computed."""
    handoffs, pool = core.handoffs, core.pool
    hold = handoffs.reserved.pop(id_, None)
    if hold is None:
        return False
    request = hold.request
    pool.activate(hold.hits)
    request.blocks = [*hold.hits, *(pool.take() for _ in range(hold.fresh))]
    request.allocated = request.computed = request.prompt
    finalize(core, report, request, len(hold.hits) * core.rules.block_size, request.prompt)
    request.status = WAITING
    core.requests[id_] = request
    core.waiting.insert(place_by_arrival(core, request), request)
    handoffs.active[id_] = request
    return True


def place_by_arrival(core: Core, request: Request) -> int:
    """Where a request belongs in the queue: before the first that arrived later.

    The text of the specification has it at the tail (4.2), its conformance row 24 where it was when it arrived; so does the newer
    release.
    """
    for place, other in enumerate(core.waiting):
        if other.order > request.order:
            return place
    return len(core.waiting)


def cancel_destination(core: Core, report: StepReport, id_: str) -> bool:
    """Withdraw a destination in any state."""
    handoffs = core.handoffs
    if id_ in handoffs.active:
        withdraw(core, report, id_)
    elif id_ in handoffs.reserved:
        hold = handoffs.reserved.pop(id_)
        core.pool.cancel(hold.hits, hold.fresh)
        report.cancelled.append(id_)
    elif id_ in handoffs.pending:
        del handoffs.pending[id_]
        report.cancelled.append(id_)
    else:
        return False
    handoffs.tried = False
    return True


SOURCE_COMMANDS: Mapping[str, Command] = {
    "release_source": release_source,
    "cancel_source": cancel_source,
    "cancel_request": withdraw,
}
DESTINATION_COMMANDS: Mapping[str, Command] = {
    "activate_destination": activate_destination,
    "cancel_destination": cancel_destination,
    "cancel_request": withdraw,
}


def retry_pending(core: Core, report: StepReport) -> None:
    """Look for room for the first pending destination, if some may have come free (4.3).

    With vLLM's policy it uses the cached blocks at its head; TensorRT-LLM's takes fresh ones alone.
    """
    handoffs, rules = core.handoffs, core.rules
    if len(core.running) >= rules.max_seqs:
        handoffs.tried = bool(handoffs.pending)
        return
    if rules.scans_needlessly:
        scan_needlessly(core)
    if not handoffs.pending or handoffs.tried:
        return
    request = next(iter(handoffs.pending.values()))
    handoffs.tried = True
    hits = [] if rules.guaranteed else cached_run(core, request)
    fresh = cdiv(request.prompt, rules.block_size) - len(hits)
    if rules.guaranteed:
        available = rules.num_blocks - core.pool.active - still_to_take(core)
        if to_completion_blocks(core, request) > available - headroom(core):
            return
    removed = core.pool.reserve(hits, fresh)
    if removed is None:
        return
    evicted(core, report, removed)
    del handoffs.pending[request.id]
    handoffs.reserved[request.id] = Hold(request, hits, fresh)
    handoffs.tried = False
    report.notes.append(("destination-reserved", (request.id, fresh * rules.block_size)))


def parties(core: Core) -> Iterable[Request]:
    """The live requests, then all others that take part in a hand-off."""
    handoffs = core.handoffs
    reserved = (hold.request for hold in handoffs.reserved.values())
    return chain(core.requests.values(), handoffs.held.values(), handoffs.pending.values(), reserved)


def owners(core: Core) -> dict[str, Any]:
    """The owner collections as a view shows them, and the headroom as the engine computes it."""
    handoffs = core.handoffs
    return {
        "sources": tuple(handoffs.sources),
        "held_sources": tuple(handoffs.held),
        "pending_destinations": tuple(handoffs.pending),
        "destination_holds": {id_: (len(hold.hits), hold.fresh) for id_, hold in handoffs.reserved.items()},
        "active_destinations": tuple(handoffs.active),
        "prebuilt": tuple([request.id for request in core.waiting if request.prebuilt]),
        "headroom": handoff_room(core),
        "head_tried": handoffs.tried,
    }
