"""Random draws for synthetic traces: a seed gives one sequence, on every machine and Python.

SplitMix64 for the bits; normal by Box and Muller, exponential by inversion, gamma by Marsaglia and Tsang. The values differ from
those of public generators, whose laws and seeds these arguments copy; only sizes and laws are specified (replay
specification 1.8).
"""

from __future__ import annotations

import math

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15


class Draws:
    """One sequence of draws."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        """The sequence of ``seed``."""
        self._state = seed & _MASK

    def bits(self) -> int:
        """64 random bits."""
        self._state = (self._state + _STEP) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def unit(self) -> float:
        """Uniform in (0, 1): never 0, so that its logarithm exists."""
        return ((self.bits() >> 12) + 0.5) / (1 << 52)

    def below(self, count: int) -> int:
        """Uniform in 0 … ``count - 1``."""
        return (self.bits() * count) >> 64

    def normal(self) -> float:
        """Standard normal."""
        return math.sqrt(-2.0 * math.log(self.unit())) * math.cos(2.0 * math.pi * self.unit())

    def exponential(self, mean: float) -> float:
        """Exponential."""
        return -mean * math.log(self.unit())

    def gamma(self, shape: float, scale: float) -> float:
        """Gamma with mean ``shape * scale``."""
        if shape < 1.0:
            return self.gamma(shape + 1.0, scale) * math.pow(self.unit(), 1.0 / shape)
        d = shape - 1.0 / 3.0
        c = 1.0 / math.sqrt(9.0 * d)
        while True:
            x = self.normal()
            v = (1.0 + c * x) ** 3
            if v > 0.0 and math.log(self.unit()) < 0.5 * x * x + d - d * v + d * math.log(v):
                return d * v * scale
