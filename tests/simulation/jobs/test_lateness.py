"""Who may be late: judged by hand, with and without silences."""

from __future__ import annotations

import pytest

from tests.simulation.jobs.inputs import Entry
from tests.simulation.jobs.lateness import check_late, late_by_itself
from tests.simulation.jobs.layouts import Head, Timing
from tests.simulation.jobs.records import FUTURE, Record, made
from tests.simulation.jobs.verdicts import Violation

HEAD = Head("s", ("s",), Timing(2, "ms", idle_s=1.0, ahead=True))
NEVER_IDLE = Head("s", ("s",), Timing(2, "ms", ahead=True))


def rows(*times: int) -> list[Record]:
    return [made("s", "0", number, "a", time) for number, time in enumerate(times)]


def judge(entries: list[Entry], late: set[Record], *, head: Head = HEAD, furthest_any: int = 50) -> None:
    check_late(head, {("s", "0"): entries}, late, furthest_any=furthest_any)


def test_t1_a_record_is_late_by_its_own_part_one_by_one() -> None:
    records = rows(10, 8, 7, 20, 17, 18)
    assert HEAD.timing is not None
    assert late_by_itself(records, HEAD.timing) == {records[2], records[4]}


def test_t4_what_is_far_ahead_is_late_and_moves_nothing() -> None:
    records = rows(10, FUTURE, 9)
    judge([*records], {records[1]}, head=NEVER_IDLE)


def test_t1_a_late_record_that_was_not_found_late_is_a_violation() -> None:
    with pytest.raises(Violation, match="was not found so"):
        judge([*rows(10, 5)], set(), head=NEVER_IDLE)


def test_t1_a_record_that_is_late_for_no_reason_is_a_violation() -> None:
    records = rows(10, 11)
    with pytest.raises(Violation, match=r"falsely late \(T1\)"):
        judge([*records], {records[1]}, head=NEVER_IDLE)


def test_t2_a_part_that_was_silent_may_be_late_behind_the_silence() -> None:
    first, second, third = rows(10, 30, 41)
    judge([first, 2, second, third], {second})


def test_t2_nobody_is_late_before_the_first_silence_or_behind_one_that_was_too_short() -> None:
    first, second = rows(10, 30)
    with pytest.raises(Violation, match="before the part can have been idle"):
        judge([first, second, 2], {second})
    with pytest.raises(Violation, match="before the part can have been idle"):
        judge([first, 1, second], {second})


def test_t2_behind_a_silence_all_are_judged_by_one_epoch() -> None:
    first, second, third = rows(10, 30, 29)
    with pytest.raises(Violation, match="after the same silence"):
        judge([first, 2, second, third], {second})


def test_t2_no_part_is_raised_beyond_what_any_part_has_reached() -> None:
    first, second = rows(10, 30)
    with pytest.raises(Violation, match="no epoch was ever beyond 20"):
        judge([first, 2, second], {second}, furthest_any=20)
