"""Run `minisched`: `python -m benchmarks.minisched LL`, `… S M --json`, `… --compare`.

Exit code 0 if every count and every bound is met, 1 if not, 2 on bad arguments.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from typing import Any

from benchmarks.minisched.measure import TOOLS, Row
from benchmarks.minisched.system import GEOMETRIES

BOUNDED = "L"
"""The system the bounds below are for."""

BOUNDS = {
    "states_per_second_to_floor": (">=", 1.5),
    "bytes_per_state": ("<=", 190.0),
    "proof_to_search": ("<=", 1.6),
    "peak_rss_mb": ("<=", 250.0),
}
"""What the explorer must keep: its speed against the floor's, its memory, and the price of a liveness proof."""

PEER_SYSTEMS = ("S", "M")
"""Where the peer runs by default; on larger ones it takes its time."""


def main(arguments: list[str] | None = None) -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.minisched", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one or more of {', '.join(GEOMETRIES)}; default all")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--tool", choices=TOOLS, default="explorer", help="what runs (default: explorer)")
    parser.add_argument("--compare", action="store_true", help="explorer, floor and peer side by side (default: S M L)")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each tool in a comparison; medians count (default 3)")
    parser.add_argument("--peer-everywhere", action="store_true", help="compare with minicheck on every named system")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in GEOMETRIES]
    if unknown:
        parser.error(f"unknown system {unknown[0]!r}; there are {', '.join(GEOMETRIES)}")
    if options.repeat < 1:
        parser.error(f"--repeat must be at least 1, not {options.repeat}")
    if options.compare:
        names = options.names or ["S", "M", BOUNDED]
        rows = [_compare(name, options.repeat, options.peer_everywhere) for name in names]
    elif len(options.names) == 1:
        rows = [_measure(options.tool, options.names[0])]
    else:
        rows = [_measure_apart(options.tool, name) for name in options.names or GEOMETRIES]
    if options.json:
        print(json.dumps(rows[0] if len(options.names) == 1 else rows, indent=1))
    elif options.compare:
        _print_comparison(rows)
    else:
        _print_rows(rows)
    return 0 if all(_is_met(row) for row in rows) else 1


def _measure(tool: str, name: str) -> Row:
    """One measurement in this process."""
    measured = TOOLS[tool](GEOMETRIES[name])
    return {"name": name, "tool": tool, "missing": True} if measured is None else {"name": name, **measured}


def _measure_apart(tool: str, name: str) -> Row:
    """One measurement in a fresh process, whose memory is its own."""
    command = [sys.executable, "-m", "benchmarks.minisched", name, "--tool", tool, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(command)} ended with exit code {done.returncode}")
    row: Row = json.loads(done.stdout)
    return row


def _compare(name: str, repeat: int, peer_everywhere: bool) -> Row:
    """All tools on one system, run by run in turn, so that a slow minute of the machine hits all of them."""
    tools = [tool for tool in TOOLS if tool != "minicheck" or peer_everywhere or name in PEER_SYSTEMS]
    runs: dict[str, list[Row]] = {tool: [] for tool in tools}
    for _ in range(repeat):
        for tool in tools:
            runs[tool].append(_measure_apart(tool, name))
    medians = {tool: _median(rows) for tool, rows in runs.items()}
    explorer = medians["explorer"]
    values = {
        "states_per_second_to_floor": explorer["states_per_second"] / medians["floor"]["states_per_second"],
        "bytes_per_state": explorer["bytes_per_state"],
        "proof_to_search": explorer["proof_to_search"],
        "peak_rss_mb": explorer["peak_rss_bytes"] / 1e6,
    }
    bounds = [
        {"what": what, "value": values[what], "bound": f"{sign} {bound:g}", "met": _holds(values[what], sign, bound)}
        for what, (sign, bound) in BOUNDS.items()
    ]
    return {"name": name, "tools": medians, "figures": values, "bounds": bounds if name == BOUNDED else []}


def _median(rows: list[Row]) -> Row:
    """The medians of what was measured; what was counted is the same in each run and comes from the first."""
    first = rows[0]
    middle = {key: statistics.median(row[key] for row in rows) for key, value in first.items() if isinstance(value, float)}
    return {**first, **middle}


def _holds(value: float | None, sign: str, bound: float) -> bool:
    if value is None:
        return False
    return value >= bound if sign == ">=" else value <= bound


def _is_met(row: Row) -> bool:
    if "tools" in row:
        return all(map(_is_met, row["tools"].values())) and all(bound["met"] for bound in row["bounds"])
    return bool(row.get("missing") or row["counts_match"])


def _text(value: Any, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _print_rows(rows: list[Row]) -> None:
    """A table with one line for each measurement, then what was found."""
    header = ("system", "tool", "states", "transitions", "counts", "search s", "states/s", "B/state", "proof s", "peak MB")
    lines = [header, *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    for row in rows:
        for what in ("stall", "livelock", "drain"):
            if row.get(what) is not None:
                within = f" within {row[what]['states']} states" if what == "drain" else ""
                print(f"{row['name']}, {what}{within}: {row[what]['story']}")


def _cells(row: Row) -> tuple[str, ...]:
    if row.get("missing"):
        return (row["name"], row["tool"], "not installed", *[""] * 7)
    return (
        row["name"],
        row["tool"],
        _text(row["states"]),
        _text(row["transitions"]),
        "right" if row["counts_match"] else "WRONG",
        _text(row["search_seconds"], 2),
        _text(row["states_per_second"]),
        _text(row["bytes_per_state"]),
        _text(row.get("proof_seconds"), 2),
        _text(row["peak_rss_bytes"] / 1e6),
    )


def _print_comparison(rows: list[Row]) -> None:
    for row in rows:
        _print_rows(list(row["tools"].values()))
        for bound in row["bounds"]:
            mark = "met" if bound["met"] else "NOT MET"
            print(f"{bound['what']} {_text(bound['value'], 2)} (bound {bound['bound']}): {mark}")
        if not row["bounds"]:
            print(f"states_per_second_to_floor {row['figures']['states_per_second_to_floor']:.2f} (no bound at this size)")
        print()


if __name__ == "__main__":
    sys.exit(main())
