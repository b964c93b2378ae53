"""Hand-off of a request from a prefill worker to a decode worker, as each of the two sees it (SGLang specification 7).

The commands and the states are those of vLLM's policy (``model.paged.handoff``); different is this:

* a destination that has room locks all its cached pages, the last one too, and takes the rest of its pages at once; they are
  told of, and enter the tree, when the KV has come;
* one whose KV has come stands in a queue of its own, *ready*, and runs as soon as there is a slot, before anybody is admitted.
  While one is ready, or pending, nobody is admitted for prefill;
* slots play no part in whether there is room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

from model.errors import BadInput
from model.events import Admission, StepReport
from model.radix.admission import can_decode
from model.radix.core import PARKED, RUNNING, WAITING, Core, Pass, Request
from model.radix.lease import cache_prefix, clear, finish, release, take

Command = Callable[[Core, StepReport, str], bool]
"""Carries out a command for the request of an id; whether it had an effect."""


def is_known(core: Core, id_: str) -> bool:
    """Whether a request of this id is live, or takes part in a hand-off."""
    handoffs = core.handoffs
    return id_ in core.requests or id_ in handoffs.held or id_ in handoffs.pending or id_ in handoffs.reserved


def withdraw(core: Core, report: StepReport, id_: str) -> bool:
    """Drop a live request, whatever its state; others are left alone."""
    request = core.requests.pop(id_, None)
    if request is None:
        return False
    handoffs = core.handoffs
    queue: deque[Request] | list[Request] = core.waiting
    if request.status == RUNNING:
        queue = core.running
    elif request in handoffs.ready:
        queue = handoffs.ready
    queue.remove(request)
    if request in core.refused:
        core.refused.remove(request)
    if request.pages:
        handoffs.tried = False
    release(core, report, request)
    handoffs.sources.pop(id_, None)
    handoffs.active.pop(id_, None)
    report.cancelled.append(id_)
    return True


def release_source(core: Core, report: StepReport, id_: str) -> bool:
    """Let a completed source end as any request does, or forget that a live one is one."""
    if core.handoffs.sources.pop(id_, None) is not None:
        return True
    if not let_go(core, report, id_):
        return False
    report.notes.append(("source-released", id_))
    return True


def cancel_source(core: Core, report: StepReport, id_: str) -> bool:
    """Let a completed source end, or drop a live one."""
    if id_ in core.handoffs.sources:
        return withdraw(core, report, id_)
    if not let_go(core, report, id_):
        return False
    report.cancelled.append(id_)
    return True


def let_go(core: Core, report: StepReport, id_: str) -> bool:
    """End the lease of a completed source; False if there is none."""
    held = core.handoffs.held.pop(id_, None)
    if held is None:
        return False
    finish(core, report, held)
    core.handoffs.tried = False
    return True


def check_destination(core: Core, request: Request) -> None:
    """Refuse a destination that could not be served alone; nothing has changed then.

    The specification looks at the prompt alone: defect ``radix-admits-unservable``.

    Raises:
        BadInput: naming the length that is too long.
    """
    rules = core.rules
    if request.prompt >= rules.max_length:
        raise BadInput("prompt", f"{request.prompt} tokens", f"fewer than max_model_len ({rules.max_length})")
    unservable = not rules.admits_unservable and not can_decode(rules, request.prompt, request.limit)
    if rules.paged(request.prompt) > rules.num_pages * rules.page_size or unservable:
        found = f"{request.prompt} tokens and {request.limit} to come"
        raise BadInput("prompt", found, f"what {rules.num_pages} pages of {rules.page_size} tokens can serve")


def accept_destination(core: Core, report: StepReport, request: Request) -> None:
    """Put a checked destination behind those that are pending."""
    handoffs = core.handoffs
    request.status = PARKED
    if not handoffs.pending:
        handoffs.tried = False
    handoffs.pending[request.id] = request
    report.notes.append(("destination-accepted", request.id))


def activate_destination(core: Core, report: StepReport, id_: str) -> bool:
    """The KV of a reserved destination has come: its full pages enter the tree, and it is ready to run."""
    handoffs = core.handoffs
    request = handoffs.reserved.pop(id_, None)
    if request is None:
        return False
    request.computed = request.prompt
    available = core.pool.available
    cache_prefix(core, report, request)
    if core.pool.available > available:
        # Others had cached some of it meanwhile, so that pages came free.
        handoffs.tried = False
    request.status = WAITING
    core.requests[id_] = request
    handoffs.ready.append(request)
    handoffs.active[id_] = request
    return True


def cancel_destination(core: Core, report: StepReport, id_: str) -> bool:
    """Withdraw a destination in any state."""
    handoffs = core.handoffs
    if id_ in handoffs.active:
        # What it gives back may be nothing; then whoever is pending was not waiting for it.
        return withdraw(core, report, id_)
    if id_ in handoffs.reserved:
        request = handoffs.reserved.pop(id_)
        core.pool.free(request.pages[request.cached // core.rules.page_size :])
        core.tree.unlock(request.node)
        clear(core, request)
    elif handoffs.pending.pop(id_, None) is None:
        return False
    report.cancelled.append(id_)
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
    """Look for room for the first pending destination, if some may have come free since the last attempt.

    What the lookup split and touched stays so, whether there is room or not.
    """
    handoffs, size = core.handoffs, core.rules.page_size
    if not handoffs.pending or handoffs.tried:
        return
    request = next(iter(handoffs.pending.values()))
    handoffs.tried = True
    full = request.prompt // size if core.rules.caching else 0
    matched, node = core.tree.match(core.registry.chain(request.number, full), full)
    core.tree.lock(node)
    fresh = -(-request.prompt // size) - matched
    if fresh > core.obtainable:
        core.tree.unlock(node)
        return
    request.node = node
    request.cached = matched * size
    request.pages = core.tree.pages_to(node) + take(core, report, fresh)
    del handoffs.pending[request.id]
    handoffs.reserved[request.id] = request
    handoffs.tried = False
    report.notes.append(("destination-reserved", (request.id, fresh * size)))


def promote_ready(core: Core, step: Pass) -> None:
    """Let destinations run whose KV has come, as far as slots go."""
    ready = core.handoffs.ready
    while ready and len(core.running) < core.rules.max_seqs:
        request = ready.popleft()
        request.status = RUNNING
        core.running.append(request)
        step.report.admissions.append(Admission(request.id, 0, first=request.cached_tokens is None))
        request.cached_tokens = 0


def parties(core: Core) -> Iterable[Request]:
    """The live requests, then all others that take part in a hand-off."""
    handoffs = core.handoffs
    return chain(core.requests.values(), handoffs.held.values(), handoffs.pending.values(), handoffs.reserved.values())


def owners(core: Core) -> dict[str, Any]:
    """The owner collections as a view shows them."""
    handoffs, size = core.handoffs, core.rules.page_size
    holds = {}
    for id_, request in handoffs.reserved.items():
        cached = request.cached // size
        holds[id_] = (cached, len(request.pages) - cached)
    return {
        "sources": tuple(handoffs.sources),
        "held_sources": tuple(handoffs.held),
        "pending_destinations": tuple(handoffs.pending),
        "destination_holds": holds,
        "active_destinations": tuple(handoffs.active),
        "prebuilt": tuple([request.id for request in handoffs.ready]),
        "head_tried": handoffs.tried,
    }
