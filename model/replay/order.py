"""The total order of times: numbers by value, -0 before +0, NaN behind everything (replay specification 3.1, 5.2)."""

from __future__ import annotations

import math

OrderKey = tuple[float, float]


def order_key(time: float) -> OrderKey:
    """A key that sorts times in their total order."""
    if time:
        return (time, 0.0) if time == time else (math.inf, 1.0)
    return (0.0, math.copysign(1.0, time))
