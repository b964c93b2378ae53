"""Synthetic traces (replay specification 1.8): sessions of turns with drawn lengths, arrivals and delays.

Arrivals and lengths are drawn from separate sequences, so another arrival law or arrival seed changes timestamps alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from attrs import frozen

from model.errors import shown
from model.replay.applied_compute import rounded
from model.replay.draws import Draws
from model.replay.errors import TraceError
from model.replay.trace import Session, Trace, Turn, blocks_of, check_block_size

ARRIVAL_LAWS = ("burst", "constant", "poisson", "gamma")
DELAY_LAWS = ("none", "constant", "exponential")


@frozen
class Lengths:
    """A law of lengths: ``mean`` when ``std`` is 0, else a rounded normal; never below 1."""

    mean: float
    std: float = 0.0

    def draw(self, draws: Draws) -> int:
        """One length."""
        value = self.mean if self.std == 0 else self.mean + self.std * draws.normal()
        return max(1, math.floor(value + 0.5))


@frozen
class Arrivals:
    """A law of first arrivals; the first is always 0.

    Attributes:
        law: ``burst`` (all at 0), ``constant``, ``poisson`` or ``gamma``.
        rate_per_s: arrivals a second, for all but ``burst``.
        shape: of the gamma law.
    """

    law: str = "burst"
    rate_per_s: float = 1.0
    shape: float = 1.0

    def __attrs_post_init__(self) -> None:
        if self.law not in ARRIVAL_LAWS:
            raise TraceError("arrivals.law", shown(self.law), " or ".join(ARRIVAL_LAWS), code="E_RATE")
        for name, value in (("rate_per_s", self.rate_per_s), ("shape", self.shape)):
            if not (math.isfinite(value) and value > 0):
                raise TraceError(f"arrivals.{name}", shown(value), "a finite number > 0", code="E_RATE")

    def times(self, count: int, draws: Draws) -> list[float]:
        """``count`` arrivals, in ms.

        Raises:
            TraceError: ``E_BAD_TIME``, when one is not finite.
        """
        if self.law == "burst":
            return [0.0] * count
        if self.law == "constant":
            mean_gap = 1000.0 / self.rate_per_s
            times = [number * mean_gap for number in range(count)]
        else:
            times = [0.0]
            while len(times) < count:
                times.append(times[-1] + self._gap(draws))
        for number, time in enumerate(times):
            if not math.isfinite(time):
                raise TraceError(f"arrivals[{number}]", shown(time), "a finite time", code="E_BAD_TIME")
        return times

    def _gap(self, draws: Draws) -> float:
        if self.law == "poisson":
            return draws.exponential(1000.0 / self.rate_per_s)
        return draws.gamma(self.shape, 1000.0 / (self.rate_per_s * self.shape))


@frozen
class Delays:
    """A law of delays between turns: ``none``, ``constant`` or ``exponential`` with ``mean_ms``."""

    law: str = "none"
    mean_ms: float = 0.0

    def __attrs_post_init__(self) -> None:
        if self.law not in DELAY_LAWS:
            raise TraceError("delays.law", shown(self.law), " or ".join(DELAY_LAWS), code="E_BAD_DELAY")
        if not (math.isfinite(self.mean_ms) and self.mean_ms >= 0):
            raise TraceError("delays.mean_ms", shown(self.mean_ms), "a finite number ≥ 0", code="E_BAD_DELAY")

    def draw(self, draws: Draws) -> float:
        """One delay, in ms."""
        if self.law == "none":
            return 0.0
        return self.mean_ms if self.law == "constant" else draws.exponential(self.mean_ms)


@frozen
class Synthetic:
    """What a synthetic trace is made from.

    Attributes:
        block_size: tokens a hash id stands for.
        sessions, turns: how many sessions, and turns in each.
        input, output: laws of lengths, drawn for each turn.
        cached_prefix_tokens: leading tokens that all sessions share; whole blocks, at most the shortest input.
        shared_prefix_ratio: share of the blocks of an input that sessions of one group have in common.
        num_prefix_groups: groups, of which each session is in a random one.
        arrivals: law of first arrivals.
        delays: law of delays between turns.
        seed, arrival_seed: of lengths, groups and delays, and of arrivals.
        accumulates: turns bring their new input alone.
    """

    block_size: int
    sessions: int
    input: Lengths
    output: Lengths
    turns: int = 1
    cached_prefix_tokens: int = 0
    shared_prefix_ratio: float = 0.0
    num_prefix_groups: int = 0
    arrivals: Arrivals = Arrivals()
    delays: Delays = Delays()
    seed: int = 0
    arrival_seed: int = 42
    accumulates: bool = False

    def __attrs_post_init__(self) -> None:
        check_block_size(self.block_size)
        for name in ("sessions", "turns"):
            if getattr(self, name) < 1:
                raise TraceError(name, shown(getattr(self, name)), "an integer ≥ 1", code="E_SIZE")
        for name in ("input", "output"):
            if not (math.isfinite(getattr(self, name).mean) and getattr(self, name).mean >= 1):
                raise TraceError(f"{name}.mean", shown(getattr(self, name).mean), "a number ≥ 1", code="E_SIZE")
            if not (math.isfinite(getattr(self, name).std) and getattr(self, name).std >= 0):
                raise TraceError(f"{name}.std", shown(getattr(self, name).std), "a number ≥ 0", code="E_SIZE")
        ratio, groups = self.shared_prefix_ratio, self.num_prefix_groups
        if not 0 <= ratio <= 1 or (ratio > 0 and not groups):
            found = f"{shown(ratio)} with {groups} groups"
            raise TraceError("shared_prefix_ratio", found, "0, or up to 1 with at least one group", code="E_RATIO")
        if self.cached_prefix_tokens < 0 or self.cached_prefix_tokens % self.block_size:
            allowed = f"a multiple of {self.block_size}"
            raise TraceError("cached_prefix_tokens", shown(self.cached_prefix_tokens), allowed, code="E_PREFIX")


def synthesize(spec: Synthetic) -> Trace:
    """The trace of a specification.

    Raises:
        TraceError: ``E_PREFIX``, when a drawn input is shorter than the cached prefix; ``E_BAD_TIME``.
    """
    starts = spec.arrivals.times(spec.sessions, Draws(spec.arrival_seed))
    draws = Draws(spec.seed)
    size = spec.block_size
    cached = spec.cached_prefix_tokens // size
    fresh = _fresh(cached)
    groups: list[list[int]] = [[] for _ in range(spec.num_prefix_groups)]
    sessions = []
    for number, start in enumerate(starts):
        group = groups[draws.below(len(groups))] if groups else []
        turns = []
        for turn in range(spec.turns):
            length, output = spec.input.draw(draws), spec.output.draw(draws)
            if length < spec.cached_prefix_tokens:
                allowed = f"at most the shortest input, {length}"
                raise TraceError("cached_prefix_tokens", shown(spec.cached_prefix_tokens), allowed, code="E_PREFIX")
            blocks = blocks_of(length, size)
            shared = min(rounded(blocks * spec.shared_prefix_ratio), blocks - cached)
            while len(group) < shared:
                group.append(fresh())
            hashes = [*range(cached), *group[:shared]]
            hashes += [fresh() for _ in range(blocks - len(hashes))]
            delay = spec.delays.draw(draws) if turn else 0.0
            turns.append(Turn(f"s{number}.{turn}", length, output, tuple(hashes), delay_after_previous_ms=delay))
        sessions.append(Session(f"session_{number}", start, tuple(turns)))
    return Trace(size, tuple(sessions), accumulates=spec.accumulates)


def _fresh(first: int) -> Callable[[], int]:
    """A counter of hash ids."""
    ids = iter(range(first, 1 << 63))
    return lambda: next(ids)
