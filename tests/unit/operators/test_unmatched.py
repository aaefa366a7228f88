"""What a join drops is counted, and there is one warning that nothing matches."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources, windows
from malstrom_py.operators.first_rows import ROWS

Keyed = mp.KeyedStreamBuilder[Any, Any]
Row = tuple[Any, int]
How = Callable[[Keyed, Keyed], Any]

LEFT: list[Row] = [("a", 1), ("a", 2), ("b", 3), ("c", 12)]
RIGHT: list[Row] = [("a", 1), ("d", 2), ("d", 2), ("c", 30)]


def run_of(join: How, left: list[Row], right: list[Row], *, columns: bool = False, workers: int = 1) -> mp.RunResult:
    job = mp.Job("shop")

    def stream(name: str, rows: list[Row]) -> Keyed:
        timed = job.source(name, sources.Memory([{"key": key, "at": time} for key, time in rows]))
        if columns:
            timed = timed.select(f"{name}-columns", "key", "at")
        at = timed.assign_timestamps(f"{name}-at", "at")
        on_time, _ = at.generate_epochs(f"{name}-epochs", mp.limit_out_of_orderness(100))
        return on_time.key_by(f"{name}-key", "key" if columns else lambda row: row["key"])

    join(stream("left", left), stream("right", right)).sink("out", sinks.Memory())
    return mp.run(job, workers, progress=False)


def by_window(how: Any) -> How:
    return lambda left, right: left.join("join", right, window=windows.tumbling(10), how=how)


def by_session(how: Any) -> How:
    return lambda left, right: left.join("join", right, window=windows.session(5), how=how)


def by_interval(how: Any) -> How:
    return lambda left, right: left.join_interval("join", right, lower=0, upper=1, how=how)


def as_of(how: Any) -> How:
    return lambda left, right: left.join_asof("join", right, how=how)


def with_table(how: Any, wait: bool | int = True) -> How:
    return lambda left, right: left.join_table("join", right, how=how, wait=wait)


CASES = [
    (by_window("inner"), 5),  # b, c; d, d, c
    (by_window("left"), 3),
    (by_window("outer"), 0),
    (by_session("inner"), 5),
    (by_session("left"), 3),
    (by_session("outer"), 0),
    (by_interval("inner"), 6),  # a of 2, b, c; d, d, c
    (by_interval("left"), 3),
    (by_interval("outer"), 0),
    (as_of("inner"), 2),  # b, c
    (as_of("left"), 0),
    (with_table("inner"), 1),  # b
    (with_table("left"), 0),
    (with_table("inner", 100), 1),
]


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize(("join", "dropped"), CASES)
def test_rows_that_a_join_drops_are_counted(join: How, dropped: int, columns: bool) -> None:
    result = run_of(join, LEFT, RIGHT, columns=columns, workers=2 if columns else 1)
    assert (result.unmatched, result.steps["join"].unmatched) == (dropped, dropped)
    assert (f"{dropped} unmatched" in str(result)) is (dropped > 0)


@pytest.mark.parametrize("columns", [False, True])
def test_what_finds_no_value_in_a_table_is_counted_at_once(columns: bool) -> None:
    rows = [(f"k{number}", number) for number in range(50)]
    assert run_of(with_table("inner", False), rows, [], columns=columns).unmatched == 50


MANY = ROWS + 5


EVERY = [
    *(by_window(how) for how in ("inner", "left", "outer")),
    *(by_session(how) for how in ("inner", "outer")),
    *(by_interval(how) for how in ("inner", "left")),
    *(as_of(how) for how in ("inner", "left")),
    *(with_table(how, wait) for how in ("inner", "left") for wait in (True, 50)),
]


@pytest.mark.parametrize(
    ("join", "columns"),
    [*((join, False) for join in EVERY), *((join, True) for join in (by_window("inner"), with_table("left")))],
)
def test_a_join_that_matches_nothing_names_the_types_of_both_keys(
    join: How, columns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [(number, number) for number in range(MANY)]
    with caplog.at_level(logging.WARNING, "malstrom_py"):
        run_of(join, rows, [(str(key), time) for key, time in rows], columns=columns)
    (record,) = caplog.records
    assert record.getMessage() == (
        "job shop: step 'join': the first 1,000 records of this join found no partner. The keys of its left stream are "
        'of type int, those of its right one of type str, so none are equal: 1 and "1" are two keys. Convert one of '
        "them in its key_by"
    )


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("join", EVERY)
def test_fewer_records_without_a_partner_are_warned_of_at_the_end(
    join: How, columns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "malstrom_py"):
        run_of(join, [("a", 1), ("b", 2)], [("A", 1), ("B", 2)], columns=columns)
    (said,) = caplog.messages
    assert re.match("job shop: step 'join': all [24] records of this join found no partner. The keys of", said)


def test_the_end_says_nothing_of_one_record_nor_of_a_few_on_one_of_several_workers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    few = [(f"k{number}", number) for number in range(9)]
    with caplog.at_level(logging.WARNING, "malstrom_py"):
        run_of(as_of("left"), few[:1], [])
        run_of(as_of("left"), few, [], workers=2)
    assert not caplog.records


def test_keys_of_the_same_type_and_a_side_without_records_are_told_too(caplog: pytest.LogCaptureFixture) -> None:
    rows = [(("x", number), number) for number in range(MANY)]
    with caplog.at_level(logging.WARNING, "malstrom_py"):
        run_of(as_of("inner"), rows, [(("y", number), number) for number in range(9)])
        run_of(with_table("inner", False), rows, [])
    same, nothing = (record.getMessage() for record in caplog.records)
    assert "of type tuple (str, int), those of its right one of type tuple (str, int). If you expect partners" in same
    assert "Its right stream has had no record on this worker" in nothing


@pytest.mark.parametrize("join", [by_window("left"), by_interval("inner"), as_of("inner"), with_table("inner", True)])
def test_one_pair_is_enough_for_no_warning(join: How, caplog: pytest.LogCaptureFixture) -> None:
    rows = [(number, number) for number in range(MANY)]
    with caplog.at_level(logging.WARNING, "malstrom_py"):
        run_of(join, rows, [(0, 0)])
    assert not caplog.records
