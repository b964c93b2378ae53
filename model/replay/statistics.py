"""Statistics of the report (replay specification 6): exact over few samples, a sketch over very many.

A percentile of ``k`` sorted values is the one of rank ``(k - 1) * p / 100``, rounded half away from zero; the standard deviation
is that of the population; without samples everything is 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

PERCENTILES: Mapping[str, float] = {"median": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99}
ACCURACY = 0.001
"""Relative error of a percentile from a sketch."""

_GAMMA = (1 + ACCURACY) / (1 - ACCURACY)
_LOG_GAMMA = math.log(_GAMMA)
_REMEMBERED = 1 << 16


def rank(count: int, percent: float) -> int:
    """Position, among ``count`` sorted values, of a percentile."""
    return math.floor((count - 1) * percent / 100 + 0.5)


def summary(values: Iterable[float]) -> dict[str, float]:
    """Mean, min, max, standard deviation and percentiles; NaN samples are ignored."""
    ordered = sorted(value for value in values if value == value)
    if not ordered:
        return dict.fromkeys(("mean", "min", "max", *PERCENTILES, "std"), 0.0)
    mean = math.fsum(ordered) / len(ordered)
    found = {"mean": mean, "min": ordered[0], "max": ordered[-1]}
    found |= {name: ordered[rank(len(ordered), percent)] for name, percent in PERCENTILES.items()}
    return found | {"std": math.sqrt(math.fsum((value - mean) ** 2 for value in ordered) / len(ordered))}


class Sketch:
    """Samples ≥ 0 in logarithmic buckets: count, mean, min, max and deviation are exact, percentiles are those of a bucket.

    Bucket ``k`` holds the samples with ``ceil(ln x / ln gamma) = k`` and stands for ``2 * gamma**k / (gamma + 1)``. A single
    sample is returned as it is.
    """

    __slots__ = ("_bucket_of", "_buckets", "_mean", "_squares", "_zeros", "count", "max", "min")

    def __init__(self) -> None:
        """No sample."""
        self.count = 0
        self.min = 0.0
        self.max = 0.0
        self._mean = 0.0
        self._squares = 0.0
        self._zeros = 0
        self._buckets: Counter[int] = Counter()
        # Requests of one pass have the same gap, so the bucket of a value is asked for again and again.
        self._bucket_of: dict[float, int] = {}

    def add(self, values: Sequence[float]) -> None:
        """Take in ``values``."""
        count = len(values)
        if not count:
            return
        low, high = min(values), max(values)
        self.min = low if not self.count else min(self.min, low)
        self.max = max(self.max, high)
        mean = math.fsum(values) / count
        # Groups are merged by their means and sums of squares, which loses nothing to the size of the total.
        shift = mean - self._mean
        total = self.count + count
        self._squares += math.fsum([(value - mean) ** 2 for value in values]) + shift * shift * self.count * count / total
        self._mean += shift * count / total
        self.count = total
        known = self._bucket_of
        for value in values:
            bucket = known.get(value)
            if bucket is None:
                if value == 0:
                    self._zeros += 1
                    continue
                if len(known) >= _REMEMBERED:
                    known.clear()
                bucket = known[value] = math.ceil(math.log(value) / _LOG_GAMMA)
            self._buckets[bucket] += 1

    def percentile(self, percent: float) -> float:
        """The value that stands for the bucket of a percentile."""
        if self.count == 1:
            return self.min
        wanted = rank(self.count, percent)
        seen = self._zeros
        if wanted < seen:
            return 0.0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if wanted < seen:
                return 2 * _GAMMA**bucket / (_GAMMA + 1)
        return 0.0

    def summary(self) -> dict[str, float]:
        """The statistics that ``summary`` gives of few values."""
        found = {"mean": self._mean, "min": self.min, "max": self.max}
        found |= {name: self.percentile(percent) for name, percent in PERCENTILES.items()}
        return found | {"std": math.sqrt(self._squares / self.count) if self.count else 0.0}


def mean_of(values: Sequence[float]) -> float:
    """The mean; 0 of nothing."""
    return math.fsum(values) / len(values) if values else 0.0
