"""``python -m bench.macro.watching``: what it costs a job to be watched, and what a page of a large job costs.

W1 over rows and over columns, in one process, with its metrics scraped once a second and an open page of the dashboard,
beside the same without, in turn. The page and the scrapes are of another process. Time is from the first row that the
sink gets to the last: of the processor, for all threads of the job's process, and on the wall. Then a page of 40 steps
and 64 workers, whose job is made up: bytes of an update, processor time of the server, and first paint in a browser.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any, Final

import malstrom_py as mp
from bench.macro.capturing import add
from bench.macro.keyed_columns import BATCH_ROWS, Table, Total, table
from bench.macro.on_ray import verdict
from bench.macro.watched_page import free_port, measure_page
from bench.micro import machine
from bench.micro.timing import Spread, check_equal, spread
from malstrom_py.data.batch import Batch
from malstrom_py.worker_context import WorkerInfo

BUDGET: Final = 0.98
NAME: Final = "watched"
KEYS: Final = 10_000


class Slices:
    """A source of ``rows``, so many ``times``, in slices."""

    def __init__(self, rows: Sequence[Any], times: int) -> None:
        self._rows = rows
        self._left = times
        self._at = 0

    def build(self, worker: WorkerInfo) -> Slices:
        return self

    def poll(self, rows_max: int) -> list[Any]:
        polled = list(self._rows[self._at : self._at + rows_max])
        self._at += len(polled)
        if self._at == len(self._rows):
            self._at = 0
            self._left -= 1
        return polled

    def is_finished(self) -> bool:
        return not self._left

    def snapshot(self) -> None:
        return None

    def close(self) -> None:
        """Nothing is open."""


class Timed:
    """A sink that adds all sums, and notes when the first and the last of ``rows`` rows came."""

    def __init__(self, rows: int, *, columns: bool) -> None:
        self.takes_columns = columns
        self.wall_s = 0.0
        self.cpu_s = 0.0
        self._columns = Total() if columns else None
        self._sum = 0
        self._left = rows

    @property
    def total(self) -> int:
        """Return the sum of all rows."""
        return self._sum if self._columns is None else self._columns.total

    def build(self, worker: WorkerInfo) -> Timed:
        return self

    def write(self, batch: Batch) -> None:
        if not self.wall_s:
            self.wall_s, self.cpu_s = perf_counter(), process_time()
        if self._columns is None:
            self._sum += sum(batch.values)
        else:
            self._columns.write(batch)
        self._left -= len(batch)
        if not self._left:
            self.wall_s, self.cpu_s = perf_counter() - self.wall_s, process_time() - self.cpu_s

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True, slots=True)
class Form:
    """W1 over rows or columns. ``run(times, options)`` runs it over its rows so many times."""

    name: str
    rows: int
    run: Callable[[int, dict[str, Any]], Timed]


def over_rows(rows: int) -> Form:
    """Return W1 over tuples."""
    whole = table(rows, KEYS)
    items = list(zip(whole["key"].to_pylist(), whole["value"].to_pylist(), strict=True))

    def run(times: int, options: dict[str, Any]) -> Timed:
        job, out = mp.Job(NAME), Timed(rows * times, columns=False)
        keyed = job.source("rows", Slices(items, times)).key_by("by", lambda row: row[0])
        keyed.stateful_map("sums", add, default=int).sink("out", out)
        mp.run(job, progress=False, **options)
        return out

    return Form("rows", rows, run)


def over_columns(rows: int) -> Form:
    """Return W1 over columns."""
    batches = table(rows, KEYS).to_batches(max_chunksize=BATCH_ROWS)

    def run(times: int, options: dict[str, Any]) -> Timed:
        job, out = mp.Job(NAME), Timed(rows * times, columns=True)
        job.source("rows", Table(batches * times)).key_by("by", "key").sum("sums", by="value").sink("out", out)
        mp.run(job, progress=False, **options)
        return out

    return Form("columns", rows, run)


@dataclass(frozen=True, slots=True)
class Watcher:
    """What watches a job: another process, and the options that let it."""

    process: subprocess.Popen[str]
    options: dict[str, Any]

    def watch(self, run: Callable[[dict[str, Any]], Timed]) -> tuple[Timed, dict[str, int]]:
        """Return what ``run`` returns, and the counts of what was seen of it."""
        assert self.process.stdin is not None
        self.process.stdin.write("watch\n")
        self.process.stdin.flush()
        with contextlib.redirect_stderr(io.StringIO()):  # the addresses
            ran = run(self.options)
        assert self.process.stdout is not None
        return ran, json.loads(self.process.stdout.readline())


@contextlib.contextmanager
def watcher() -> Iterator[Watcher]:
    """Start the process that watches."""
    token, port, metrics_port = "watching", free_port(), free_port()
    program = [sys.executable, "-m", "bench.macro.watcher", str(port), str(metrics_port), token, NAME]
    options = {"metrics": mp.Metrics(metrics_port), "dashboard": mp.Dashboard(port, token=token)}
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Watcher(process, options)
        finally:
            process.terminate()


def compare(form: Form, watching: Watcher, *, reps: int, seconds: float) -> None:
    """Print the line of one form."""
    times = max(1, round(seconds / min(form.run(1, {}).cpu_s for _ in range(3))))
    wall: list[float] = []
    cpu: list[float] = []
    ns: list[float] = []
    lengths: list[float] = []
    seen: dict[str, list[float]] = {"updates": [], "scrapes": []}
    for number in range(reps):
        ran: dict[str, Timed] = {}
        for kind in ("alone", "watched") if number % 2 else ("watched", "alone"):
            if kind == "alone":
                ran[kind] = form.run(times, {})
            else:
                ran[kind], counts = watching.watch(lambda options: form.run(times, options))
                for what, count in counts.items():
                    seen[what].append(count / ran[kind].wall_s)
        check_equal({kind: one.total for kind, one in ran.items()})
        wall.append(ran["alone"].wall_s / ran["watched"].wall_s)
        cpu.append(ran["alone"].cpu_s / ran["watched"].cpu_s)
        lengths.append(ran["watched"].wall_s)
        ns.append(ran["alone"].cpu_s / (times * form.rows) * 1e9)
    speed, clocked = spread(cpu), spread(wall)
    print(
        f"W1 over {form.name}, {spread(ns).show(1)} ns per row, runs of {spread(lengths).show(1)} s: watched, "
        f"{speed.show(3)} of the speed without ({verdict(speed.median, BUDGET, at_least=True)}), on the wall "
        f"{clocked.show(3)} ({verdict(clocked.median, BUDGET, at_least=True)}); {_per_s(seen['updates'])} updates and "
        f"{_per_s(seen['scrapes'])} scrapes a second",
        flush=True,
    )


def _per_s(counts: list[float]) -> str:
    found: Spread = spread(counts)
    return f"{found.median:.1f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.macro.watching", description=__doc__)
    parser.add_argument("--n", type=int, default=1_000_000, help="rows, read many times; five times as many of columns")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long a run is")
    parser.add_argument("--reps", type=int, default=7, help="pairs of runs; medians are printed")
    parser.add_argument("--only", choices=("job", "page"), nargs="*", default=["job", "page"])
    given = parser.parse_args(arguments)
    print(machine.describe())
    if "job" in given.only:
        with watcher() as watching:
            for form in (over_rows(given.n), over_columns(5 * given.n)):
                compare(form, watching, reps=given.reps, seconds=given.seconds)
    if "page" in given.only:
        measure_page(given.seconds, given.reps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
