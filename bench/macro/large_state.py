"""``python -m bench.macro.large_state``: state that memory has no room for, with snapshots, rescales and a kill -9.

Each part gives all its keys in one order, round after round, with the number of the round, which is what the state of a
key has counted before: so a state that is lost, old, or changed twice is found when its key comes again, and the output
is only what is wrong. The job goes 1 -> 2 -> 1, a worker is killed in between, and a share of the keys comes again.
At the end the last snapshot is read: every key is there once, and has counted what its part had given by then.
Rule: memory is the most that a process ever had (VmHWM).
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from statistics import median
from threading import Event, Thread
from time import monotonic, sleep
from typing import Final

import malstrom_py as mp
from bench.micro import machine
from malstrom_py import sinks, sources
from malstrom_py.codec.job_codec import without_classes
from malstrom_py.events import SnapshotCompleted
from malstrom_py.snapshot import summary
from malstrom_py.snapshot.verification import verified
from malstrom_py.state.artefact import entries_in
from malstrom_py.state.artefact_parts import PART_BYTES, in_parts

PARTS: Final = 4
_STRIDE: Final = 1_000_003
"""No two keys that follow each other in a round are neighbours."""

Row = tuple[str, int]
State = tuple[int, str]


def rounds(keys: int, part: int, start: int) -> Iterator[Row]:
    """Yield the rows of a part from row ``start`` on, for ever: its keys, and how often each has come."""
    mine = keys // PARTS
    while True:
        number, place = divmod(start, mine)
        yield f"user-{place * _STRIDE % mine * PARTS + part:010d}", number
        start += 1


def counted(key: str, row: Row, state: State) -> tuple[str, State]:
    """Count the rows of a key, in a state of about 100 bytes, and return what is wrong."""
    count, text = state
    is_right = count == row[1] and (not count or text == key * 5)
    return "" if is_right else f"{key} has come {row[1]} times and has {count}", (row[1] + 1, key * 5)


def _none() -> State:
    return 0, ""


class Peaks:
    """The most memory of each process of this job so far, which is read twice a second."""

    def __init__(self) -> None:
        self.of: dict[int, int] = {}
        self._ended = Event()
        Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._ended.wait(0.5):
            for pid in (os.getpid(), *_below(os.getpid())):
                if (peak := _peak_of(pid)) is not None:
                    self.of[pid] = peak

    def close(self) -> None:
        self._ended.set()


def _below(pid: int) -> Iterator[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return
    for child in map(int, children):
        yield child
        yield from _below(child)


def _peak_of(pid: int) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return next((int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM")), None)


def _until(what: str, is_so: Callable[[], bool]) -> None:
    began_s = monotonic()
    while not is_so():
        sleep(0.5)
    print(f"  {monotonic() - began_s:7.1f} s until {what}", flush=True)


def _last(handle: mp.JobHandle) -> str | None:
    status = handle.status().snapshots
    return None if status is None else status.last


def wrong_in_snapshot(kept: Path, keys: int) -> Iterator[str]:
    """Compare the last snapshot with what the parts had given by then, and yield what is wrong."""
    checkpointer = mp.Snapshots(kept).checkpointer("large-state")
    manifest = summary.manifests_of(checkpointer)[-1]
    given = {int(part): position for _, part, position, _ in summary.positions_of(manifest)}
    mine, found, codec = keys // PARTS, 0, without_classes()
    back = pow(_STRIDE, -1, mine)
    for (step, _), chain in manifest.chains().items():
        stored = [verified(checkpointer, artefact) for artefact in chain]
        for part in in_parts(stored, None, PART_BYTES):
            for _, key, (count, text), _ in entries_in(part, codec, step=step):
                place, of = divmod(int(key.removeprefix("user-")), PARTS)
                rounds_given, more = divmod(given[of], mine)
                if count != rounds_given + (place * back % mine < more) or text != key * 5:
                    yield f"{key} is kept with {count}"
                found += 1
    if found != keys:
        yield f"{found} keys are kept, not {keys}"


def run(*, keys: int, slots: int, memory: str, seconds: float, interval_s: float, again: float, folder: Path) -> bool:
    """Run the job, print what it took, and return whether it was exact."""
    out, peaks = folder / "out", Peaks()
    job = mp.Job("large-state", slots=slots)
    keyed = job.source("in", sources.Generator(partial(rounds, keys), parts=PARTS)).key_by("key", itemgetter(0))
    wrong = keyed.stateful_map("count", counted, default=_none).filter("wrong", bool)
    wrong.sink("out", sinks.Files(out, format="json"))
    runtime = mp.Processes(
        1, state=mp.State(memory, folder / "disk"), snapshots=mp.Snapshots(folder / "kept", interval_s=interval_s)
    )
    handle = runtime.start(job)

    def read() -> int:
        return handle.status().counts.read

    def next_snapshot() -> None:
        last = _last(handle)
        _until("a snapshot is complete", lambda: _last(handle) != last)

    pauses: list[float] = []

    def say_pauses() -> None:
        """Print the pauses of the snapshots since the last call."""
        found = [event.pause_s for event in handle.events(follow=False) if isinstance(event, SnapshotCompleted)]
        if new := sorted(found[len(pauses) :]):
            print(f"            {len(new)} snapshots paused workers for {median(new):.2f} s, at most {new[-1]:.2f}")
        pauses[:] = found

    _until("all keys have come", lambda: read() >= keys)
    next_snapshot()
    say_pauses()
    for size in (2, 1):
        began_s = monotonic()
        handle.rescale(size, timeout_s=3600)
        print(f"  {monotonic() - began_s:7.1f} s for a rescale to {size} workers", flush=True)
        say_pauses()
        sleep(seconds)
        next_snapshot()
    victim = max(worker.pid for worker in handle.metrics().workers)
    os.kill(victim, signal.SIGKILL)
    _until("the job is up again", lambda: handle.status().restarts == 1 and handle.status().phase == "steady")
    before = read()
    _until(f"{again:.0%} of the keys have come again", lambda: read() >= before + again * keys)
    next_snapshot()
    workers = handle.metrics().workers
    found, others = sum(one.found_on_disk for one in workers), sum(one.not_on_disk for one in workers)
    on_disk = sum(one.state_on_disk for one in workers)
    print(f"  on disk {on_disk >> 20} MB; {found / max(1, found + others):.0%} found there")
    handle.stop()
    peaks.close()
    lines = [line for file in out.glob("*.json") for line in file.read_text().splitlines()]
    lines += islice(wrong_in_snapshot(folder / "kept", keys), 10)
    for pid, peak in peaks.of.items():
        print(f"  {'the coordinator' if pid == os.getpid() else f'process {pid}'}: {peak} MB at most")
    print(f"  {'exact, also the last snapshot' if not lines else f'WRONG: {len(lines)} rows, such as {lines[0]}'}")
    return not lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=3_000_000)
    parser.add_argument("--slots", type=int, default=64, help="1,024 for 50 million keys have as many keys each")
    parser.add_argument("--memory", default="64MB")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long it runs after each rescale")
    parser.add_argument("--interval-s", type=float, default=5.0, help="of snapshots")
    parser.add_argument("--again", type=float, default=1.25, help="the share of the keys that come again at the end")
    parser.add_argument("--folder", type=Path, help="where the disks are; a temporary folder is made in it")
    given = parser.parse_args()
    print(machine.describe())
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        is_exact = run(
            keys=given.keys,
            slots=given.slots,
            memory=given.memory,
            seconds=given.seconds,
            interval_s=given.interval_s,
            again=given.again,
            folder=Path(folder),
        )
    raise SystemExit(not is_exact)


if __name__ == "__main__":
    main()
