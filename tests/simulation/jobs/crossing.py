"""One cell of the matrix: a job that goes from so many workers to so many others while data flows, and is judged.

Rule: each stage takes records before the rescale, after it, and in every version between: no move ends before.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import malstrom_py as mp
from malstrom_py.rescale.moves.receiving_machine import ReceivingPhase
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.workers.engine.worker import Worker
from malstrom_py.workers.simulator.coverage import Coverage
from malstrom_py.workers.transport.messages import COORDINATOR
from tests.simulation.jobs.driving import Driven, Steered
from tests.simulation.jobs.feeding import Fed
from tests.simulation.jobs.layouts import Head, Layout, Stage, Timing, Way
from tests.simulation.jobs.verdicts import Violation, require

SLOTS: Final = 64
PARTS: Final = 5
KEYS: Final = 100
BOUND: Final = 8
SLOTS_PER_MOVE: Final = 8
WARM_ROWS: Final = 120
"""So many records each stage takes at least before anything is asked for, so that most slots have keys."""

FEW_SLOTS: Final = 8
"""Fewer slots may have no key of a stage: slots are placed by load, and a few of them may be a worker's share."""

LAST_ROWS: Final = 40
"""So many it takes at least when all has moved."""

RUNS: Final = ("", ", restarted after a loss", ", with snapshots all the time", ", resumed after a loss")
"""How a cell is run."""

TURNS_MAX: Final = 300_000
"""After so many turns something that must come is given up."""


def _layout(heads: str, *stages: Stage) -> Layout:
    timed = tuple(Head(head, (head,), Timing(BOUND, "ms")) for head in heads)
    return Layout(timed, stages).finished()


def _windows(name: str, *inputs: Way, key: str = "key", apart: bool = False) -> Stage:
    return Stage(name, inputs, key, "windows", apart=apart, window=120)


S, T, A, B = Way("s"), Way("t"), Way("a"), Way("b")

SHAPES: Final = {
    "linear": _layout("s", _windows("a", S)),
    "union": _layout("st", _windows("a", S, T)),
    "join": _layout("st", _windows("a", S, T, apart=True)),
    "split and re-join": _layout(
        "s", _windows("a", Way("s", "yes")), _windows("b", Way("s", "no"), key="time"), _windows("c", A, B, apart=True)
    ),
    "two stages": _layout("s", _windows("a", S), _windows("b", A, key="time")),
}


class _Look(NamedTuple):
    """The state of a stage on a worker; ``version``: the current version, or the one of the move."""

    version: int = -1
    rows: int = 0
    keys: int = 0
    held: int = 0


class Ledger(Coverage):
    """Counts the records that each stage takes, by the version of its region; the keys that leave it; the rows held."""

    def __init__(self, stages: Sequence[str]) -> None:
        super().__init__()
        self.stages = stages
        self._regions: dict[str, str] = {}
        self.forget()

    def learn(self, plan: mp.Plan) -> None:
        """In which regions the stages are."""
        regions = plan.regions
        self._regions = {stage: region.name for stage in self.stages for region in regions if stage in region.steps}

    def forget(self) -> None:
        """The job starts."""
        self.rows: Counter[tuple[str, int]] = Counter()
        self.keys: Counter[str] = Counter()
        self.held = 0
        self.newest = 0
        self._before: dict[tuple[int, str], _Look] = {}

    def stepped(self, worker: Worker) -> None:
        super().stepped(worker)
        for stage, region in self._regions.items():
            feed = worker.region_input(region)
            moving = feed.machine.phase is not ReceivingPhase.STEADY
            now = _Look(feed.machine.version + moving, worker.rows_in(stage), feed.keys_moved, feed.held_rows)
            before = self._before.get((worker.id, stage), _Look())
            if before.version == now.version:  # else some were taken before the first marker, and some after it
                self.rows[stage, now.version] += now.rows - before.rows
            self.keys[stage] += now.keys - before.keys
            self.held += max(0, now.held - before.held)
            self.newest = max(self.newest, now.version)
            self._before[worker.id, stage] = now


@dataclass(frozen=True)
class Cell:
    """From ``before`` to ``after`` workers; where these are as many, every worker makes place for a new one."""

    shape: str
    before: int
    after: int
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.shape}, {self.before} -> {self.after}, seed {self.seed}"


@dataclass(frozen=True)
class Found:
    """What a run has met. ``turns``: of its rescale; ``stale``: what came of a run before it; ``inside``: the
    snapshots that were cut between two moves.
    """

    moves: int
    slots: int
    keys: int
    held: int
    rows: int
    turns: int
    stale: int
    inside: int = 0

    def __str__(self) -> str:
        return f"{self.moves}·{self.slots}·{self.keys}·{self.held}"


class Run:
    """A run of ``cell``, as its seed decides. ``saving``: there is a snapshot under way all the time."""

    def __init__(self, cell: Cell, *, saving: bool = False) -> None:
        self.cell = cell
        self.saving = saving
        self.saves = 0
        self.rng = rng = random.Random(str(cell))
        self.times: Counter[tuple[str, str]] = Counter()
        layout = SHAPES[cell.shape]
        sources = [source for head in layout.heads for source in head.sources]
        parts, chunk = dict.fromkeys(map(str, range(PARTS)), ()), rng.choice([1, 3])
        self.ledger = Ledger([stage.name for stage in layout.stages])
        self.chance = Steered(rng.randrange(1 << 30), slots_per_move=SLOTS_PER_MOVE, tick=0.005)
        self.driven = Driven(
            layout,
            {source: Fed(source, parts=dict(parts), chunk=chunk, more=self.more) for source in sources},
            self.chance,
            workers=cell.before,
            slots=SLOTS,
            batching=mp.Batching(rows_max=rng.choice([1, 4, 64]), credit=mp.Credit(rows=rng.choice([3, 6, 12]))),
            coverage=self.ledger,
            snapshots=mp.Snapshots(MemoryStore(), interval_s=None, keep=1) if saving else None,
        )
        self.ledger.learn(self.driven.plan)

    def more(self, fed: Fed, part: str) -> None:
        """Data continues: times rise sometimes, and some records are late."""
        rng, at = self.rng, (fed.name, part)
        for _ in range(10):
            self.times[at] += rng.choice([0, 0, 0, 0, rng.randint(1, 120)])
            fed.feed(part, rng.randrange(KEYS), self.times[at] - rng.choice([0, 0, 0, 1, 3, BOUND + 30]))

    def lose(self, who: str, turns: int) -> None:
        """Lose an actor so many turns after the rescale has begun, and resume from the last snapshot, or start from
        nothing.
        """
        self.flow(0, WARM_ROWS)
        self.ask()
        for _ in range(turns):
            self.turn()
        self.driven.crash(who, self.cell.before)
        require(self.ledger.hits[f"{who} crash inside a rescale"] == 1, f"the {who} was not lost inside the rescale")
        self.saves = self.ledger.hits["snapshot completed"]
        self.ledger.forget()

    def through(self) -> Found:
        """Rescale while data flows, neither at its beginning nor at its end."""
        driven, ledger = self.driven, self.ledger
        self.flow(0, WARM_ROWS)
        self.ask()
        turns = self.until(lambda: bool(driven.reports), "the end of the rescale")
        (report,) = driven.reports
        self.flow(report.version, LAST_ROWS)
        driven.end()
        idle = [(stage, v) for stage in ledger.stages for v in range(report.version + 1) if not ledger.rows[stage, v]]
        require(not idle, f"no record was taken at {idle}: there was no traffic")
        without = [stage for stage in ledger.stages if not ledger.keys[stage]]
        is_few = report.slots < FEW_SLOTS
        require(is_few or not without, f"{report.slots} slots have moved, and no key of {without}")
        keys, rows = sum(ledger.keys.values()), sum(ledger.rows.values())
        stale = ledger.hits["stale frame dropped"] + ledger.hits["stale letter dropped"]
        require(not self.saving or ledger.hits["snapshot completed"] > 1, "no snapshot has been completed")
        inside = ledger.hits["snapshot inside a rescale"]
        return Found(report.moves, report.slots, keys, ledger.held, rows, turns, stale, inside)

    def ask(self) -> None:
        """Request the rescale. It starts after a barrier in flight."""
        cell = self.cell
        if cell.before == cell.after:
            self.driven.replace([], cell.after)
        else:
            self.driven.rescale(cell.after)
        self.until(lambda: self.driven.coordinator.phase not in {"steady", "barrier"}, "the beginning of the rescale")

    def flow(self, version: int, least: int) -> None:
        """Let every stage take at least so many records in ``version``."""
        rows, stages = self.ledger.rows, self.ledger.stages
        self.until(lambda: all(rows[stage, version] >= least for stage in stages), f"enough in version {version}")

    def turn(self) -> None:
        """One turn. No worker reports to the coordinator before each stage has a record in the newest version."""
        rows, newest = self.ledger.rows, self.ledger.newest
        is_dry = not all(rows[stage, newest] for stage in self.ledger.stages)
        self.chance.held_back = is_report if is_dry else nothing
        if self.saving and self.saves == self.ledger.hits["snapshot completed"]:
            self.saves += 1
            self.driven.snapshot()
        self.driven.turn()

    def until(self, holds: Callable[[], bool], what: str) -> int:
        """Run until a condition holds. Return the number of turns."""
        for turn in range(TURNS_MAX):
            if holds():
                return turn
            self.turn()
        raise Violation(f"{what} has not come within {TURNS_MAX} turns (P8)")


def is_report(action: Hashable) -> bool:
    """Return whether it is the arrival of a message to the coordinator."""
    return isinstance(action, tuple) and action[0] == "letters" and action[2] == COORDINATOR


def nothing(action: Hashable) -> bool:
    """Nothing is held back."""
    return False


def run_cell(cell: Cell) -> tuple[Found, ...]:
    """All runs of a cell, in the order of `RUNS`."""
    return tuple(run for saving in (False, True) for run in _both(cell, saving=saving))


def _both(cell: Cell, *, saving: bool) -> tuple[Found, Found]:
    """Without and with a loss."""
    found = Run(cell, saving=saving).through()
    rng, lost = random.Random(f"loss {cell}"), Run(cell, saving=saving)
    lost.lose(rng.choice(["worker", "coordinator"]), rng.randrange(found.turns))
    return found, lost.through()
