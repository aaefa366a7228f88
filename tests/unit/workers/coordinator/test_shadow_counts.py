"""The counts of a comparison: each record once, through snapshots, failures and workers that leave."""

from __future__ import annotations

import pytest

import malstrom_py as mp
from malstrom_py.metrics import ShadowMetrics
from malstrom_py.workers.coordinator.command_queue import CommandQueue
from malstrom_py.workers.coordinator.shadow_counts import ShadowCounts
from malstrom_py.workers.reports.commands import ShadowCommand
from malstrom_py.workers.reports.job_state import JobState
from malstrom_py.workers.reports.shadows import PAIRS_MAX, Compared, ShadowPair, ShadowReport


@pytest.fixture
def counts() -> ShadowCounts:
    counts = ShadowCounts("shop")
    counts.compare(["total"], "")
    return counts


def seen(counts: ShadowCounts) -> tuple[int, int]:
    """Return the counts of the report, which are those of the metrics."""
    report = counts.report("total")
    assert counts.metrics() == {"total": ShadowMetrics(report.compared, report.different, report.failure)}
    return report.compared, report.different


def test_a_run_begins_with_the_counts_at_the_barrier_of_its_snapshot(counts: ShadowCounts) -> None:
    counts.add(Compared(0, "total", 10, 1))
    counts.add(Compared(1, "total", 5, 5, snapshot="a"))
    counts.add(Compared(1, "total", 100, 100))
    counts.add(Compared(0, "total", 2, 0, snapshot="a"))
    counts.add(Compared(0, "total", 1, 1, snapshot="b"))
    assert seen(counts) == (118, 107)
    counts.compare(["total"], "a")
    assert seen(counts) == (17, 6)
    counts.compare(["total"], "a")  # it failed before its first snapshot
    assert seen(counts) == (17, 6)


def test_a_worker_that_has_left_before_a_barrier_counts(counts: ShadowCounts) -> None:
    counts.add(Compared(1, "total", 5, 1))
    counts.add(Compared(0, "total", 10, 1, snapshot="a"))
    counts.add(Compared(2, "total", 50, 1))  # it joins later
    counts.compare(["total"], "a")
    assert seen(counts) == (15, 2)


def test_a_failure_is_kept_and_nothing_is_counted_after_it(counts: ShadowCounts) -> None:
    counts.add(Compared(0, "total", 10, 1, failure="ValueError"))
    counts.add(Compared(1, "total", 10, 1))
    assert counts.failed() == ["total"]
    counts.compare([], "a")
    assert (counts.report("total").failure, seen(counts)) == ("ValueError", (10, 1))
    counts.compare(["total"], "b")
    assert counts.failed() == []


def test_counts_are_kept_while_a_promoted_shadow_is_tried(counts: ShadowCounts) -> None:
    counts.add(Compared(0, "total", 10, 1, snapshot="a"))
    counts.compare([], "a")
    assert seen(counts) == (10, 1)
    counts.compare(["total"], "a")  # it was rolled back
    assert seen(counts) == (10, 1)


def test_the_last_pairs_are_kept(counts: ShadowCounts) -> None:
    for number in range(PAIRS_MAX + 5):
        counts.add(Compared(0, "total", 1, 1, pairs=(ShadowPair(str(number), "1", "2"),)))
    assert [pair.key for pair in counts.report("total").pairs] == [str(n) for n in range(5, PAIRS_MAX + 5)]


def test_other_steps_have_none(counts: ShadowCounts) -> None:
    counts.add(Compared(0, "other", 1, 1))
    with pytest.raises(mp.PlanError, match=r"job 'shop': step 'other' has no shadow: begin one by handle\.reload"):
        counts.report("other")
    counts.end("total")
    with pytest.raises(mp.PlanError, match="no shadow"):
        counts.report("total")


def test_a_question_waits_for_the_first_run_of_a_coordinator() -> None:
    commands = CommandQueue("shop")
    asked = commands.submit(ShadowCommand("total", 1.0))
    assert not asked.done()
    with pytest.raises(mp.OperationInProgress, match="has not begun within 0 s"):
        commands.ask(ShadowCommand("total", 0.0))
    commands.shadows.expect(["total"])
    commands.state.set(lambda: JobState("shop", {}))
    assert asked.result() == ShadowReport("total", 0, 0)


def test_another_process_reports_the_same_once_the_job_has_ended(counts: ShadowCounts) -> None:
    counts.add(Compared(0, "total", 10, 1, failure="ValueError", pairs=(ShadowPair("'a'", "1", "2"),)))
    there = ShadowCounts("shop")
    there.restore(counts.reports())
    assert there.reports() == counts.reports()
