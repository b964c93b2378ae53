"""The prefill cadence of attention-data-parallel ranks (vLLM specification 3.10).

Ranks step together, in waves. A prefill on one of them makes all the others wait, so a rank that has something to decode prefills
only in every n-th step of the wave; unless requests were left waiting the last time it did, since then it would not keep up.

One rank is modelled. A wave begins at step 0 with the first pass that finds a request, and ends when nothing is live; that
another rank keeps a wave going, or began it earlier, is not modelled.
"""

from __future__ import annotations

from model.paged.core import Core, Pass


def throttles(core: Core) -> bool:
    """Whether the pass that begins puts prefills off."""
    cadence = core.cadence
    return cadence.step > 0 and not cadence.bound and any(request.prebuilt for request in core.running)


def end_wave_step(core: Core, step: Pass) -> None:
    """Bring the cadence up to the end of a pass."""
    cadence = core.cadence
    if not step.throttled and not step.report.preemptions:
        cadence.bound = bool(core.waiting)
    cadence.step = (cadence.step + 1) % core.rules.cadence if core.requests else 0
