"""The wheel, where there is one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from adapters.dynamo.release import UnknownRelease
from adapters.dynamo.wheel import Wheel, WheelMissing


@pytest.fixture(scope="session")
def wheel() -> Iterator[Wheel]:
    try:
        started = Wheel()
    except (WheelMissing, UnknownRelease) as reason:
        pytest.skip(f"needs the extra infercheck[dynamo]: {reason}")
    with started:
        yield started
