"""Kills workers and coordinators of a job on Ray, one after the other, at random moments, and checks that no row of it
shows: ``python -m tests.integration.ray.chaos --kills 500`` (``make chaos``).

Every record says which one of its part it is, and its key's state counts it: what is lost, comes twice, or was counted
twice, shows in the files at the end. A kill counts once its process is gone and the job says that it went back.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import MalstromError
from tests.integration.ray.leftovers import is_alive, pids
from tests.integration.transport.ends import local_ray

PARTS: Final = 4
KEYS: Final = 97
SIZES: Final = (1, 2, 3)
PATIENCE_S: Final = 120.0
PAUSE_S: Final = 1.5
"""A kill comes at most so long after the job resumes; snapshots are taken in that time."""

Row = dict[str, int]


def numbers(part: int, start: int) -> Iterator[tuple[int, int]]:
    """The records of a part, from one on, at a pace."""
    while True:
        yield part, start
        start += 1
        if start % 20 == 0:
            time.sleep(0.02)


def counted(key: int, record: tuple[int, int], seen: int) -> tuple[Row, int]:
    """Count a record of a key."""
    part, number = record
    return {"part": part, "number": number, "key": key, "seen": seen + 1}, seen + 1


def chaotic(name: str, folder: Path, noted: Callable[[Row], object] | None = None) -> mp.Job:
    """A job that can be killed at any moment, and writes into ``folder``. ``noted`` is called with each row as well."""
    job = mp.Job(name)
    read = job.source("in", sources.Generator(numbers, parts=PARTS))
    keyed = read.key_by("by-key", lambda record: record[1] % KEYS)
    rows = keyed.stateful_map("count", counted, default=int)
    rows.sink("out", sinks.Files(folder, format="json"))
    if noted is not None:
        rows.sink("noted", sinks.Callable(noted))
    return job


def rows_in(folder: Path) -> list[Row]:
    """What a job has committed into a folder."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith(("_", ".")))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def check(rows: list[Row]) -> None:
    """Every record is there once, and was counted once."""
    parts, keys = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for row in rows:
        parts[row["part"]].append(row["number"])
        keys[row["key"]].append(row["seen"])
    assert len(parts) == PARTS
    for found in parts.values():
        assert sorted(found) == list(range(len(found)))
    for seen in keys.values():
        assert sorted(seen) == list(range(1, len(seen) + 1))


def until(holds: Callable[[], bool], what: Callable[[], object]) -> None:
    """Wait until something holds."""
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until_s, what()
        time.sleep(0.02)


class Chaos:
    """Kills what works for the job of ``handle``, as ``rng`` says. ``hits``: which kinds of kills there were."""

    def __init__(self, handle: mp.JobHandle, rng: random.Random) -> None:
        self.hits = defaultdict[str, int](int)
        self.slowest_s = 0.0
        self._handle = handle
        self._rng = rng

    def stands(self, but: str | None) -> str | None:
        """Wait for a snapshot other than ``but``, by which the job has resumed, and return its id."""
        until(lambda: self._last() not in {None, but}, self._handle.status)
        return self._last()

    def strike(self, kind: str, *, rescales: bool) -> None:
        """Kill an actor of a kind once, in the middle of a rescale if ``rescales``, and wait until the job resumes."""
        before = self.stands(None)
        time.sleep(self._rng.uniform(0.0, PAUSE_S))
        if rescales:
            self._rescale()
        restarts = self._handle.status().restarts
        until(lambda: bool(pids(kind)), lambda: f"no {kind} is alive")
        pid = self._rng.choice(pids(kind))
        began_s = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        until(lambda: not is_alive(pid), lambda: f"process {pid} is alive")
        until(lambda: self._handle.status().restarts > restarts, self._handle.status)
        self.stands(before)
        self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
        self.hits[f"{kind}{' in a rescale' if rescales else ''}"] += 1

    def _rescale(self) -> None:
        """Ask for another size; sometimes wait until keys are moving."""
        size = self._rng.choice([size for size in SIZES if size != self._handle.status().workers])
        try:
            self._handle.rescale(size, wait=False)
        except MalstromError:
            return  # it is going back already
        if self._rng.random() < 0.7:
            until(lambda: self._handle.status().phase in {"joining", "moving", "leaving"}, self._handle.status)

    def _last(self) -> str | None:
        snapshots = self._handle.status().snapshots
        return None if snapshots is None else snapshots.last


def ravage(folder: Path, *, kills: int, seed: int, say: Callable[[str], object]) -> dict[str, int]:
    """Kill ``kills`` times, end the job, and check all it has written: how often what was hit."""
    rng = random.Random(seed)
    runtime = mp.RayRuntime(
        2,
        num_cpus=0.2,
        snapshots=mp.Snapshots(folder / "snapshots", interval_s=0.5),
        restart=mp.Restart(max_restarts=100_000, backoff_s=0.05, backoff_max_s=0.2),
    )
    handle = runtime.start(chaotic("chaos", folder / "out"))
    chaos = Chaos(handle, rng)
    for number in range(kills):
        kind = "CoordinatorActor" if number % 4 == 3 else "WorkerActor"
        chaos.strike(kind, rescales=number % 2 == 1)
        say(f"{number + 1} of {kills} kills, seed {seed}: {kind}; the slowest took {chaos.slowest_s:.1f} s")
    handle.stop(drain=True, timeout_s=PATIENCE_S)
    result = handle.wait(timeout_s=PATIENCE_S)
    rows = rows_in(folder / "out")
    check(rows)
    say(f"{len(rows):,} rows, each once; {dict(chaos.hits)}; {result}")
    return dict(chaos.hits)


def main(arguments: list[str] | None = None) -> None:
    """Kill, and print the progress."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    chosen: Any = parser.parse_args(arguments)
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - as in the tests: see tests/conftest.py
    with tempfile.TemporaryDirectory(prefix="malstrom-chaos-") as folder, local_ray(num_cpus=4):
        ravage(Path(folder), kills=chosen.kills, seed=chosen.seed, say=lambda what: print(what, flush=True))


if __name__ == "__main__":
    main()
