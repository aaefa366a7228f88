"""Kill and stop workers and coordinators of a job at random moments, and check that its output is exact:
``python -m tests.integration.ray.chaos --kills 500 --stops 10 --sink files --runtime ray`` (``make chaos``).

Every record has its part and its number, and the state of its key counts it. The rows at the end therefore show every
record that was lost, duplicated or counted twice. A kill counts once the process is gone and the job has restarted. A
stopped worker (SIGSTOP) continues after the job has restarted without it: if Ray has not ended it, it is a zombie. A
stopped coordinator is ended and replaced. With ``--watched`` the job is queried, followed, tapped and shadowed all the
time: see `tests.integration.ray.chaos_watchers`.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest import mock

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import MalstromError
from malstrom_py.workers.ray import coordinator_watch
from tests.integration.processes.worker_pids import worker_pids
from tests.integration.ray.chaos_ends import ENDS, Row
from tests.integration.ray.chaos_watchers import Watchers
from tests.integration.ray.leftovers import is_alive, pids
from tests.integration.transport.ends import local_ray

PARTS: Final = 4
KEYS: Final = 97
SIZES: Final = (1, 2, 3)
PATIENCE_S: Final = 120.0
PAUSE_S: Final = 1.5
"""The longest time between a restart and the next kill; the job makes snapshots in between."""

_UNHURT: Final = 3
"""The snapshots after a kill that show that the job has not lost a worker: it cannot complete as many without one."""

SILENT_S: Final = 3.0
"""How long a stopped coordinator may answer nothing."""


def numbers(part: int, start: int) -> Iterator[tuple[int, int]]:
    """Yield the records of a part from ``start`` on, at a limited rate."""
    while True:
        yield part, start
        start += 1
        if start % 20 == 0:
            time.sleep(0.02)


def counted(key: int, record: tuple[int, int], seen: int) -> tuple[Row, int]:
    """Count a record of a key."""
    part, number = record
    return {"part": part, "number": number, "key": key, "seen": seen + 1}, seen + 1


def unseen() -> tuple[int, str]:
    """The state of a key without records."""
    return 0, ""


def counted_beside(ballast: str, key: int, record: tuple[int, int], state: tuple[int, str]) -> tuple[Row, Any]:
    """Count a record of a key, whose state has a ``ballast``."""
    row, seen = counted(key, record, state[0])
    return row, (seen, state[1] or ballast)


def chaotic(
    name: str,
    folder: Path,
    call: Callable[[Row], object] | None = None,
    *,
    sink: Any = None,
    state_bytes: int = 0,
) -> mp.Job:
    """Return a job that can be killed at any moment and writes into ``folder``, or into ``sink``. ``call`` gets each
    row too. ``state_bytes``: the size of the state of each key; 16 kB or more go ahead of a move (R12).
    """
    job = mp.Job(name)
    read = job.source("in", sources.Generator(numbers, parts=PARTS))
    keyed = read.key_by("by-key", lambda record: record[1] % KEYS)
    if state_bytes:
        ballast = random.Random(1).randbytes(state_bytes // 2).hex()
        rows: Any = keyed.stateful_map("count", partial(counted_beside, ballast), default=unseen)
    else:
        rows = keyed.stateful_map("count", counted, default=int)
    rows.sink("out", sinks.Files(folder, format="json") if sink is None else sink)
    if call is not None:
        rows.sink("call", sinks.Callable(call))
    return job


def check(rows: list[Row], *, all_parts: bool = True) -> None:
    """Check that every record was written once and counted once. ``all_parts``: each part has given some."""
    parts, keys = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for row in rows:
        parts[row["part"]].append(row["number"])
        keys[row["key"]].append(row["seen"])
    assert not all_parts or len(parts) == PARTS
    for found in parts.values():
        assert sorted(found) == list(range(len(found)))
    for seen in keys.values():
        assert sorted(seen) == list(range(1, len(seen) + 1))


def until(holds: Callable[[], bool], what: Callable[[], object]) -> None:
    """Wait until ``holds`` returns True; fail with ``what`` after `PATIENCE_S`."""
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until_s, what()
        time.sleep(0.02)


class Chaos:
    """Kills processes of the job of ``handle``, chosen by ``rng``. ``hits``: the number of kills of each kind.
    ``pids``: returns the living processes of a kind.
    """

    def __init__(
        self,
        handle: mp.JobHandle,
        rng: random.Random,
        pids: Callable[[str], list[int]],
        watchers: Watchers | None = None,
    ) -> None:
        self.hits = defaultdict[str, int](int)
        self.slowest_s = 0.0
        self._watchers = watchers
        self._handle = handle
        self._rng = rng
        self._pids = pids

    def next_snapshot(self, but: str | None) -> str | None:
        """Wait for a snapshot other than ``but``, and return its id."""
        until(lambda: self._last() not in {None, but}, self._handle.status)
        return self._last()

    def strike(self, kind: str, *, rescales: bool) -> None:
        """Kill an actor of this kind, during a rescale if ``rescales``, and wait until the job has restarted.

        It may meet a worker that was leaving: then the job needs no restart, and another one is killed.
        """
        while not self._restarts_after_kill(kind, rescales=rescales):
            self.hits["a worker that was leaving"] += 1

    def _restarts_after_kill(self, kind: str, *, rescales: bool) -> bool:
        before = self.next_snapshot(None)
        time.sleep(self._rng.uniform(0.0, PAUSE_S))
        if rescales:
            self._rescale()
        restarts = self._handle.status().restarts
        until(lambda: bool(self._pids(kind)), lambda: f"no {kind} is alive")
        pid = self._rng.choice(self._pids(kind))
        began_s = time.monotonic()
        positions = self._positions()
        os.kill(pid, signal.SIGKILL)
        until(lambda: not is_alive(pid), lambda: f"process {pid} is alive")
        until(self._continues_after(restarts), self._handle.status)
        if self._watchers is not None:
            self._watchers.struck(positions)
        if self._handle.status().restarts == restarts:
            return False
        self.next_snapshot(before)
        self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
        self.hits[f"{kind}{' in a rescale' if rescales else ''}"] += 1
        return True

    def _continues_after(self, restarts: int) -> Callable[[], bool]:
        """Return a check that the job has restarted, or that it needs not: it was to lose that worker, or on a trial of
        other code, which a failure rolls back without a restart.
        """
        made = self._made()
        return lambda: self._handle.status().restarts > restarts or self._made() > made + _UNHURT

    def stop(self, kind: str) -> None:
        """Stop an actor past the restart of the job, and let it continue: it may be a zombie then."""
        before = self.next_snapshot(self._last())  # all workers are up
        time.sleep(self._rng.uniform(0.0, PAUSE_S))
        restarts = self._handle.status().restarts
        until(lambda: bool(self._pids(kind)), lambda: f"no {kind} is alive")
        pid = self._rng.choice(self._pids(kind))
        positions = self._positions()
        os.kill(pid, signal.SIGSTOP)
        try:
            if kind == "CoordinatorActor":
                until(lambda: not is_alive(pid), lambda: f"process {pid} is alive")
            else:
                until(self._continues_after(restarts), self._handle.status)
            self.next_snapshot(before)
            if self._watchers is not None:  # what a zombie does later is not seen
                self._watchers.struck(positions)
        finally:
            is_zombie = is_alive(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.hits[f"{kind}: {'zombie' if is_zombie else 'stopped and then ended'}"] += 1
        until(lambda: not is_alive(pid), lambda: f"process {pid} is alive")

    def _rescale(self) -> None:
        """Request another size, and sometimes wait until keys are moving."""
        size = self._rng.choice([size for size in SIZES if size != self._handle.status().workers])
        try:
            self._handle.rescale(size, wait=False)
        except MalstromError:
            return  # the job is already restarting
        if self._rng.random() < 0.7:
            until(
                lambda: self._handle.status().phase in {"joining", "copying", "moving", "leaving"}, self._handle.status
            )

    def _positions(self) -> dict[int, int]:
        return {} if self._watchers is None else self._watchers.positions(self._last())

    def _made(self) -> int:
        snapshots = self._handle.status().snapshots
        return 0 if snapshots is None else snapshots.made

    def _last(self) -> str | None:
        snapshots = self._handle.status().snapshots
        return None if snapshots is None else snapshots.last


def ravage(
    folder: Path,
    *,
    kills: int,
    seed: int,
    say: Callable[[str], object],
    stops: int = 0,
    sink: str = "files",
    state_bytes: int = 0,
    state_memory: str = "",
    runtime: str = "ray",
    watched: bool = False,
) -> dict[str, int]:
    """Kill ``kills`` times and stop ``stops`` processes, then stop the job, check all its rows, and return the number
    of each kind. ``state_memory``: what each worker may keep in memory, "": all. ``runtime``: "ray", or "processes",
    whose coordinator is this program. ``watched``: by all of `Watchers`.
    """
    rng, on_ray = random.Random(seed), runtime == "ray"
    kept: dict[str, Any] = {
        "snapshots": mp.Snapshots(folder / "snapshots", interval_s=0.5),
        "restart": mp.Restart(max_restarts=100_000, backoff_s=0.05, backoff_max_s=0.2),
        "state": mp.State(state_memory, folder / "disk") if state_memory else None,
    }
    running = mp.RayRuntime(2, num_cpus=0.2, **kept) if on_ray else mp.Processes(2, **kept)
    with ENDS[sink](folder) as end, mock.patch.object(coordinator_watch, "SILENT_S", SILENT_S):
        handle = running.start(chaotic("chaos", folder, sink=end.sink, state_bytes=state_bytes))
        handle.snapshot()  # before the first one there is no state to ask for
        watchers = Watchers(handle, kept["snapshots"], seed) if watched else None
        chaos = Chaos(handle, rng, pids if on_ray else lambda kind: worker_pids(), watchers)
        for number in range(kills):
            kind = "CoordinatorActor" if on_ray and number % 4 == 3 else "WorkerActor"
            chaos.strike(kind, rescales=number % 2 == 1)
            say(f"{number + 1} of {kills} kills, seed {seed}: {kind}; the slowest took {chaos.slowest_s:.1f} s")
        for number in range(stops):
            kind = "CoordinatorActor" if on_ray and number % 4 == 3 else "WorkerActor"
            chaos.stop(kind)
            say(f"{number + 1} of {stops} stops, seed {seed}: {kind}")
        handle.stop(drain=True, timeout_s=PATIENCE_S)
        result = handle.wait(timeout_s=PATIENCE_S)
        rows = end.rows()
        check(rows)
        if watchers is not None:
            watchers.end(rows)
            say(f"watched: {watchers}")
    assert not state_memory or not list((folder / "disk").iterdir())
    say(f"{sink}: {len(rows):,} rows, each once; {dict(chaos.hits)}; {result}")
    return dict(chaos.hits)


def main(arguments: list[str] | None = None) -> None:
    """Run `ravage` and print its progress."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--stops", type=int, default=0)
    parser.add_argument("--sink", choices=ENDS, default="files")
    parser.add_argument("--runtime", choices=("ray", "processes"), default="ray")
    parser.add_argument("--state-bytes", type=int, default=0)
    parser.add_argument("--state-memory", default="")
    parser.add_argument("--watched", action="store_true")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    chosen: Any = parser.parse_args(arguments)
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - as in the tests: see tests/conftest.py
    cluster = local_ray(num_cpus=4) if chosen.runtime == "ray" else nullcontext()
    with tempfile.TemporaryDirectory(prefix="malstrom-chaos-") as folder, cluster:
        ravage(
            Path(folder),
            kills=chosen.kills,
            seed=chosen.seed,
            say=lambda what: print(what, flush=True),
            stops=chosen.stops,
            sink=chosen.sink,
            state_bytes=chosen.state_bytes,
            state_memory=chosen.state_memory,
            runtime=chosen.runtime,
            watched=chosen.watched,
        )


if __name__ == "__main__":
    from tests.integration.ray import chaos  # by its name: the functions of a program itself cannot be reloaded

    chaos.main()
