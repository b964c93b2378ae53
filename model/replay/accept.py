"""Accept length, in the definitions that public engines have for it (replay specification 7.3).

One sample a pass: tokens over forwards. A sample with either number 0 is dropped whole.

* ``decode-provenance`` (right): tokens that decode forwards sampled, before any output limit trims them, over those
  forwards. First tokens behind a prefill, refused and retracted work are in neither.
* ``distinct-ids``: visible tokens over the requests that emitted. First tokens pull it down under speculation.
* ``fpm-denominator``: visible tokens over the decode requests of the forward-pass metrics. First tokens push it up: above 1
  without any speculation (finding 3).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from attrs import define

from model.events import StepReport
from model.replay.defects import ACCEPT_DENOMINATOR

DECODE_PROVENANCE = "decode-provenance"
DISTINCT_IDS = "distinct-ids"
FPM_DENOMINATOR = "fpm-denominator"

Sample = tuple[int, int]
"""Tokens, forwards."""


def _decode_provenance(report: StepReport) -> Sample:
    return report.accept_tokens, report.accept_forwards


def _distinct_ids(report: StepReport) -> Sample:
    emitted = report.emitted
    return sum(emitted.values()), len(emitted)


def _fpm_denominator(report: StepReport) -> Sample:
    decoding = sum(1 for work in report.work.values() if not work.prompt_tokens and not work.terminal)
    return sum(report.emitted.values()), decoding


DEFINITIONS: Mapping[str, Callable[[StepReport], Sample]] = {
    DECODE_PROVENANCE: _decode_provenance,
    DISTINCT_IDS: _distinct_ids,
    FPM_DENOMINATOR: _fpm_denominator,
}


def definition(name: str, defects: Collection[str]) -> Callable[[StepReport], Sample]:
    """The definition called ``name``, or the one a defect puts in its place."""
    if ACCEPT_DENOMINATOR in defects:
        name = FPM_DENOMINATOR
    elif f"{ACCEPT_DENOMINATOR}:distinct-ids" in defects:
        name = DISTINCT_IDS
    return DEFINITIONS[name]


@define
class AcceptLength:
    """Sums over samples."""

    tokens: int = 0
    forwards: int = 0
    samples: int = 0

    def add(self, sample: Sample) -> None:
        """Take in the sample of a pass."""
        tokens, forwards = sample
        if tokens and forwards:
            self.tokens += tokens
            self.forwards += forwards
            self.samples += 1

    @property
    def mean(self) -> float | None:
        """Tokens over forwards; None without a forward."""
        return self.tokens / self.forwards if self.forwards else None
