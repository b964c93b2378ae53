"""The waiting phase of a pass with tiers (offload specification 5.2, 5.5).

As in ``model.paged.scheduling``, but who waits is looked up in the tiers too. A request that has to wait for a transfer steps
aside into the connector queue and lets those behind it pass; one that has to wait for GPU blocks still ends the phase. The phase
looks at nobody once the budget is used up, since a lookup changes the eviction order of host memory.
"""

from __future__ import annotations

from attrs import evolve

from model.paged.admission import Cost, Verdict, cached_run, cost_of, judge
from model.paged.core import Pass
from model.paged.rules import cdiv
from model.paged.scheduling import Outcome, reject, schedule
from model.tiers.core import TieredCore, TieredRequest
from model.tiers.transfers import Lookup, look_up_host, start_load


def tiered_waiting_phase(core: TieredCore, step: Pass) -> None:
    """Look at those who wait, in turn, while nothing was preempted and there is budget and a slot."""
    rules = core.rules
    while not step.preempted_any and step.budget > 0 and len(core.running) < rules.max_seqs:
        request = next_in_turn(core)
        if request is None:
            return
        if request.prompt >= rules.max_length:
            reject(core, step, request)
        elif not consider(core, step, request):
            return


def next_in_turn(core: TieredCore) -> TieredRequest | None:
    """Who is looked at next: one whose load holds GPU blocks, else the first that is ready, else the head of the queue.

    With ``loads_wait_their_turn`` the first of these holds with a disk alone.
    """
    ready = [request for request in core.connector.values() if not request.asleep]
    if core.offload.disk is not None or not core.offload.rules.loads_wait_their_turn:
        for request in ready:
            if request.load is not None:
                return request
    if ready:
        return ready[0]
    if not core.waiting:
        return None
    head = core.waiting[0]
    assert isinstance(head, TieredRequest)
    return head


def consider(core: TieredCore, step: Pass, request: TieredRequest) -> bool:
    """Admit a request, begin to load it, have it wait for a transfer, or refuse it; False if it ends the phase."""
    found = cached_run(core, request)
    cost = cost_of(core, request, found)
    if request.load is not None and request.load.ended:
        cost = loaded_cost(core, request, request.load.prefix_blocks)
    lookup, blocks = look_up_host(core, step.report, request, len(found))
    if lookup is Lookup.DEFERRED:
        core.defer(request)
        return True
    verdict = judge(core, request, cost) if lookup is Lookup.MISS else judge_load(core, request, cost)
    if verdict is Verdict.REJECT:
        reject(core, step, request)
        return True
    if verdict is Verdict.WAIT:
        return False
    if lookup is Lookup.HIT:
        if not start_load(core, step.report, request, len(found), blocks):
            return False
        core.defer(request)
        return True
    if schedule(core, step, request, cost) is not Outcome.SCHEDULED:
        return False
    admitted(core, step, request)
    return True


def loaded_cost(core: TieredCore, request: TieredRequest, blocks: int) -> Cost:
    """What the ``blocks`` that a request holds since its load save it; blocks that others have cached meanwhile are left."""
    size = core.rules.block_size
    tokens = blocks * size
    most = tokens if request.complete else (request.length - 1) // size * size
    return Cost(min(tokens, most), tokens)


def judge_load(core: TieredCore, request: TieredRequest, cost: Cost) -> Verdict:
    """Whether a load may begin: the whole request must fit beside all that running prefills and other loads will take."""
    rules = core.rules
    verdict = judge(core, request, cost)
    if verdict is not Verdict.ADMIT:
        return verdict
    needed = cdiv(request.length, rules.block_size) - cost.active_cached // rules.block_size
    return Verdict.ADMIT if needed <= rules.num_blocks - core.pool.active - promised(core) else Verdict.WAIT


def promised(core: TieredCore) -> int:
    """Blocks that running prefills and requests with a load have not taken yet."""
    size = core.rules.block_size
    prefills = sum(
        max(cdiv(request.length, size) - cdiv(request.allocated, size), 0)
        for request in core.running
        if request.computed < request.prompt
    )
    loads = sum(
        max(cdiv(request.length, size) - request.load.prefix_blocks, 0)
        for request in core.connector.values()
        if request.load is not None
    )
    return prefills + loads


def admitted(core: TieredCore, step: Pass, request: TieredRequest) -> None:
    """Tell how much of what an admitted request reuses came from host memory, and let go of the tiers."""
    admission = step.report.admissions[-1]
    size = core.rules.block_size
    if request.load is not None:
        request.cursor = admission.reused // size
        if admission.first:
            host_tokens = admission.reused - min(request.load.g1_blocks * size, admission.reused)
            step.report.admissions[-1] = evolve(admission, host_tokens=host_tokens)
        request.load = None
    core.give_up(request)
    core.offload.got_on()
    request.promotions.clear()
    request.losses.clear()
    request.rounds = 0
    request.bypasses_disk = False
