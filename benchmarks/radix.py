"""Work of the radix tree, counted: ``python -m benchmarks.radix``, ``… --json``.

Each row is one operation on a tree that holds more and more other sequences. Its work is the pages it compares, the nodes it
visits and the pages it moves into a vector, as the tree counts them; nothing is timed. What an operation should cost is the
pages it is about: those it finds, adds or evicts, and the edge it cuts. The aim is that work by such page stays the same
however much else is cached. Finding the place of a leaf in the eviction index is a bisection, and is not counted.

The last rows are finding 8: elements retained by an edge that is split at ever later pages, with the fault and without.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from model.radix.tree import RadixTree

Row = dict[str, Any]

OTHERS = (10, 100, 1_000, 10_000)
"""Other sequences in the tree."""
PAGES = 64
"""Pages of a sequence."""
AIM = 2.0
"""Most work by page."""


def keys_of(sequence: int, pages: int = PAGES) -> list[int]:
    """The keys of one of many disjoint sequences."""
    return list(range(sequence * PAGES + 1, sequence * PAGES + 1 + pages))


def filled(others: int) -> RadixTree:
    """A tree with sequence 0, least recently used, and ``others`` more."""
    tree = RadixTree()
    for sequence in range(others + 1):
        keys = keys_of(sequence)
        tree.insert(tree.root, 0, keys, PAGES, keys)
    return tree


def find(tree: RadixTree) -> int:
    """Match a whole sequence."""
    matched, _ = tree.match(keys_of(0), PAGES)
    return matched


def miss(tree: RadixTree) -> int:
    """Match one of which nothing is cached."""
    tree.match([-1] * PAGES, PAGES)
    return 1


def cut(tree: RadixTree) -> int:
    """Match half of an edge, which splits it."""
    tree.match(keys_of(0), PAGES // 2)
    return PAGES


def append(tree: RadixTree) -> int:
    """Insert behind a sequence that is there."""
    keys = [*keys_of(0), *range(-PAGES, 0)]
    tree.insert(tree.root, 0, keys, len(keys), keys)
    return len(keys)


def branch(tree: RadixTree) -> int:
    """Insert behind half of a sequence that is there."""
    keys = [*keys_of(0, PAGES // 2), *range(-PAGES, 0)]
    tree.insert(tree.root, 0, keys, len(keys), keys)
    return len(keys) + PAGES // 2


def evict_page(tree: RadixTree) -> int:
    """Evict the last page of the least recently used sequence."""
    return len(tree.evict(1))


def evict_many(tree: RadixTree) -> int:
    """Evict more than one sequence."""
    return len(tree.evict(3 * PAGES // 2))


OPERATIONS: Sequence[Callable[[RadixTree], int]] = (find, miss, cut, append, branch, evict_page, evict_many)


def measure(operation: Callable[[RadixTree], int], others: int) -> Row:
    """The work of one operation on a tree with ``others`` other sequences."""
    tree = filled(others)
    before = tree.compared, tree.visited, tree.moved
    pages = operation(tree)
    compared, visited, moved = (
        after - start for after, start in zip((tree.compared, tree.visited, tree.moved), before, strict=True)
    )
    return {
        "operation": operation.__name__,
        "cached_pages": (others + 1) * PAGES,
        "pages": pages,
        "compared": compared,
        "visited": visited,
        "moved": moved,
        "work_per_page": (compared + visited + moved) / pages,
    }


def measure_splits(pages: int, every: int) -> Row:
    """Elements retained after splits at ``every`` pages, twice as many, and so on."""
    retained = {}
    for name, tight in (("faulty", False), ("right", True)):
        tree = RadixTree(tight_splits=tight)
        keys = list(range(1, pages + 1))
        tree.insert(tree.root, 0, keys, pages, keys)
        for at in range(every, pages, every):
            tree.match(keys, at)
        retained[name] = tree.retained
    return {"pages": pages, "every": every, **retained}


def main(arguments: list[str] | None = None) -> int:
    """Count and print; 1 when an operation works more than aimed at."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.radix", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    operations = [measure(operation, others) for operation in OPERATIONS for others in OTHERS]
    splits = [measure_splits(pages, every) for pages, every in ((64, 4), (512, 8), (4096, 8))]
    met = all(row["work_per_page"] <= AIM for row in operations)
    result = {"aim_work_per_page": AIM, "met": met, "operations": operations, "splits": splits}
    print(json.dumps(result, indent=1) if options.json else _table(result))
    return 0 if met else 1


def _table(result: Row) -> str:
    lines = [f"{'operation':<12}{'cached':>9}{'pages':>7}{'compared':>10}{'visited':>9}{'moved':>7}{'work/page':>11}"]
    for row in result["operations"]:
        lines.append(
            f"{row['operation']:<12}{row['cached_pages']:>9,}{row['pages']:>7}{row['compared']:>10}{row['visited']:>9}"
            f"{row['moved']:>7}{row['work_per_page']:>11.2f}"
        )
    lines.append(f"aim: at most {result['aim_work_per_page']} a page, {'met' if result['met'] else 'missed'}")
    for row in result["splits"]:
        lines.append(
            f"edge of {row['pages']:,} pages split every {row['every']}: {row['faulty']:,} elements retained with finding 8, "
            f"{row['right']:,} without"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
