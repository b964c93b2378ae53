"""The floor: `minisched` searched breadth-first by hand, as one would write it in an afternoon.

States are tuples (q, k, c, g, b), the visited set is a set and the queue a deque. The same semantics and the same safety
assertions as the transition system, but no parents, no edges and no liveness, so it can not show a counterexample.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from benchmarks.minisched.system import Geometry

State = tuple[tuple[int, ...], int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def initial_state(geometry: Geometry) -> State:
    """No request has arrived."""
    zeros = (0,) * len(geometry.prompts)
    return (), 0, zeros, zeros, zeros


def successors_of(geometry: Geometry) -> Callable[[State], list[State]]:
    """The successors of a state, as a function: every arrival in order of requests, then the step."""
    prompts, outputs, block_size = geometry.prompts, geometry.outputs, geometry.block_size
    requests = range(len(prompts))

    def step(state: State) -> State:
        queue, running = list(state[0]), state[1]
        computed, generated, held = list(state[2]), list(state[3]), list(state[4])
        free = geometry.blocks - sum(held)
        budget = geometry.budget
        preempted = False
        place = 0
        while place < running:
            request = queue[place]
            tokens = min(prompts[request] + generated[request] - computed[request], budget)
            if tokens == 0:
                break
            needed = max(0, -(-(computed[request] + tokens + geometry.lookahead) // block_size) - held[request])
            while needed > free and running > place:
                running -= 1
                victim = queue[running]
                free += held[victim]
                held[victim] = computed[victim] = 0
                preempted = True
            if running == place:
                break
            held[request] += needed
            free -= needed
            computed[request] += tokens
            budget -= tokens
            assert computed[request] <= held[request] * block_size
            if computed[request] == prompts[request] + generated[request]:
                generated[request] += 1
                if generated[request] == outputs[request]:
                    free += held[request]
                    held[request] = computed[request] = 0
                    del queue[place]
                    running -= 1
                    continue
            place += 1
        if not preempted:
            for request in queue[running:]:
                needed = -(-(prompts[request] + generated[request]) // block_size)
                if needed > free:
                    break
                held[request] = needed
                free -= needed
                running += 1
        assert free >= 0
        return tuple(queue), running, tuple(computed), tuple(generated), tuple(held)

    def successors(state: State) -> list[State]:
        queue, running, computed, generated, held = state
        following = [
            ((*queue, request), running, computed, generated, held)
            for request in requests
            if generated[request] == 0 and request not in queue
        ]
        if queue:
            following.append(step(state))
        return following

    return successors


def search(geometry: Geometry) -> tuple[int, int]:
    """Explore everything; the numbers of states and of transitions."""
    successors = successors_of(geometry)
    first = initial_state(geometry)
    seen = {first}
    todo = deque([first])
    transitions = 0
    while todo:
        for following in successors(todo.popleft()):
            transitions += 1
            if following not in seen:
                seen.add(following)
                todo.append(following)
    return len(seen), transitions
