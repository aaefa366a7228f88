"""Runs many seeds on several processes: ``python -m tests.sim.soak --seeds 100000``. Ends at the first failure."""

from __future__ import annotations

import argparse
import multiprocessing as mp
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.sim.hits import never_met, table
from tests.sim.runs import run


@dataclass
class Report:
    """What a batch of seeds has met, and which failed: seed -> what was wrong."""

    hits: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    failures: dict[int, str] = field(default_factory=dict)

    def add(self, other: Report) -> None:
        """Count another batch in."""
        self.hits += other.hits
        self.steps += other.steps
        self.failures |= other.failures

    def __str__(self) -> str:
        failed = [f"seed {s}: {what}\n  replay: python -m tests.sim.replay {s}" for s, what in self.failures.items()]
        missed = [f"never met: {case}" for case in never_met(self.hits)]
        return "\n".join([table(self.hits), f"{self.steps:>10,}  steps", *missed, *failed])


def run_batch(seeds: range) -> Report:
    """Run some seeds; the first failure ends the batch."""
    report = Report()
    for seed in seeds:
        try:
            outcome = run(seed)
        except Exception as error:
            report.failures[seed] = f"{type(error).__name__}: {error}"
            break
        report.hits += outcome.hits
        report.steps += outcome.steps
    return report


def run_seeds(first: int, count: int, *, processes: int = 2, batch: int = 50) -> Report:
    """Run ``count`` seeds from ``first`` on."""
    batches = [range(start, min(start + batch, first + count)) for start in range(first, first + count, batch)]
    total = Report()
    with mp.get_context("spawn").Pool(processes) as pool:
        for report in pool.imap_unordered(run_batch, batches):
            total.add(report)
            if report.failures:
                pool.terminate()
                break
    return total


def main(arguments: list[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=1_000_000, help="the first seed; make seeds runs those from 0 on")
    parser.add_argument("--processes", type=int, default=mp.cpu_count())
    given = parser.parse_args(arguments)
    start = time.monotonic()
    report = run_seeds(given.first, given.seeds, processes=given.processes)
    print(report)
    print(f"{given.seeds:,} seeds of the rescale model from {given.first:,} on, {time.monotonic() - start:.0f} s")
    return 1 if report.failures or never_met(report.hits) else 0


if __name__ == "__main__":
    sys.exit(main())
