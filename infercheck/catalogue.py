"""The commands ``defects`` and ``invariants``: both catalogues, as tables and as JSON."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

import invariants
from infercheck.output import print_json, print_table, table
from invariants.framework import CATALOGUE, Invariant
from model.defects import Defect, complete


def defects_json() -> list[dict[str, Any]]:
    """Every defect, with its variants and the named sets that it, or one of them, belongs to."""
    return [_defect_json(defect) for defect in complete().values()]


def _defect_json(defect: Defect) -> dict[str, Any]:
    upstream_variant = defect.upstream if isinstance(defect.upstream, str) else None
    sets = [name for name, member in (("seed", defect.seed), ("upstream", defect.upstream is True)) if member]
    variants = [
        {"id": f"{defect.id}:{name}", "summary": summary, "sets": ["upstream"] if name == upstream_variant else []}
        for name, summary in defect.variants.items()
    ]
    return {
        "id": defect.id,
        "summary": defect.summary,
        "source": defect.source,
        "schedulers": list(defect.schedulers),
        "caught_by": list(defect.caught_by),
        "correction": defect.correction,
        "variants": variants,
        "sets": sets,
    }


def print_defects(as_json: bool) -> None:
    """The command ``defects``."""
    found = defects_json()
    if as_json:
        print_json(found)
        return
    rows = table("defect", "schedulers", "sets", "caught by", "what goes wrong")
    for defect in found:
        schedulers, caught_by = ", ".join(defect["schedulers"]), ", ".join(defect["caught_by"])
        rows.add_row(defect["id"], schedulers, ", ".join(defect["sets"]), caught_by, f"{defect['summary']} ({defect['source']})")
        for variant in defect["variants"]:
            rows.add_row(f"  {variant['id']}", schedulers, ", ".join(variant["sets"]), "", variant["summary"])
    print_table(rows)


def invariants_json() -> list[dict[str, Any]]:
    """Every invariant id once, with what all its checks say."""
    for module in pkgutil.iter_modules(invariants.__path__):
        import_module(f"invariants.{module.name}")
    checks: dict[str, list[Invariant]] = {}
    for invariant in CATALOGUE:
        checks.setdefault(invariant.id, []).append(invariant)
    return [
        {
            "id": id_,
            "kind": same[0].kind,
            "statement": " ".join(dict.fromkeys(check.statement for check in same)),
            "source": "; ".join(dict.fromkeys(part for check in same for part in check.source.split("; "))),
            "catches": list(dict.fromkeys(defect for check in same for defect in check.catches)),
        }
        for id_, same in checks.items()
    ]


def print_invariants(as_json: bool) -> None:
    """The command ``invariants``."""
    found = invariants_json()
    if as_json:
        print_json(found)
        return
    rows = table("invariant", "kind", "what holds", "source", "catches")
    for invariant in found:
        catches = ", ".join(invariant["catches"])
        rows.add_row(invariant["id"], invariant["kind"], invariant["statement"], invariant["source"], catches)
    print_table(rows)
