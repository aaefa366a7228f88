"""Lives of a job: each runs in a separate thread until it ends, dies, or is paused; one thread runs at a time.

Rule: what happens depends on the faults alone. A life calls `at` before and after each thing that it does to its sink
and its store of snapshots. There it dies, fails, hands over to another life, or is paused: a zombie, which continues
when the test lets it. A dead life does nothing any more: each further call of `at` raises `Died` again.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, Literal

from malstrom_py.errors import MalstromError
from malstrom_py.local_files import RunLock

PATIENCE_S: Final = 120.0
"""After so long a life hangs. It is a limit for tests that are broken, and no part of a run."""

Kind = Literal["die", "fail", "pause", "hand over"]
When = Literal["before", "after"]


class Died(BaseException):
    """The process is gone: no code of it runs any more."""


class Injected(MalstromError):
    """A failure of a sink or a store that the job survives: it aborts, and ends."""


@dataclass(slots=True)
class Fault:
    """What happens at the point ``place`` for the ``number``-th time, counted from 0."""

    kind: Kind
    place: str
    when: When
    number: int


class Life:
    """One life of a job: ``work`` runs in a thread, up to the next fault, each time `resume` is called."""

    def __init__(self, name: str, work: Callable[[], object], faults: list[Fault], hits: Counter[str]) -> None:
        self.name = name
        self.error: BaseException | None = None
        self.state: Literal["new", "running", "over", "paused", "handing over"] = "new"
        self.is_zombie = False
        self.is_dead = False
        self.is_failed = False
        self.doing = "work"
        self.locks: list[RunLock] = []
        self.points_left: int | None = None
        self._work = work
        self._faults = faults
        self._hits = hits
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=f"life-{name}", daemon=True)
        self._digest = hashlib.sha256()

    @property
    def trace(self) -> str:
        """A hash of the points of this life, in order."""
        return self._digest.hexdigest()

    @property
    def is_over(self) -> bool:
        """Whether it has ended or died."""
        return self.state == "over"

    def resume(self, points: int | None = None) -> None:
        """Let it live until its next fault; a zombie until it has passed so many ``points``."""
        self.points_left = points
        if self.state == "new":
            self._thread.start()
        self.state = "running"
        self._go.release()
        if not self._back.acquire(timeout=PATIENCE_S):
            raise TimeoutError(f"life {self.name} hangs while it does {self.doing}")
        if self.is_over:
            self._thread.join(PATIENCE_S)

    def kill(self) -> None:
        """Let it die where it is paused."""
        self.is_dead = True
        if not self.is_over and self.state != "new":
            self.resume()

    def at(self, place: str, when: When) -> None:
        """Note that the life is at this point, where a fault may be due."""
        if self.is_dead:
            raise Died
        self._digest.update(f"{place} {when};".encode())
        if self.is_zombie:
            if self.points_left is not None:
                self.points_left -= 1
                if self.points_left < 0:
                    self._wait("paused")
            return
        for fault in self._faults:
            if (fault.place, fault.when) != (place, when):
                continue
            fault.number -= 1
            if fault.number == -1:
                self._happens(fault)

    def _happens(self, fault: Fault) -> None:
        self._hits[f"{fault.kind} {fault.when} {fault.place}"] += 1
        self._hits[f"{fault.kind} at {fault.place}"] += 1
        self._hits[fault.kind] += 1
        if fault.kind == "die":
            self._die()
        if fault.kind == "fail":
            self.is_failed = True
            raise Injected(f"{fault.place} failed, as the test wants it")
        if fault.kind == "pause":
            self.is_zombie = True
            self._wait("paused")
        else:
            self._wait("handing over")

    def _wait(self, state: Literal["paused", "handing over"]) -> None:
        self.state = state
        self._back.release()
        if not self._go.acquire(timeout=PATIENCE_S):
            self._die()
        if self.is_dead:
            self._die()

    def _die(self) -> None:
        self.is_dead = True
        for lock in self.locks:  # The system releases the locks of a process that is gone.
            lock.release()
        raise Died

    def _run(self) -> None:
        _HERE.life = self
        self._go.acquire()
        try:
            self._work()
        except BaseException as error:
            self.error = error.with_traceback(None)
            error.__context__ = None
        finally:
            if self.is_dead:
                for lock in self.locks:
                    lock.release()
            self.state = "over"
            self._back.release()


class _Here(threading.local):
    life: Life | None = None


_HERE: Final = _Here()


def life_here() -> Life | None:
    """Return the life whose thread this is."""
    return _HERE.life


def at(place: str, when: When) -> None:
    """See `Life.at`; nothing happens outside a life."""
    life = _HERE.life
    if life is not None:
        life.at(place, when)


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Note what the life does, for the names of points on the disk; it may die before and after it."""
    life = _HERE.life
    if life is None:
        yield
        return
    at(what, "before")
    before, life.doing = life.doing, what
    try:
        yield
    finally:
        life.doing = before
    at(what, "after")


def _is_cleaning_up() -> bool:
    """Return whether a finalizer calls, which removes temporary files of an object that is gone: nothing may raise."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code is weakref.finalize.__call__.__code__:
            return True
        frame = frame.f_back
    return False


def on_disk(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``operation`` with a point before and after it, named by what the life does."""

    def call(*arguments: Any, **options: Any) -> Any:
        life = _HERE.life
        if life is None or life.doing == "work" or _is_cleaning_up():
            return operation(*arguments, **options)
        place = f"a step of {life.doing}"
        at(place, "before")
        result = operation(*arguments, **options)
        at(place, "after")
        return result

    return call
