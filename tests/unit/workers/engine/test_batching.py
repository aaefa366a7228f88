"""Batching: what it is by default, and which settings make no sense."""

from __future__ import annotations

from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.errors import PlanError
from malstrom_py.workers.engine.flow_limits import Batching


@pytest.mark.parametrize("rows_max", [0, -1, 1.5, "10", None, True])
def test_rows_max_is_a_whole_number_above_0(rows_max: Any) -> None:
    with pytest.raises(PlanError, match="Batching: rows_max"):
        Batching(rows_max=rows_max)


@pytest.mark.parametrize("linger_s", [-0.1, 61, float("nan"), float("inf"), "1", None])
def test_linger_is_a_time_of_at_most_a_minute(linger_s: Any) -> None:
    with pytest.raises(PlanError, match="Batching: linger_s"):
        Batching(linger_s=linger_s)


@pytest.mark.parametrize("rows_max", [1, 2, 3, 1000])
def test_rows_max_cuts_what_a_source_gives_and_changes_no_result(rows_max: int) -> None:
    sizes: list[int] = []

    class Watched(sources.Memory[int]):
        def build_part(self, part: Any, state: Any) -> Any:
            built = super().build_part(part, state)
            poll = built.poll

            def watched(rows_max: int) -> list[int]:
                polled = poll(rows_max)
                sizes.append(len(polled))
                return polled

            built.poll = watched  # type: ignore[method-assign]
            return built

    stream = mp.Job("a").source("numbers", Watched([1] * 40)).key_by("all", lambda n: "all").sum("sum")
    assert mp.collect(stream, batch=Batching(rows_max=rows_max)) == list(range(1, 41))
    # A part is asked for few rows at first and for twice as many each time.
    expected = [min(size, rows_max) for size in (4, 8, 16)]
    assert sizes[:3] == expected
    assert max(sizes) <= rows_max


@pytest.mark.parametrize("amount", [0, -1, 1.5, "a", True])
def test_a_credit_is_a_whole_number(amount: Any) -> None:
    with pytest.raises(PlanError, match="Credit: rows must be a whole number"):
        mp.Credit(rows=amount)
    with pytest.raises(PlanError, match="Credit: size must be a whole number"):
        mp.Credit(size=amount)
    with pytest.raises(PlanError, match=r"credit must be a Credit\(rows=, size=\)"):
        Batching(credit=amount)
