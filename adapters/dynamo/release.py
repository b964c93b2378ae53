"""The releases of ``ai-dynamo-runtime`` that the adapter knows, told apart by their replay entry point.

``dynamo._core`` is no declared stable interface and changed in each minor release, so the signature is checked
before anything is asked of it. What differs (simulator specifications, part 1, section 2):

* 1.6 takes a plain mapping, shows block counters by telemetry, and has block offload to host and disk;
* 1.5 takes an argument object made from flat JSON, and shows no counters. It adds the decode time to a pass whose only
  tokens are first ones, counts a decode time below one millisecond as one, and counts accepted tokens as finding 3 says.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

TESTED = ("1.5.0", "1.5.1", "1.6.0", "1.6.1")
NEEDED = ("trace_files", "extra_engine_args", "trace_block_size", "max_sim_time_ms", "capture_per_request", "scaling_policy")
TELEMETRY = ("telemetry_callback", "telemetry_sample_interval_ms")


class UnknownRelease(Exception):
    """A wheel that the adapter cannot drive."""


@frozen
class Release:
    """One release.

    Attributes:
        version: as the wheel tells it.
        mapping: configurations are plain mappings (1.6), not argument objects (1.5).
    """

    version: str
    mapping: bool

    @property
    def name(self) -> str:
        """Engine and version, as a source of observations."""
        return f"dynamo {self.version}"

    @property
    def shows_counters(self) -> bool:
        """Block, running, waiting and preemption counters can be sampled."""
        return self.mapping

    @property
    def first_token_decodes(self) -> bool:
        """A pass that produces only first tokens takes decode time too."""
        return not self.mapping

    @property
    def decode_ms_least(self) -> float:
        """A shorter decode time counts as this much."""
        return 0.0 if self.mapping else 1.0


def identify(version: str, mapping: bool, parameters: Iterable[str]) -> Release:
    """The release that introduces itself so.

    Args:
        version: of the wheel.
        mapping: it can normalise a configuration mapping.
        parameters: names of the parameters of its replay function.

    Raises:
        UnknownRelease: if its replay function lacks a parameter that is needed, or its minor release is not a tested one.
    """
    given = set(parameters)
    missing = [name for name in (*NEEDED, *(TELEMETRY if mapping else ())) if name not in given]
    minor = ".".join(version.split(".")[:2])
    tested = {".".join(known.split(".")[:2]): known.startswith("1.6") for known in TESTED}
    if minor not in tested or tested[minor] != mapping or missing:
        lacking = f"; its replay function lacks {', '.join(missing)}" if missing else ""
        raise UnknownRelease(
            f"ai-dynamo-runtime {version} is not known to this adapter{lacking}. Tested: {', '.join(TESTED)}; "
            "install one with: pip install 'ai-dynamo-runtime>=1.5,<1.7'"
        )
    return Release(version, mapping)
