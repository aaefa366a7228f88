"""Runs many seeds on several processes: ``python -m tests.simulation.soak jobs --seeds 100000``. A failure ends it.

Seeds are of the *model* of a rescale, of whole *jobs* in the simulator, of *commits* by jobs that die and pause, or of
such commits to a server of PostgreSQL, which the program starts: *postgres*.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final
from unittest import mock

import tests.simulation.commits.hits
import tests.simulation.commits.on_postgres
import tests.simulation.commits.runs
import tests.simulation.jobs.hits
import tests.simulation.jobs.runs
import tests.simulation.protocol_model.hits
import tests.simulation.protocol_model.runs
from tests.kafka_broker import running
from tests.simulation.commits.targets import KAFKA
from tests.tree import ROOT

CHOSEN: Final = ROOT / "tests" / "simulation" / "chosen_seeds.json"
"""The seeds of `make test`, by kind: those that `tests.simulation.choosing` has kept, which meet every hard case."""

Hits = Callable[[int], Mapping[str, int]]


@dataclass(frozen=True)
class Kind:
    """What seeds there are ``of``. ``hits`` runs one: what it has met; ``hard_cases``: what many must have met, each at
    least once; ``replay``: the module that runs one again; ``ready``: yields ``hits`` with what it needs, such as a
    server.
    """

    of: str
    hits: Hits
    hard_cases: tuple[str, ...]
    replay: str
    ready: Callable[[Hits], AbstractContextManager[Hits]] = nullcontext


def _of_model(seed: int) -> Mapping[str, int]:
    return tests.simulation.protocol_model.runs.run(seed).hits


def _of_jobs(seed: int) -> Mapping[str, int]:
    return tests.simulation.jobs.runs.run(seed)[1].hits


def _of_commits(seed: int) -> Mapping[str, int]:
    return tests.simulation.commits.runs.run(seed).hits


@contextmanager
def _on_kafka(hits: Hits) -> Iterator[Hits]:
    """Run a broker for all processes."""
    with running() as broker, mock.patch.dict(os.environ, {KAFKA: broker.bootstrap}):
        yield hits


def _of_postgres(dsn: str, seed: int) -> Mapping[str, int]:
    return tests.simulation.commits.on_postgres.run_on(dsn, seed).hits


@contextmanager
def _on_postgres(_without: Hits) -> Iterator[Hits]:
    with tests.simulation.commits.on_postgres.served() as dsn:
        yield partial(_of_postgres, dsn)


KINDS: Final = {
    "model": Kind(
        "the rescale model",
        _of_model,
        tests.simulation.protocol_model.hits.HARD_CASES,
        "tests.simulation.protocol_model.replay",
    ),
    "jobs": Kind("whole jobs", _of_jobs, tests.simulation.jobs.hits.HARD_CASES, "tests.simulation.jobs.replay"),
    "commits": Kind(
        "commits by jobs that die and pause",
        _of_commits,
        tests.simulation.commits.hits.HARD_CASES,
        "tests.simulation.commits.replay",
        _on_kafka,
    ),
    "postgres": Kind(
        "commits to PostgreSQL by jobs that die and pause",
        partial(_of_postgres, ""),
        tests.simulation.commits.hits.WHEREVER,
        "tests.simulation.commits.on_postgres",
        _on_postgres,
    ),
}


@dataclass
class Report:
    """What seeds of ``kind`` have met, and which failed: seed -> what was wrong."""

    kind: Kind
    hits: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)

    @property
    def never_met(self) -> list[str]:
        """The hard cases that were not met."""
        return [case for case in self.kind.hard_cases if not self.hits.get(case)]

    def add(self, other: Report) -> None:
        """Count others in."""
        self.hits += other.hits
        self.failures |= other.failures

    def __str__(self) -> str:
        met = [f"{self.hits.get(case, 0):>10,}  {case}" for case in self.kind.hard_cases]
        failed = [f"seed {s}: {what}\n  replay: python -m {self.kind.replay} {s}" for s, what in self.failures.items()]
        return "\n".join([*met, *(f"never met: {case}" for case in self.never_met), *failed])


def run_batch(kind: Kind, seeds: Sequence[int]) -> Report:
    """Run some seeds; the first failure ends the batch."""
    report = Report(kind)
    for seed in seeds:
        try:
            report.hits.update(kind.hits(seed))
        except Exception as error:
            report.failures[seed] = f"{type(error).__name__}: {error}"
            break
    return report


def run_seeds(kind: Kind, seeds: Sequence[int], *, processes: int = 2, batch: int = 20) -> Report:
    """Run seeds, some at a time in each process."""
    batches = [seeds[start : start + batch] for start in range(0, len(seeds), batch)]
    total = Report(kind)
    with mp.get_context("spawn").Pool(processes) as pool:
        for report in pool.imap_unordered(partial(run_batch, kind), batches):
            total.add(report)
            if report.failures:
                pool.terminate()
                break
    return total


def main(arguments: list[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seeds", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=1_000_000, help="the first seed")
    parser.add_argument("--processes", type=int, default=mp.cpu_count())
    given = parser.parse_args(arguments)
    start, kind = time.monotonic(), KINDS[given.kind]
    seeds = range(given.first, given.first + given.seeds)
    with kind.ready(kind.hits) as hits:
        report = run_seeds(replace(kind, hits=hits), seeds, processes=given.processes)
    print(report)
    print(f"{given.seeds:,} seeds of {kind.of} from {given.first:,} on, {time.monotonic() - start:.0f} s")
    return 1 if report.failures or report.never_met else 0


if __name__ == "__main__":
    sys.exit(main())
