"""The taps of a job at its coordinator: leases, bounds, and what is counted of what is lost."""

from __future__ import annotations

import pytest

import malstrom_py as mp
from malstrom_py.workers.coordinator.taps import KEPT_MAX, PAGE_MAX, RENEW_S, TAPS_MAX, Taps
from malstrom_py.workers.reports.commands import TapCommand
from malstrom_py.workers.reports.taps import LEASE_S, Tapped, TappedStep, TapRow, TapStep

KEY = (b"key",)


@pytest.fixture
def taps() -> Taps:
    taps = Taps("shop")
    taps.steps = {"in": TappedStep(keyed=False, unit="s"), "paid": TappedStep(keyed=True, unit=None)}
    return taps


def rows(count: int, size: int = 1) -> tuple[TapRow, ...]:
    return tuple(TapRow(0, "out", number, b"", b"x" * size) for number in range(count))


def begun(taps: Taps, step: str = "in", now_s: float = 0.0) -> str:
    return taps.next_page(TapCommand(step, 1.0), now_s).result().log


def test_workers_get_an_order_at_the_begin_and_again_while_someone_asks(taps: Taps) -> None:
    log = begun(taps)
    assert taps.due(0.0) == [TapStep("in", None)]
    taps.next_page(TapCommand("in", 1.0, log=log), 0.5)
    assert taps.due(0.5) == []
    assert taps.due(RENEW_S) == [TapStep("in", None)]
    assert taps.due(0.5 + LEASE_S) == []


def test_a_reader_waits_for_records_and_asks_for_those_after_them(taps: Taps) -> None:
    log = begun(taps)
    asked = taps.next_page(TapCommand("in", 1.0, log=log), 0.1)
    assert not asked.done()
    taps.add(Tapped(0, "in", None, rows(3), passed=10))
    page = asked.result(0)
    assert ([row.timestamp for row in page.rows], page.after, page.passed, page.unit) == ([0, 1, 2], 3, 10, "s")
    late = TapCommand("in", 1.0, after=page.after, log=log)
    assert taps.forget(late, taps.next_page(late, 0.2)).rows == []


def test_what_is_kept_is_bounded_and_what_was_lost_is_counted(taps: Taps) -> None:
    log = begun(taps)
    for _ in range(3):
        taps.add(Tapped(0, "in", None, rows(KEPT_MAX), passed=KEPT_MAX))
    page = taps.next_page(TapCommand("in", 1.0, log=log), 0.1).result(0)
    assert (len(page.rows), page.passed, page.after) == (PAGE_MAX, 3 * KEPT_MAX, 2 * KEPT_MAX + PAGE_MAX)
    taps.add(Tapped(0, "in", None, rows(100, size=1 << 18), passed=100))
    page = taps.next_page(TapCommand("in", 1.0, after=page.after, log=log), 0.1).result(0)
    assert sum(len(row.value) for row in page.rows) <= 4 << 20


def test_another_tap_has_another_log_so_that_it_is_read_from_its_begin(taps: Taps) -> None:
    first = begun(taps)
    again = begun(taps, now_s=LEASE_S)
    assert first != again
    taps.add(Tapped(0, "in", None, rows(2), passed=2))
    assert len(taps.next_page(TapCommand("in", 1.0, after=100, log=first), LEASE_S).result(0).rows) == 2


def test_records_of_a_tap_that_nobody_has_asked_for_are_dropped(taps: Taps) -> None:
    taps.add(Tapped(3, "in", None, rows(2), passed=2))
    assert taps.next_page(TapCommand("in", 1.0), 0.0).result(0).passed == 0
    assert taps.forget(TapCommand("paid", 1.0), taps.next_page(TapCommand("in", 1.0), 0.0)).rows == []


def test_a_wrong_request_lists_what_there_is(taps: Taps) -> None:
    with pytest.raises(mp.PlanError, match=r"job 'shop' has no step 'out' to tap: its steps are 'in', 'paid'"):
        taps.next_page(TapCommand("out", 1.0), 0.0)
    with pytest.raises(mp.PlanError, match=r"step 'in' have no keys.*step whose records have keys: 'paid'"):
        taps.next_page(TapCommand("in", 1.0, keys=KEY), 0.0)


def test_a_tap_of_a_job_that_has_not_started_is_asked_for_again() -> None:
    assert Taps("shop").next_page(TapCommand("in", 1.0), 0.0).result(0).log == ""


def test_a_job_has_few_taps_at_a_time(taps: Taps) -> None:
    for number in range(TAPS_MAX):
        taps.next_page(TapCommand("paid", 1.0, keys=(bytes([number]),)), 0.0)
    with pytest.raises(mp.OperationInProgress, match="taps already"):
        begun(taps)
    assert begun(taps, now_s=LEASE_S)


def test_the_end_of_the_job_answers_who_waits_and_ends_all_taps(taps: Taps) -> None:
    log = begun(taps)
    asked = taps.next_page(TapCommand("in", 1.0, log=log), 0.1)
    taps.end()
    assert asked.result(0).ended
    assert taps.next_page(TapCommand("in", 1.0, log=log), 0.2).result(0).ended
    assert taps.next_page(TapCommand("paid", 1.0, log="of another coordinator"), 0.2).result(0).ended
