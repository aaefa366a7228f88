"""Whether and when a failed run is restarted."""

from __future__ import annotations

from typing import Any

import pytest

from malstrom_py.errors import PlanError
from malstrom_py.workers.runtime.supervisor import NEVER, Restart, RestartBudget, restart_of


def test_pauses_double_up_to_the_longest() -> None:
    failures = RestartBudget(Restart(max_restarts=10, backoff_s=1.0, backoff_max_s=5.0))
    assert [failures.pause_s(float(second)) for second in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_one_failure_more_than_allowed_is_the_last() -> None:
    failures = RestartBudget(Restart(max_restarts=2))
    assert [failures.pause_s(0.0) is None for _ in range(3)] == [False, False, True]


def test_failures_that_are_long_ago_do_not_count() -> None:
    failures = RestartBudget(Restart(max_restarts=1, window_s=10.0, backoff_s=1.0))
    assert failures.pause_s(0.0) == 1.0
    assert failures.pause_s(5.0) is None
    assert failures.pause_s(10.5) == 1.0


def test_by_default_a_job_is_begun_again_only_where_it_has_snapshots() -> None:
    assert restart_of(None, kept=False) == NEVER
    assert restart_of(None, kept=True) == Restart()
    assert restart_of("never", kept=True) == NEVER


@pytest.mark.parametrize(
    "options",
    [
        {"max_restarts": -1},
        {"max_restarts": 1.5},
        {"window_s": -1.0},
        {"backoff_s": "1"},
        {"backoff_max_s": float("inf")},
    ],
)
def test_numbers_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="restart: "):
        Restart(**options)


def test_to_begin_again_takes_snapshots() -> None:
    with pytest.raises(PlanError, match="needs a snapshot to resume from"):
        restart_of(Restart(), kept=False)
