"""What all commands share: exit codes, JSON, the console, a progress line, and the processes that share the work.

Results go to standard output, progress and errors to standard error.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

EXIT_HOLDS = 0
EXIT_VIOLATED = 1
EXIT_BAD_INPUT = 2
EXIT_UNKNOWN = 3

EXIT_CODES = {"holds": EXIT_HOLDS, "violated": EXIT_VIOLATED, "unknown": EXIT_UNKNOWN}
"""The exit code of a verdict."""

WIDTH = 130
"""Columns of a table where the output is no terminal."""


def worst(codes: list[int]) -> int:
    """The exit code of several results: something broken outweighs something unknown."""
    for code in (EXIT_VIOLATED, EXIT_UNKNOWN):
        if code in codes:
            return code
    return EXIT_HOLDS


def print_json(document: object) -> None:
    """A result for machines."""
    click.echo(json.dumps(document, indent=1, ensure_ascii=False))


def print_lines(lines: list[str]) -> None:
    """Text for people, as it is."""
    for line in lines:
        click.echo(line)


def table(*columns: str, title: str | None = None) -> Table:
    """An empty table; a column whose name begins with ``#`` holds numbers."""
    empty = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        empty.add_column(column.removeprefix("#"), justify="right" if column.startswith("#") else "left", overflow="fold")
    return empty


def print_table(filled: Table) -> None:
    """A table, as wide as the terminal."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=WIDTH)
    console.print(filled)


@contextmanager
def progress_line(what: str) -> Iterator[Callable[[str], None]]:
    """A line on a terminal that says how far things are; give it the words. On anything else nothing is shown."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what)
        yield lambda words: progress.update(task, description=f"{what}: {words}")


def _ready() -> None:
    """The first task of a worker process."""


@contextmanager
def process_pool(workers: int) -> Iterator[Executor | None]:
    """An executor of ``workers`` processes; None, for work done here, when that is one.

    Ctrl-C is for this process alone: workers ignore it, and are ended when the block is left before they are done.
    """
    if workers == 1:
        yield None
        return
    others = set(multiprocessing.active_children())
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        executor = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
        for _ in range(workers):
            executor.submit(_ready)
    finally:
        signal.signal(signal.SIGINT, handler)
    try:
        yield executor
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
