"""How far our model agrees with the simulated engine: random cases by class, and what they exercised.

Run as a module for a table, one line a class::

    python -m adapters.dynamo.agreement --cases 2000 --python /path/to/venv/bin/python

The one class of large cases (``CROWD``) is run only when it is asked for by its whole name.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator

from attrs import define, field

from adapters.dynamo.classes import CLASSES, CROWD, EVICTING_TIERS, CaseClass
from adapters.dynamo.compare import Difference, compare_observed
from adapters.dynamo.wheel import Wheel
from adapters.observation import OK, REJECTED, Observation


@define
class Agreement:
    """What came of the cases of one class.

    Attributes:
        case_class: the class.
        cases: how many were compared.
        agreeing: of these, how many agree exactly.
        exercised: in how many cases the model saw a preemption, a hit, and so on.
        differences: seed and first difference of those that disagree.
    """

    case_class: CaseClass
    cases: int = 0
    agreeing: int = 0
    exercised: Counter[str] = field(factory=Counter)
    differences: list[tuple[int, Difference]] = field(factory=list)

    def __str__(self) -> str:
        """One line."""
        exercised = ", ".join(f"{name} {count}" for name, count in sorted(self.exercised.items()))
        return f"{self.case_class.scheduler:7} {self.case_class.name:30} {self.agreeing}/{self.cases}  ({exercised})"


def agreement(case_class: CaseClass, seeds: Iterable[int], wheel: Wheel) -> Agreement:
    """Compare the cases of ``seeds``."""
    result = Agreement(case_class)
    for seed in seeds:
        case = case_class.case(seed)
        compared = compare_observed(case.workload, case.config, wheel)
        result.cases += 1
        result.exercised.update(_exercised(compared.ours))
        if compared.difference is None:
            result.agreeing += 1
        else:
            result.differences.append((seed, compared.difference))
    return result


def _exercised(ours: Observation) -> Iterator[str]:
    if ours.outcome != OK:
        yield ours.outcome
    if ours.samples and ours.samples[-1].preemptions:
        yield "preemption"
    admissions = [admission for record in ours.requests for admission in record.admissions]
    if any(admission.reused for admission in admissions):
        yield "hit"
    if any(admission.again for admission in admissions):
        yield "readmission"
    if any(record.status == REJECTED for record in ours.requests):
        yield "rejection"


def main() -> None:
    """The command of the module docstring."""
    parser = argparse.ArgumentParser(description="Agreement of the model with the simulated engine, by class of random cases.")
    parser.add_argument("--cases", type=int, default=100, help="cases per class (default 100)")
    parser.add_argument("--first", type=int, default=0, help="seed of the first case")
    parser.add_argument("--only", default="", help="classes whose scheduler and name contain this")
    parser.add_argument("--python", help="an interpreter that has the wheel; this one by default")
    asked = parser.parse_args()
    with Wheel(asked.python) as wheel:
        print(wheel.release.name)
        for case_class in (*CLASSES, *EVICTING_TIERS, CROWD):
            name = f"{case_class.scheduler} {case_class.name}"
            if asked.only not in name or (case_class is CROWD and asked.only != name):
                continue
            found = agreement(case_class, range(asked.first, asked.first + asked.cases), wheel)
            print(found, flush=True)
            for seed, difference in found.differences[:2]:
                print(f"  seed {seed}:\n{difference.story()}", flush=True)


if __name__ == "__main__":
    main()
