"""What N workers have saved goes on with M, for all N and M up to eight (S5)."""

from __future__ import annotations

import pytest

from tests.simulation.restoring import crossed

SIZES = range(1, 9)


@pytest.mark.parametrize("before", SIZES)
def test_s5_a_snapshot_of_any_number_of_workers_goes_on_with_any_other(before: int) -> None:
    hits = {after: crossed(before, after) for after in SIZES}
    for case in ("timer restored", "collect buffer restored", "late record", "window fired"):
        assert [after for after in SIZES if not hits[after][case]] == [], case
    assert [after for after in SIZES if hits[after]["restored at more workers"]] == [*range(before + 1, 9)]
    assert [after for after in SIZES if hits[after]["restored at fewer workers"]] == [*range(1, before)]
    assert any(hits[after]["part restored on another worker"] for after in SIZES)
