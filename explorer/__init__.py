"""Exhaustive exploration of small transition systems.

`check` is the whole of it: a breadth-first search (`explore`) that judges safety on the way, then stalls and fair livelocks
in the graph it leaves. A system to explore is anything with the methods of `TransitionSystem`; `from_actions` makes one
from three functions. `explorer.export` turns parts of the graph into networkx graphs, GraphML, JSON and DOT; it is
not imported here, because networkx alone takes more memory than many a search.
"""

from explorer.check import CheckResult, check
from explorer.drain import DrainResult, DrainWatch, drain_check
from explorer.findings import Lasso, Verdict, Violation, name_lasso, name_steps
from explorer.graph import StateGraph
from explorer.liveness import Component, cyclic_components, find_livelocks, find_stalls
from explorer.search import Limits, Progress, SearchResult, explore
from explorer.system import ActionSystem, BaseSystem, Problem, TransitionSystem, from_actions

__all__ = [
    "ActionSystem",
    "BaseSystem",
    "CheckResult",
    "Component",
    "DrainResult",
    "DrainWatch",
    "Lasso",
    "Limits",
    "Problem",
    "Progress",
    "SearchResult",
    "StateGraph",
    "TransitionSystem",
    "Verdict",
    "Violation",
    "check",
    "cyclic_components",
    "drain_check",
    "explore",
    "find_livelocks",
    "find_stalls",
    "from_actions",
    "name_lasso",
    "name_steps",
]
