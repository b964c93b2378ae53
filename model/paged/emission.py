"""The tokens of a pass, without speculation (vLLM specification 3.6), and what completes by them (3.9)."""

from __future__ import annotations

from model.events import Signal
from model.paged.core import Core, Pass, Request, signal_end


def emit(core: Core, step: Pass) -> int:
    """One token for every running request that is computed to its end, in running order.

    Requests that were complete from the start end first, with a signal that carries no token. No block is taken here, so
    nothing can fail.

    Returns:
        The number of requests in the decode batch, whose time is charged.
    """
    ready = end_complete(core, step)
    for request in ready:
        request.generated += 1
        if request.complete:
            signal_end(core, step.report, request, token=True)
            core.complete(request, step.report)
        else:
            step.report.signals.append(Signal(request.id, token=True, completed=False))
    keep_live(core)
    count_forwards(step, ready, {})
    return len(ready) if core.rules.decode_role else decode_batch(step, ready)


def end_complete(core: Core, step: Pass) -> list[Request]:
    """End the computed requests that ask for no (further) token; the other computed ones are returned, in running order."""
    ready = []
    ended = False
    for request in core.running:
        if request.computed < request.prompt + request.generated:
            continue
        if request.complete:
            signal_end(core, step.report, request, token=False)
            core.complete(request, step.report)
            ended = True
        else:
            ready.append(request)
    if ended:
        keep_live(core)
    return ready


def keep_live(core: Core) -> None:
    """Compact the running requests: those that were dropped leave."""
    live = core.requests
    running = core.running
    if any(request.id not in live for request in running):
        core.running = [request for request in running if request.id in live]


def decode_batch(step: Pass, ready: list[Request]) -> int:
    """How many of the requests that emit are decoding: one that emits its first token right behind its prefill is not.

    The choice follows the newer release (vLLM specification 3.6); a decode worker leaves nobody out.
    """
    work = step.report.work
    return sum(
        1 for request in ready if not (request.id in work and work[request.id].prompt_tokens and not work[request.id].generated)
    )


def count_forwards(step: Pass, ready: list[Request], bursts: dict[str, int]) -> None:
    """Count decode forwards and the tokens they accepted, before any output limit.

    By provenance (replay specification 7.3): a first token behind a prefill counts in neither.
    """
    report = step.report
    for request in ready:
        work = report.work.get(request.id)
        if work is not None and not work.prompt_tokens and not work.terminal:
            report.accept_forwards += 1
            report.accept_tokens += bursts.get(request.id, 1)
