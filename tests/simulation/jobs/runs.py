"""One case, run by one seed. Rule: only `run_case` and `in_process` know of a runtime."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import malstrom_py as mp
from malstrom_py.errors import StateError
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.state.cold import KeyForm
from malstrom_py.state.disk import Written
from malstrom_py.state.memory import StateMemory
from malstrom_py.testing.disk import MemoryDisk
from malstrom_py.workers.reports.result import RunResult
from tests.simulation.jobs.arrays import arrays_watched
from tests.simulation.jobs.chain_watch import chains_watched
from tests.simulation.jobs.hits import hits_of
from tests.simulation.jobs.jobs import GROWING, Case, draw
from tests.simulation.jobs.protocol_watch import protocol_watched
from tests.simulation.jobs.seen import Outcome
from tests.simulation.jobs.stepped_calls import calls_stepped


@dataclass(frozen=True)
class Ran:
    """A run that has ended. ``trace`` is the same for two runs that did the same. ``result``: if it counts it all."""

    result: RunResult | None
    outcome: Outcome
    hits: Counter[str]
    trace: str


Runtime = Callable[[Case, int], Ran]


class OnDisk(mp.State):
    """Lets a worker put state on disk between any two batches; each time as much of it as chance has it.

    ``failures``: so many calls of disks fail, each of which is the loss of a worker; some disks are slow then.
    """

    def __init__(self, seed: int, hits: Counter[str], case: Case | None = None, failures: int = 0) -> None:
        object.__setattr__(self, "_disks", FailingDisks(random.Random(f"on disk {seed}"), hits, case, failures))

    def opened(self, form: KeyForm) -> StateMemory:
        disks: FailingDisks = self._disks  # type: ignore[attr-defined]
        return StateMemory(disks.chance.choice([0, 0, 2_000]), lambda: FailingDisk(disks), form)


@dataclass
class FailingDisks:
    """What the disks of a job have in common."""

    chance: random.Random
    hits: Counter[str]
    case: Case | None
    failures: int

    def __post_init__(self) -> None:
        self.slow_s = self.chance.choice([0.0, 0.0, 0.0, 0.01]) if self.failures else 0.0

    def call(self, what: str) -> bool:
        """Let time pass; return whether this call fails."""
        if self.case is not None and self.slow_s:
            self.case.clock.sleep_s(self.slow_s)
        if not self.failures or self.chance.random() > 0.01:
            return False
        self.failures -= 1
        self.hits[f"disk failed: {what}"] += 1
        return True


class FailingDisk(MemoryDisk):
    """Fails as ``disks`` have it, and counts what happens to it."""

    def __init__(self, disks: FailingDisks) -> None:
        super().__init__()
        self._disks = disks

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        if self._disks.call("read"):
            raise StateError("the disk cannot be read")
        found = super().get(keys)
        self._disks.hits["state was put on disk and found there"] += len(found) - found.count(None)
        return found

    def write(self, put: Written, dropped: Sequence[bytes] = ()) -> None:
        if self._disks.call("write"):
            super().write(put[: len(put) // 2])  # a torn one
            raise StateError("the disk is full")
        super().write(put, dropped)


def run_on_disk(case: Case, seed: int, *, failures: int = 0) -> Ran:
    """Do as `run_case`, with state on disk, of which ``failures`` calls fail if the job has snapshots."""
    hits = Counter[str]()
    ran = run_case(case, seed, state=OnDisk(seed, hits, case, failures if kept(seed) else 0))
    ran.hits.update(hits)
    return ran


def run_case(case: Case, seed: int, *, state: mp.State | None = None) -> Ran:
    """Run ``case`` on the schedule of ``seed``, with rescales and crashes, and in every other case with snapshots."""
    rng = random.Random(f"schedule {seed}")
    # All sinks here are reset with the job, so that it may crash with any of them.
    workers, crashes = rng.choice([1, 1, 2, 2, 3, 4]), rng.choice([0, 0, 0, 1])
    snapshots = kept(seed)
    if snapshots:
        crashes = rng.choice([0, 1, 1, 2])
    job = case.job(slow_s=slow(seed), kept=bool(snapshots))
    simulation = mp.Simulation(workers, seed=seed, crashes=crashes, clock=case.clock, snapshots=snapshots, state=state)
    broken = case.seen.broken
    with calls_stepped(), protocol_watched(broken), chains_watched(broken), arrays_watched(case.seen.hit):
        result = simulation.run(job)
    # The counts of runs that restarted from a snapshot are not kept.
    counted = result if not snapshots or result.incarnations == 1 else None
    return _ran(case, counted, Counter(result.hits), result.trace)


def slow(seed: int) -> float:
    """How long the job of a seed takes for each row, in seconds of its clock."""
    return random.Random(f"slow {seed}").choice([0.0, 0.0, 0.0, 0.001, 0.02, 0.2])


def kept(seed: int) -> mp.Snapshots | Literal[False]:
    """How the job of a seed is snapshotted, if it is."""
    rng = random.Random(f"snapshots {seed}")
    if rng.random() < 0.5:
        return False
    interval_s, keep, chain_max = (
        rng.choice([None, 0.02, 0.02, 0.2]),
        rng.choice([1, 1, 2, 3]),
        rng.choice([1, 1, 2]),
    )
    return mp.Snapshots(MemoryStore(), interval_s=interval_s, keep=keep, chain_max=chain_max)


def in_process(case: Case, seed: int) -> Ran:
    """Run ``case`` by `mp.run`, in which all take turns and nothing moves."""
    rng = random.Random(f"batching {seed}")
    batch = mp.Batching(
        rows_max=rng.choice([1, 2, 5, 1024]),
        linger_s=rng.choice([0.001, 0.005, 1.0]),
        credit=mp.Credit(rows=rng.choice([1, 2, 5, 10_000])),
    )
    job = case.job(slow_polls=True, slow_s=slow(seed))
    result = mp.run(job, rng.choice([1, 2, 2, 3]), batch=batch, clock=case.clock, checks=rng.random() < 0.3)
    return _ran(case, result, Counter(), "")


def _ran(case: Case, result: RunResult | None, hits: Counter[str], trace: str) -> Ran:
    outcome = case.seen.outcome()
    shown = hashlib.sha256(repr((outcome.rows, sorted(outcome.frontiers.items()))).encode()).hexdigest()
    return Ran(result, outcome, hits + outcome.hits, f"{trace[:16]}/{shown[:16]}")


def run(
    seed: int, *, shape: str | None = None, runtime: Runtime = run_case, growing: float = GROWING
) -> tuple[Case, Ran]:
    """Draw a case, run it, and have the oracle look at it. `Violation`, or any other error, if anything is wrong."""
    case = draw(random.Random(seed), shape=shape, growing=growing)
    ran = runtime(case, seed)
    case.check(ran.outcome, result=ran.result)
    ran.hits.update(hits_of(case, ran.outcome))
    return case, ran
