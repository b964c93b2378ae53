"""The counts that ``python -m benchmarks.radix`` prints."""

from __future__ import annotations

import json

import pytest

from benchmarks.radix import OPERATIONS, main, measure


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_work_of_an_operation_does_not_depend_on_what_else_is_cached(operation: object) -> None:
    assert callable(operation)
    few, many = (measure(operation, others) for others in (10, 300))
    assert few["cached_pages"] < many["cached_pages"]
    for count in ("pages", "compared", "visited", "moved"):
        assert few[count] == many[count]


def test_the_benchmark_speaks_json_and_meets_its_aim(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.radix.OTHERS", (10, 100))
    assert main(["--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["met"]
    assert {"pages": 4096, "every": 8, "faulty": 1_050_624, "right": 4096} in result["splits"]
    assert main([]) == 0
    assert "1,050,624 elements retained with finding 8, 4,096 without" in capsys.readouterr().out
