"""The two checks of the demo: no flight is unaccounted for, and Polars finds the same in one go."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

import malstrom_py as mp

TOLERANCE = 1e-9
"""Relative. Counts and the worst delay must be equal; mean and spread are sums in another order."""


@dataclass(frozen=True)
class Account:
    """The fate of the flights between the source and one sink."""

    branch: str
    read: int
    used: int
    filtered: int
    late: int
    skipped: int
    dead_letters: int

    @property
    def holds(self) -> bool:
        """Whether all that was read went somewhere."""
        return self.read == self.used + self.filtered + self.late + self.skipped + self.dead_letters


def account(job: mp.Job, result: mp.RunResult, sink: str) -> Account:
    """The account of the branch that ends at ``sink``."""
    steps = {step.name: step for step in job.plan().steps}
    path = [sink]
    while steps[path[0]].inputs:
        path.insert(0, steps[path[0]].inputs[0].step)
    counts = [result.steps[name] for name in path]
    return Account(
        branch=sink,
        read=counts[0].rows_in,
        used=counts[-1].rows_in,
        filtered=sum(step.filtered for step in counts),
        late=sum(step.late for step in counts),
        skipped=sum(step.skipped for step in counts),
        dead_letters=sum(step.dead_letters for step in counts),
    )


def last_rows(running: pl.DataFrame) -> pl.DataFrame:
    """Of the running statistics of each key the last ones: those after all of its flights."""
    return running.filter(pl.col("flights") == pl.col("flights").max().over("key")).sort("key")


def by_polars(files: str, key: str) -> pl.DataFrame:
    """The same statistics, computed from the same files in one go."""
    flights = pl.scan_csv(files, null_values=["NA"]).filter(pl.col(key).is_not_null())
    delay = pl.col("dep_delay")
    statistics = flights.group_by(pl.col(key).alias("key")).agg(
        flights=pl.len(), departed=delay.count(), mean=delay.mean(), std=delay.std(ddof=0), worst=delay.max()
    )
    return statistics.sort("key").collect()


def differences(ours: pl.DataFrame, theirs: pl.DataFrame) -> list[str]:
    """What is not equal, in words; empty if everything is."""
    if ours["key"].to_list() != theirs["key"].to_list():
        return [f"{ours.height:,} keys here, {theirs.height:,} there, and not the same"]
    both = ours.join(theirs, on="key", suffix="_theirs")
    found = []
    for column in ("flights", "departed", "worst", "mean", "std"):
        here, there = pl.col(column), pl.col(f"{column}_theirs")
        same = here.eq_missing(there)
        if column in ("mean", "std"):
            same = same | ((here - there).abs() <= TOLERANCE * there.abs().clip(lower_bound=1.0))
        wrong = both.filter(~same.fill_null(False))
        if not wrong.is_empty():
            found.append(f"{column} differs for {wrong.height:,} keys, the first is {wrong['key'][0]}")
    return found
