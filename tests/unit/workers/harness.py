"""What the tests of workers share: jobs, sources, sinks, a transport, and workers that a test steps by hand.

One module, since most tests use parts of it together: who reads one reads the others.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from operator import itemgetter
from typing import Any, NamedTuple

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.clock import Clock
from malstrom_py.data.batch import Batch
from malstrom_py.errors import InternalError, MalstromError
from malstrom_py.rescale.channels.channel import Credit
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.sources.base import Part
from malstrom_py.testing import VirtualClock
from malstrom_py.worker_context import WorkerInfo
from malstrom_py.workers.coordinator.coordinator import Coordinator
from malstrom_py.workers.reports.job_status import RescaleReport
from malstrom_py.workers.reports.result import StepCounts
from malstrom_py.workers.runtime.local_workers import LocalWorkers
from malstrom_py.workers.transport.messages import Content
from tests.unit.operators.scripted import Scripted

PATIENCE_S = 60.0


class Gate:
    """A function of a job that waits until it is let through."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, value: int) -> int:
        self.entered.set()
        assert self.opened.wait(PATIENCE_S)
        return value


def endless(name: str = "endless", *, parts: int = 4) -> tuple[mp.Job, sinks.Memory]:
    """Counts by key for ever: the outputs of each key are 1, 2, 3 and so on."""
    job, out = mp.Job(name), sinks.Memory()
    numbers = job.source("numbers", sources.Generator(lambda part, start: count(start), parts=parts))
    numbers.key_by("key", lambda n: n % 20).count("seen").sink("out", out)
    return job, out


def idle(name: str = "idle") -> mp.Job:
    """A job whose source never has anything, so that its thread sleeps most of the time."""
    job = mp.Job(name)
    job.source("in", Scripted({"a": [None] * 1_000_000})).sink("out", sinks.Memory())
    return job


def start(job: mp.Job, workers: int = 1, **options: Any) -> mp.JobHandle:
    return mp.InProcess(workers, batch=mp.Batching(rows_max=50), **options).start(job, control=False)


def is_complete(out: sinks.Memory) -> bool:
    return all(values == list(range(1, len(values) + 1)) for values in out.by_key.values())


def idle_free() -> mp.Job:
    job = mp.Job("once")
    job.source("in", sources.Memory([1])).sink("out", sinks.Memory())
    return job


STEPS_MAX = 20_000


class Running:
    """``job`` on ``workers`` workers, open; ``kind`` is the class of its workers, ``options`` as of `local_run`."""

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
        plan = job.plan()
        group = kind(plan, self.clock, batching)
        self.coordinator = Coordinator(plan, group, workers=workers, clock=self.clock, **options)
        self.coordinator.commit.recover()
        self.coordinator.open()
        self.reports: list[RescaleReport] = []

    def step(self, times: int = 1) -> Running:
        for _ in range(times):
            if not self.coordinator.finished:
                self.coordinator.step()
        return self

    def ask(self, size: int) -> Running:
        self.coordinator.rescale(size, self._done)
        return self

    def _done(self, ended: RescaleReport | MalstromError) -> None:
        assert isinstance(ended, RescaleReport)
        self.reports.append(ended)

    def rows_in(self, step: str) -> int:
        """How many records a step has taken, over all workers there have been."""
        return self.coordinator.counts()[step].rows_in

    def settle(self) -> Running:
        """Step until nothing moves."""
        for _ in range(STEPS_MAX):
            if self.coordinator.phase == "steady":
                return self
            self.coordinator.step()
        raise AssertionError(f"still {self.coordinator.phase}")

    def finish(self) -> dict[str, StepCounts]:
        """To the end, and commit: the counts."""
        for _ in range(STEPS_MAX):
            if self.coordinator.finished:
                counts = self.coordinator.counts()
                self.coordinator.pre_commit()
                self.coordinator.commit.commit()
                self.coordinator.close()
                return counts
            self.coordinator.step()
        raise AssertionError(f"no end: {self.coordinator.phase}")


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


class Reading(NamedTuple):
    """A record: of which part, the how many-th there, at what event time."""

    part: str
    number: int
    at: int


@dataclass(frozen=True)
class Script:
    """What a part has: event times by the second of the clock at which they come, and when the part ends."""

    arrivals: Sequence[tuple[float, Sequence[int]]]
    end_s: float


class Scheduled:
    """Parts by name. Every poll takes ``poll_s`` of the clock."""

    def __init__(self, clock: VirtualClock, scripts: Mapping[str, Script], *, poll_s: float = 0.0) -> None:
        self.clock = clock
        self.scripts = scripts
        self.poll_s = poll_s

    def list_parts(self) -> list[Part]:
        return [Part(name) for name in self.scripts]

    def build_part(self, part: Part, state: Any) -> ScheduledPart:
        return ScheduledPart(self, part, state or 0)


class ScheduledPart:
    def __init__(self, source: Scheduled, name: str, position: int) -> None:
        self._source = source
        self._end_s = source.scripts[name].end_s
        self._left = _readings(name, source.scripts[name])[position:]
        self._position = position

    def poll(self, rows_max: int) -> list[Reading] | None:
        self._source.clock.advance(self._source.poll_s)
        now_s = self._source.clock.monotonic_s()
        due = [reading for at_s, reading in self._left[:rows_max] if at_s <= now_s]
        del self._left[: len(due)]
        self._position += len(due)
        return due or None

    def is_finished(self) -> bool:
        return not self._left and self._source.clock.monotonic_s() >= self._end_s

    def snapshot(self) -> int:
        return self._position

    def close(self) -> None:
        """Nothing is open."""


def _readings(name: str, script: Script) -> list[tuple[float, Reading]]:
    moments = [(at_s, time) for at_s, times in script.arrivals for time in times]
    return [(at_s, Reading(name, number, time)) for number, (at_s, time) in enumerate(moments)]


class Journal:
    """What happened, as ``"sink: call"``, in one order over all sinks that share it."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.contexts: list[CommitContext] = []

    def calls(self, sink: str) -> list[str]:
        return [call for name, call in (entry.split(": ") for entry in self.entries) if name == sink]


class JournalSink:
    """Shows in ``visible`` what was committed. ``failing`` names the calls that raise ``error``."""

    def __init__(self, name: str, journal: Journal, failing: str = "", error: BaseException | None = None) -> None:
        self.name = name
        self.journal = journal
        self.failing = failing.split()
        self.error = error or OSError(28, "No space left on device")
        self.staged: dict[bytes, list[Any]] = {}
        self.visible: list[Any] = []

    def note(self, call: str) -> None:
        self.journal.entries.append(f"{self.name}: {call}")
        if call in self.failing:
            raise self.error

    def open(self, worker: WorkerInfo) -> JournalWriter:
        self.note("open")
        return JournalWriter(self)

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        self.journal.contexts.append(context)
        self.note("commit")
        for payload in payloads:
            self.visible += self.staged.pop(payload)

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        self.note("abort")
        for payload in payloads:
            self.staged.pop(payload, None)

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        self.note("recover")


class JournalWriter:
    def __init__(self, sink: JournalSink) -> None:
        self._sink = sink
        self._written: list[Any] = []

    def write(self, batch: Batch) -> None:
        self._sink.note("write")
        self._written += batch.values

    def pre_commit(self, context: CommitContext) -> bytes:
        self._sink.journal.contexts.append(context)
        self._sink.note("pre_commit")
        self._sink.staged[b"payload"], self._written = self._written, []
        return b"payload"

    def close(self) -> None:
        self._sink.note("close")


class PlainSink:
    """A sink without transactions over the same journal: its output is visible immediately."""

    def __init__(self, name: str, journal: Journal, failing: str = "") -> None:
        self.name = name
        self.journal = journal
        self.failing = failing
        self.visible: list[Any] = []

    def build(self, worker: WorkerInfo) -> PlainSink:
        self._note("build")
        return self

    def write(self, batch: Batch) -> None:
        self._note("write")
        self.visible += batch.values

    def close(self) -> None:
        self._note("close")

    def _note(self, call: str) -> None:
        self.journal.entries.append(f"{self.name}: {call}")
        if call == self.failing:
            raise OSError(28, "No space left on device")


class Streams:
    """``sent``: receiver -> what was sent to it. ``coming`` is what the next calls of `receive` give, one by one."""

    def __init__(self) -> None:
        self.address: Any = "here"
        self.stale = 0
        self.sent: dict[int, list[Content]] = {}
        self.sendings: list[tuple[int, int]] = []
        self.coming: deque[list[Content] | Exception] = deque()
        self.waits_s: list[float] = []
        self.woken = 0
        self.connected: dict[int, Any] = {}
        self.closed = False

    def connect(self, peer: int, address: Any) -> None:
        self.connected[peer] = address

    def disconnect(self, peer: int) -> None:
        del self.connected[peer]

    def send(self, receiver: int, contents: Sequence[Content]) -> None:
        if receiver not in self.connected:
            raise InternalError(f"{receiver} was never connected")
        self.sendings.append((receiver, len(contents)))
        self.sent.setdefault(receiver, []).extend(contents)

    def receive(self, timeout_s: float) -> list[Content]:
        self.waits_s.append(timeout_s)
        came = self.coming.popleft() if self.coming else []
        if isinstance(came, Exception):
            raise came
        return came

    def wake(self) -> None:
        self.woken += 1

    def close(self, *, linger_s: float) -> None:
        self.closed = True
