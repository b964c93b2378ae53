from __future__ import annotations

import pytest

from adapters.dynamo.release import NEEDED, TELEMETRY, UnknownRelease, identify


def test_a_release_of_1_6_takes_a_mapping_and_shows_counters() -> None:
    release = identify("1.6.1", True, (*NEEDED, *TELEMETRY, "model_name"))
    assert (release.name, release.shows_counters, release.first_token_decodes) == ("dynamo 1.6.1", True, False)


def test_a_release_of_1_5_shows_no_counters_and_decodes_first_tokens() -> None:
    release = identify("1.5.0", False, NEEDED)
    assert (release.shows_counters, release.first_token_decodes, release.decode_ms_least) == (False, True, 1.0)


@pytest.mark.parametrize(
    ("version", "mapping", "parameters", "said"),
    [
        ("1.7.0", True, (*NEEDED, *TELEMETRY), "ai-dynamo-runtime 1.7.0 is not known"),
        ("1.4.2", False, NEEDED, "Tested: 1.5.0, 1.5.1, 1.6.0, 1.6.1"),
        ("1.5.1", True, (*NEEDED, *TELEMETRY), "1.5.1 is not known"),
        ("1.6.1", True, NEEDED, "lacks telemetry_callback, telemetry_sample_interval_ms"),
        ("1.5.1", False, NEEDED[1:], "lacks trace_files"),
    ],
)
def test_any_other_release_is_refused_with_what_is_tested(
    version: str, mapping: bool, parameters: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UnknownRelease, match=said):
        identify(version, mapping, parameters)
