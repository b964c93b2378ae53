"""Graphs that a person looks at: parts of the state graph and lassos as networkx graphs, as GraphML, JSON and DOT.

networkx keeps about a kilobyte a state, so the search never touches it. What goes there is the *cyclic core* (the states
that are on some cycle without progress), a lasso, or any other choice of states.

Every export is a `networkx.MultiDiGraph` with plain attributes. Nodes are state numbers (in a lasso, positions).

* A node has `state` (text), `depth` and `initial`; in a part of the state graph also `goal`, in the cyclic core also
  `component` and `fair`, in a lasso also `on_cycle`.
* An edge has `label`, `action` (the label in words), `progress`, and `fairness` if the label has a class.

Nodes and edges are in the order of discovery, so equal graphs give equal text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import TYPE_CHECKING

import networkx as nx

from explorer.findings import Lasso
from explorer.graph import StateGraph
from explorer.liveness import cyclic_components
from explorer.system import K, TransitionSystem

if TYPE_CHECKING:
    MultiDiGraph = nx.MultiDiGraph[int]
else:
    MultiDiGraph = nx.MultiDiGraph


def to_networkx(
    graph: StateGraph[K],
    system: TransitionSystem[K],
    states: Iterable[int] | None = None,
    *,
    show: Callable[[K], str] = repr,
) -> MultiDiGraph:
    """Some states (by default all) and every edge between them.

    Args:
        graph: The explored graph.
        system: What was explored, for words and facts about labels.
        states: State numbers.
        show: A state as text.
    """
    chosen = range(len(graph)) if states is None else sorted(set(states))
    starts = graph.level_starts()
    result: MultiDiGraph = nx.MultiDiGraph()
    depth = 0
    for state in chosen:
        while depth + 1 < len(starts) and starts[depth + 1] <= state:
            depth += 1
        result.add_node(
            state,
            state=show(graph.keys[state]),
            depth=depth,
            initial=state < graph.initial,
            goal=system.is_goal(graph.keys[state]),
        )
    for state in chosen:
        if state >= graph.expanded:
            continue
        for label, target in graph.edges_of(state):
            if target in result:
                result.add_edge(state, target, **_edge_facts(system, label))
    return result


def cyclic_core(graph: StateGraph[K], system: TransitionSystem[K], *, show: Callable[[K], str] = repr) -> MultiDiGraph:
    """The states of all components that have a cycle without progress, each with its component and its fairness.

    Edges of progress between them are included, marked `progress`. Use `lasso_graph` for one counterexample.
    """
    components = cyclic_components(graph, system)
    result = to_networkx(graph, system, (state for part in components for state in part.states), show=show)
    for number, component in enumerate(components):
        for state in component.states:
            result.add_node(state, component=number, fair=component.is_fair)
    return result


def lasso_graph(lasso: Lasso[K], system: TransitionSystem[K], *, show: Callable[[K], str] = repr) -> MultiDiGraph:
    """Stem and cycle of a lasso, nodes numbered along it from 0."""
    result: MultiDiGraph = nx.MultiDiGraph()
    steps = lasso.stem + lasso.cycle
    cycle_begin = len(lasso.stem)
    result.add_node(0, state=show(lasso.start), depth=0, initial=True, on_cycle=cycle_begin == 0)
    for place, (label, state) in enumerate(steps, start=1):
        if place == len(steps) and lasso.cycle:
            result.add_edge(place - 1, cycle_begin, **_edge_facts(system, label))
        else:
            result.add_node(place, state=show(state), depth=place, initial=False, on_cycle=place >= cycle_begin)
            result.add_edge(place - 1, place, **_edge_facts(system, label))
    return result


def to_graphml(result: MultiDiGraph) -> str:
    """GraphML text, which networkx and Gephi or yEd read back."""
    out = BytesIO()
    nx.write_graphml(result, out, named_key_ids=True)
    return out.getvalue().decode("utf-8")


def to_json(result: MultiDiGraph) -> str:
    """JSON text: `{"nodes": [{"id", …}], "edges": [{"source", "target", …}]}` with the attributes as they are."""
    nodes = [{"id": node, **facts} for node, facts in result.nodes(data=True)]
    edges = [{"source": source, "target": target, **facts} for source, target, facts in result.edges(data=True)]
    return json.dumps({"nodes": nodes, "edges": edges}, indent=1)


def to_dot(result: MultiDiGraph) -> str:
    """DOT text for Graphviz: initial states in bold, goals with two rims, edges of progress dashed, edges named."""
    lines = ["digraph states {", "  rankdir=LR;", "  node [shape=box];"]
    for node, facts in result.nodes(data=True):
        style = ", style=bold" if facts.get("initial") else ""
        rims = ", peripheries=2" if facts.get("goal") else ""
        lines.append(f"  {node} [label={_quote(facts['state'])}{style}{rims}];")
    for source, target, facts in result.edges(data=True):
        style = ", style=dashed" if facts["progress"] else ""
        lines.append(f"  {source} -> {target} [label={_quote(facts['action'])}{style}];")
    lines.append("}")
    return "\n".join(lines) + "\n"


def _edge_facts(system: TransitionSystem[K], label: int) -> dict[str, int | str | bool]:
    facts: dict[str, int | str | bool] = {
        "label": label,
        "action": system.describe(label),
        "progress": system.is_progress(label),
    }
    fairness = system.fairness(label)
    if fairness is not None:
        facts["fairness"] = fairness
    return facts


def _quote(text: str) -> str:
    """A DOT string: quotes and backslashes escaped, line breaks kept as breaks."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
