"""The defects of replay: origin of a trace, accept length, completion checks, delta histories."""

from __future__ import annotations

from model.config import SCHEDULERS
from model.defects import Defect, declare

MISSING_TIMESTAMP = "trace-missing-timestamp"
ACCEPT_DENOMINATOR = "accept-length-denominator"
COMPLETION_SCAN = "sparse-completion-scan"
DEAD_HISTORY = "dead-delta-history"

declare(
    Defect(
        id=MISSING_TIMESTAMP,
        summary=(
            "The origin of a trace is the earliest timestamp that is there, although a session without one arrives at 0. "
            "The gap between the two is lost: what should arrive later arrives together with it."
        ),
        source="finding 2 (aisimulate #285); replay specification 7.2",
        schedulers=SCHEDULERS,
        caught_by=("arrival-gaps",),
        correction="a missing first timestamp counts as 0 in the minimum, and its shifted value is written down",
        variants={"no-writeback": "the minimum counts missing timestamps as 0, but they stay missing and so arrive at 0"},
        seed=True,
    ),
    Defect(
        id=ACCEPT_DENOMINATOR,
        summary=(
            "The accept length divides all tokens of a pass, first tokens of prefills among them, by its decode requests "
            "alone, so it exceeds 1 without any speculation."
        ),
        source="finding 3 (aisimulate #285); replay specification 7.3",
        schedulers=SCHEDULERS,
        caught_by=("accept-length",),
        correction="tokens sampled by decode forwards over the decode forwards that sampled them",
        variants={"distinct-ids": "divides all visible tokens by the requests that emitted, which is too low with speculation"},
        seed=True,
    ),
    Defect(
        id=COMPLETION_SCAN,
        summary=(
            "Each test whether the workload is done inspects the sessions from the first until an unfinished one, so a "
            "sparse trace of N sessions costs about N*N/2 inspections."
        ),
        source="finding 6 (aisimulate #285); replay specification 7.6",
        schedulers=SCHEDULERS,
        caught_by=("session-visits-linear",),
        correction="look at the head of the ready heap first; scan only when it is empty or its head is stale",
        variants={"heap-means-work": "a heap that is not empty is taken for work, although a failed play leaves stale entries"},
        seed=True,
    ),
    Defect(
        id=DEAD_HISTORY,
        summary="The token history of a session in delta mode is kept, at its full capacity, after the session has ended.",
        source="finding 7 (aisimulate #285); replay specification 7.7",
        schedulers=SCHEDULERS,
        caught_by=("ended-releases-history",),
        correction="replace the history by an empty buffer without capacity when the session ends",
        variants={"clear-keeps-capacity": "empties the history of an ended session but keeps its capacity"},
        seed=True,
    ),
)
