"""A case: configuration, actions, expectation, and its JSON form (case format, section 1).

Everything that finds something writes a case, so the form stands here, below those that find; files, the runner and the
stored cases are in ``regressions``. Reading is strict: an unknown field, a wrong type or an impossible value is refused with
its path, what was found and what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from attrs import field, frozen

from model.actions import Action, Advance, Cancel, Handoff, Step, Submit
from model.config import NANOSECONDS_PER_MS, EngineConfig
from model.errors import BadInput, expect_int, expect_list, expect_object, expect_str, refuse_unknown, shown
from model.requests import Prompt, RequestSpec

FORMAT = 1


@frozen
class Drain:
    """No more input: passes and deadlines until idle, until a progress property decides, or ``passes`` of them."""

    passes: int


@frozen
class Steps:
    """``count`` passes in a row, each with the same choice of accepted drafts."""

    count: int
    step: Step = field(factory=Step)


Item = Submit | Cancel | Steps | Advance | Handoff | Drain
"""One entry of ``actions``."""


@frozen
class Expectation:
    """What a case expects of its run; every part is optional, and with none of them the case is expected to hold.

    Attributes:
        violates: invariant ids, each of which is to be reported; empty when the case holds.
        passes, final, report, costs: compared key by key with the result; keys not named are not compared.
    """

    violates: tuple[str, ...] = ()
    passes: Sequence[Mapping[str, Any]] | None = None
    final: Mapping[str, Any] | None = None
    report: Mapping[str, Any] | None = None
    costs: Mapping[str, Any] | None = None

    @property
    def holds(self) -> bool:
        """No invariant may break."""
        return not self.violates


@frozen
class Case:
    """One case; see the module docstring.

    Attributes:
        title: one line in the field's words.
        source: where it comes from.
        engine: configuration.
        actions: what is done, in order; empty when there is a ``replay``.
        replay: the replay to run instead of actions, as JSON (``model.replay`` reads it).
        expect: what is to be seen.
    """

    engine: EngineConfig
    actions: tuple[Item, ...] = ()
    title: str = ""
    source: str = ""
    expect: Expectation = field(factory=Expectation)
    replay: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """The document that ``read_case`` reads back to an equal case."""
        written: dict[str, Any] = {"infercheck": FORMAT}
        if self.title:
            written["title"] = self.title
        if self.source:
            written["source"] = self.source
        written["engine"] = self.engine.to_json()
        if self.replay is not None:
            written["replay"] = dict(self.replay)
        else:
            written["actions"] = [write_item(item) for item in self.actions]
        expect: dict[str, Any] = {"violates": list(self.expect.violates)} if self.expect.violates else {"holds": True}
        for name in ("passes", "final", "report", "costs"):
            if getattr(self.expect, name) is not None:
                expect[name] = getattr(self.expect, name)
        written["expect"] = expect
        return written


def as_items(actions: Sequence[Action]) -> tuple[Item, ...]:
    """Single actions as entries of a case; equal passes in a row become one entry."""
    items: list[Item] = []
    for action in actions:
        if not isinstance(action, Step):
            items.append(action)
        elif items and isinstance(items[-1], Steps) and items[-1].step == action:
            items[-1] = Steps(items[-1].count + 1, action)
        else:
            items.append(Steps(1, action))
    return tuple(items)


def milliseconds(value: object, path: str) -> Fraction:
    """A JSON number of milliseconds, exactly, in nanoseconds.

    Raises:
        BadInput: unless it is a finite number ≥ 0.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise BadInput(path, shown(value), "a finite number of milliseconds ≥ 0")
    return Fraction(value) * NANOSECONDS_PER_MS


def to_ms(nanoseconds: int | Fraction) -> int | float:
    """Nanoseconds as JSON milliseconds: an integer when whole."""
    exact = Fraction(nanoseconds, NANOSECONDS_PER_MS)
    return int(exact) if exact.denominator == 1 else float(exact)


def read_request(value: Mapping[str, Any], path: str, id_: str) -> RequestSpec:
    """The request that the fields ``prompt``, ``output`` and, when planned, ``output_tokens`` describe.

    Raises:
        BadInput: naming the field.
    """
    if "prompt" not in value:
        raise BadInput(f"{path}.prompt", "nothing", "a list of token ids, or of [stream, length] pairs")
    prompt = Prompt.read(value["prompt"], f"{path}.prompt")
    planned = value.get("output_tokens")
    if planned is not None:
        where = f"{path}.output_tokens"
        ids = [expect_int(token, f"{where}[{number}]", 0) for number, token in enumerate(expect_list(planned, where))]
        if "output" in value and value["output"] != len(ids):
            raise BadInput(f"{path}.output", shown(value["output"]), f"the number of output_tokens, {len(ids)}")
        return RequestSpec(id_, prompt, len(ids), tuple(ids))
    if "output" not in value:
        raise BadInput(f"{path}.output", "nothing", "an integer ≥ 0")
    return RequestSpec(id_, prompt, expect_int(value["output"], f"{path}.output", 0))


def _worker(value: Mapping[str, Any], path: str) -> int:
    return expect_int(value.get("worker", 0), f"{path}.worker", 0)


def _read_submit(value: dict[str, Any], path: str) -> Item:
    refuse_unknown(value, ("submit", "prompt", "output", "output_tokens", "worker"), path)
    return Submit(read_request(value, path, expect_str(value["submit"], f"{path}.submit")), _worker(value, path))


def _read_cancel(value: dict[str, Any], path: str) -> Item:
    refuse_unknown(value, ("cancel", "worker"), path)
    return Cancel(expect_str(value["cancel"], f"{path}.cancel"), _worker(value, path))


def _read_step(value: dict[str, Any], path: str) -> Item:
    refuse_unknown(value, ("step", "accepted", "worker"), path)
    chosen = expect_object(value.get("accepted", {}), f"{path}.accepted")
    accepted = {id_: expect_int(count, f"{path}.accepted.{id_}", 0) for id_, count in chosen.items()}
    return Steps(expect_int(value["step"], f"{path}.step", 1), Step(accepted, _worker(value, path)))


def _read_advance(value: dict[str, Any], path: str) -> Item:
    refuse_unknown(value, ("advance", "worker"), path)
    if value["advance"] is None:
        return Advance(None, _worker(value, path))
    by = milliseconds(value["advance"], f"{path}.advance")
    return Advance(int(by) if by.denominator == 1 else by, _worker(value, path))


def _read_drain(value: dict[str, Any], path: str) -> Item:
    refuse_unknown(value, ("drain",), path)
    return Drain(expect_int(value["drain"], f"{path}.drain", 1))


def _read_handoff(value: dict[str, Any], path: str) -> Item:
    refuse_unknown(value, ("handoff", "id", "prompt", "output", "output_tokens", "worker"), path)
    id_ = expect_str(value.get("id"), f"{path}.id")
    request = read_request(value, path, id_) if "prompt" in value else None
    return Handoff(expect_str(value["handoff"], f"{path}.handoff"), id_, request, _worker(value, path))


_READERS: dict[str, Callable[[dict[str, Any], str], Item]] = {
    "submit": _read_submit,
    "cancel": _read_cancel,
    "step": _read_step,
    "advance": _read_advance,
    "drain": _read_drain,
    "handoff": _read_handoff,
}


def read_item(value: object, path: str) -> Item:
    """One entry of ``actions``; its first key is the verb.

    Raises:
        BadInput: naming the field that is wrong.
    """
    given = expect_object(value, path)
    verb = next(iter(given), None)
    reader = _READERS.get(verb) if isinstance(verb, str) else None
    if reader is None:
        raise BadInput(path, shown(given), f"an object whose first key is {', '.join(_READERS)}")
    return reader(given, path)


def write_item(item: Item) -> dict[str, Any]:
    """The JSON form of an entry of ``actions``."""
    if isinstance(item, Drain):
        return {"drain": item.passes}
    if isinstance(item, Submit):
        written = {"submit": item.request.id, **_write_request(item.request)}
    elif isinstance(item, Cancel):
        written = {"cancel": item.id}
    elif isinstance(item, Steps):
        written = {"step": item.count}
        if item.step.accepted:
            written["accepted"] = dict(sorted(item.step.accepted.items()))
    elif isinstance(item, Advance):
        written = {"advance": None if item.by_ns is None else to_ms(item.by_ns)}
    else:
        written = {"handoff": item.verb, "id": item.id}
        if item.request is not None:
            written.update(_write_request(item.request))
    worker = item.step.worker if isinstance(item, Steps) else item.worker
    if worker:
        written["worker"] = worker
    return written


def _write_request(request: RequestSpec) -> dict[str, Any]:
    written: dict[str, Any] = {"prompt": request.prompt.to_json(), "output": request.output}
    if request.output_tokens is not None:
        written["output_tokens"] = list(request.output_tokens)
    return written


def read_expectation(value: object, path: str) -> Expectation:
    """The ``expect`` object of a case.

    Raises:
        BadInput: naming the field that is wrong.
    """
    given = expect_object(value, path)
    refuse_unknown(given, ("violates", "holds", "passes", "final", "report", "costs"), path)
    violates = given.get("violates", [])
    ids = [expect_str(id_, f"{path}.violates[{number}]") for number, id_ in enumerate(expect_list(violates, f"{path}.violates"))]
    if "holds" in given:
        if given["holds"] is not True:
            raise BadInput(f"{path}.holds", shown(given["holds"]), 'true, or "violates" instead')
        if ids:
            raise BadInput(f"{path}.holds", "true beside violates", "one of the two")
    passes = given.get("passes")
    if passes is not None:
        listed = enumerate(expect_list(passes, f"{path}.passes"))
        passes = [expect_object(item, f"{path}.passes[{number}]") for number, item in listed]
    parts = {}
    for name in ("final", "report", "costs"):
        parts[name] = expect_object(given[name], f"{path}.{name}") if name in given else None
    return Expectation(tuple(ids), passes, **parts)


def check_format(value: object, path: str, known: Sequence[str]) -> dict[str, Any]:
    """The document as an object of this format version with none but ``known`` fields.

    Raises:
        BadInput: naming the field that is wrong.
    """
    given = expect_object(value, path or "the document")
    refuse_unknown(given, known, path)
    if given.get("infercheck") != FORMAT or isinstance(given.get("infercheck"), bool):
        found = shown(given["infercheck"]) if "infercheck" in given else "nothing"
        raise BadInput(f"{path}.infercheck" if path else "infercheck", found, f"{FORMAT}, the version of the format")
    return given


def read_case(value: object, path: str = "") -> Case:
    """A case from its JSON document.

    Raises:
        BadInput: with the path of the first field that is wrong.
    """
    prefix = f"{path}." if path else ""
    given = check_format(value, path, ("infercheck", "title", "source", "engine", "actions", "replay", "expect"))
    engine = EngineConfig.from_json(given.get("engine"), f"{prefix}engine")
    title, source = given.get("title", ""), given.get("source", "")
    for name, text in (("title", title), ("source", source)):
        if not isinstance(text, str):
            raise BadInput(f"{prefix}{name}", shown(text), "a string")
    expect = read_expectation(given.get("expect", {}), f"{prefix}expect")
    if "replay" in given:
        if "actions" in given:
            raise BadInput(f"{prefix}replay", "beside actions", "one of the two")
        return Case(engine, (), title, source, expect, expect_object(given["replay"], f"{prefix}replay"))
    if "actions" not in given:
        raise BadInput(f"{prefix}actions", "nothing", "a list of actions (or a replay)")
    items = expect_list(given["actions"], f"{prefix}actions")
    if not items:
        raise BadInput(f"{prefix}actions", "[]", "at least one action")
    actions = tuple(read_item(item, f"{prefix}actions[{number}]") for number, item in enumerate(items))
    return Case(engine, actions, title, source, expect)
