"""Examples a second of the simulated engine, for tiny cases: plain, with passes recorded, and with counters too.

    python -m benchmarks.dynamo [--examples 2000] [--python PATH]

Needs the wheel (``infercheck[dynamo]``). Prints wall-clock rates, and CPU time of both processes, which a busy machine
disturbs less. Counters are sampled at every instant at which something may happen, a millisecond apart in these cases.
"""

from __future__ import annotations

import argparse
import time

from adapters.dynamo.classes import CLASSES
from adapters.dynamo.wheel import Wheel
from adapters.observation import BOUNDED
from model.config import NANOSECONDS_PER_MS

CAP_NS = 400 * NANOSECONDS_PER_MS


def main() -> None:
    """The command of the module docstring."""
    parser = argparse.ArgumentParser(description="Examples a second of the simulated engine.")
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--python", help="an interpreter that has the wheel; this one by default")
    asked = parser.parse_args()
    plain = next(case_class for case_class in CLASSES if case_class.name == "plain")
    cases = [plain.case(seed) for seed in range(asked.examples)]
    with Wheel(asked.python) as wheel:
        print(wheel.release.name)
        for name, record, counters in (("plain", False, False), ("passes", True, False), ("counters", True, True)):
            start, cpu = time.monotonic(), time.process_time() + wheel.cpu_seconds()
            left = sum(
                wheel.run(case.config, case.workload, cap_ns=CAP_NS, record=record, counters=counters).outcome == BOUNDED
                for case in cases
            )
            wall, used = time.monotonic() - start, time.process_time() + wheel.cpu_seconds() - cpu
            print(
                f"{name:9} {asked.examples / wall:6.0f} examples a second, {1e3 * used / asked.examples:.2f} ms CPU each "
                f"({left} cut off)"
            )


if __name__ == "__main__":
    main()
