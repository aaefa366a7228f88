"""How many rows are taken per poll, and how many are processed per second, by how long rows have taken."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from malstrom_py.operators.batch_sizing import BatchSize


def settled(takes_s: Callable[[int], float], *, most: int = 1024, times: int = 60, first: int = 4) -> BatchSize:
    size = BatchSize(first)
    for _ in range(times):
        rows = min(size.rows, most)
        size.took(rows, takes_s(rows), limit_s=0.05)
    return size


@pytest.mark.parametrize(("row_s", "rows"), [(0.005, 10), (0.0004, 125), (0.1, 1)])
def test_so_many_rows_are_taken_as_take_about_as_long_as_they_may(row_s: float, rows: int) -> None:
    assert 0.75 * rows <= settled(lambda count: count * row_s).rows <= max(2, rows)


@pytest.mark.parametrize("fixed_s", [0.03, 0.1, 1.0])
def test_what_takes_as_long_for_one_row_as_for_many_gets_many(fixed_s: float) -> None:
    assert settled(lambda count: fixed_s).rows >= 1024


@pytest.mark.parametrize("of_the_limit", [0.4, 0.6, 0.7, 0.78, 0.8, 0.84, 0.88, 0.92, 0.96, 1.0, 1.1, 1.5, 3.0])
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_what_takes_about_as_long_as_it_may_whatever_its_size_gets_many(of_the_limit: float, noise: float) -> None:
    wobble = itertools.cycle([1.0, 1.0 - noise, 1.0 + noise])
    size = settled(lambda count: 0.05 * of_the_limit * next(wobble) + count * 1e-7, times=400)
    assert size.rows >= 1024


def test_a_batch_after_a_quick_one_is_larger_by_the_growth_but_not_where_it_may_take_too_long() -> None:
    size = BatchSize(4)
    size.growth = 8
    size.took(4, 0.003, limit_s=0.05)
    assert size.rows == 32
    size.took(32, 0.02, limit_s=0.05)
    assert size.rows == 64
    size.took(64, 0.0, limit_s=0.05, load=0.4)
    assert size.rows == 128, "the steps after it may not take so many"


def test_what_is_behind_limits_too() -> None:
    size = BatchSize(64)
    size.took(64, 0.0, limit_s=0.05, load=4.0)
    assert size.rows == 16
    size.took(16, 0.0, limit_s=0.05, load=0.6)
    assert size.rows == 20
