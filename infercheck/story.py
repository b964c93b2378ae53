"""A run told as a story: what was done, what each step did, what changed, and why; then what broke.

The words are those of the field: requests are submitted, admitted, scheduled, preempted, finished or refused; blocks are free,
active (held by a request) or cached (held by nobody, reusable, evictable). A pass that merely decodes like the one before it is
counted, not told again, and of a very long run the middle is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from attrs import define

from invariants.framework import Violation
from invariants.progress import LassoShape
from model.actions import Action, Advance, Cancel, Handoff, Step, Submit
from model.case import to_ms
from model.config import EngineConfig
from model.events import Preemption, StepReport, Stored, block_names
from model.requests import Prompt
from model.views import EngineView
from regressions.moments import Moment
from regressions.runner import CaseResult

MOST_STEPS = 30
"""Steps of a run that are told; of a longer one the first and the last half of this many."""

MOST_REQUESTS = 6
"""Requests of which a pass is told what it did for them."""

MOST_BLOCK_NAMES = 8

BEFORE_VIOLATION = 6
"""Steps of a replay that are told before the one that broke something."""


@define
class Told:
    """A step, or several alike, in words.

    Attributes:
        first, last: numbers of the actions.
        headline: what was asked, and what was done.
        details: why, and what else was seen.
        changes: what is different now.
        broken: ids of the invariants that broke.
        plain: a pass that only computes and emits: nothing but counts changes.
    """

    first: int
    last: int
    headline: str
    details: list[str]
    changes: list[str]
    broken: list[str]
    plain: bool

    def lines(self) -> Iterator[str]:
        """The step as lines of text."""
        number = str(self.first) if self.first == self.last else f"{self.first}-{self.last}"
        times = "" if self.first == self.last else f", {self.last - self.first + 1} times"
        yield f"{number:>5}  {self.headline}{times}"
        for detail in self.details:
            yield f"       {detail}"
        if self.changes:
            yield f"       -> {'; '.join(self.changes)}"
        if self.broken:
            yield f"    !  breaks {', '.join(dict.fromkeys(self.broken))}"


def story(result: CaseResult) -> list[str]:
    """The whole story of a run, as lines of text."""
    config = result.case.engine
    if result.case.replay is not None:
        lines = replay_story(result.moments, config, result.lasso)
    else:
        lines = [describe_engine(config), "", *tell(result.moments, config, result.lasso)]
        if result.lasso is not None:
            lines.append(back_edge(result.lasso))
    lines.extend(["", *broken(result.violations)])
    if not result.violations:
        lines.append("Nothing broke.")
    if result.reason is not None:
        lines.append(f"Unknown: {result.reason}.")
    lines.extend(f"Not as expected: {mismatch}" for mismatch in result.mismatches)
    return lines


def replay_story(moments: Sequence[Moment], config: EngineConfig, lasso: LassoShape | None) -> list[str]:
    """The last few steps of one worker of a replay up to its first violation; without one, nothing but the engine."""
    lines = [describe_engine(config)]
    first = next((number for number, moment in enumerate(moments) if moment.violations), None)
    if first is None:
        return lines
    lines.extend(["", *tell(moments[max(first - BEFORE_VIOLATION, 0) : first + 1], config, lasso)])
    if lasso is not None and moments[first].number == lasso.stem + lasso.cycle:
        lines.append(back_edge(lasso))
    return lines


def describe_engine(config: EngineConfig) -> str:
    """A configuration in one line: geometry first, then whatever is not at its default."""
    written = config.to_json()
    words = [f"{written.pop('scheduler')}: {counted(config.num_blocks, 'block')} of {counted(config.block_size, 'token')}"]
    del written["num_blocks"], written["block_size"]
    speculation = written.pop("speculation", None)
    defects = written.pop("defects", [])
    if speculation:
        accepted = f" ({speculation['accepted']} accepted)" if speculation.get("accepted") else ""
        words.append(f"speculation with {counted(speculation['draft_tokens'], 'draft token')}{accepted}")
    switches = {True: "on", False: "off"}
    words.extend(f"{name} {switches[value] if isinstance(value, bool) else value}" for name, value in written.items())
    if defects:
        words.append(f"with {'defect' if len(defects) == 1 else 'defects'} {', '.join(defects)}")
    return "Engine: " + ", ".join(words)


def tell(moments: Sequence[Moment], config: EngineConfig, lasso: LassoShape | None = None) -> Iterator[str]:
    """The steps, numbered; no step is counted together with one on the other side of where a cycle begins."""
    entry = lasso.stem if lasso is not None else -1
    steps: list[Told] = []
    before: Sequence[EngineView] = ()
    for moment in moments:
        step = _told(moment, before, config)
        before = moment.views
        last = steps[-1] if steps else None
        alike = last is not None and last.plain and step.plain and last.headline == step.headline and last.last != entry
        if last is not None and alike:
            last.last = step.last
            last.changes = step.changes or last.changes
        else:
            steps.append(step)
    half = MOST_STEPS // 2
    if len(steps) > MOST_STEPS:
        for step in steps[:half]:
            yield from step.lines()
        yield f"    …  steps {steps[half].first} to {steps[-half - 1].last}"
        steps = steps[-half:]
    for step in steps:
        yield from step.lines()


def back_edge(lasso: LassoShape) -> str:
    """Where a cycle goes back to, in words."""
    first, last = lasso.stem + 1, lasso.stem + lasso.cycle
    which = f"step {first} repeats" if first == last else f"steps {first} to {last} repeat"
    return f"    ^  back to the state after step {lasso.stem}: {which} for ever ({lasso.kind.replace('-', ' ')})"


def broken(violations: Iterable[Violation]) -> Iterator[str]:
    """What broke, each invariant once."""
    first: dict[str, Violation] = {}
    for violation in violations:
        first.setdefault(violation.invariant, violation)
    for violation in first.values():
        yield f"Broken: {violation.invariant} (step {violation.at}): {violation.message}"


def counted(count: int, noun: str) -> str:
    """A count with its noun, in the right number."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _told(moment: Moment, before: Sequence[EngineView], config: EngineConfig) -> Told:
    report = moment.report
    details: list[str] = []
    headline = _asked(report.action)
    if report.is_pass:
        done = list(_done(report))
        headline += f": {'; '.join(done) or 'does nothing'}"
        details.extend(_why(preemption, config) for preemption in report.preemptions)
    details.extend(_events(report))
    if report.cancelled:
        details.append(f"{', '.join(report.cancelled)} cancelled")
    broke = [violation.invariant for violation in moment.violations]
    plain = report.is_pass and not details and not broke and not report.admissions and not report.rejected and bool(report.work)
    return Told(moment.number, moment.number, headline, details, list(_changes(before, moment.views)), broke, plain)


def _asked(action: Action) -> str:
    if isinstance(action, Submit):
        request = action.request
        return f"submit {request.id}: prompt of {_prompt(request.prompt)}, output of {counted(request.output, 'token')}"
    if isinstance(action, Cancel):
        return f"cancel {action.id}"
    if isinstance(action, Advance):
        return "advance to the next deadline" if action.by_ns is None else f"advance by {to_ms(action.by_ns)} ms"
    if isinstance(action, Handoff):
        return f"{action.verb.replace('_', ' ')} {action.id}"
    assert isinstance(action, Step)
    chosen = [f"{id_} accepts {counted(count, 'draft')}" for id_, count in action.accepted.items() if count]
    return f"pass ({', '.join(chosen)})" if chosen else "pass"


def _prompt(prompt: Prompt) -> str:
    """A prompt by its pieces, so that a shared beginning is seen."""
    length = counted(prompt.length, "token")
    pieces = prompt.to_json() if len(prompt.runs) <= 64 else []
    if not pieces or len(pieces) > 8:
        return length
    if isinstance(pieces[0], list):
        return f"{length} ({' + '.join(f'{stream}:{count}' for stream, count in pieces)})"
    return f"{length} ({' '.join(str(token) for token in pieces)})"


def _done(report: StepReport) -> Iterator[str]:
    """What a pass did for each request, in the order in which it came to them."""
    admissions = {admission.id: admission for admission in report.admissions}
    emitted = report.emitted
    finished = set(report.finished)
    ids = list(dict.fromkeys((*report.work, *admissions, *emitted, *report.finished)))
    for id_ in ids[:MOST_REQUESTS]:
        words = []
        admission = admissions.get(id_)
        if admission is not None:
            words.append("is admitted" if admission.first else "is admitted again")
            if admission.reused:
                words.append(f"reuses {counted(admission.reused, 'cached token')}")
        work = report.work.get(id_)
        if work is not None and work.total:
            words.append(f"computes {counted(work.total, 'token')}")
        if emitted.get(id_):
            words.append(f"emits {counted(emitted[id_], 'token')}")
        if id_ in finished:
            words.append("finishes")
        yield f"{id_} {', '.join(words)}"
    if len(ids) > MOST_REQUESTS:
        yield f"and {len(ids) - MOST_REQUESTS} more requests"
    for id_ in report.rejected:
        yield f"{id_} is refused"


def _why(preemption: Preemption, config: EngineConfig) -> str:
    """Why a request was preempted: who needs how many blocks, and how many there are."""
    page = "page" if config.scheduler == "sglang" else "block"
    verb = "retracted" if config.scheduler == "sglang" else "preempted"
    needed = counted(preemption.needed, f"more {page}")
    wanting = ", ".join(preemption.requests) or preemption.cause or "the batch"
    verb_of_need = "need" if len(preemption.requests) > 1 else "needs"
    what = "the tokens of this pass" if preemption.phase == "schedule" else "the tokens about to be emitted"
    return f"{preemption.victim} is {verb}: {wanting} {verb_of_need} {needed} for {what}, {preemption.free} free"


def _events(report: StepReport) -> Iterator[str]:
    for event in report.events:
        tier = "" if event.tier == "gpu" else f" ({event.tier})"
        verb = "Stored" if isinstance(event, Stored) else "Removed"
        names = block_names(event.blocks)
        more = f" and {len(names) - MOST_BLOCK_NAMES} more" if len(names) > MOST_BLOCK_NAMES else ""
        yield f"{verb} {' '.join(names[:MOST_BLOCK_NAMES])}{more}{tier}"


def _changes(before: Sequence[EngineView], after: Sequence[EngineView]) -> Iterator[str]:
    """Block counts and queues that are not what they were."""
    for number, view in enumerate(after):
        old = before[number] if before else None
        worker = f"worker {number}: " if len(after) > 1 else ""
        pools = (("free", "free"), ("active", "active"), ("inactive", "cached"))
        counts = [(name, getattr(old.pool, key) if old else None, getattr(view.pool, key)) for key, name in pools]
        if any(was != now for _, was, now in counts) if old else view.pool.active or view.pool.inactive:
            yield f"{worker}blocks {', '.join(f'{now} {name}' for name, _, now in counts)}"
        for name, was, now in (
            ("waiting", old.waiting if old else (), view.waiting),
            ("running", old.running if old else (), view.running),
        ):
            if was != now:
                yield f"{worker}{name} {_ids(now)}"


def _ids(ids: Iterable[str]) -> str:
    names = list(ids)
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{', '.join(names[:8])}{more}" if names else "nobody"
