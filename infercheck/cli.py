"""The command line.

Exit codes: 0 everything holds (``run``: every expectation is met), 1 something is violated (or not met), 2 bad input, 3 unknown:
a limit was hit or the run was interrupted, and nothing broke so far.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from attrs import evolve

from explorer.boxes import read_box
from infercheck import catalogue, exploring, fuzzing, mainjob, output, replaying, running
from infercheck.found import DIRECTORY
from model.config import SCHEDULERS
from model.errors import BadInput
from regressions.files import json_files, load, load_case
from strategies.configs import OPTIONS

F = TypeVar("F", bound=Callable[..., Any])

FILES = click.Path(path_type=Path)
POSITIVE = click.IntRange(min=1)


class _Group(click.Group):
    """Bad input and interrupts end every command in the same way: a line on standard error, and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except BadInput as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(output.EXIT_BAD_INPUT)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(output.EXIT_UNKNOWN)


def _example(*lines: str) -> str:
    """The end of a help page: commands to try."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def _end(code: int) -> NoReturn:
    click.get_current_context().exit(code)


def _json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(function)


def _out_option(function: F) -> F:
    help_ = f"Directory for the cases found.  [default: {DIRECTORY}; with --json: none]"
    return click.option("--out", type=FILES, help=help_)(function)


def _workers_option(function: F) -> F:
    count = POSITIVE
    return click.option("--workers", type=count, default=os.cpu_count() or 1, show_default="processors", help="Processes.")(
        function
    )


def _seconds_option(default: float | None, help_: str) -> Callable[[F], F]:
    return click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=default, show_default=True, help=help_)


def _seed_option(function: F) -> F:
    return click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of all random choices.")(
        function
    )


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_example("infercheck check"))
@click.version_option(package_name="infercheck")
def main() -> None:
    """Find the schedules on which an LLM inference engine misbehaves.

    Exit codes: 0 everything holds (run: every expectation is met), 1 something is violated, 2 bad input, 3 unknown.
    """


@main.command(
    epilog=_example(
        "infercheck run regressions/cases/finding-9/4x2-p8-o1-k1-caching-defect.json", "infercheck run regressions/cases"
    )
)
@click.argument("cases", nargs=-1, required=True, type=FILES, metavar="CASE…")
@_json_option
def run(cases: tuple[Path, ...], as_json: bool) -> None:
    """Run case files and compare them with what they expect.

    A directory stands for all files below it. The story is told of a single case, and of every case that is not met.
    """
    files = json_files(cases)
    _end(running.run_files([(file, load_case(file)) for file in files], as_json))


@main.command(epilog=_example("infercheck explore regressions/boxes/finding-9-speculation.json"))
@click.argument("boxes", nargs=-1, required=True, type=FILES, metavar="BOX…")
@_workers_option
@_seconds_option(None, "Limit for each box, instead of the one in the file.")
@click.option("--states", type=POSITIVE, help="Limit for each geometry, instead of the one in the file.")
@_out_option
@_json_option
def explore(boxes: tuple[Path, ...], workers: int, seconds: float | None, states: int | None, out: Path, as_json: bool) -> None:
    """Explore boxes of geometries exhaustively.

    Every geometry, every order of arrivals and passes, every choice. What breaks is told by its shortest path, and
    written as a case file.
    """
    read = [(file, load(file, read_box)) for file in json_files(boxes)]
    given: dict[str, Any] = {name: value for name, value in (("seconds", seconds), ("states", states)) if value is not None}
    limited = [(file, evolve(box, limits=evolve(box.limits, **given))) for file, box in read]
    _end(exploring.explore_boxes(limited, workers, out, as_json))


@main.command(epilog=_example("infercheck fuzz --defect speculative-terminal-block"))
@click.option(
    "--scheduler", type=click.Choice(sorted(OPTIONS)), default="vllm", show_default=True, help="Whose configurations are drawn."
)
@click.option("--defect", "defects", multiple=True, metavar="ID", help="A defect to switch on; may be given again.")
@click.option("--examples", type=POSITIVE, default=2000, show_default=True, help="Runs to make.")
@click.option("--steps", type=POSITIVE, default=20, show_default=True, help="Actions of a run, at most.")
@click.option("--speculation/--no-speculation", default=None, help="Always or never draw speculation.  [default: both]")
@click.option(
    "--ignore", "ignored", multiple=True, metavar="INVARIANT", help="An invariant that fails no run; may be given again."
)
@_seconds_option(None, "Limit on the time.")
@_seed_option
@_out_option
@_json_option
def fuzz(as_json: bool, out: Path | None, **options: Any) -> None:
    """Drive an engine at random under every invariant.

    What breaks is cut down to the smallest case, told as a story, and written as a case file.
    """
    _end(fuzzing.fuzz_engine(out=out, as_json=as_json, **options))


@main.command(epilog=_example("infercheck replay trace.jsonl --block-size 512 --num-blocks 2000 --max-output 32"))
@click.argument("trace", type=FILES)
@click.option(
    "--format",
    "format_",
    type=click.Choice(replaying.FORMATS),
    default=replaying.FORMATS[0],
    show_default=True,
    help="Of the trace.",
)
@click.option("--scheduler", type=click.Choice(SCHEDULERS), default="vllm", show_default=True, help="Of the engine.")
@click.option("--block-size", type=POSITIVE, default=512, show_default=True, help="Tokens in a block, of trace and engine.")
@click.option("--num-blocks", type=POSITIVE, default=2000, show_default=True, help="Blocks of the engine.")
@click.option("--max-num-batched-tokens", type=POSITIVE, default=8192, show_default=True, help="Token budget.")
@click.option("--max-num-seqs", type=POSITIVE, default=64, show_default=True, help="Requests that run at a time.")
@click.option("--max-output", type=click.IntRange(min=0), help="Cut longer outputs.  [default: as the trace says]")
@click.option("--max-rows", type=POSITIVE, help="Replay so many rows of the trace.  [default: all]")
@click.option("--draft-tokens", type=POSITIVE, help="Speculate with so many draft tokens.  [default: none]")
@click.option("--defect", "defects", multiple=True, metavar="ID", help="A defect to switch on; may be given again.")
@click.option("--arrivals", is_flag=True, help="Requests arrive when the trace says, and not in file order as there is room.")
@_json_option
def replay(trace: Path, as_json: bool, **options: Any) -> None:
    """Replay a trace through one engine under every invariant."""
    _end(replaying.replay_trace(trace, as_json=as_json, **options))


@main.command(epilog=_example("infercheck check --seconds 60"))
@_seconds_option(120, "Time for everything.")
@_seed_option
@_workers_option
@click.option("--cases/--no-cases", default=True, help="Run the stored cases.  [default: yes]")
@click.option("--boxes/--no-boxes", default=True, help="Explore the small boxes.  [default: yes]")
@click.option("--fuzz/--no-fuzz", "fuzzing_", default=True, help="Fuzz in the time that is left.  [default: yes]")
@_out_option
@_json_option
def check(as_json: bool, out: Path | None, fuzzing_: bool, **options: Any) -> None:
    """Do the main job: stored cases, small boxes, fuzzing.

    Cases and boxes are run to their end; fuzzing takes the time that is left.
    """
    _end(mainjob.check(out=out, as_json=as_json, fuzzing=fuzzing_, **options))


@main.command(epilog=_example("infercheck defects"))
@_json_option
def defects(as_json: bool) -> None:
    """List the defects that can be switched on."""
    catalogue.print_defects(as_json)


@main.command(epilog=_example("infercheck invariants"))
@_json_option
def invariants(as_json: bool) -> None:
    """List what every engine is judged by."""
    catalogue.print_invariants(as_json)
