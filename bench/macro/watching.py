"""``python -m bench.macro.watching``: what it costs a job to be watched, and what a page of a large job costs.

W1 over rows and over columns, in one process, with its metrics scraped once a second and an open page of the dashboard,
with a tap of its step instead, and without, in turn; and with a snapshot a second that is queried all the time, beside
the same while another job, which has ended, is queried: both keep the other core busy. The page, the scrapes and the
readers are of another process. Time is from the first row that the sink gets to the last: of the processor, for all
threads of the job's process, and on the wall; a gap is the longest time between two batches that the sink gets. Then a
page of 40 steps and 64 workers, whose job is made up: bytes of an update, processor time of the server, and first paint
in a browser.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any, Final

import malstrom_py as mp
from bench.macro.capturing import add
from bench.macro.keyed_columns import BATCH_ROWS, Table, Total, table
from bench.macro.on_ray import verdict
from bench.macro.watched_page import free_port, measure_page
from bench.macro.watcher import KEYS
from bench.micro import machine
from bench.micro.timing import check_equal, spread
from malstrom_py.data.batch import Batch
from malstrom_py.worker_context import WorkerInfo

BUDGETS: Final = {"watched": ("alone", 0.98), "tapped": ("alone", 0.99), "queried": ("beside queries", 0.98)}
"""Kind of run -> the kind beside which it is measured, and the share of its speed that it is to have at least."""

NAME: Final = "watched"
READS: Final = (*BUDGETS, "beside queries")
"""The kinds of runs in which the other process has something to do."""


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
        self.gap_s = 0.0
        self._last_s = 0.0
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
        now_s = perf_counter()
        if self.wall_s:
            self.gap_s = max(self.gap_s, now_s - self._last_s)
        else:
            self.wall_s, self.cpu_s = now_s, process_time()
        self._last_s = now_s
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
        mp.InProcess(progress=False, **options).run(job, control=True)
        return out

    return Form("rows", rows, run)


def over_columns(rows: int) -> Form:
    """Return W1 over columns."""
    batches = table(rows, KEYS).to_batches(max_chunksize=BATCH_ROWS)

    def run(times: int, options: dict[str, Any]) -> Timed:
        job, out = mp.Job(NAME), Timed(rows * times, columns=True)
        job.source("rows", Table(batches * times)).key_by("by", "key").sum("sums", by="value").sink("out", out)
        mp.InProcess(progress=False, **options).run(job, control=True)
        return out

    return Form("columns", rows, run)


@dataclass(frozen=True, slots=True)
class Watcher:
    """What watches a job: another process, and for kinds of runs the options that let it."""

    process: subprocess.Popen[str]
    options: dict[str, dict[str, Any]]

    def watch(self, kind: str, run: Callable[[dict[str, Any]], Timed]) -> tuple[Timed, dict[str, int]]:
        """Return what ``run`` returns, and the counts of what was seen of it."""
        options, is_seen = self.options.get(kind, {}), kind in READS
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with tempfile.TemporaryDirectory() as kept, contextlib.redirect_stderr(io.StringIO()):  # the addresses
            if kind in ("queried", "beside queries", "with snapshots"):
                options = {"snapshots": mp.Snapshots(kept, interval_s=1.0)}
            if is_seen:
                self.process.stdin.write(f"{kind}\n")
                self.process.stdin.flush()
            ran = run(options)
            if kind == "beside queries":
                self.process.stdin.write("end\n")
                self.process.stdin.flush()
            return ran, json.loads(self.process.stdout.readline()) if is_seen else {}


@contextlib.contextmanager
def watcher() -> Iterator[Watcher]:
    """Start the process that watches."""
    token, port, metrics_port = "watching", free_port(), free_port()
    program = [sys.executable, "-m", "bench.macro.watcher", str(port), str(metrics_port), token, NAME]
    watched = {"metrics": mp.Metrics(metrics_port), "dashboard": mp.Dashboard(port, token=token)}
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Watcher(process, {"watched": watched})
        finally:
            process.terminate()


def compare(form: Form, watching: Watcher, *, reps: int, seconds: float) -> None:
    """Print the lines of one form."""
    times = max(1, round(seconds / min(form.run(1, {}).cpu_s for _ in range(3))))
    kinds = ("alone", "with snapshots", *READS)
    ran: dict[str, list[Timed]] = {kind: [] for kind in kinds}
    seen: dict[str, list[float]] = defaultdict(list)
    for number in range(reps):
        for place in range(len(kinds)):
            kind = kinds[(number + place) % len(kinds)]
            one, counts = watching.watch(kind, lambda options: form.run(times, options))
            for what, count in counts.items():
                seen[what].append(count / one.wall_s)
            ran[kind].append(one)
        check_equal({kind: ones[-1].total for kind, ones in ran.items()})
    ns = spread([one.cpu_s / (times * form.rows) * 1e9 for one in ran["alone"]])
    lengths = spread([one.wall_s for one in ran["alone"]])
    print(f"W1 over {form.name}, {ns.show(1)} ns per row, runs of {lengths.show(1)} s")
    for kind, (beside, budget) in BUDGETS.items():
        pairs = list(zip(ran[beside], ran[kind], strict=True))
        speed = spread([base.cpu_s / one.cpu_s for base, one in pairs])
        clocked = spread([base.wall_s / one.wall_s for base, one in pairs])
        print(
            f"  {kind}: {speed.show(3)} of the speed {beside} ({verdict(speed.median, budget, at_least=True)}), on the "
            f"wall {clocked.show(3)} ({verdict(clocked.median, budget, at_least=True)})"
        )
    gaps = [f"{kind} {spread([1e3 * one.gap_s for one in ran[kind]]).show(0)}" for kind in kinds]
    print(f"  ms of the longest gap: {', '.join(gaps)}")
    rates = [f"{spread(counts).median:,.1f} {what}" for what, counts in seen.items()]
    print(f"  a second: {', '.join(rates)}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.macro.watching", description=__doc__)
    parser.add_argument("--n", type=int, default=1_000_000, help="rows, read many times; five times as many of columns")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long a run is")
    parser.add_argument("--reps", type=int, default=7, help="runs of each kind; medians are printed")
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
