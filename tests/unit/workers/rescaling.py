"""A crew that is stepped by hand, asked for other sizes on the way, and committed at its end as a run does."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Any

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.clock import Clock
from malstrom_py.data.batch import Batch
from malstrom_py.errors import MalstromError
from malstrom_py.rescale.channels.channel import Credit
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.testing import VirtualClock
from malstrom_py.worker_context import WorkerInfo
from malstrom_py.workers.reports.job_status import RescaleReport
from malstrom_py.workers.reports.result import StepCounts
from malstrom_py.workers.runtime.local_workers import LocalWorkers

STEPS_MAX = 20_000


class Running:
    """``job`` on ``workers`` workers, open; ``kind`` is the crew's class, ``options`` are its."""

    def __init__(
        self,
        job: mp.Job,
        *,
        workers: int = 1,
        rows_max: int = 2,
        clock: Clock | None = None,
        kind: type[LocalWorkers] = LocalWorkers,
        **options: Any,
    ) -> None:
        self.clock = clock or VirtualClock()
        # Little credit, so that markers wait for few rows, and held rows fill a channel.
        batching = options.pop("batching", mp.Batching(rows_max=rows_max, credit=Credit(rows=4 * rows_max)))
        self.crew = kind(job.plan(), workers=workers, batching=batching, clock=self.clock, **options)
        self.crew.commit.recover()
        self.crew.open()
        self.reports: list[RescaleReport] = []

    def step(self, times: int = 1) -> Running:
        for _ in range(times):
            if not self.crew.finished:
                self.crew.step()
        return self

    def ask(self, size: int) -> Running:
        self.crew.rescale(size, self._done)
        return self

    def _done(self, ended: RescaleReport | MalstromError) -> None:
        assert isinstance(ended, RescaleReport)
        self.reports.append(ended)

    def settle(self) -> Running:
        """Step until nothing moves."""
        for _ in range(STEPS_MAX):
            if self.crew.phase == "steady":
                return self
            self.crew.step()
        raise AssertionError(f"still {self.crew.phase}")

    def through(self, sizes: Iterable[int], *, between: int = 3) -> Running:
        """Go from size to size, with some steps before each."""
        for size in sizes:
            self.step(between).ask(size).settle()
        return self

    def finish(self) -> dict[str, StepCounts]:
        """To the end, and commit: the counts."""
        for _ in range(STEPS_MAX):
            if self.crew.finished:
                counts = self.crew.counts()
                self.crew.pre_commit()
                self.crew.close_before_commit()
                self.crew.commit.commit()
                self.crew.close()
                return counts
            self.crew.step()
        raise AssertionError(f"no end: {self.crew.phase}")


class Ledger:
    """A transactional sink that shows what has arrived in that order, and knows what was done to each writer."""

    def __init__(self, failing: dict[int, str] | None = None) -> None:
        self.visible: list[Any] = []
        self.staged: dict[bytes, list[tuple[int, Any]]] = {}
        self.arrived = 0
        self.calls: list[tuple[int, str]] = []
        self._failing = failing or {}

    def open(self, worker: WorkerInfo) -> LedgerWriter:
        self.note(worker.worker, "open")
        return LedgerWriter(self, worker.worker)

    def note(self, worker: int, call: str) -> None:
        self.calls.append((worker, call))
        if self._failing.get(worker) == call:
            raise OSError(28, "No space left on device")

    def calls_of(self, worker: int) -> list[str]:
        """What was done to a worker's writer, writes aside."""
        return [call for other, call in self.calls if other == worker and call != "write"]

    def commit(self, context: CommitContext, payloads: Any) -> None:
        staged = [row for payload in payloads for row in self.staged.pop(payload)]
        self.visible += [value for _, value in sorted(staged, key=itemgetter(0))]

    def abort(self, context: CommitContext, payloads: Any) -> None:
        for payload in payloads:
            self.staged.pop(payload)

    def recover(self, context: CommitContext, committed: Any) -> None:
        """Nothing is left from before."""


class LedgerWriter:
    def __init__(self, ledger: Ledger, worker: int) -> None:
        self._ledger = ledger
        self._worker = worker
        self._written: list[tuple[int, Any]] = []

    def write(self, batch: Batch) -> None:
        self._ledger.note(self._worker, "write")
        self._written += enumerate(batch.values, self._ledger.arrived)
        self._ledger.arrived += len(batch)

    def pre_commit(self, context: CommitContext) -> bytes:
        self._ledger.note(self._worker, "pre_commit")
        payload = f"{SnapshotId(context.snapshot)}-{self._worker}".encode()
        assert payload not in self._ledger.staged, "a worker's id was used twice"
        self._ledger.staged[payload], self._written = self._written, []
        return payload

    def close(self) -> None:
        self._ledger.note(self._worker, "close")


Row = tuple[int, int]
"""Of which part, the how many-th there."""


def rows(parts: int, count: int) -> list[Row]:
    """What `sources.Memory` deals so that part ``n`` has the rows of ``n``, in order."""
    return [(part, number) for number in range(count) for part in range(parts)]


def two_stages(sink: Any, *, parts: int = 4, count: int = 60) -> mp.Job:
    """Return a plan with two exchanges and state after each: rows carry the count of earlier rows of their key."""
    job = mp.Job("two-stages", slots=64)
    first = job.source("in", sources.Memory(rows(parts, count), parts=parts)).key_by("first", lambda row: row[1] % 7)
    counted = first.stateful_map("counted", lambda key, row, seen: ((*row, seen), seen + 1), default=int)
    second = counted.key_by("second", lambda row: row[1] % 5)
    second.stateful_map("again", lambda key, row, seen: ((*row, seen), seen + 1), default=int).sink("out", sink)
    return job


def check_two_stages(items: list[tuple[int, int, int, int]], *, parts: int = 4, count: int = 60) -> None:
    """Each row once; each key's state counted every one of its rows; rows of one part and path in order."""
    assert sorted(item[:2] for item in items) == sorted(rows(parts, count))
    for modulus, place in ((7, 2), (5, 3)):
        for key in range(modulus):
            seen = sorted(item[place] for item in items if item[1] % modulus == key)
            assert seen == list(range(len(seen)))
    paths: dict[tuple[int, int, int], list[int]] = {}
    for part, number, _, _ in items:
        paths.setdefault((part, number % 7, number % 5), []).append(number)
    assert all(numbers == sorted(numbers) for numbers in paths.values())
