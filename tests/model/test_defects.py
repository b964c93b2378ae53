"""The catalogue of defects: what can be switched on together, and for whom."""

from __future__ import annotations

import subprocess
import sys

import pytest

from model.config import SCHEDULERS
from model.defects import Defect, complete, declare, known_ids, named_set, resolve
from model.errors import BadInput

PLAIN = "speculative-terminal-block"
HALF = f"{PLAIN}:reservation-only"


def refusal(names: object, scheduler: str = "vllm") -> tuple[str, str, str]:
    """How ``names`` are refused."""
    with pytest.raises(BadInput) as caught:
        resolve(names, scheduler)
    return caught.value.path, caught.value.found, caught.value.allowed


def test_ids_of_one_list_are_switched_on_together() -> None:
    assert resolve([], "vllm") == frozenset()
    assert resolve([HALF, "admits-unservable"], "vllm") == {HALF, "admits-unservable"}
    assert resolve(("admits-unservable", "admits-unservable"), "vllm") == {"admits-unservable"}
    assert resolve(frozenset({PLAIN}), "vllm") == {PLAIN}


def test_an_unknown_id_is_refused_with_all_that_exist() -> None:
    for name in ("no-such-defect", "", f"{PLAIN}:no-such-variant", f"{PLAIN}:", f"{HALF}:", ":reservation-only"):
        assert refusal([PLAIN, name]) == ("defects[1]", repr(name), ", ".join(known_ids()))


@pytest.mark.parametrize("name", [3, None, True, [PLAIN], {"id": PLAIN}])
def test_an_id_is_a_string(name: object) -> None:
    assert refusal([name])[0] == "defects[0]"


def test_a_defect_of_another_scheduler_is_refused() -> None:
    assert refusal([PLAIN], "sglang") == ("defects[0]", repr(PLAIN), "with scheduler sglang, only defects that touch it")


def test_two_switches_of_one_defect_are_refused() -> None:
    assert refusal([PLAIN, HALF]) == ("defects[1]", repr(HALF), f"one of {PLAIN} and {HALF}, not both")
    both = [f"{PLAIN}:reservation-only", f"{PLAIN}:allocation-only"]
    assert refusal(both) == ("defects[1]", repr(both[1]), f"one of {both[0]} and {both[1]}, not both")


@pytest.mark.parametrize("names", ["all", "", None, 3, {"seed": True}])
def test_anything_but_a_list_or_a_set_name_is_refused(names: object) -> None:
    path, _, allowed = refusal(names)
    assert (path, allowed) == ("defects", 'a list of defect ids, or "seed" or "upstream"')


def test_a_named_set_holds_its_members_for_the_scheduler() -> None:
    for name in ("seed", "upstream"):
        for scheduler in SCHEDULERS:
            members = named_set(name, scheduler)
            assert resolve(name, scheduler) == members
            for member in members:
                defect = complete()[member.partition(":")[0]]
                assert scheduler in defect.schedulers
                assert member in defect.ids()
    assert PLAIN in named_set("seed", "vllm")
    assert PLAIN not in named_set("seed", "sglang")
    assert {"admits-unservable", "counts-dropped-hits"} <= named_set("upstream", "vllm") - named_set("seed", "vllm")
    with pytest.raises(KeyError):
        named_set("all", "vllm")


def test_every_set_can_be_resolved_back_from_its_ids() -> None:
    for name in ("seed", "upstream"):
        for scheduler in SCHEDULERS:
            members = named_set(name, scheduler)
            assert resolve(sorted(members), scheduler) == members


def test_every_defect_is_told_in_full() -> None:
    for id_, defect in complete().items():
        assert defect.id == id_
        assert ":" not in id_
        assert defect.summary
        assert defect.source
        assert defect.correction
        assert defect.caught_by
        assert set(defect.schedulers) <= set(SCHEDULERS)
        assert not isinstance(defect.upstream, str) or defect.upstream in defect.variants


def test_known_ids_are_all_ids_with_their_variants_sorted() -> None:
    ids = known_ids()
    assert list(ids) == sorted(ids)
    assert {PLAIN, HALF, f"{PLAIN}:allocation-only", "admits-unservable", "counts-dropped-hits"} <= set(ids)


def test_a_defect_is_declared_once() -> None:
    twice = Defect("admits-unservable", "", "", ("vllm",), (), "")
    with pytest.raises(ValueError, match="declared twice"):
        declare(twice)


@pytest.mark.parametrize("first", ["model.config", "model.defects", "model.paged.engine", "model.replay.defects"])
def test_the_catalogue_is_whole_whatever_was_imported_first(first: str) -> None:
    script = f"import {first}, model.defects; print(*model.defects.known_ids())"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == list(known_ids())
