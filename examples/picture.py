"""The picture on the front page: ``make picture``, or ``python -m examples.picture``. It shows a job on Ray that gets
more rows than two workers manage, is rescaled to four, processes what has piled up, and goes back to two.

The job really runs: a source has rows due at a fixed rate, ``key_by`` distributes them, a step waits for each row as
for the answer of a service and counts per key, and a sink records which worker wrote which rows when. Waiting needs no
core, so the workers may be more than the cores of the machine. The program checks that no count is missing or twice.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

import malstrom_py as mp
from examples import svg
from malstrom_py import sources
from malstrom_py.data.batch import Batch
from malstrom_py.worker_context import WorkerInfo

KEYS: Final = 1_200
PARTS: Final = 8
ROWS_PER_S: Final = 2_400
WAIT_S: Final = 0.001
"""How long each row waits for its answer: a worker manages fewer than a thousand rows per second."""
PLAN: Final = ((4.0, 4), (14.0, 2))
"""The rescales: the second at which one starts, and the new number of workers."""
END_S: Final = 18.0
WARM_UP_S: Final = 1.0
BUCKET_S: Final = 0.2

Row = tuple[int, float]
"""A key, and the time at which the row was due."""


@dataclass(frozen=True)
class Steady:
    """Gives ``rows_per_s`` rows from ``start_s`` to ``end_s`` of the monotonic clock, each when it is due."""

    start_s: float
    end_s: float
    rows_per_s: int = ROWS_PER_S

    def list_parts(self) -> Sequence[sources.Part]:
        return [sources.Part(f"part-{number}") for number in range(PARTS)]

    def build_part(self, part: sources.Part, state: Any) -> SteadyPart:
        return SteadyPart(self, int(part.removeprefix("part-")), state or 0)


class SteadyPart:
    def __init__(self, source: Steady, number: int, given: int) -> None:
        self._source = source
        self._number = number
        self._given = given
        self._rate = source.rows_per_s / PARTS
        self._rows = int((source.end_s - source.start_s) * self._rate)

    def poll(self, rows_max: int) -> list[Row] | None:
        due = min(self._rows, int((monotonic() - self._source.start_s) * self._rate))
        until = min(due, self._given + rows_max)
        if until <= self._given:
            return None
        since, self._given = self._given, until
        return [
            ((number * PARTS + self._number) % KEYS, self._source.start_s + number / self._rate)
            for number in range(since, until)
        ]

    def is_finished(self) -> bool:
        return self._given >= self._rows

    def snapshot(self) -> int:
        return self._given

    def close(self) -> None:
        """Nothing is open."""


class Bucket:
    """What was written in `BUCKET_S` seconds: rows per worker, the last writer of each key, and the longest delay."""

    def __init__(self) -> None:
        self.rows: Counter[int] = Counter()
        self.owners: dict[int, int] = {}
        self.longest_s = 0.0


@dataclass(frozen=True)
class Recorder:
    """A sink whose workers, each in its process, note in separate files what they write and when."""

    folder: str

    def build(self, worker: WorkerInfo) -> RecorderWriter:
        return RecorderWriter(Path(self.folder, f"{worker.worker}-{os.getpid()}-{monotonic()}"), worker.worker)


class RecorderWriter:
    def __init__(self, path: Path, worker: int) -> None:
        self._file = path.open("w")
        self._worker = worker

    def write(self, batch: Batch) -> None:
        rows = [[key, due_s, count] for key, (due_s, count) in zip(batch.keys or (), batch.values, strict=True)]
        self._file.write(json.dumps([self._worker, monotonic(), rows]) + "\n")

    def close(self) -> None:
        self._file.close()


def answered(_: int, row: Row, seen: int) -> tuple[tuple[float, int], int]:
    """Wait for an answer; return the time at which the row was due and the number of rows of its key so far."""
    sleep(WAIT_S)
    return (row[1], seen + 1), seen + 1


@dataclass(frozen=True)
class Rescaled:
    """A rescale: when it started and ended, and the number of workers after it."""

    start_s: float
    end_s: float
    workers: int
    keys: int


def run(
    runtime: mp.InProcess | mp.RayRuntime,
    rows_per_s: int = ROWS_PER_S,
    *,
    plan: Sequence[tuple[float, int]] = PLAN,
    end_s: float = END_S,
    ready_s: float = 0.0,
) -> Recorded:
    """Run the job on two workers, which are ready after ``ready_s``, and rescale it as planned."""
    start_s = monotonic() + ready_s + WARM_UP_S
    with tempfile.TemporaryDirectory() as folder:
        job = mp.Job("picture")
        rows = job.source("rows", Steady(start_s - WARM_UP_S, start_s + end_s, rows_per_s))
        counted = rows.key_by("key", lambda row: row[0]).stateful_map("answer", answered, default=int)
        counted.sink("out", Recorder(folder))
        handle = runtime.start(job)
        done = []
        for at_s, workers in plan:
            sleep(max(0.0, start_s + at_s - monotonic()))
            began_s = monotonic() - start_s
            report = handle.rescale(workers)
            done.append(Rescaled(began_s, monotonic() - start_s, workers, report.keys))
        result = handle.wait()
        written = [json.loads(line) for file in Path(folder).iterdir() for line in file.read_text().splitlines()]
    return Recorded(result, sorted(written, key=lambda batch: batch[1]), start_s, done, rows_per_s, end_s)


@dataclass(frozen=True)
class Recorded:
    """What a run did. ``written``: the batches of its sinks in order, as (worker, time, [key, due, count] per row)."""

    result: mp.RunResult
    written: Sequence[tuple[int, float, list[tuple[int, float, int]]]]
    start_s: float
    rescales: Sequence[Rescaled]
    rows_per_s: int
    end_s: float

    @property
    def is_right(self) -> bool:
        """Whether each row was counted once and in order."""
        counts: defaultdict[int, list[int]] = defaultdict(list)
        for _, _, rows in self.written:
            for key, _, count in rows:
                counts[key].append(count)
        complete = all(of_key == list(range(1, len(of_key) + 1)) for of_key in counts.values())
        return complete and sum(map(len, counts.values())) == self.result.read

    @property
    def buckets(self) -> list[Bucket]:
        """The buckets after the warm-up, in order."""
        buckets = [Bucket() for _ in range(round(self.end_s / BUCKET_S))]
        for worker, at_s, rows in self.written:
            number = int((at_s - self.start_s) // BUCKET_S)
            if 0 <= number < len(buckets):
                bucket = buckets[number]
                bucket.rows[worker] += len(rows)
                bucket.owners |= {key: worker for key, _, _ in rows}
                bucket.longest_s = max([bucket.longest_s, *(at_s - due_s for _, due_s, _ in rows)])
        return buckets


WIDTH, LEFT, RIGHT, TOP, PANEL, GAP = 860, 74, 24, 82, 84, 42


def draw(recorded: Recorded) -> str:
    """The picture as SVG: rows per second and keys, the workers one above the other, and the longest delay."""
    buckets = recorded.buckets
    workers = sorted({worker for bucket in buckets for worker in bucket.rows})
    rates = [[bucket.rows[worker] / BUCKET_S for bucket in buckets] for worker in workers]
    owners = accumulate((bucket.owners for bucket in buckets), lambda before, new: before | new)
    owned = [Counter(bucket.values()) for bucket in owners]
    keys = [[float(of[worker]) for of in owned] for worker in workers]
    delays = [bucket.longest_s for bucket in buckets]
    read = f"{recorded.result.read:,} rows read, {recorded.result.written:,} written"
    pieces = [
        svg.text(LEFT, 20, "Two workers cannot keep up; four can: a running job is rescaled", size=16, bold=True),
        svg.text(LEFT, 40, f"{read}: none lost, none repeated, in order for each key", colour=svg.MUTED),
        *_panel(recorded, 0, f"rows per second, by worker ({recorded.rows_per_s:,} arrive)", rates),
        *_panel(recorded, 1, "keys, by worker", keys),
        *_panel(recorded, 2, "longest time from a row's arrival to the sink, s", [delays], colour=svg.MUTED),
        *_legend(workers),
        *_captions(recorded),
        *_arriving(recorded, rates),
    ]
    return svg.document(WIDTH, TOP + 3 * (PANEL + GAP), pieces)


def _most(lines: Sequence[Sequence[float]]) -> float:
    """Return the value at the top of a panel."""
    return _rounded_up(max(map(sum, zip(*lines, strict=True))))


def _arriving(recorded: Recorded, rates: Sequence[Sequence[float]]) -> Iterator[str]:
    """A line at the rate at which rows arrive."""
    y = _top(0) + PANEL * (1 - min(1.0, recorded.rows_per_s / _most(rates)))
    yield svg.line((LEFT, y), (WIDTH - RIGHT, y), colour=svg.INK)


def _top(row: int) -> float:
    return TOP + row * (PANEL + GAP) + 18


def _x(recorded: Recorded, at_s: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * at_s / recorded.end_s


def _panel(
    recorded: Recorded, row: int, title: str, lines: Sequence[Sequence[float]], *, colour: str = ""
) -> Iterator[str]:
    """Axes, the time of the rescales, and ``lines`` one above the other."""
    top, bottom = _top(row), _top(row) + PANEL
    most = _most(lines)
    yield svg.text(LEFT, top - 6, title, bold=True)
    for rescale in recorded.rescales:
        since, until = _x(recorded, rescale.start_s), _x(recorded, rescale.end_s)
        yield svg.rectangle((since, top), max(2.0, until - since), PANEL, colour="#f3e3bd")
    for share in (0.0, 0.5, 1.0):
        y = bottom - PANEL * share
        yield svg.line((LEFT, y), (WIDTH - RIGHT, y))
        yield svg.text(LEFT - 6, y + 4, f"{most * share:,.0f}", colour=svg.MUTED, anchor="end")
    floor = [0.0] * len(lines[0])
    for place, line in enumerate(lines):
        level = [low + value for low, value in zip(floor, line, strict=True)]
        outline = [*enumerate(level), *reversed(list(enumerate(floor)))]
        points = [(_x(recorded, (at + 0.5) * BUCKET_S), bottom - PANEL * value / most) for at, value in outline]
        yield svg.area(points, colour=colour or svg.COLOURS[place])
        floor = level
    for second in range(int(recorded.end_s) + 1):
        yield svg.text(_x(recorded, second), bottom + 15, f"{second} s", colour=svg.MUTED, anchor="middle")


def _rounded_up(value: float) -> float:
    """Return the next round value above ``value``: a multiple of half its power of ten."""
    unit = float(10 ** (len(str(int(value))) - 1)) / 2
    return (value // unit + 1) * unit


def _legend(workers: Sequence[int]) -> Iterator[str]:
    for place, worker in enumerate(workers):
        at = WIDTH - RIGHT - 82 * (len(workers) - place)
        yield svg.rectangle((at, TOP - 34), 10, 10, colour=svg.COLOURS[place])
        yield svg.text(at + 14, TOP - 25, f"worker {worker}", colour=svg.MUTED)


def _captions(recorded: Recorded) -> Iterator[str]:
    """What each rescale did, above the panel of keys."""
    for rescale in recorded.rescales:
        took_s = rescale.end_s - rescale.start_s
        words = f"to {rescale.workers}: {rescale.keys:,} keys in {took_s:.1f} s"
        yield svg.text(_x(recorded, rescale.start_s), _top(1) - 6, words, colour=svg.MUTED)


def main() -> None:
    """Read the arguments, run, and draw. The exit code is 0 only if each row was counted once and in order."""
    parser = argparse.ArgumentParser(prog="python -m examples.picture", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images/rescale.svg"), help="the file to write")
    out: Path = parser.parse_args().out
    recorded = run(mp.RayRuntime(2, num_cpus=0.1, batch=mp.Batching(rows_max=64), progress=False), ready_s=8.0)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(draw(recorded))
    for rescale in recorded.rescales:
        print(f"to {rescale.workers} workers in {rescale.end_s - rescale.start_s:.2f} s, {rescale.keys:,} keys moved")
    print(f"{recorded.result.read:,} rows read, {recorded.result.written:,} written: {out}")
    sys.exit(0 if recorded.is_right else 1)


if __name__ == "__main__":
    main()
