"""One case, run by one seed. `run_case` is the only place that knows which runtime it is."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import malstrom_py as mp
from malstrom_py.workers.result import RunResult
from tests.simulation.hits import hits_of
from tests.simulation.jobs import Case, draw
from tests.simulation.seen import Outcome


@dataclass(frozen=True)
class Ran:
    """A run that has ended. ``members``: the workers that were there then; ``moved``: whether parts may have moved."""

    result: RunResult
    outcome: Outcome
    members: Collection[int]
    moved: bool
    hits: Counter[str]

    @property
    def trace(self) -> str:
        """The same for the same rows in the same order, and the same epochs."""
        told = repr((self.outcome.rows, sorted(self.outcome.frontiers.items())))
        return hashlib.sha256(told.encode()).hexdigest()[:16]


def run_case(case: Case, seed: int) -> Ran:
    """Run ``case`` on the schedule of ``seed``."""
    rng = random.Random(f"schedule {seed}")
    workers = rng.choice([1, 2, 2, 3])
    batch = mp.Batching(
        rows_max=rng.choice([1, 2, 5, 1024]),
        linger_s=rng.choice([0.001, 0.005, 1.0]),
        credit=mp.Credit(rows=rng.choice([1, 2, 5, 10_000])),
    )
    job = case.job()
    result = mp.run(job, workers, batch=batch, clock=case.clock, checks=rng.random() < 0.3)
    outcome = case.seen.outcome()
    hits = outcome.hits + Counter({f"{workers} workers": 1})
    return Ran(result, outcome, members=range(workers), moved=False, hits=hits)


def run(seed: int, *, shape: str | None = None) -> tuple[Case, Ran]:
    """Draw a case, run it, and have the oracle look at it. `Violation`, or any other error, if anything is wrong."""
    case = draw(random.Random(seed), shape=shape)
    ran = run_case(case, seed)
    case.check(ran.outcome, members=ran.members, moved=ran.moved)
    ran.hits.update(hits_of(case, ran.outcome))
    return case, ran
