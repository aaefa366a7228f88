"""Traffic that verifies itself: each record has a part, number, key and checksum, and each stage knows the next one.

The numbers of a part run through all keys in turn, so each number of one part and key is the previous one plus `KEYS`.
A worker therefore sees every lost, duplicated or reordered record at the next record, at full speed. Every `SAMPLE`-th
record also goes into the sink, with the processes that handled it. A folder shows which processes are at work.
"""

from __future__ import annotations

import itertools
import os
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.data.batch import Batch
from malstrom_py.sources.base import Part
from malstrom_py.worker_context import WorkerInfo
from malstrom_py.workers.reports.job_status import RescaleReport

KEYS: Final = 500
GROUPS: Final = 64
SAMPLE: Final = 3
SIGN: Final = 32
PARTS: Final = 4
PATIENCE_S: Final = 120.0


class Sent(NamedTuple):
    """A record as it was read, and the process that read it."""

    part: int
    number: int
    key: int
    check: int
    read_by: int


class Seen(NamedTuple):
    """A record after one or two stages. ``first_at``: how many records its process had handled there before."""

    sent: Sent
    wrong: str
    first_by: int
    first_at: int
    second_by: int = 0


Last = dict[tuple[int, int], int]
"""(part, key) -> the last number."""

_taken: Final = itertools.count()


class Attendance:
    """Which process works in which role: a file for each process and role, touched regularly."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sign(self, role: str) -> None:
        """Record that this process works in ``role`` now."""
        if next(_signed[role]) % SIGN == 0:
            (self._folder / f"{role}-{os.getpid()}").touch()

    def since(self, began_ns: int, role: str) -> set[int]:
        """Return the processes that have worked in ``role`` since ``began_ns``."""
        files = self._folder.glob(f"{role}-*")
        return {int(file.name.rpartition("-")[2]) for file in files if file.stat().st_mtime_ns > began_ns}

    def enter(self, worker: int) -> None:
        """Record that this process runs ``worker``."""
        (self._folder / f"worker-{worker}").write_text(str(os.getpid()))

    def pid(self, worker: int) -> int:
        """Return the process of a worker; 0 until it has opened its sinks."""
        file = self._folder / f"worker-{worker}"
        return int(file.read_text() or 0) if file.exists() else 0

    def now_ns(self) -> int:
        """Return the time of the folder's file system."""
        (self._folder / "now").touch()
        return (self._folder / "now").stat().st_mtime_ns


class Roll:
    """A sink that records the process of each worker."""

    def __init__(self, attendance: Attendance) -> None:
        self._attendance = attendance

    def build(self, worker: WorkerInfo) -> Roll:
        self._attendance.enter(worker.worker)
        return self

    def write(self, batch: Batch) -> None:
        """Ignore the records."""

    def close(self) -> None:
        """Do nothing."""


_signed: Final[defaultdict[str, Iterator[int]]] = defaultdict(itertools.count)


def checksum(part: int, number: int, key: int) -> int:
    return zlib.crc32(b"%d/%d/%d" % (part, number, key))


def sent(part: int, number: int) -> Sent:
    key = (number * 7919 + part) % KEYS
    return Sent(part, number, key, checksum(part, number, key), os.getpid())


class Paced:
    """An endless source: ``rows`` per part every ``tick_s``."""

    def __init__(self, attendance: Attendance, *, rows: int = 20, tick_s: float = 0.01) -> None:
        self._attendance = attendance
        self._rows = rows
        self._tick_s = tick_s

    def list_parts(self) -> list[Part]:
        return [Part(str(part)) for part in range(PARTS)]

    def build_part(self, part: Part, state: Any) -> PacedPart:
        return PacedPart(self._attendance, int(part), state or 0, self._rows, self._tick_s)


class PacedPart:
    def __init__(self, attendance: Attendance, part: int, number: int, rows: int, tick_s: float) -> None:
        self._attendance = attendance
        self._part = part
        self._number = number
        self._rows = rows
        self._tick_s = tick_s
        self._due_s = 0.0

    def poll(self, rows_max: int) -> list[Sent] | None:
        now_s = time.monotonic()
        if now_s < self._due_s:
            return None
        began, self._number, self._due_s = self._number, self._number + self._rows, now_s + self._tick_s
        self._attendance.sign("read")
        return [sent(self._part, number) for number in range(began, self._number)]

    def is_finished(self) -> bool:
        return False

    def snapshot(self) -> int:
        return self._number

    def close(self) -> None:
        """Do nothing."""


def fault(record: Sent, last: Last) -> str:
    """Return what is wrong with a record that follows those of ``last``; empty if it is right."""
    part, number, key = record[:3]
    if record.check != checksum(part, number, key):
        return f"{record} is damaged"
    before = last.get((part, key), number % KEYS - KEYS)
    return "" if number == before + KEYS else f"{record} came after number {before}"


class Stage:
    """The functions of both stages: they check a record against the previous one of its part and key."""

    def __init__(self, attendance: Attendance) -> None:
        self._attendance = attendance

    def first(self, key: str, record: Sent, last: Last | None) -> tuple[Seen, Last]:
        self._attendance.sign("first")
        known = last or {}
        seen = Seen(record, fault(record, known), os.getpid(), next(_taken))
        return seen, known | {(record.part, record.key): record.number}

    def second(self, group: int, seen: Seen, last: Last | None) -> tuple[Seen, Last]:
        self._attendance.sign("second")
        known = last if last is not None else {}
        wrong = seen.wrong or fault(seen.sent, known)
        known[seen.sent.part, seen.sent.key] = seen.sent.number
        return seen._replace(wrong=wrong, second_by=os.getpid()), known


def is_shown(seen: Seen) -> bool:
    return bool(seen.wrong) or seen.sent.number % SAMPLE == 0


def traffic(
    name: str, sink: Any, attendance: Attendance, *, show: Callable[[Seen], Any] | None = None, **pace: Any
) -> mp.Job:
    """Return an endless job of two keyed stages. ``show`` makes the rows for ``sink``, if it takes no `Seen`."""
    job, stage = mp.Job(name), Stage(attendance)
    keyed = job.source("numbers", Paced(attendance, **pace)).key_by("by-key", lambda record: f"key-{record.key}")
    again = keyed.stateful_map("first", stage.first).key_by("by-group", lambda seen: seen.sent.key % GROUPS)
    shown = again.stateful_map("second", stage.second).filter("shown", is_shown)
    (shown if show is None else shown.map("show", show)).sink("out", sink)
    shown.filter("nothing", lambda _: False).sink("roll", Roll(attendance))
    return job


ROLES: Final = ("read", "first", "second")


class Tour:
    """Rescales a job several times, and checks at each size that all workers work."""

    def __init__(self, handle: mp.JobHandle, attendance: Attendance) -> None:
        self.handle = handle
        self.reports: list[RescaleReport] = []
        self._attendance = attendance

    def stay(self, workers: int) -> None:
        """Wait until exactly ``workers`` processes read and work at both stages."""
        until_s = time.monotonic() + PATIENCE_S
        while (now := self.handle.status().workers) != workers:
            assert time.monotonic() < until_s, (now, workers)
            time.sleep(0.05)  # the coordinator has not started them yet
        began_ns, until_s = self._attendance.now_ns(), time.monotonic() + PATIENCE_S
        wanted = {"read": min(PARTS, workers), "first": workers, "second": workers}
        while (found := {role: len(self._attendance.since(began_ns, role)) for role in ROLES}) != wanted:
            assert time.monotonic() < until_s, (found, wanted)
            time.sleep(0.05)

    def go(self, *sizes: int) -> None:
        """Rescale to each of ``sizes`` in turn, and wait at each until all workers work."""
        for size in sizes:
            report = self.handle.rescale(size)
            assert len(report.members) == size
            self.reports.append(report)
            self.stay(size)


def check_counts(result: mp.RunResult) -> None:
    """Check that every record that was read has reached both stages."""
    steps = result.steps
    assert result.read == steps["first"].rows_in == steps["second"].rows_in
    assert result.written == steps["out"].rows_in == steps["shown"].rows_out


def check_rows(rows: Iterable[Seen], result: mp.RunResult) -> None:
    """Check that every sampled record was written once, undamaged and in order."""
    numbers: defaultdict[int, list[int]] = defaultdict(list)
    for seen in rows:
        assert not seen.wrong
        assert fault(seen.sent, {}) == "" or seen.sent.number >= KEYS
        numbers[seen.sent.part].append(seen.sent.number)
    for found in numbers.values():
        assert sorted(found) == list(range(0, max(found) + 1, SAMPLE))
    assert result.written == sum(map(len, numbers.values()))
    # Each part may have read a few records since its last sampled one.
    assert -len(numbers) * SAMPLE < sum(map(len, numbers.values())) * SAMPLE - result.read < len(numbers) * SAMPLE


def check_order(by_group: dict[Any, list[Seen]]) -> None:
    """Check that the records of one key at each stage keep the order of their part, also across workers."""
    for rows in by_group.values():
        last: Last = {}
        for seen in rows:
            way = (seen.sent.part, seen.sent.key)
            assert last.get(way, -1) < seen.sent.number
            last[way] = seen.sent.number


def moved_keys(rows: Iterable[Seen]) -> int:
    """Return the number of keys that more than one process has handled."""
    owners: defaultdict[int, set[int]] = defaultdict(set)
    for seen in rows:
        owners[seen.sent.key].add(seen.first_by)
    return sum(len(found) > 1 for found in owners.values())


def held(rows: Iterable[Seen]) -> int:
    """Return the number of records that later ones of their part overtook between two processes.

    A channel keeps its order, so these records were held until their slots had arrived (R5).
    """
    ways: defaultdict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
    for seen in rows:
        ways[seen.sent.part, seen.sent.read_by, seen.first_by].append((seen.first_at, seen.sent.number))
    overtaken = 0
    for came in ways.values():
        highest = -1
        for _, number in sorted(came):
            overtaken += number < highest
            highest = max(highest, number)
    return overtaken


def memory_rows(out: sinks.Memory) -> list[Seen]:
    rows: list[Seen] = out.items
    return rows
