"""Stop-and-restart: the same job from size to size, each time stopped and started again with its state."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic, monotonic_ns, sleep

import malstrom_py as mp
from bench.macro.arrivals import Seen
from bench.macro.feeding import Paced
from bench.macro.keeping import Shelf, has_all, keeping, read_states
from bench.macro.on_ray import RUN_S, runtime, stop, wait_for, warm
from bench.micro.timing import WrongResult
from malstrom_py.errors import JobEnded


@dataclass(frozen=True, slots=True)
class Restart:
    """``gap_s``: from the last record before to the first record after; ``oldest_ms``: the oldest record that came
    then, by the time at which it was due.
    """

    before: int
    after: int
    gap_s: float
    written_s: float
    oldest_ms: float


def restarts(
    sizes: Sequence[int], keys: int, rate: int, *, state_bytes: int, steady_s: float
) -> tuple[list[Restart], Seen, int]:
    """Run the job at each of ``sizes``, one after the other; the restarts, what the sinks have seen, and when the
    first of them was ready.
    """
    with tempfile.TemporaryDirectory() as top:
        out = Path(top) / "out"
        out.mkdir()
        asked_ns, written_ns = list[int](), list[int]()
        started_ns = 0
        handle, shelf = _started(Path(top), 0, sizes, keys, rate, state_bytes)
        wait_for(handle, partial(has_all, keys))
        for number in range(1, len(sizes)):
            sleep(steady_s)
            warm(sizes[number] + 1)
            started_ns = started_ns or monotonic_ns()
            sleep(steady_s / 2)
            asked_ns.append(monotonic_ns())
            old = handle
            old.stop(drain=False, wait=False)
            _wait_until_written(old, shelf)
            written_ns.append(monotonic_ns())
            handle, shelf = _started(Path(top), number, sizes, keys, rate, state_bytes)
            with contextlib.suppress(JobEnded):
                old.wait()
            wait_for(handle, lambda status: status.counts.written > rate * steady_s / 4)
        sleep(steady_s)
        stop(handle)
        ends_ns = [*asked_ns[1:], monotonic_ns()]
        seen = Seen(out)
        _check(Path(top) / f"shelf-{len(sizes) - 1}", sizes[-1], seen, keys)
        found = [
            Restart(
                sizes[number],
                sizes[number + 1],
                seen.silence_s(asked_ns[number], ends_ns[number]),
                (written_ns[number] - asked_ns[number]) / 1e9,
                seen.age_ms(1.0, asked_ns[number], ends_ns[number]),
            )
            for number in range(len(sizes) - 1)
        ]
        return found, seen, started_ns


def _started(
    top: Path, number: int, sizes: Sequence[int], keys: int, rate: int, state_bytes: int
) -> tuple[mp.JobHandle, Shelf]:
    """The job number ``number``, which resumes where the previous one was stopped."""
    size, then = sizes[number], sizes[min(number + 1, len(sizes) - 1)]
    read, write = None if number == 0 else str(top / f"shelf-{number - 1}"), str(top / f"shelf-{number}")
    Path(write).mkdir()
    shelf = Shelf(read, write, size, then, state_bytes)
    source = Paced(keys, rate, "due", go_on_from=read, leave_in=write)
    job = keeping(f"kept-{number}", str(top / "out"), source, shelf.function())
    return runtime(size).start(job, control=False), shelf


def _wait_until_written(job: mp.JobHandle, shelf: Shelf) -> None:
    until_s = monotonic() + RUN_S
    while not shelf.is_complete():
        if monotonic() > until_s:
            raise TimeoutError(f"job {job.name!r} has not written its state within {RUN_S:g} s")
        sleep(0.002)


def _check(folder: Path, workers: int, seen: Seen, keys: int) -> None:
    """Every row that came out is in the state of its key, through all restarts."""
    kept = [count for worker in range(workers) for count, _ in read_states(folder, worker).values()]
    if (len(kept), sum(kept)) != (keys, seen.rows):
        raise WrongResult(f"{len(kept):,} keys with {sum(kept):,} rows were kept, but {keys:,} with {seen.rows:,} came")
