"""The catalogue of defects: faults that were reported, or found by exploration, as switches of the model.

A defect is named by its id, a variant of it (a half fix, or a plausible wrong fix) by ``id:variant``. With none switched
on the engine is *right*: every invariant holds on everything explored. Each switch is one branch in the model, next to
the right rule. Two sets have names: ``seed`` holds the ten findings of aisimulate #285 as reported, ``upstream`` what
the newest specified upstream still does; a set stands for those of its members that touch the scheduler in question.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module

from attrs import field, frozen

from model.errors import BadInput, shown


@frozen
class Defect:
    """One switchable fault.

    Attributes:
        id: the name used in case files and on the command line.
        summary: what goes wrong, as its user would see it.
        source: the finding or report it comes from.
        schedulers: the schedulers it touches.
        caught_by: ids of the invariants expected to catch it.
        correction: what the right engine does instead.
        variants: name of each variant and what it does differently from the plain defect.
        seed: the defect belongs to the set ``seed``.
        upstream: the defect, or the named variant of it, belongs to the set ``upstream``.
    """

    id: str
    summary: str
    source: str
    schedulers: tuple[str, ...]
    caught_by: tuple[str, ...]
    correction: str
    variants: Mapping[str, str] = field(factory=dict)
    seed: bool = False
    upstream: bool | str = False

    def ids(self) -> tuple[str, ...]:
        """The id and those of its variants, as they are written in a case file."""
        return (self.id, *(f"{self.id}:{name}" for name in self.variants))


CATALOGUE: dict[str, Defect] = {}
"""The defects declared so far; ``complete`` makes it all of them."""

ROOMS = ("paged", "radix", "tiers", "replay")
"""The subpackages of the model that declare defects, each in its module ``defects``."""


def declare(*defects: Defect) -> None:
    """Add ``defects`` to the catalogue (each room declares its own, in its ``defects`` module)."""
    for defect in defects:
        if defect.id in CATALOGUE:
            raise ValueError(f"defect {defect.id} is declared twice")
        CATALOGUE[defect.id] = defect


def complete() -> dict[str, Defect]:
    """The whole catalogue, whichever rooms of the model were imported before."""
    for room in ROOMS:
        import_module(f"model.{room}.defects")
    return CATALOGUE


def known_ids() -> tuple[str, ...]:
    """Every id and ``id:variant`` that can be switched on, sorted."""
    return tuple(sorted(name for defect in complete().values() for name in defect.ids()))


def named_set(name: str, scheduler: str) -> frozenset[str]:
    """The ids in the set ``seed`` or ``upstream`` that touch ``scheduler``.

    Raises:
        KeyError: for any other name.
    """
    if name not in ("seed", "upstream"):
        raise KeyError(name)
    chosen = set()
    for defect in complete().values():
        member = getattr(defect, name)
        if member and scheduler in defect.schedulers:
            chosen.add(f"{defect.id}:{member}" if isinstance(member, str) else defect.id)
    return frozenset(chosen)


def resolve(names: object, scheduler: str, path: str = "defects") -> frozenset[str]:
    """The set of ids meant by ``names``: a list of ids, or the name of a set.

    Raises:
        BadInput: for an unknown id, one that does not touch ``scheduler``, or two switches of one defect.
    """
    if isinstance(names, str):
        try:
            return named_set(names, scheduler)
        except KeyError:
            raise BadInput(path, shown(names), 'a list of defect ids, or "seed" or "upstream"') from None
    if not isinstance(names, Iterable) or isinstance(names, Mapping):
        raise BadInput(path, shown(names), 'a list of defect ids, or "seed" or "upstream"')
    chosen: dict[str, str] = {}
    catalogue = complete()
    for number, name in enumerate(names):
        where = f"{path}[{number}]"
        plain = name.partition(":")[0] if isinstance(name, str) else ""
        defect = catalogue.get(plain)
        if defect is None or name not in defect.ids():
            raise BadInput(where, shown(name), ", ".join(known_ids()))
        if scheduler not in defect.schedulers:
            raise BadInput(where, shown(name), f"with scheduler {scheduler}, only defects that touch it")
        if chosen.setdefault(plain, name) != name:
            raise BadInput(where, shown(name), f"one of {chosen[plain]} and {name}, not both")
    return frozenset(chosen.values())
