"""TensorRT-LLM's guaranteed-no-evict policy: who is admitted runs to the end, so nothing is ever promised twice.

One id, ``guaranteed-no-evict``, with two checks: the promise itself, and the sum that makes it possible to keep.
"""

from __future__ import annotations

from invariants.framework import Found, Transition, on_state, on_step
from invariants.states import blocks_for
from model import engine as parts
from model.config import EngineConfig
from model.views import EngineView, RequestView

ID = "guaranteed-no-evict"
SOURCE = "vLLM specification 3.4 (TensorRT-LLM policy), 4.4"


def guaranteed(config: EngineConfig) -> bool:
    """The policy sets whole outputs aside."""
    return config.scheduler == "trtllm"


def still_to_take(request: RequestView, held: int, config: EngineConfig) -> int:
    """Blocks that a request takes before it has produced all it may, beyond the ``held`` it has."""
    return blocks_for(request.prompt + request.output, config) - held


@on_step(ID, "Nobody is ever preempted.", SOURCE, needs={parts.PREEMPTIONS}, applies=guaranteed)
def nobody_is_preempted(step: Transition) -> Found:
    """Preemptions of a pass."""
    if step.report.preemptions:
        return f"{step.report.preemptions[0].victim} was preempted"
    return True if step.report.work else None


@on_state(
    ID,
    "What is in use, and what admitted requests and accepted hand-offs will still take, fits the cache.",
    SOURCE,
    needs={parts.POOL, parts.REQUESTS, parts.QUEUES},
    applies=guaranteed,
)
def nothing_is_promised_twice(view: EngineView, config: EngineConfig) -> Found:
    """Blocks held and still to be taken by all who run, or hold blocks and wait to run."""
    if not view.requests:
        return None
    promised = 0
    reserved = view.extra.get("destination_holds", {})
    for request in view.requests.values():
        if request.id in view.running or request.id in view.extra.get("prebuilt", ()):
            promised += still_to_take(request, blocks_for(request.allocated, config), config)
        elif request.id in reserved:
            promised += still_to_take(request, sum(reserved[request.id]), config)
    if view.pool.active + promised > view.pool.total:
        return f"{view.pool.active} blocks are in use and {promised} more are promised, of {view.pool.total}"
    return True
