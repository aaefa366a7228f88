"""A corner of the matrix: ``make matrix`` runs all of it."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest

from malstrom_py.errors import InternalError
from malstrom_py.workers.engine.region_input import RegionInput
from tests.simulation.jobs import crossing
from tests.simulation.jobs.crossing import SHAPES, Cell, Found, Run
from tests.simulation.jobs.feeding import Fed
from tests.simulation.jobs.matrix import Report, run_cells
from tests.simulation.jobs.verdicts import Violation

CELL = Cell("two stages", 2, 3)
CORNER = ((2, 3), (3, 1))
FOUND = Found(moves=3, slots=21, keys=20, held=1, rows=400, turns=900, stale=2, inside=1)


@pytest.mark.long("split and re-join-(3, 1)", "union-(3, 1)")
@pytest.mark.parametrize(("shape", "sizes"), list(zip(SHAPES, cycle(CORNER))), ids=str)
def test_p1_p2_jobs_of_every_shape_grow_and_shrink_under_traffic(shape: str, sizes: tuple[int, int]) -> None:
    report = run_cells([Cell(shape, *sizes, seed=1)])
    assert not report.wrong(), str(report)
    assert all(run.slots for both in report.found.values() for run in both)


def test_the_same_cell_is_the_same_run() -> None:
    assert Run(CELL).through() == Run(CELL).through()
    assert Run(CELL).through() != Run(Cell("two stages", 2, 3, seed=1)).through()


def test_r5_a_batch_of_which_some_rows_are_held_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    split = RegionInput._split

    def passed_and_held(feed: Any, entry: Any, lane: Any, batch: Any, held: Any) -> None:
        before = len(feed._held)
        split(feed, entry, lane, batch, held)
        if len(feed._held) > before and len(feed._held[-1].rows) < len(batch):
            feed._push(entry.node, feed._held[-1].rows)

    monkeypatch.setattr(RegionInput, "_split", passed_and_held)
    with pytest.raises(InternalError, match="already has state here"):
        Run(Cell("linear", 2, 3)).through()


class Drying(Run):
    """Nothing more comes once a rescale has been asked for."""

    def more(self, fed: Fed, part: str) -> None:
        if not self.driven.asked:
            super().more(fed, part)


def test_a_job_without_traffic_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crossing, "TURNS_MAX", 3000)
    with pytest.raises(Violation, match="enough in version 3 has not come"):
        Drying(CELL).through()


def test_a_failure_prints_the_command_that_has_it_again() -> None:
    wrong = Report(failures={CELL: "lost"}).wrong()
    assert wrong == [
        (
            "two stages, 2 -> 3, seed 0: lost\n"
            '  again: python -m tests.simulation.jobs.matrix --only "two stages" 2 3 --seed 0'
        )
    ]


def test_a_matrix_in_which_nothing_was_held_is_told() -> None:
    idle = Found(moves=3, slots=21, keys=20, held=0, rows=400, turns=900, stale=0, inside=0)
    assert Report({CELL: (FOUND, idle)}).wrong() == []
    first, second, third = Report({CELL: (idle, idle)}).wrong()
    assert first.startswith("two stages: no row was held")
    assert second.startswith("two stages: nothing of a lost run came")
    assert third.startswith("two stages: no snapshot was cut between two moves")
