"""The job that is rescaled: it keeps as many bytes for each key as are asked for. And how it is stopped and started
again at another size, where nothing is kept of a job that has stopped: its workers write their state down, and read it
again.

Rule: what stop-and-restart does is as fast as it can be without moving state while the job runs. Ray and idle processes
stay up; each worker writes only its own keys, through the codec at rest, into files by the worker that will own them;
the new job is started as soon as the last of these is written, without waiting for the old one to be gone; and each new
worker reads only the keys it owns. What it does not do is place its state on other machines.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import malstrom_py as mp
from bench.macro.arrivals import Arrivals
from bench.macro.feeding import PARTS, Paced, Stamped
from bench.micro.workloads import key_of
from malstrom_py.codec import Codec
from malstrom_py.rescale.moves.placement import first_table
from malstrom_py.rescale.slots import slot_of

STATE_BYTES: Final = 1000
SLOTS: Final = 1024
STEP: Final = "keep"
CHUNK_BYTES: Final = 2_000_000
"""The state in one entry of a file, which has to stay within the limits of the codec."""

Kept = tuple[int, bytes]
Function = Callable[[str, Stamped, Kept | None], tuple[int, Kept]]


def keep(size: int, key: str, row: Stamped, state: Kept | None) -> tuple[int, Kept]:
    """Counts the rows of a key, and keeps ``size`` bytes beside, separate from those of other keys."""
    seen, payload = state or (0, key.encode().ljust(20, b".") * (size // 20))
    return row[1], (seen + 1, payload)


def keeping(name: str, folder: str, source: Paced, function: Function) -> mp.Job:
    """The job; what comes out are the times that the rows carry."""
    job = mp.Job(name, slots=SLOTS)
    given: Any = source
    stream: Any = job.source("in", given)
    stream.key_by("key", key_of).stateful_map(STEP, function).sink("out", Arrivals(folder, stamped=True))
    return job


def has_all(keys: int, status: mp.JobStatus) -> bool:
    """Whether all keys have state."""
    return STEP in status.counts.steps and (status.counts.steps[STEP].keys or 0) >= keys


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where jobs leave their state for the next: ``read`` by this one, ``write``, if it is to be stopped, for ``then``
    workers. ``state_bytes``: of each key.
    """

    read: str | None
    write: str | None
    size: int
    then: int
    state_bytes: int

    def function(self) -> Function:
        """`keep` with a copy of the state at hand, which is written when the worker closes."""
        return partial(_keep_on, mp.per_worker(partial(OnShelf, self)))

    def is_complete(self) -> bool:
        """Whether all workers, and all parts, have written."""
        folder = Path(self.write or "")
        return len(list(folder.glob("*.done"))) == self.size and len(list(folder.glob("part-*.json"))) == PARTS


def _keep_on(shelf: Callable[[], OnShelf], key: str, row: Stamped, state: Kept | None) -> tuple[int, Kept]:
    kept = shelf()
    if state is None:
        state = kept.found(key)
    result, state = keep(kept.state_bytes, key, row, state)
    kept.states[key] = state
    return result, state


class OnShelf:
    """The copy of one worker: the states it was left, and those it has now."""

    def __init__(self, shelf: Shelf) -> None:
        self.states: dict[str, Kept] = {}
        self.state_bytes = shelf.state_bytes
        self._shelf = shelf
        self._table = first_table(SLOTS, range(shelf.size))
        self._left: dict[int, dict[str, Kept]] = {}

    def found(self, key: str) -> Kept | None:
        """What an earlier job has kept for ``key``. The first question reads all that this worker owns."""
        if self._shelf.read is None:
            return None
        owner = self._table[slot_of(key, SLOTS)]
        if owner not in self._left:
            self._left[owner] = read_states(Path(self._shelf.read), owner)
            self.states |= self._left[owner]
        return self._left[owner].pop(key, None)

    def close(self) -> None:
        if self._shelf.write is None:
            return
        folder, table = Path(self._shelf.write), first_table(SLOTS, range(self._shelf.then))
        by_owner: dict[int, list[tuple[str, int, bytes]]] = {owner: [] for owner in range(self._shelf.then)}
        for key, (seen, payload) in self.states.items():
            by_owner[table[slot_of(key, SLOTS)]].append((key, seen, payload))
        codec = Codec()
        for owner, rows in by_owner.items():
            with (folder / f"{owner}.{os.getpid()}.states").open("wb") as file:
                chunk = max(1, CHUNK_BYTES // self.state_bytes)
                for start in range(0, len(rows), chunk):
                    data = codec.encode_rows_at_rest(rows[start : start + chunk], step=STEP)
                    file.write(len(data).to_bytes(4, "big"))
                    file.write(data)
        (folder / f"{os.getpid()}.done").touch()


def read_states(folder: Path, owner: int) -> dict[str, Kept]:
    """The states that were written for ``owner``."""
    codec, states = Codec(), dict[str, Kept]()
    for path in folder.glob(f"{owner}.*.states"):
        with path.open("rb") as file:
            while size := int.from_bytes(file.read(4), "big"):
                for key, seen, payload in codec.decode_at_rest(file.read(size), step=STEP):
                    states[key] = seen, payload
    return states
