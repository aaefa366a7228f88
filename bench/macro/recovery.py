"""``python -m bench.macro.recovery``: how long a job on Ray is silent after one of its workers was killed.

The job keeps 1 kB for each key and makes a snapshot every few seconds; its source gives rows at a pace. A worker is
killed with SIGKILL, several times, the workers in turn. The time is taken from the kill to the first row that a writer
of the next run gets. Rule: what a writer notes survives its process.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic_ns, sleep
from typing import Final

import malstrom_py as mp
from bench.macro.feeding import Paced
from bench.macro.keeping import SLOTS, STATE_BYTES, STEP, has_all, keep
from bench.macro.on_ray import ray_here, runtime, stop, verdict, wait_for, warm
from bench.micro import machine
from bench.micro.timing import spread
from bench.micro.workloads import key_of
from malstrom_py.data.batch import Batch
from malstrom_py.worker_context import WorkerInfo

BUDGET_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class FirstRows:
    """A sink whose writers note when they get their first row, in a file with the number of the worker and its pid."""

    folder: str
    takes_columns: bool = True

    def build(self, worker: WorkerInfo) -> FirstRowsWriter:
        return FirstRowsWriter(Path(self.folder), worker.worker)


class FirstRowsWriter:
    def __init__(self, folder: Path, worker: int) -> None:
        self._file = folder / f"{monotonic_ns()}.{worker}.{os.getpid()}"
        self._noted = False

    def write(self, batch: Batch) -> None:
        if not self._noted:
            self._noted = True
            made = self._file.with_suffix(f"{self._file.suffix}.new")
            made.write_text(str(monotonic_ns()))
            made.rename(self._file)

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True, slots=True)
class FirstRow:
    """A writer that has got its first row, at ``first_ns``; it was ``made_ns`` before."""

    made_ns: int
    worker: int
    pid: int
    first_ns: int


def first_rows(folder: Path) -> list[FirstRow]:
    """All writers that have got a row, in the order in which they were made."""
    found = [(file, file.name.split(".")) for file in folder.iterdir() if not file.name.endswith(".new")]
    return sorted(
        (FirstRow(int(made), int(worker), int(pid), int(file.read_text())) for file, (made, worker, pid) in found),
        key=lambda row: row.made_ns,
    )


def recover(*, workers: int, keys: int, rate: int, kills: int, interval_s: float) -> str:
    """Kill a worker so many times, and describe how long each recovery took."""
    with tempfile.TemporaryDirectory() as top:
        out = Path(top) / "out"
        out.mkdir()
        job = mp.Job("recovery", slots=SLOTS)
        stream = job.source("in", Paced(keys, rate, "due")).key_by("key", key_of)
        stream.stateful_map(STEP, partial(keep, STATE_BYTES)).sink("out", FirstRows(str(out)))
        warm(workers + 1)
        handle = runtime(
            workers,
            snapshots=mp.Snapshots(Path(top) / "kept", interval_s=interval_s),
            restart=mp.Restart(max_restarts=kills, backoff_max_s=0.2),
        ).start(job, control=False)
        wait_for(handle, partial(has_all, keys))
        took_s, kept = list[float](), list[int]()
        for number in range(kills):
            _wait_for_snapshots(handle, 2)
            before = first_rows(out)[-workers:]
            victim = next(row for row in before if row.worker == number % workers)
            killed_ns = monotonic_ns()
            os.kill(victim.pid, signal.SIGKILL)
            wait_for(handle, partial(_all_wrote, out, killed_ns, workers))
            after = _since(out, killed_ns)
            took_s.append((min(row.first_ns for row in after) - killed_ns) / 1e9)
            kept.append(len({row.pid for row in before} & {row.pid for row in after}))
            print(
                f"  worker {victim.worker} killed: {took_s[-1]:.2f} s, {kept[-1]} of {workers} processes are the same"
            )
            sleep(interval_s)
        stop(handle)
    worst = max(took_s)
    return (
        f"from the kill of one of {workers} workers to the first row, with {keys * STATE_BYTES / 1e6:.0f} MB of state "
        f"and a snapshot every {interval_s:g} s: {spread(took_s).show(2)} s in {kills} kills "
        f"({verdict(worst, BUDGET_S, at_least=False)})"
    )


def _since(out: Path, killed_ns: int) -> list[FirstRow]:
    return [row for row in first_rows(out) if row.made_ns > killed_ns]


def _all_wrote(out: Path, since_ns: int, workers: int, status: mp.JobStatus) -> bool:
    return len(_since(out, since_ns)) == workers


def _wait_for_snapshots(handle: mp.JobHandle, count: int) -> None:
    """Until so many more snapshots are complete."""
    status = handle.status().snapshots
    made = 0 if status is None else status.made
    wait_for(handle, lambda status: status.snapshots is not None and status.snapshots.made >= made + count)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.macro.recovery", description=__doc__)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--keys", type=int, default=100_000, help="1 kB of state each")
    parser.add_argument("--rate", type=int, default=5_000, help="rows a second")
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--interval-s", type=float, default=2.0, help="between two snapshots")
    options = parser.parse_args()
    print(machine.describe())
    with ray_here() as version:
        print(f"Ray {version}")
        print(
            recover(
                workers=options.workers,
                keys=options.keys,
                rate=options.rate,
                kills=options.kills,
                interval_s=options.interval_s,
            )
        )


if __name__ == "__main__":
    main()
