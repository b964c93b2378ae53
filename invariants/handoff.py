"""Hand-offs between a prefill and a decode worker: who owns what, that room is looked for, and what the looking costs.

The names of specification 7 and the ids here: S-HO ``handoff-ownership``, S-HEAD ``headroom-exact`` and ``handoff-scan-needed``,
L-WAKE ``destination-woken``, S-REF ``scan-changes-nothing``. L-STARVE needs no id of its own: who waits for ever behind
destinations is in a lasso, and every lasso is judged (``invariants.progress``).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from attrs import evolve, fields

from invariants.framework import COST, PROGRESS, STEP, Found, Invariant, Transition, Violation, declare, on_state, on_step
from invariants.guaranteed import still_to_take
from invariants.states import OWNERS, blocks_for, paged
from model import engine as parts
from model.actions import Handoff
from model.config import EngineConfig
from model.events import StepReport
from model.views import PARKED, RUNNING, EngineView

SCAN_VISITS = "handoff_scan_visits"


def hands_off(config: EngineConfig) -> bool:
    """The worker takes part in hand-offs."""
    return config.role in ("prefill", "decode")


def owned(view: EngineView) -> dict[str, list[str]]:
    """The owner collections by request: the names of those it is in."""
    found: dict[str, list[str]] = {}
    for name in OWNERS:
        for id_ in view.extra.get(name, ()):
            found.setdefault(id_, []).append(name)
    return found


@on_state(
    "handoff-ownership",
    "A request is in one owner collection, in the status that belongs to it, its room accounted for, and somebody will end it.",
    "vLLM specification S-HO, S-OWN, 2.4",
    needs={parts.REQUESTS, parts.QUEUES, parts.POOL},
    applies=hands_off,
)
def handoff_ownership(view: EngineView, config: EngineConfig) -> Found:
    """The owner collections against requests, queues, pool and, in a system, what its coordinator still follows."""
    owners = owned(view)
    if not owners:
        return None
    followed = view.extra.get("followed")
    for id_, names in owners.items():
        if len(names) > 1:
            return f"{id_} is in {' and in '.join(names)}"
        request = view.requests.get(id_)
        if request is None:
            return f"{id_} is in {names[0]} and not known otherwise"
        alive = names[0] in ("sources", "active_destinations")
        if alive == (request.status == PARKED):
            return f"{id_} is in {names[0]} and {request.status}"
        if followed is not None and id_ not in followed:
            return f"{id_} is in {names[0]}, and nobody will end it"
    for id_, request in view.requests.items():
        if request.status == PARKED and id_ not in owners:
            return f"{id_} is parked and in no owner collection"
    if paged(config):
        promised = sum(fresh for _, fresh in view.extra["destination_holds"].values())
        if view.pool.reserved != promised:
            return f"{view.pool.reserved} blocks are reserved, destinations were promised {promised}"
    return True


@on_step(
    "handoff-ownership",
    "A held source keeps its room until it is let go; activation takes no block (vLLM: nor frees one), no effect is no change.",
    "vLLM specification S-HO",
    needs={parts.REQUESTS, parts.POOL},
    applies=hands_off,
)
def handoffs_keep_their_room(step: Transition) -> Found:
    """Room of held sources, and of all, around a step."""
    before, after = step.before, step.after
    held = [id_ for id_ in before.extra.get("held_sources", ()) if id_ in after.extra.get("held_sources", ())]
    for id_ in held:
        if after.requests[id_].allocated != before.requests[id_].allocated:
            return f"{id_} is a held source and its room changed"
    action = step.action
    if not isinstance(action, Handoff):
        return True if held else None
    without_effect = any(kind == "no-effect" for kind, _ in step.report.notes)
    if without_effect and (before.pool != after.pool or before.requests != after.requests or before.waiting != after.waiting):
        return f"{action.verb} of {action.id} had no effect and changed something"
    if action.verb == "activate_destination" and not any(kind == "destination-reserved" for kind, _ in step.report.notes):
        active = before.pool.active, after.pool.active
        # A radix tree gives back the pages that others have cached meanwhile.
        if active[1] > active[0] or (paged(step.config) and active[0] != active[1]):
            return f"activating {action.id} changed the blocks in use from {active[0]} to {active[1]}"
    return True


def naive_headroom(view: EngineView, config: EngineConfig) -> int:
    """What accepted hand-offs will still take, by a look at everything."""
    room = 0
    for id_, request in view.requests.items():
        if id_ in view.extra["destination_holds"]:
            room += still_to_take(request, sum(view.extra["destination_holds"][id_]), config)
        elif id_ in view.extra["active_destinations"] and request.status != RUNNING:
            room += still_to_take(request, blocks_for(request.allocated, config), config)
    return room


@on_state(
    "headroom-exact",
    "The room that accepted hand-offs will still take, as the engine computes it, is the sum over all of them.",
    "vLLM specification S-HEAD, 4.4",
    needs={parts.REQUESTS},
    applies=lambda config: hands_off(config) and paged(config),
)
def headroom_exact(view: EngineView, config: EngineConfig) -> Found:
    """The value of the engine against a naive sum."""
    expected = naive_headroom(view, config)
    if view.extra["headroom"] != expected:
        return f"the headroom is {view.extra['headroom']} blocks, the sum over all hand-offs is {expected}"
    return True if expected else None


@on_step(
    "handoff-scan-needed",
    "Where nobody has or awaits KV from another worker, no request is looked at to find how much room hand-offs need.",
    "finding 5; vLLM specification S-HEAD, 6",
    needs={parts.COSTS, parts.QUEUES},
    catches=("handoff-scan",),
    applies=paged,
    kind=COST,
)
def handoff_scan_needed(step: Transition) -> Found:
    """Visits of a step against the hand-offs around it."""
    if not step.report.is_pass or not step.before.waiting:
        return None
    for view in (step.before, step.after):
        if view.extra.get("destination_holds") or view.extra.get("active_destinations"):
            return None
    visits = step.report.costs.get(SCAN_VISITS, 0)
    if visits:
        return f"{visits} requests were looked at to find how much room hand-offs need, and there is no hand-off"
    return True


@on_state(
    "destination-woken",
    "The first pending destination, tried in vain, would not fit now: room that came free was not missed.",
    "vLLM specification L-WAKE, 4.3",
    needs={parts.REQUESTS, parts.QUEUES, parts.POOL},
    applies=lambda config: config.role == "decode",
    kind=PROGRESS,
)
def destination_woken(view: EngineView, config: EngineConfig) -> Found:
    """The first pending destination against the room there is; cached blocks that it could use are left out of account."""
    pending = view.extra["pending_destinations"]
    if not pending or not view.extra["head_tried"]:
        return None
    if paged(config) and config.max_num_seqs is not None and len(view.running) >= config.max_num_seqs:
        return True
    request = view.requests[pending[0]]
    room = view.pool.free + view.pool.inactive
    wanted = blocks_for(request.prompt, config)
    if config.scheduler == "trtllm":
        running = [view.requests[id_] for id_ in view.running]
        room -= sum(still_to_take(other, blocks_for(other.allocated, config), config) for other in running)
        room -= naive_headroom(view, config)
        wanted = blocks_for(request.prompt + request.output, config)
    if wanted <= room:
        return f"{request.id} waits for {wanted} blocks, {room} can be had, and nobody will look before more come free"
    return True


SAME_OUTCOME = "scan-changes-nothing"

declare(
    Invariant(
        SAME_OUTCOME,
        STEP,
        "How the room for hand-offs is found changes its cost alone: admissions, tokens, times and preemptions are the same.",
        "vLLM specification S-REF, 6",
        needs=frozenset({parts.WORK, parts.SIGNALS}),
        applies=paged,
    )
)


def judge_same_outcome(first: Iterable[StepReport], second: Iterable[StepReport]) -> list[Violation]:
    """The first action on which two engines under the same actions differ in more than cost, if there is one."""
    for number, once, other in zip(count(1), first, second, strict=False):
        left, right = evolve(once, costs={}), evolve(other, costs={})
        if left != right:
            names = [field.name for field in fields(StepReport) if getattr(left, field.name) != getattr(right, field.name)]
            return [Violation(SAME_OUTCOME, f"the action reports different {', '.join(names)}", number)]
    return []
