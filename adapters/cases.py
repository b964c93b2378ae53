"""Cases of the case format as timed workloads, and back.

A case with a Mooncake ``replay`` of single turns is a timed workload as it stands. One with actions is made one by running its
actions on the model under fixed pass times: a request then arrives when it was submitted. What a workload cannot hold
(withdrawals, chosen drafts, hand-offs, follow-up turns) is refused by name.
"""

from __future__ import annotations

from typing import Any

import attrs

from adapters.workload import TimedRequest, Workload
from model.actions import Advance, Step, Submit
from model.build import build_engine
from model.case import Case, Drain, Expectation, Item, Steps, to_ms
from model.config import EngineConfig, Timing, nanoseconds
from model.engine import Engine
from model.errors import BadInput, shown
from model.replay.config import MOONCAKE, ReplayConfig
from model.replay.mooncake import load_mooncake
from model.replay.reader import rows_of
from model.requests import Prompt, RequestSpec, merged

FIXED = Timing(prefill_ms=10, prefill_ms_per_token=0, decode_ms=5)
"""Pass times for a case that has none an engine outside can be told."""


def fixed_times(config: EngineConfig) -> EngineConfig:
    """``config`` with fixed pass times: its own when they are fixed, else ``FIXED``."""
    timing = config.timing
    if timing.prefill_ms_per_token or timing.decode_ms_per_request:
        return attrs.evolve(config, timing=FIXED)
    return config


def workload_of(case: Case) -> Workload:
    """What arrives in ``case``, and when.

    Raises:
        BadInput: for what no timed workload can hold.
    """
    if case.replay is not None:
        return _of_replay(ReplayConfig.from_json(case.replay))
    return _of_actions(fixed_times(case.engine), case.actions)


def _of_replay(replay: ReplayConfig) -> Workload:
    if replay.format != MOONCAKE or replay.rows is None:
        raise BadInput("replay.format", shown(replay.format), f'"{MOONCAKE}" with rows')
    for name, only in (("mode", "trace"), ("workers", 1), ("speedup", 1.0)):
        if getattr(replay, name) != only:
            raise BadInput(f"replay.{name}", shown(getattr(replay, name)), shown(only))
    trace = load_mooncake(rows_of(replay.rows), replay.block_size)
    requests = []
    for session in trace.sessions:
        if len(session.turns) > 1:
            raise BadInput("replay.rows", f"{len(session.turns)} turns in session {session.session_id}", "single turns")
        turn = session.turns[0]
        prompt, left = [], turn.input_length
        for token in turn.hash_ids:
            prompt.append((token, min(left, replay.block_size)))
            left -= prompt[-1][1]
        spec = RequestSpec(turn.name, Prompt(merged(prompt)), turn.max_output_tokens, turn.output_token_ids)
        requests.append(TimedRequest(spec, nanoseconds(session.first_arrival_timestamp_ms or 0)))
    return Workload(requests)


def _of_actions(config: EngineConfig, actions: tuple[Item, ...]) -> Workload:
    engine = build_engine(attrs.evolve(config, implementation="model"))
    requests: list[TimedRequest] = []
    for number, item in enumerate(actions):
        if isinstance(item, Submit) and not item.worker:
            requests.append(TimedRequest(item.request, engine.view(blocks=False).now_ns))
            engine.apply(item)
        elif isinstance(item, Drain):
            _drain(engine, item.passes)
        elif isinstance(item, Steps) and not item.step.accepted and not item.step.worker:
            for _ in range(item.count):
                engine.apply(item.step)
        elif isinstance(item, Advance) and not item.worker:
            engine.apply(item)
        else:
            allowed = "submit, step (without a choice of drafts), advance or drain, on one worker"
            raise BadInput(f"actions[{number}]", shown(item), allowed)
    return Workload(requests)


def _drain(engine: Engine, passes: int) -> None:
    for _ in range(passes):
        if not engine.busy or not engine.apply(Step()).had_effect:
            return


def case_of(
    config: EngineConfig, workload: Workload, *, title: str = "", source: str = "", violates: tuple[str, ...] = ()
) -> Case:
    """A case that holds ``workload`` exactly, as a replay of single turns with blocks of one token.

    Args:
        config: its engine.
        workload: what arrives.
        title: one line.
        source: where it comes from.
        violates: ids that are to be reported; none when the case holds.
    """
    replay: dict[str, Any] = {"format": MOONCAKE, "block_size": 1, "rows": mooncake_rows(workload)}
    return Case(config, title=title, source=source, expect=Expectation(violates), replay=replay)


def mooncake_rows(workload: Workload) -> list[dict[str, Any]]:
    """The workload as rows of a Mooncake trace with blocks of one token.

    A hash id is repeated block-size times to make a prompt (replay specification 1.0), so with blocks of one token each id
    is a token, and every token sequence can be written down. Ids are dense in order of first use, which a replay would make
    of them anyway; so a planned output token, which it takes as it is, equals a prompt token exactly when ours do.
    """
    numbers: dict[int, int] = {}

    def interned(tokens: Any) -> list[int]:
        return [numbers.setdefault(token, len(numbers)) for token in tokens]

    rows: list[dict[str, Any]] = []
    for timed in workload.requests:
        rows.append(
            {
                "request_id": timed.id,
                "timestamp": to_ms(timed.arrival_ns),
                "input_length": timed.prompt.length,
                "output_length": timed.output,
                "hash_ids": interned(timed.prompt.tokens()),
            }
        )
    # Planned tokens come last: only those that some prompt has too are to share its number.
    for row, timed in zip(rows, workload.requests, strict=True):
        if timed.request.output_tokens is not None:
            row["output_token_ids"] = interned(timed.request.output_tokens)
    return rows
