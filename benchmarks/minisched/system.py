"""`minisched`: a small block scheduler on which the explorer is measured against other checkers.

Seven published systems of B blocks of S tokens, R requests with prompts P and outputs O, a budget of T tokens a step and a
look-ahead of L. The state is (q, k, c, g, b): the arrived and unfinished requests in order of arrival, of which the
first k run; per request the computed and the generated tokens and the blocks held.

* `arrive i`, while i is not in q and g[i] = 0, appends i to q.
* `step`, while q is not empty. The running requests in order each get n = min(P + g - c, budget) tokens; n = 0 ends the running
  phase. While the new blocks for c + n + L tokens do not fit, the last running request is preempted (its blocks and c lost,
  g kept); a request that preempts itself ends the phase. At c = P + g a token is generated; with O tokens the request is done and
  frees its blocks. If nothing was preempted, waiting requests are admitted while the blocks for P + g tokens are free.
* Safety: no more than B blocks are held, and c <= b * S. Liveness: in the end all is done, given weak fairness of
  `step` and of each arrival.

With L = 1 a prompt of exactly B * S tokens (finding 9 in miniature) is admitted, computed, and preempted by its own
look-ahead block, for ever.
"""

from __future__ import annotations

import operator

import attrs

from explorer import BaseSystem, Problem


@attrs.frozen
class Geometry:
    """One system, with what every correct exploration of it counts."""

    blocks: int
    block_size: int
    budget: int
    lookahead: int
    prompts: tuple[int, ...]
    outputs: tuple[int, ...]
    states: int
    transitions: int


GEOMETRIES = {
    "S": Geometry(4, 2, 4, 0, (3, 4, 2, 5), (3, 2, 4, 2), 1_134, 1_936),
    "M": Geometry(6, 2, 4, 0, (3, 4, 2, 5, 3, 4), (4, 3, 5, 4, 3, 4), 105_953, 199_130),
    "L": Geometry(8, 2, 6, 0, (3, 4, 2, 5, 3, 4, 6), (4, 3, 5, 4, 3, 4, 3), 1_060_574, 2_030_395),
    "LS": Geometry(4, 2, 4, 1, (3, 4, 2, 8), (5, 4, 6, 1), 810, 1_475),
    "LM": Geometry(7, 2, 4, 1, (3, 4, 2, 5, 3, 14), (6, 5, 8, 5, 6, 1), 108_398, 209_588),
    "LL": Geometry(8, 2, 6, 1, (3, 4, 2, 5, 3, 4, 16), (6, 5, 7, 5, 6, 5, 1), 954_159, 1_873_087),
    "SS": Geometry(4, 2, 4, 0, (3, 4, 2, 6), (3, 2, 4, 4), 1_018, 1_808),
}

STEP = 0
GENERATE = 1
"""A step in which some request generates a token. Arrivals follow: request i arrives with label 2 + i."""


class MiniSched(BaseSystem[bytes]):
    """The transition system.

    A state is a byte with a bit for each request that has arrived (which q and g imply), the bytes c, g and b of each
    request, then k, then q.
    """

    label_limit = 2**8

    def __init__(self, geometry: Geometry) -> None:
        super().__init__()
        requests = len(geometry.prompts)
        if requests > 8:
            raise ValueError(f"at most 8 requests fit the byte of arrivals, not {requests}")
        self.queue = 3 * requests + 2  # Where q begins.
        longest = max(map(operator.add, geometry.prompts, geometry.outputs)) + geometry.lookahead
        blocks_for = [-(-tokens // geometry.block_size) for tokens in range(longest + 1)]
        self.constants = (geometry, geometry.prompts, geometry.block_size, geometry.lookahead, blocks_for, requests)
        self.arrivals = [
            [(2 + i, bytes([arrived | 1 << i]), bytes([i])) for i in range(requests) if not arrived >> i & 1]
            for arrived in range(1 << requests)
        ]

    def initial_states(self) -> list[bytes]:
        """No request has arrived."""
        return [bytes(self.queue)]

    def successors(self, state: bytes) -> list[tuple[int, bytes]]:
        """Every arrival in order of requests, then the step."""
        rest = state[1:]
        edges = [(label, arrived + rest + request) for label, arrived, request in self.arrivals[state[0]]]
        if len(state) > self.queue:
            edges.append(self.step(state))
        return edges

    def step(self, state: bytes) -> tuple[int, bytes]:
        """One scheduler step of a state whose queue is not empty."""
        geometry, prompts, block_size, lookahead, blocks_for, requests = self.constants
        queue = place = self.queue
        work = bytearray(state)
        free = geometry.blocks - sum(state[2 * requests + 1 : queue - 1])
        budget = geometry.budget
        waiting = place + state[queue - 1]  # The running requests stand from `place` up to here.
        preempted = False
        label = STEP
        while place < waiting:
            request = work[place]
            c = 1 + request
            g = c + requests
            b = g + requests
            computed = work[c]
            left = prompts[request] + work[g] - computed
            tokens = left if left < budget else budget
            if not tokens:
                break
            computed += tokens
            blocks = work[b]
            needed = blocks_for[computed + lookahead] - blocks
            if needed > 0:
                while needed > free and waiting > place:
                    waiting -= 1
                    victim = 1 + work[waiting]
                    free += work[victim + 2 * requests]
                    work[victim + 2 * requests] = work[victim] = 0
                    preempted = True
                if waiting == place:
                    break
                blocks += needed
                free -= needed
                work[b] = blocks
            work[c] = computed
            budget -= tokens
            if computed > blocks * block_size:
                self.problems.append(Problem("computed-fits-blocks", f"request {request}", label))
            if tokens == left:
                label = GENERATE
                work[g] += 1
                if work[g] == geometry.outputs[request]:
                    free += blocks
                    work[b] = work[c] = 0
                    del work[place]
                    waiting -= 1
                    continue
            place += 1
        if not preempted:
            for request in work[waiting:]:
                needed = blocks_for[prompts[request] + work[1 + requests + request]]
                if needed > free:
                    break
                work[1 + 2 * requests + request] = needed
                free -= needed
                waiting += 1
        if free < 0:
            self.problems.append(Problem("blocks-fit", f"{-free} blocks too many", label))
        work[queue - 1] = waiting - queue
        return label, bytes(work)

    def is_progress(self, label: int) -> bool:
        """Generating a token is progress, arriving is input."""
        return label != STEP

    def fairness(self, label: int) -> int:
        """Steps are one class, each arrival is another."""
        return max(0, label - 1)

    def is_goal(self, state: bytes) -> bool:
        """The queue is empty."""
        return len(state) == self.queue

    def drain(self, state: bytes) -> tuple[int, bytes] | None:
        """Steps alone."""
        return None if len(state) == self.queue else self.step(state)

    def describe(self, label: int) -> str:
        """The action in the words of the specification."""
        return ("step", "step (generates)")[label] if label < 2 else f"arrive {label - 2}"
