"""The whole check of one system: search, then stalls and livelocks in the graph it leaves."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic

import attrs

from explorer.drain import WALK_LIMIT
from explorer.findings import Lasso, Verdict
from explorer.liveness import MOST_LASSOS, find_livelocks, find_stalls
from explorer.search import Limits, Progress, SearchResult, explore
from explorer.system import K, TransitionSystem


@attrs.frozen(eq=False)
class CheckResult(Generic[K]):
    """What is known about a system's safety and liveness.

    Attributes:
        verdict: `VIOLATED` when anything at all was found, `HOLDS` when the search is complete, all of it was
            judged and nothing was found, else `UNKNOWN`.
        reason: Why the check is incomplete, None when it is complete.
        search: The search, with its counts, violations and drain lassos.
        stalls: See `find_stalls`.
        livelocks: See `find_livelocks`; those of kind "stall" are among them when they are fair.
        seconds: Elapsed time of all.
    """

    verdict: Verdict
    reason: str | None
    search: SearchResult[K]
    stalls: tuple[Lasso[K], ...]
    livelocks: tuple[Lasso[K], ...]
    seconds: float


def check(
    system: TransitionSystem[K],
    *,
    limits: Limits | None = None,
    stop_at_first: bool = False,
    drain: bool = False,
    walk_limit: int = WALK_LIMIT,
    most_lassos: int = MOST_LASSOS,
    progress: Callable[[Progress], None] | None = None,
    progress_seconds: float = 0.5,
) -> CheckResult[K]:
    """Explore a system and look for stalls and fair livelocks; arguments as for `explore`.

    A search that was cut off is still looked through: what is found in the part that was explored is real. With
    `stop_at_first`, a search that found something is where the check ends. The limits are the search's: looking for
    stalls and livelocks takes a fraction of its time, and less memory than the search has just given back.
    `KeyboardInterrupt` ends either with a usable result.
    """
    began = time.perf_counter()
    search = explore(
        system,
        limits=limits,
        stop_at_first=stop_at_first,
        drain=drain,
        walk_limit=walk_limit,
        progress=progress,
        progress_seconds=progress_seconds,
    )
    reason = search.reason
    stalls: tuple[Lasso[K], ...] = ()
    livelocks: tuple[Lasso[K], ...] = ()
    if not (stop_at_first and search.verdict is Verdict.VIOLATED):
        try:
            stalls = tuple(find_stalls(search.graph, system, most=most_lassos))
            livelocks = tuple(find_livelocks(search.graph, system, most=most_lassos))
        except KeyboardInterrupt:
            reason = reason or "interrupted while looking for stalls and livelocks"
    found = search.verdict is Verdict.VIOLATED or bool(stalls or livelocks)
    verdict = Verdict.of(found=found, complete=reason is None)
    return CheckResult(verdict, reason, search, stalls, livelocks, time.perf_counter() - began)
