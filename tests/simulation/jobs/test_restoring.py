"""A snapshot of N workers is restored on M, for all N and M up to eight (S5)."""

from __future__ import annotations

import pytest

import malstrom_py as mp
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.workers.coordinator.snapshot_coordinator import SAVE_DEADLINE_S
from tests.simulation.jobs.driving import Driven, Steered
from tests.simulation.jobs.feeding import Fed
from tests.simulation.jobs.restoring import LAYOUT, PARTS, crossed, feed, until

SIZES = range(1, 9)


@pytest.mark.long(but=("1", "8"))
@pytest.mark.parametrize("before", SIZES)
def test_s5_a_snapshot_of_any_number_of_workers_goes_on_with_any_other(before: int) -> None:
    hits = {after: crossed(before, after) for after in SIZES}
    for case in ("timer restored", "collect buffer restored", "late record", "window fired"):
        assert [after for after in SIZES if not hits[after][case]] == [], case
    assert [after for after in SIZES if hits[after]["restored at more workers"]] == [*range(before + 1, 9)]
    assert [after for after in SIZES if hits[after]["restored at fewer workers"]] == [*range(1, before)]
    assert any(hits[after]["part restored on another worker"] for after in SIZES)


def saving() -> Driven:
    """A job that is saved when it is asked to, and has had some records."""
    feds = {name: Fed(name, parts=dict.fromkeys(PARTS, ())) for name in "st"}
    snapshots = mp.Snapshots(MemoryStore(), interval_s=None)
    driven = Driven(LAYOUT, feds, Steered(1), workers=2, slots=16, batching=mp.Batching(), snapshots=snapshots)
    feed(feds, 0)
    return driven


def test_a_snapshot_has_its_time_however_long_after_the_one_before_it_is_asked_for() -> None:
    driven = saving()
    for made in (1, 2):
        driven.coordinator.pass_s(2 * SAVE_DEADLINE_S)
        driven.snapshot()
        until(driven, lambda made=made: driven.coverage.hits["snapshot completed"] == made)  # type: ignore[misc]
    driven.end()


def test_a_store_that_does_not_answer_ends_the_run() -> None:
    driven = saving()
    driven.chance.held_back = lambda action: isinstance(action, tuple) and action[0] == "write"
    driven.snapshot()
    until(driven, lambda: driven.coordinator.phase == "barrier")
    until(driven, lambda: driven.coordinator.phase == "steady")
    driven.coordinator.turn()
    driven.coordinator.pass_s(SAVE_DEADLINE_S + 1)
    with pytest.raises(mp.MalstromError, match="has not been written to MemoryStore"):
        driven.coordinator.turn()
