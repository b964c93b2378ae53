"""Measurements of one tool on one system, each meant for a process of its own.

Time is processor time of this process (every tool here has one thread and does no I/O), so that ratios hold on a machine that
is busy with other things. Memory is the peak resident size; per state, it is the growth of that peak over the size
just before the search.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.minisched import floor
from benchmarks.minisched.system import Geometry, MiniSched
from explorer import Lasso, Limits, Verdict, explore, find_livelocks, find_stalls, name_lasso

DRAIN_STATES = 1_000
"""How far the search by drain alone goes before it is said to have found nothing."""

MANY_STATES = 100_000
"""From here on the search outweighs the interpreter, so that memory per state means something."""

Row = dict[str, Any]


def peak_rss_bytes() -> int:
    """Largest resident size of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def rss_bytes() -> int:
    """Resident size now; the largest so far where the system does not tell."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return peak_rss_bytes()
    return int(statm.read_text().split()[1]) * resource.getpagesize()


def _search_row(tool: str, geometry: Geometry, counts: tuple[int, int], seconds: float, before_bytes: int) -> Row:
    states, transitions = counts
    peak = peak_rss_bytes()
    return {
        "tool": tool,
        "states": states,
        "transitions": transitions,
        "counts_match": counts == (geometry.states, geometry.transitions),
        "search_seconds": seconds,
        "states_per_second": states / seconds,
        "bytes_per_state": (peak - before_bytes) / states if states >= MANY_STATES else None,
        "peak_rss_bytes": peak,
    }


def _lasso_row(lassos: list[Lasso[bytes]], system: MiniSched) -> Row | None:
    if not lassos:
        return None
    first = lassos[0]
    return {"kind": first.kind, "stem": len(first.stem), "cycle": len(first.cycle), "story": name_lasso(first, system)}


def measure_explorer(geometry: Geometry) -> Row:
    """Safety search with parents and edges, then the whole proof or refutation of liveness, then drain by itself."""
    system = MiniSched(geometry)
    before = rss_bytes()
    began = time.process_time()
    result = explore(system)
    searched = time.process_time()
    row = _search_row("explorer", geometry, (result.states, result.transitions), searched - began, before)
    row["depth"] = result.depth
    row["estimated_bytes_per_state"] = result.memory_bytes / result.states
    proof_began = time.process_time()
    stalls = find_stalls(result.graph, system)
    livelocks = find_livelocks(result.graph, system)
    row["proof_seconds"] = row["search_seconds"] + time.process_time() - proof_began
    row["proof_to_search"] = row["proof_seconds"] / row["search_seconds"]
    row["peak_rss_bytes"] = peak_rss_bytes()
    found = result.verdict is Verdict.VIOLATED or bool(stalls or livelocks)
    row["verdict"] = Verdict.of(found=found, complete=result.is_complete).value
    row["stall"] = _lasso_row(stalls, system)
    row["livelock"] = _lasso_row(livelocks, system)
    drained = explore(system, drain=True, stop_at_first=True, limits=Limits(states=DRAIN_STATES))
    row["drain"] = _lasso_row(list(drained.drain_lassos), system)
    if row["drain"] is not None:
        row["drain"]["states"] = drained.states
    return row


def measure_floor(geometry: Geometry) -> Row:
    """The hand-written search."""
    before = rss_bytes()
    began = time.process_time()
    counts = floor.search(geometry)
    return _search_row("floor", geometry, counts, time.process_time() - began, before)


def measure_minicheck(geometry: Geometry) -> Row | None:
    """The peer from PyPI on the floor's transition function; None where it is not installed.

    It counts no transitions, and gives up above the number of states it is told.
    """
    try:
        import minicheck
    except ImportError:
        return None
    successors = floor.successors_of(geometry)

    def transitions(state: floor.State) -> list[tuple[str, floor.State]]:
        return [
            (f"arrive {following[0][-1]}" if len(following[0]) > len(state[0]) else "step", following)
            for following in successors(state)
        ]

    protocol = minicheck.Protocol(
        name="minisched",
        candidate=False,
        fields=("q", "k", "c", "g", "b"),
        initial=floor.initial_state(geometry),
        transitions=transitions,
        invariants={"blocks-fit": lambda state: sum(state["b"]) <= geometry.blocks},
    )
    before = rss_bytes()
    began = time.process_time()
    checked = minicheck.check_safety(protocol, max_states=geometry.states)
    seconds = time.process_time() - began
    row = _search_row("minicheck", geometry, (checked["reachable_states"], geometry.transitions), seconds, before)
    row["transitions"] = None
    return row


TOOLS = {"explorer": measure_explorer, "floor": measure_floor, "minicheck": measure_minicheck}
