"""The matrix: from each number of workers to each other, for each shape of a job, while data flows.

``python -m tests.simulation.jobs.matrix --sizes 8`` runs it and prints a table for each shape: moves, slots moved, keys
moved, rows held. In each cell the job runs four times: without a loss, and with a worker or the coordinator lost inside
the rescale, after which a fresh run must be right; and both with a snapshot under way all the time, from the last of
which the job continues after the loss. It ends at the first cell that is not right, and says how to have that again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.simulation.jobs.crossing import RUNS, SHAPES, Cell, Found, run_cell


def cells(sizes: int, shapes: Iterable[str] = SHAPES, *, seed: int = 0) -> list[Cell]:
    """The whole matrix."""
    numbers = range(1, sizes + 1)
    return [Cell(shape, before, after, seed) for shape in shapes for before in numbers for after in numbers]


@dataclass
class Report:
    """What all cells have met, and how those ended that failed."""

    found: dict[Cell, tuple[Found, ...]] = field(default_factory=dict)
    failures: dict[Cell, str] = field(default_factory=dict)

    def wrong(self) -> list[str]:
        """Everything that must not be, of single cells and of all together."""
        told = [f"{cell}: {what}\n  again: {command(cell)}" for cell, what in self.failures.items()]
        for shape in {cell.shape: None for cell in self.found} if not self.failures else {}:
            runs = [run for cell, found in self.found.items() if cell.shape == shape for run in found]
            if not any(run.held for run in runs):
                told.append(f"{shape}: no row was held in any of {len(runs)} runs (R5)")
            if not any(run.stale for run in runs):
                told.append(f"{shape}: nothing of a lost run came in any of the runs after it (F1)")
            if not any(run.inside for run in runs):
                told.append(f"{shape}: no snapshot was cut between two moves (S1)")
        return told

    def __str__(self) -> str:
        lines: list[str] = []
        for shape in dict.fromkeys(cell.shape for cell in self.found):
            for number, how in enumerate(RUNS):
                lines += ["", f"{shape}{how}", *self._table(shape, number)]
        runs = [run for found in self.found.values() for run in found]
        rows, keys, held, stale, inside = (
            sum(getattr(run, name) for run in runs) for name in ("rows", "keys", "held", "stale", "inside")
        )
        moves = sum(run.moves for run in runs)
        total = f"{len(runs):,} runs, {moves:,} moves, {keys:,} keys moved, {held:,} rows held, {rows:,} rows taken"
        total += f", {stale:,} messages of lost runs, {inside:,} snapshots between moves"
        return "\n".join([*lines, "", total, *self.wrong()])

    def _table(self, shape: str, number: int) -> Iterator[str]:
        runs = {(cell.before, cell.after): found[number] for cell, found in self.found.items() if cell.shape == shape}
        sizes = sorted({after for _, after in runs})
        yield "  from to " + "".join(f"{after:>14}" for after in sizes) + "   moves·slots·keys·rows held"
        for before in sorted({before for before, _ in runs}):
            yield f"{before:>9} " + "".join(f"{runs.get((before, after), '')!s:>14}" for after in sizes)


def command(cell: Cell) -> str:
    """How to have just one cell."""
    return f'python -m tests.simulation.jobs.matrix --only "{cell.shape}" {cell.before} {cell.after} --seed {cell.seed}'


def tried(cell: Cell) -> tuple[Cell, tuple[Found, ...] | str]:
    """A cell, and what came of it: in words, if it failed."""
    try:
        return cell, run_cell(cell)
    except Exception as error:
        return cell, f"{type(error).__name__}: {error}"


def run_cells(wanted: Sequence[Cell], *, processes: int = 2) -> Report:
    """Run ``wanted``; the first failure ends it."""
    report = Report()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        # The larger ones first, so that none is left for the end.
        for cell, found in pool.imap_unordered(tried, sorted(wanted, key=lambda cell: -cell.before * cell.after)):
            if isinstance(found, str):
                report.failures[cell] = found
                pool.terminate()
                break
            report.found[cell] = found
    return report


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, default=8, help="from 1 to so many workers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs=3, metavar=("SHAPE", "FROM", "TO"), help="one cell")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    given = parser.parse_args()
    start = time.monotonic()
    wanted = cells(given.sizes, seed=given.seed)
    if given.only:
        shape, before, after = given.only
        wanted = [Cell(shape, int(before), int(after), given.seed)]
    report = run_cells(wanted, processes=given.processes)
    print(report)
    print(f"{len(report.found)} of {len(wanted)} cells, seed {given.seed}, {time.monotonic() - start:.0f} s")
    return 1 if report.wrong() else 0


if __name__ == "__main__":
    sys.exit(main())
