"""Invariants over what a step did between two states: budgets, order, signals, cache events, preemptions, metrics."""

from __future__ import annotations

from invariants.framework import Found, Transition, on_step
from invariants.states import blocks_for, paged
from model import engine as parts
from model.actions import Submit
from model.config import EngineConfig
from model.events import Preemption, Removed, Stored
from model.views import PREEMPTED, WAITING


def _fcfs(config: EngineConfig) -> bool:
    return config.schedule_policy == "fcfs" and config.role == "aggregated"


def rounded(tokens: int, config: EngineConfig) -> int:
    """Tokens rounded up to whole blocks (SGLang: pages)."""
    return blocks_for(tokens, config) * config.block_size


@on_step(
    "token-budget",
    "The tokens of a pass stay within its budget.",
    "vLLM specification S-BUD; SGLang specification S8",
    needs={parts.WORK},
)
def token_budget(step: Transition) -> Found:
    """Scheduled tokens against the budget; SGLang counts prompt tokens, rounded up to pages."""
    work = step.report.work
    if not work:
        return None
    config = step.config
    if config.scheduler == "sglang":
        charged = sum(rounded(item.prompt_tokens, config) for item in work.values() if item.prompt_tokens)
        limit = min(config.chunked_prefill_size, config.max_prefill_tokens)
        if charged > limit:
            return f"the pass prefills {charged} tokens (whole pages), the budget is {limit}"
        return True if charged else None
    budget = config.max_num_batched_tokens
    if budget is None:
        return None
    total = sum(item.total for item in work.values())
    if total > budget:
        return f"the pass schedules {total} tokens, the budget is {budget}"
    return True


@on_step(
    "arrival-order",
    "First come, first served: who leaves the queue in a pass was at its head, and who arrives goes to its tail.",
    "vLLM specification S-FIFO; SGLang specification S10",
    needs={parts.QUEUES, parts.SIGNALS},
    applies=_fcfs,
)
def arrival_order(step: Transition) -> Found:
    """Admitted and refused requests are a prefix of the queue, in its order."""
    before = step.before.waiting
    report = step.report
    action = report.action
    if isinstance(action, Submit):
        expected = (*before, action.request.id)
        if step.after.waiting != expected:
            return f"after the arrival of {action.request.id} the queue is {list(step.after.waiting)}, not {list(expected)}"
        return True
    if not report.is_pass or not before:
        return None
    extra = step.before.extra
    if extra and (extra.get("pending_destinations") or "connector" in extra):
        return None
    left = [admission.id for admission in report.admissions if admission.id in before]
    if report.signals:
        # A refusal may come before its turn: it takes nobody's place.
        refused = {signal.id for signal in report.signals if signal.rejected}
        if refused:
            before = tuple([id_ for id_ in before if id_ not in refused])
    # A prompt that goes on leaves the queue without being admitted anew.
    gone = {*left, *[id_ for id_ in report.work if id_ in before]}
    if not gone:
        return True if len(before) < len(step.before.waiting) else None
    for id_ in before[len(gone) :]:
        if id_ in gone:
            return f"{id_} left the queue before one ahead of it: the queue was {list(before)}"
    ranks = [before.index(id_) for id_ in dict.fromkeys(left)]
    if ranks != sorted(ranks):
        return f"admitted in the order {left}, the queue was {list(before)}"
    return True


@on_step(
    "terminal-once",
    "A request ends once: one completing signal, nothing after it, and none for a request that is not live or just refused.",
    "vLLM specification S-SIG; SGLang specification S11",
    needs={parts.SIGNALS, parts.REQUESTS},
)
def terminal_once(step: Transition) -> Found:
    """Signals against live requests before and after."""
    before, after = step.before.requests, step.after.requests
    signals = step.report.signals
    if not signals and before.keys() <= after.keys():
        return None
    ended: set[str] = set()
    action = step.report.action
    arriving = action.request.id if isinstance(action, Submit) else None
    for signal in signals:
        if signal.id not in before and not (signal.rejected and signal.id == arriving):
            return f"a signal for {signal.id}, which is not live"
        if signal.id in ended:
            return f"a signal for {signal.id} behind the one that completed it"
        if signal.completed:
            ended.add(signal.id)
        if signal.rejected and signal.token:
            return f"{signal.id} was refused with a token"
    gone = [id_ for id_ in before if id_ not in after]
    if not ended and not gone:
        return None
    for id_ in ended:
        if id_ in after and id_ not in step.after.extra.get("held_sources", ()):
            return f"{id_} completed and is still live"
    released = step.before.extra.get("held_sources", ())
    for id_ in gone:
        if id_ not in ended and id_ not in step.report.cancelled and id_ not in released:
            return f"{id_} is gone without a completing signal"
    return True


@on_step(
    "output-exact",
    "A request that finishes has produced exactly the tokens it asked for, and never more.",
    "vLLM specification S-SIG; SGLang specification S11",
    needs={parts.SIGNALS, parts.REQUESTS},
)
def output_exact(step: Transition) -> Found:
    """Tokens before and in the step against the output asked for."""
    report = step.report
    if not report.signals:
        return None
    emitted = report.emitted
    finished = report.finished
    after = step.after.requests
    for id_, request in step.before.requests.items():
        produced = request.generated + emitted.get(id_, 0)
        if produced > request.output:
            return f"{id_} has produced {produced} tokens of {request.output}"
        if id_ in finished:
            if produced != request.output:
                return f"{id_} finished with {produced} tokens of {request.output}"
        elif id_ in after and after[id_].generated != produced:
            return f"{id_} counts {after[id_].generated} tokens, {produced} were signalled"
    return True


@on_step(
    "prefix-hit-truth",
    "Tokens reported as reused are whole blocks that were cached, and (but with trtllm) leave the last token to compute.",
    "vLLM specification S-HIT; SGLang specification S12",
    needs={parts.REQUESTS, parts.BLOCKS},
)
def prefix_hit_truth(step: Transition) -> Found:
    """Reused tokens of every admission."""
    config = step.config
    met = False
    for admission in step.report.admissions:
        request = step.before.requests.get(admission.id)
        if request is None or not admission.reused:
            continue
        met = True
        reused = admission.reused
        if not config.prefix_caching:
            return f"{admission.id} reuses {reused} tokens with prefix caching off"
        if reused % config.block_size:
            return f"{admission.id} reuses {reused} tokens, not whole blocks of {config.block_size}"
        length = request.length
        whole = request.generated >= request.output or config.scheduler == "trtllm"
        most = length // config.block_size * config.block_size
        if not whole:
            most = (length - 1) // config.block_size * config.block_size
            if config.speculation is not None and paged(config):
                most -= config.block_size
        if reused > most:
            return f"{admission.id} reuses {reused} of its {length} tokens; at most {most} may be reused"
        now = step.after.requests.get(admission.id)
        if now is None or step.after.blocks is None or step.before.cached is None or step.after.cached is None:
            continue
        stored = {block for event in step.report.events if isinstance(event, Stored) for block in event.blocks}
        for number in now.blocks[: reused // config.block_size]:
            identity = step.after.blocks[number].identity
            if identity not in step.before.cached and identity not in stored and identity not in step.after.cached:
                return f"{admission.id} reuses a block that was never cached"
    return True if met else None


@on_step(
    "stored-needs-caching",
    "What Stored promises is found by a lookup when the step ends, unless Removed behind it; with caching off no event comes.",
    "finding 4; vLLM specification S-EVT; SGLang specification S13",
    needs={parts.EVENTS, parts.BLOCKS},
    catches=("stored-without-caching",),
)
def stored_needs_caching(step: Transition) -> Found:
    """Promises of the event stream against the cache."""
    events = step.report.events
    if not events or step.after.cached is None:
        return None
    promised: dict[int, None] = {}
    for event in events:
        if event.tier != "gpu":
            continue
        if not step.config.prefix_caching:
            return f"an event tells of {len(event.blocks)} blocks as reusable or no longer so, with prefix caching off"
        if isinstance(event, Stored):
            promised.update(dict.fromkeys(event.blocks))
        else:
            for block in event.blocks:
                promised.pop(block, None)
    missing = [block for block in promised if block not in step.after.cached]
    if missing:
        return f"Stored promises {len(missing)} blocks that no lookup finds"
    return True if promised else None


@on_step(
    "events-mirror-cache",
    "Applied to the cache before a step, its Stored and Removed events give the cache after it; none tells what was so already.",
    "vLLM specification S-EVT; SGLang specification S13, S14, S15",
    needs={parts.EVENTS, parts.BLOCKS},
    catches=("stored-without-caching",),
    applies=lambda config: config.kv_events,
)
def events_mirror_cache(step: Transition) -> Found:
    """The event stream as a reader of it would follow it."""
    before, after = step.before.cached, step.after.cached
    if before is None or after is None:
        return None
    if not step.report.events:
        return None if before == after else "the cache changed and no event told it"
    mirror = set(before)
    for event in step.report.events:
        if event.tier != "gpu":
            continue
        if isinstance(event, Removed):
            for block in event.blocks:
                if block not in mirror:
                    return "Removed tells of a block that is not stored"
                mirror.discard(block)
        elif isinstance(event, Stored):
            if event.parent and event.parent not in mirror and step.config.scheduler == "sglang":
                return "Stored names a parent that is not stored"
            for block in event.blocks:
                if block in mirror:
                    return "Stored tells of a block that is stored already"
                mirror.add(block)
    if mirror != after:
        extra, lacking = len(mirror - after), len(after - mirror)
        return f"the events leave {extra} blocks stored that are not cached, and miss {lacking} that are"
    return True


def _puts_prefills_off(config: EngineConfig) -> bool:
    return bool(config.prefill_decode_interval) or (config.dp_size > 1 and config.prefill_schedule_interval > 1)


@on_step(
    "work-conservation",
    "A pass does not end with budget, slots and cache room left over that the head of the queue could have used.",
    "finding 1; SGLang specification L3",
    needs={parts.WORK, parts.QUEUES, parts.REQUESTS, parts.POOL},
    catches=("sglang-chunk-budget",),
    applies=lambda config: config.role == "aggregated" and not _puts_prefills_off(config),
)
def work_conservation(step: Transition) -> Found:
    """The head of the queue, when it got nothing, against a cautious count of what was left.

    Cautious: room is what was free before the pass, less a generous count of what the pass took, and everybody's whole
    output is set aside. So an engine that holds back less than that is not judged, and one that is judged had no reason.
    """
    report, before, after, config = step.report, step.before, step.after, step.config
    if not report.is_pass or not before.waiting or report.preemptions or report.rejected or "connector" in before.extra:
        return None
    head = after.waiting[0] if after.waiting else None
    if head is None or head != _first_left(step) or before.extra.get("pending_destinations"):
        return None
    # A prompt that goes on takes a slot of the pass, though it is no admission.
    taken = {admission.id for admission in report.admissions} | {id_ for id_ in report.work if id_ in before.waiting}
    if config.max_num_seqs is not None and len(before.running) + len(taken) >= config.max_num_seqs:
        return None
    request = before.requests[head]
    if head in report.work or not request.prompt:
        return None
    left = _budget_left(step)
    uncomputed = request.length - request.computed
    whole = uncomputed if config.scheduler != "sglang" else rounded(uncomputed, config)
    least = 1 if config.scheduler != "sglang" else config.block_size
    if left < whole and (left < least or not config.chunked_prefill):
        return None
    if _blocks_wanted(step, head) > _room(step):
        return None
    return (
        f"{head} waits at the head of the queue and got nothing, though {left} tokens of budget were left, "
        f"a slot was free and the cache had room"
    )


def _first_left(step: Transition) -> str | None:
    """The request that was first in the queue once those admitted in the pass had left it."""
    admitted = {admission.id for admission in step.report.admissions}
    admitted.update(step.report.work)
    return next((id_ for id_ in step.before.waiting if id_ not in admitted), None)


def _budget_left(step: Transition) -> int:
    config = step.config
    if config.scheduler == "sglang":
        used = sum(rounded(item.prompt_tokens, config) for item in step.report.work.values() if item.prompt_tokens)
        return min(config.chunked_prefill_size, config.max_prefill_tokens) - used
    used = sum(item.total for item in step.report.work.values())
    return (config.max_num_batched_tokens or 1 << 62) - used


def _room(step: Transition) -> int:
    pool = step.before.pool
    taken = sum(blocks_for(item.total, step.config) + 1 for item in step.report.work.values())
    taken += sum(blocks_for(admission.reused, step.config) for admission in step.report.admissions)
    return pool.free + pool.inactive - taken


def _blocks_wanted(step: Transition, head: str) -> int:
    """Blocks for the whole length of ``head`` and, where output is set aside, of everybody's output."""
    config = step.config
    request = step.before.requests[head]
    if config.scheduler == "vllm":
        return blocks_for(request.length, config)
    # A prompt that goes on is no admission, and sets its output aside all the same.
    ids = dict.fromkeys((*step.before.running, *[admission.id for admission in step.report.admissions], *step.report.work))
    others = [step.before.requests[id_] for id_ in ids if id_ in step.before.requests]
    if config.scheduler == "trtllm":
        whole = sum(blocks_for(other.prompt + other.output, config) for other in (request, *others))
        return whole - sum(blocks_for(other.allocated, config) for other in others)
    promised = sum(max(other.output - other.generated, 0) for other in (request, *others))
    return blocks_for(request.length, config) + blocks_for(promised + 1, config) + 1


@on_step(
    "no-needless-preemption",
    "A request is preempted only if the tokens about to be computed do not fit beside it.",
    "finding 9; vLLM specification S-NEED, S-SELF",
    needs={parts.PREEMPTIONS, parts.REQUESTS, parts.QUEUES},
    catches=("speculative-terminal-block", "speculative-terminal-block:allocation-only"),
    applies=paged,
)
def no_needless_preemption(step: Transition) -> Found:
    """The blocks really needed at each preemption, counted anew, against those that were free."""
    if not step.report.preemptions:
        return None
    for preemption in step.report.preemptions:
        needed = _really_needed(step, preemption)
        if needed <= preemption.free:
            return (
                f"{preemption.victim} was preempted with {preemption.free} blocks free, and no more than {needed} were needed "
                f"for the tokens to be computed"
            )
    return True


def _really_needed(step: Transition, preemption: Preemption) -> int:
    config = step.config
    speculation = config.speculation
    drafts = speculation.draft_tokens if speculation is not None and config.role != "prefill" else 0
    needed = 0
    for id_ in preemption.requests:
        request = step.before.requests[id_]
        length = request.length
        if preemption.phase == "emission":
            # All but the last of the burst are computed now; blocks for the tokens so far are held already.
            burst = min(drafts + 1, request.output - request.generated)
            needed += blocks_for(length + burst - 1, config) - blocks_for(length, config)
        else:
            needed += blocks_for(length, config) - blocks_for(request.allocated, config)
    return needed


@on_step(
    "admission-preempts-nobody",
    "Admitting a waiting request preempts nobody, and nobody is admitted in a pass that preempted.",
    "vLLM specification S-ADM",
    needs={parts.PREEMPTIONS, parts.QUEUES},
    applies=paged,
)
def admission_preempts_nobody(step: Transition) -> Found:
    """Causes of preemptions, and admissions behind them."""
    report = step.report
    if report.admissions and not report.preemptions:
        return True
    for preemption in report.preemptions:
        if preemption.cause is not None and preemption.cause in step.before.waiting:
            return f"admitting {preemption.cause} preempted {preemption.victim}"
    if report.admissions and any(preemption.phase == "schedule" for preemption in report.preemptions):
        victim = report.preemptions[0].victim
        return f"{report.admissions[-1].id} was admitted in a pass that preempted {victim}"
    return True if report.preemptions else None


@on_step(
    "accept-length",
    "A decode forward accepts one token without speculation, and 1 to k + 1 with k draft tokens.",
    "finding 3; replay specification S8",
    needs={parts.WORK},
    catches=("accept-length-denominator",),
)
def accept_length(step: Transition) -> Found:
    """Accepted tokens against decode forwards."""
    tokens, forwards = step.report.accept_tokens, step.report.accept_forwards
    if not tokens and not forwards:
        return None
    speculation = step.config.speculation
    most = 1 + (speculation.draft_tokens if speculation else 0)
    if not forwards <= tokens <= forwards * most:
        return f"{tokens} tokens accepted in {forwards} decode forwards; each accepts 1 to {most}"
    return True


@on_step(
    "metrics-identity",
    "The work reported for a request is what its computed tokens grew by.",
    "vLLM specification S-FPM",
    needs={parts.WORK, parts.REQUESTS, parts.SIGNALS},
    applies=paged,
)
def metrics_identity(step: Transition) -> Found:
    """Computed tokens before, reused, scheduled and accepted, against those after."""
    report = step.report
    if not report.work:
        return None
    reused = {admission.id: admission.reused for admission in report.admissions}
    emitted = report.emitted
    before, after = step.before.requests, step.after.requests
    for id_, work in report.work.items():
        if id_ not in after or id_ not in before:
            continue
        request = after[id_]
        if request.status in (WAITING, PREEMPTED):
            continue
        accepted = emitted[id_] - 1 if id_ in emitted else 0
        expected = before[id_].computed + reused.get(id_, 0) + work.total + accepted
        if request.computed != expected:
            return f"{id_} has computed {request.computed} tokens; the reports add up to {expected}"
    return True


@on_step(
    "clock-monotone",
    "Virtual time never goes back.",
    "replay specification S14",
    needs={parts.WORK},
)
def clock_monotone(step: Transition) -> Found:
    """The clock around a step."""
    report = step.report
    if not step.before.now_ns <= report.start_ns <= report.end_ns <= step.after.now_ns:
        return f"time runs {step.before.now_ns}, {report.start_ns}, {report.end_ns}, {step.after.now_ns} ns"
    return True if report.end_ns > report.start_ns else None
