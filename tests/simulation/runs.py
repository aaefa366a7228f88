"""One case, run by one seed. Rule: only `run_case` and `in_process` know of a runtime."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import malstrom_py as mp
from malstrom_py.workers.result import RunResult
from tests.simulation.hits import hits_of
from tests.simulation.jobs import Case, draw
from tests.simulation.seen import Outcome


@dataclass(frozen=True)
class Ran:
    """A run that has ended. ``trace`` is the same for two runs that did the same."""

    result: RunResult
    outcome: Outcome
    hits: Counter[str]
    trace: str


Runtime = Callable[[Case, int], Ran]


def run_case(case: Case, seed: int) -> Ran:
    """Run ``case`` on the schedule of ``seed``, with rescales and crashes."""
    rng = random.Random(f"schedule {seed}")
    # All sinks here begin anew when the job does, so it may crash whatever they are.
    workers, crashes = rng.choice([1, 1, 2, 2, 3, 4]), rng.choice([0, 0, 0, 1])
    job = case.job()
    result = mp.Simulation(workers, seed=seed, crashes=crashes, clock=case.clock).run(job)
    return _ran(case, result, Counter(result.hits), result.trace)


def in_process(case: Case, seed: int) -> Ran:
    """Run ``case`` by `mp.run`, in which all take turns and nothing moves."""
    rng = random.Random(f"batching {seed}")
    batch = mp.Batching(
        rows_max=rng.choice([1, 2, 5, 1024]),
        linger_s=rng.choice([0.001, 0.005, 1.0]),
        credit=mp.Credit(rows=rng.choice([1, 2, 5, 10_000])),
    )
    job = case.job(slow_polls=True)
    result = mp.run(job, rng.choice([1, 2, 2, 3]), batch=batch, clock=case.clock, checks=rng.random() < 0.3)
    return _ran(case, result, Counter(), "")


def _ran(case: Case, result: RunResult, hits: Counter[str], trace: str) -> Ran:
    outcome = case.seen.outcome()
    shown = hashlib.sha256(repr((outcome.rows, sorted(outcome.frontiers.items()))).encode()).hexdigest()
    return Ran(result, outcome, hits + outcome.hits, f"{trace[:16]}/{shown[:16]}")


def run(seed: int, *, shape: str | None = None, runtime: Runtime = run_case) -> tuple[Case, Ran]:
    """Draw a case, run it, and have the oracle look at it. `Violation`, or any other error, if anything is wrong."""
    case = draw(random.Random(seed), shape=shape)
    ran = runtime(case, seed)
    case.check(ran.outcome, result=ran.result)
    ran.hits.update(hits_of(case, ran.outcome))
    return case, ran
