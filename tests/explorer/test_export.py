"""Exports: what a person is shown is what was explored, and reads back."""

from __future__ import annotations

import json
from io import BytesIO

import networkx as nx
import pytest

from explorer import StateGraph, explore, find_livelocks, find_stalls
from explorer.export import cyclic_core, lasso_graph, to_dot, to_graphml, to_json, to_networkx
from tests.explorer.toys import Table

EDGES = {
    "start": [(0, "a"), (2, "done")],
    "a": [(0, "b"), (2, "done")],
    "b": [(1, "a"), (2, "a"), (1, 'say "no"\n')],
    'say "no"\n': [(1, 'say "no"\n')],
}


class Named(Table[str]):
    def describe(self, label: int) -> str:
        return ("step", "preempt", 'emit "x"')[label]


@pytest.fixture
def system() -> Named:
    return Named(EDGES, initial=["start"], goals=["done"], progress=[2], fair={0: 0})


@pytest.fixture
def graph(system: Named) -> StateGraph[str]:
    return explore(system).graph


def test_the_whole_graph_has_every_state_and_every_edge(graph: StateGraph[str], system: Named) -> None:
    whole = to_networkx(graph, system, show=str)
    assert [whole.nodes[node]["state"] for node in whole] == graph.keys
    assert whole.number_of_edges() == graph.transitions
    assert whole.nodes[0] == {"state": "start", "depth": 0, "initial": True, "goal": False}
    assert whole.nodes[graph.keys.index("done")]["goal"]
    assert whole.edges[0, 1, 0] == {"label": 0, "action": "step", "progress": False, "fairness": 0}
    assert [whole.nodes[node]["depth"] for node in whole] == [0, 1, 1, 2, 3]


def test_the_cyclic_core_has_the_components_and_nothing_else(graph: StateGraph[str], system: Named) -> None:
    core = cyclic_core(graph, system)
    assert [graph.keys[node] for node in core] == ["a", "b", 'say "no"\n']
    assert [core.nodes[node]["component"] for node in core] == [0, 0, 1]
    assert [core.nodes[node]["fair"] for node in core] == [True, True, True]
    assert {facts["progress"] for *_, facts in core.edges(data=True)} == {True, False}
    assert list(nx.selfloop_edges(core)) == [(4, 4)]


def test_states_that_were_not_expanded_are_shown_without_edges(graph: StateGraph[str], system: Named) -> None:
    del graph.offsets[2:]
    del graph.targets[2:]
    del graph.labels[2:]
    assert to_networkx(graph, system).number_of_edges() == 2


def test_graphml_reads_back_equal(graph: StateGraph[str], system: Named) -> None:
    core = cyclic_core(graph, system)
    back = nx.read_graphml(BytesIO(to_graphml(core).encode()), node_type=int, force_multigraph=True)
    assert list(back.nodes(data=True)) == list(core.nodes(data=True))
    assert sorted(back.edges(data="action")) == sorted(core.edges(data="action"))
    assert sorted(back.edges(data="fairness", default=-1)) == sorted(core.edges(data="fairness", default=-1))


def test_json_holds_nodes_and_edges_with_their_attributes(graph: StateGraph[str], system: Named) -> None:
    core = cyclic_core(graph, system)
    read = json.loads(to_json(core))
    assert [node["id"] for node in read["nodes"]] == list(core)
    assert [(edge["source"], edge["target"], edge["action"]) for edge in read["edges"]] == list(core.edges(data="action"))


def test_dot_names_states_and_actions_with_quotes_escaped(graph: StateGraph[str], system: Named) -> None:
    lines = to_dot(to_networkx(graph, system, show=str)).splitlines()
    assert lines[0] == "digraph states {"
    assert lines[-1] == "}"
    assert '  0 [label="start", style=bold];' in lines
    assert '  2 [label="done", peripheries=2];' in lines
    assert '  4 [label="say \\"no\\"\\n"];' in lines
    assert '  0 -> 2 [label="emit \\"x\\"", style=dashed];' in lines
    assert sum(" -> " in line for line in lines) == graph.transitions


def test_a_lasso_is_drawn_as_its_stem_and_a_closed_cycle(graph: StateGraph[str], system: Named) -> None:
    lasso = find_livelocks(graph, system)[0]
    drawn = lasso_graph(lasso, system, show=str)
    assert [(node, facts["state"], facts["on_cycle"]) for node, facts in drawn.nodes(data=True)] == [
        (0, "start", False),
        (1, "a", True),
        (2, "b", True),
    ]
    assert list(drawn.edges(data="action")) == [(0, 1, "step"), (1, 2, "step"), (2, 1, "preempt")]
    assert to_dot(drawn).count(" -> ") == 3


def test_a_deadlock_is_drawn_as_its_stem_alone() -> None:
    system = Table({0: [(0, 1)]}, initial=[0])
    (stall,) = find_stalls(explore(system).graph, system)
    drawn = lasso_graph(stall, system)
    assert list(drawn.edges()) == [(0, 1)]
    assert drawn.nodes[1]["on_cycle"]
