"""``python -m bench.macro.snapshot``: what snapshots cost while a job runs, and how fast a job resumes from one.

A running sum per key, on one worker in this process. First all keys come once, then 1 % of them over and over. Rates
are of the same job with and without snapshots, in turn; the pause is how long a barrier kept the worker from its work,
of those snapshots that wrote what has changed; the disk is this machine's, beside plain writes with fsync; and resuming
is measured from the start of the program's run to the first row at the sink.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Final

import malstrom_py as mp
from bench.macro.keeping_state import Changing, Told, running_sum
from bench.macro.on_ray import ray_here, runtime, warm
from bench.micro import machine
from bench.micro.timing import spread
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.ids import fresh_snapshot_id
from malstrom_py.snapshot.local_store import LocalStore
from malstrom_py.snapshot.store import Range

CHANGING: Final = 0.01
COST_BUDGET: Final = 0.05
PAUSE_MS: Final = 50.0
DISK_MB_S: Final = 100.0
HERE_S: Final = 3.0
RAY_S: Final = 8.0
READ_BUDGET: Final = 2.1
WORKERS: Final = (1, 2, 4, 8)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.macro.snapshot", description=__doc__)
    parser.add_argument("--reps", type=int, default=3, help="rounds with and without snapshots")
    parser.add_argument("--keys", type=int, default=100_000, help="pauses: of a tenth and of ten times too")
    parser.add_argument("--run-s", type=float, default=20.0, help="how long each of them runs")
    parser.add_argument("--interval-s", type=float, default=5.0, help="between two snapshots")
    parser.add_argument("--folder", default=None, help="where snapshots are kept; a temporary folder by default")
    parser.add_argument("--ray", action="store_true", help="resume from a snapshot on Ray as well")
    options = parser.parse_args()
    print(machine.describe())
    folder = Path(tempfile.mkdtemp(prefix="malstrom-bench-", dir=options.folder))
    try:
        keys, run_s, interval_s = options.keys, options.run_s, options.interval_s
        print(cost(folder, keys, reps=options.reps, run_s=run_s, interval_s=interval_s))
        print(pauses(folder, keys, run_s=run_s / 2, interval_s=interval_s / 5))
        print(disk(folder))
        print(going_on(folder, keys, ray=options.ray))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def cost(folder: Path, keys: int, *, reps: int, run_s: float, interval_s: float) -> str:
    """The rate of a job with snapshots, beside the same without."""
    kept: list[float] = []
    for number in range(reps):
        place = mp.Snapshots(str(folder / f"cost-{number}"), interval_s=interval_s)
        rates = [_rate(keys, run_s, snapshots) for snapshots in (place, None)]
        kept.append(rates[0] / rates[1])
        print(f"  round {number + 1}: {rates[0]:,.0f} rows/s with snapshots, {rates[1]:,.0f} without")
    cost = 1 - spread(kept).median
    return (
        f"snapshots every {interval_s:g} s of {keys:,} keys of which {CHANGING:.0%} change cost {cost:.1%} of the "
        f"throughput ({1 - max(kept):.1%} to {1 - min(kept):.1%}; budget {COST_BUDGET:.0%}: "
        f"{_verdict(cost <= COST_BUDGET)})"
    )


def _rate(keys: int, run_s: float, snapshots: mp.Snapshots | None) -> float:
    job, counted = running_sum(Changing(keys, int(keys * CHANGING), run_s=run_s))
    began_s = monotonic()
    mp.run(job, snapshots=snapshots, progress=False)
    return counted.rows / (monotonic() - began_s)


def pauses(folder: Path, all_keys: int, *, run_s: float, interval_s: float) -> str:
    """How long a barrier keeps a worker from its work: by all keys, and by those that have changed."""
    lines = []
    few, many, more = all_keys // 100, all_keys // 10, 10 * all_keys
    for keys, changing in ((many, few), (all_keys, few), (more, few), (more, many)):
        with Told() as told:
            # A million keys take a while to come for the first time.
            job, _ = running_sum(Changing(keys, changing, run_s=run_s * (3 if keys == more else 1)))
            place = mp.Snapshots(str(folder / f"pause-{keys}-{changing}"), interval_s=interval_s)
            mp.run(job, snapshots=place, progress=False)
        # What is larger than a fifth of the largest: the first, and those while all keys still come for the first time.
        largest = max(size for _, size, _ in told.snapshots)
        deltas = [paused_s * 1e3 for paused_s, size, _ in told.snapshots if size < largest / 5]
        full = max(paused_s for paused_s, size, _ in told.snapshots) * 1e3
        within = "" if keys != all_keys else f", budget {PAUSE_MS:g}: {_verdict(max(deltas) <= PAUSE_MS)}"
        lines.append(
            f"  {keys:,} keys, {changing:,} change: a pause of {spread(deltas).show(1)} ms in {len(deltas)} snapshots"
            f"{within}; {full:,.0f} ms in full"
        )
    return "\n".join(["pauses of the worker, median (least to most):", *lines])


def disk(folder: Path) -> str:
    """Artefacts of 32 MiB: written, synced and with their digest, beside a plain file that is written and synced."""
    size, count = 32 << 20, 4
    data = os.urandom(size)
    checkpointer = StoreCheckpointer(LocalStore(str(folder / "disk")), "bench")
    ours, plain = [], []
    for number in range(count):
        began_s = perf_counter()
        with (folder / f"plain-{number}").open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        plain.append(size / (perf_counter() - began_s) / 1e6)
        began_s = perf_counter()
        checkpointer.save_snapshot(fresh_snapshot_id(float(number)), "sum", 0, data)
        ours.append(size / (perf_counter() - began_s) / 1e6)
    rate = spread(ours)
    ratio = spread([mine / theirs for mine, theirs in zip(ours, plain, strict=True)])
    return (
        f"to local disk {rate.show(0)} MB/s, {ratio.show()} of a plain write with fsync (budget {DISK_MB_S:g} MB/s: "
        f"{_verdict(rate.median >= DISK_MB_S)})"
    )


def going_on(folder: Path, keys: int, *, ray: bool) -> str:
    """From the start of a run to its first row, where 1 kB of state for each of ``keys`` is taken over."""
    kept = folder / "going-on"
    job, counted = running_sum(Changing(keys, 1, run_s=3600.0), "going-on", padding=1000)
    handle = mp.InProcess(snapshots=mp.Snapshots(str(kept), interval_s=None)).start(job, control=False)
    while counted.rows < keys:
        sleep(0.05)
    handle.stop(drain=False)
    size = sum(file.stat().st_size for file in kept.rglob("*.full"))
    lines = [read_at(kept, size, keys)]
    lines.append(f"resuming from {size / 1e6:.0f} MB of state, from the start of the run to its first row:")
    for name, budget_s in (("in process", HERE_S), *((("on Ray, 2 workers", RAY_S),) if ray else ())):
        place = folder / name.replace(" ", "-").replace(",", "")
        shutil.copytree(kept, place)
        took_s = _first_row_s(place, keys, on_ray=name != "in process")
        lines.append(f"  {name} {took_s:.2f} s (budget {budget_s:g} s: {_verdict(took_s <= budget_s)})")
    return "\n".join(lines)


class _Counted(LocalStore):
    """Counts the bytes of artefacts that are read."""

    read = 0

    def get(self, path: str) -> bytes:
        data = super().get(path)
        self.read += len(data) if "/artefacts/" in path else 0
        return data

    def get_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        found = super().get_ranges(path, ranges)
        self.read += sum(map(len, found))
        return found


def read_at(kept: Path, size: int, keys: int) -> str:
    """The bytes of state that all workers of a resuming job read together, as a multiple of the snapshot."""
    found = []
    for workers in WORKERS:
        place = kept.with_name(f"read-{workers}")
        shutil.copytree(kept, place)
        store = _Counted(str(place))
        job, _ = running_sum(Changing(keys, 1, run_s=0.0), "going-on", padding=1000)
        mp.run(job, workers=workers, snapshots=mp.Snapshots(store, interval_s=None), progress=False)
        found.append((workers, store.read / size))
        shutil.rmtree(place)
    worst = max(ratio for _, ratio in found)
    read = ", ".join(f"{ratio:.2f} at {workers}" for workers, ratio in found)
    return (
        f"bytes of state read at a resume, of {size / 1e6:.0f} MB, by the number of workers: {read} "
        f"(budget {READ_BUDGET:g}: {_verdict(worst <= READ_BUDGET)})"
    )


def _first_row_s(place: Path, keys: int, *, on_ray: bool) -> float:
    snapshots, noted = mp.Snapshots(str(place), interval_s=None), place / "first-row"
    job, _ = running_sum(Changing(keys, 1, run_s=1.0), "going-on", padding=1000, noted=str(noted))
    if on_ray:
        with ray_here():
            warm(3)
            began_s = monotonic()
            runtime(2, snapshots=snapshots).run(job)
    else:
        began_s = monotonic()
        mp.run(job, snapshots=snapshots, progress=False)
    return float(noted.read_text()) - began_s


def _verdict(holds: bool) -> str:
    return "hit" if holds else "MISS"


if __name__ == "__main__":
    main()
