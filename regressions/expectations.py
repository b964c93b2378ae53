"""A result against what a case expects of it, key by key."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from explorer.findings import Verdict
from invariants.framework import Violation
from model.case import Expectation
from model.errors import shown


def compare(expect: Expectation, verdict: Verdict, violations: Sequence[Violation], seen: Mapping[str, Any]) -> Iterator[str]:
    """Where a run differs from what is expected of it, in words.

    Every id under ``violates`` must be reported, beside which others may be; without any, nothing may be. The other parts are
    compared key by key with ``seen``: what is not named is not compared, and of ``passes`` those behind the last one named. Only
    that nothing was scheduled or emitted can be said by naming nothing: ``"emitted": {}``.
    """
    reported = {violation.invariant for violation in violations}
    for id_ in expect.violates:
        if id_ not in reported:
            yield f"expected a violation of {id_}, found {', '.join(sorted(reported)) or 'none'}"
    if expect.holds and verdict is Verdict.VIOLATED:
        yield f"expected that everything holds, found a violation of {', '.join(sorted(reported))}"
    if expect.passes is not None:
        found = seen["passes"]
        if len(found) < len(expect.passes):
            yield f"passes: expected at least {len(expect.passes)}, found {len(found)}"
        for number, (wanted, given) in enumerate(zip(expect.passes, found, strict=False)):
            yield from _differences(wanted, given, f"passes[{number}]")
            for name in ("scheduled", "emitted"):
                if wanted.get(name) == {} and given[name]:
                    yield f"passes[{number}].{name}: expected nothing, found {shown(given[name])}"
    for name in ("final", "report", "costs"):
        wanted = getattr(expect, name)
        if wanted is not None:
            yield from _differences(wanted, seen[name], name)


def _differences(wanted: Any, given: Any, path: str) -> Iterator[str]:
    """Differences key by key in objects; a list stands for all of the list."""
    if isinstance(wanted, Mapping) and isinstance(given, Mapping):
        for name, value in wanted.items():
            if name in given:
                yield from _differences(value, given[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}: expected {shown(value)}, found nothing"
    elif isinstance(wanted, list) and isinstance(given, list):
        if len(wanted) != len(given):
            yield f"{path}: expected {shown(wanted)}, found {shown(given)}"
        else:
            for number, (one, other) in enumerate(zip(wanted, given, strict=True)):
                yield from _differences(one, other, f"{path}[{number}]")
    elif not _equal(wanted, given):
        yield f"{path}: expected {shown(wanted)}, found {shown(given)}"


def _equal(wanted: Any, given: Any) -> bool:
    """JSON equality; floats to nine digits, since they were rounded on the way."""
    if isinstance(wanted, bool) or isinstance(given, bool):
        return wanted is given
    if isinstance(wanted, float) or isinstance(given, float):
        numbers = isinstance(wanted, int | float) and isinstance(given, int | float)
        return numbers and math.isclose(wanted, given, rel_tol=1e-9)
    return bool(wanted == given)
