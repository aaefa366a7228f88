"""The sink of the benchmarks on Ray, and what it records: when rows reached which worker, and their age.

Rule: rows come into buckets of `BUCKET_NS` of the machine's monotonic clock, which all its processes share; ages into
bins that are 5 % wide. The largest age of a bucket is exact. A writer leaves what it knows in a file when it closes.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import exp, log
from pathlib import Path
from time import monotonic_ns
from typing import Any, Final

from malstrom_py.data.batch import Batch
from malstrom_py.worker_context import WorkerInfo

BUCKET_NS: Final = 10_000_000
BINS: Final = 20
"""So many bins there are for ages between one and e times as large."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """A sink that counts. ``stamped``: the values are times, and rows are as old as these say."""

    folder: str
    stamped: bool
    takes_columns: bool = True

    def build(self, worker: WorkerInfo) -> Writer:
        return Writer(Path(self.folder), worker, stamped=self.stamped)


class Writer:
    def __init__(self, folder: Path, worker: WorkerInfo, *, stamped: bool) -> None:
        self._file = folder / f"{worker.job}.{worker.worker}.{os.getpid()}.json"
        self._file.with_suffix(".pid").touch()
        self._worker = int(worker.worker)
        self._stamped = stamped
        self._first_ns = 0
        self._buckets: dict[int, Bucket] = {}

    def write(self, batch: Batch) -> None:
        now_ns = monotonic_ns()
        self._first_ns = self._first_ns or now_ns
        bucket = self._buckets.get(now_ns // BUCKET_NS)
        if bucket is None:
            bucket = self._buckets[now_ns // BUCKET_NS] = Bucket()
        bucket.rows += len(batch)
        if self._stamped:
            bucket.age(now_ns, batch.values)

    def close(self) -> None:
        buckets = {at: (bucket.rows, bucket.oldest_ns, bucket.ages) for at, bucket in self._buckets.items()}
        told = {"worker": self._worker, "first_ns": self._first_ns, "buckets": buckets}
        self._file.write_text(json.dumps(told))


@dataclass(slots=True)
class Bucket:
    """``ages``: bin -> rows."""

    rows: int = 0
    oldest_ns: int = 0
    ages: dict[int, int] = field(default_factory=dict)

    def age(self, now_ns: int, stamps: list[int]) -> None:
        """Rows with these stamps, of which few are different, have come."""
        for stamp_ns, rows in Counter(stamps).items():
            age_ns = max(1, now_ns - stamp_ns)
            self.oldest_ns = max(self.oldest_ns, age_ns)
            place = int(log(age_ns) * BINS)
            self.ages[place] = self.ages.get(place, 0) + rows

    def add(self, other: Bucket) -> None:
        self.rows += other.rows
        self.oldest_ns = max(self.oldest_ns, other.oldest_ns)
        for place, rows in other.ages.items():
            self.ages[place] = self.ages.get(place, 0) + rows


class Seen:
    """What all writers that have left files in ``folder`` have seen, together."""

    def __init__(self, folder: Path) -> None:
        self._buckets: dict[int, Bucket] = {}
        self.first_ns: dict[int, list[int]] = {}
        """When each worker was first written to, once for each of its lives."""
        for file in folder.glob("*.json"):
            told: dict[str, Any] = json.loads(file.read_text())
            if told["first_ns"]:
                self.first_ns.setdefault(told["worker"], []).append(told["first_ns"])
            for at, (rows, oldest_ns, ages) in told["buckets"].items():
                binned = {int(place): count for place, count in ages.items()}
                self._buckets.setdefault(int(at), Bucket()).add(Bucket(rows, oldest_ns, binned))

    @property
    def rows(self) -> int:
        """All rows."""
        return sum(bucket.rows for bucket in self._buckets.values())

    @property
    def span_ns(self) -> tuple[int, int]:
        """From the first bucket to the end of the last."""
        return min(self._buckets) * BUCKET_NS, (max(self._buckets) + 1) * BUCKET_NS

    def within(self, since_ns: int, until_ns: int) -> Bucket:
        """All that came then, to a bucket."""
        whole = Bucket()
        for at in range(since_ns // BUCKET_NS, until_ns // BUCKET_NS):
            if at in self._buckets:
                whole.add(self._buckets[at])
        return whole

    def rate(self, since_ns: int, until_ns: int) -> float:
        """Rows per second."""
        buckets = until_ns // BUCKET_NS - since_ns // BUCKET_NS
        return self.within(since_ns, until_ns).rows / (buckets * BUCKET_NS / 1e9)

    def age_ms(self, quantile: float, since_ns: int, until_ns: int) -> float:
        """At most so old was this part of the rows, in ms; 1.0 is exact."""
        whole = self.within(since_ns, until_ns)
        if quantile >= 1.0:
            return whole.oldest_ns / 1e6
        left = quantile * whole.rows
        for place in sorted(whole.ages):
            left -= whole.ages[place]
            if left <= 0:
                return min(exp((place + 1) / BINS), whole.oldest_ns) / 1e6
        return 0.0

    def silence_s(self, since_ns: int, until_ns: int) -> float:
        """The longest time without a row, in seconds."""
        longest = current = 0
        for at in range(since_ns // BUCKET_NS, until_ns // BUCKET_NS):
            current = 0 if at in self._buckets else current + 1
            longest = max(longest, current)
        return longest * BUCKET_NS / 1e9

    def line(self, since_ns: int, until_ns: int, step_ns: int) -> Iterator[tuple[float, float, float]]:
        """Per ``step_ns``: seconds since the start, rows per second, and the age of the oldest row in ms."""
        for start in range(since_ns, until_ns - step_ns + 1, step_ns):
            whole = self.within(start, start + step_ns)
            yield (start - since_ns) / 1e9, whole.rows / (step_ns / 1e9), whole.oldest_ns / 1e6


def pids(folder: Path, job: str) -> dict[int, int]:
    """The processes of the workers of ``job``: worker -> pid. Who has joined and left has one too."""
    found = [file.name.split(".") for file in folder.glob(f"{job}.*.pid")]
    return {int(worker): int(pid) for _, worker, pid, _ in sorted(found, key=lambda parts: int(parts[2]))}
