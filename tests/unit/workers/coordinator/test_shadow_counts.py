"""The counts of a comparison: each record once, through snapshots, failures and workers that leave."""

from __future__ import annotations

import pytest

import malstrom_py as mp
from malstrom_py.metrics import ShadowMetrics
from malstrom_py.workers.coordinator.shadow_counts import ShadowCounts
from malstrom_py.workers.reports.shadows import PAIRS_MAX, Compared, ShadowPair


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
