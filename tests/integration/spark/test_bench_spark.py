"""The benchmark of Spark runs, and both sides of each line have the same rows. How fast it went is not asserted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.macro import spark as bench


@pytest.mark.only_classic
def test_each_line_has_a_rate_and_a_ratio_and_a_verdict_where_there_is_a_budget(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.measure(bench.table_of(spark, 3000, tmp_path), 3000, reps=1)
    lines = capsys.readouterr().out.splitlines()
    assert [line[:20].strip() for line in lines] == list(bench.PAIRS)
    judged = [line for line in lines if line.endswith(("hit", "MISS"))]
    assert len(judged) == sum(budget is not None for _, _, budget in bench.PAIRS.values())


@pytest.mark.only_classic
def test_memory_is_that_of_a_program_with_a_session_of_its_own() -> None:
    assert bench.peak_mb(3000) > 10
