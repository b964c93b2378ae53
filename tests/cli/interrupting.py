"""A run of the program that is sent SIGINT, as by Ctrl-C, once it has called a function so many times.

So the moment is one of its work and not of the clock: ``python -m tests.cli.interrupting module:function count command …``.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from itertools import count
from typing import Any


def interrupt_at(target: str, calls: int) -> None:
    """Send SIGINT to this process at the ``calls``-th call of ``target``, a function or method as ``module:path``."""
    module, _, path = target.partition(":")
    owner: Any = import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    original = getattr(owner, name)
    numbers = count(1)

    def counted(*arguments: Any, **options: Any) -> Any:
        if next(numbers) == calls:
            os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments, **options)

    setattr(owner, name, counted)


if __name__ == "__main__":
    from infercheck.cli import main

    interrupt_at(sys.argv[1], int(sys.argv[2]))
    main(sys.argv[3:])
