"""Background tasks of a run (writing and reading of snapshots), whose results return to the thread of the run.

Rule: only `turn`, called by the thread that owns the run, handles results, so the rest of the run needs no lock.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

Done = Callable[[Any], None]
"""A callback that gets the result of a task, or the exception that it raised."""


class Background(Protocol):
    """The interface that runs tasks elsewhere, or later."""

    @property
    def pending(self) -> int:
        """The number of tasks whose results are not handled yet."""
        ...

    def submit(self, work: Callable[[], T], done: Callable[[T | BaseException], None], *, urgent: bool = True) -> None:
        """Run ``work``; a later `turn` calls ``done``. An ``urgent`` task never waits for one that is not urgent."""
        ...

    def turn(self) -> bool:
        """Call ``done`` of finished tasks. Return whether there were any."""
        ...

    def close(self) -> None:
        """Start no more tasks and drop all results."""
        ...


class ThreadBackground:
    """Runs tasks in two threads, one of them for urgent tasks; sets ``wake`` when a task has finished.
    ``name``: of the threads.

    The threads are daemons: a store that does not respond does not delay the end of the program.

    >>> background, results = ThreadBackground(threading.Event()), []
    >>> background.submit(lambda: 6 * 7, results.append)
    >>> while background.pending:
    ...     _ = background.turn()
    >>> background.close()
    >>> results
    [42]
    """

    def __init__(self, wake: threading.Event, name: str = "malstrom-snapshots") -> None:
        self._wake = wake
        self._name = name
        self._back: queue.SimpleQueue[tuple[Done, Any]] = queue.SimpleQueue()
        self._threads: dict[bool, _Thread] = {}
        self.pending = 0

    def submit(self, work: Callable[[], T], done: Callable[[T | BaseException], None], *, urgent: bool = True) -> None:
        """Run ``work`` in its thread."""
        self.pending += 1
        if urgent not in self._threads:
            self._threads[urgent] = _Thread(self._put_back, self._name)
        self._threads[urgent].asked.put((work, done))

    def turn(self) -> bool:
        """Call ``done`` of finished tasks."""
        any_done = False
        while not self._back.empty():
            done, result = self._back.get()
            self.pending -= 1
            any_done = True
            done(result)
        return any_done

    def close(self) -> None:
        """Stop the threads without waiting for a running task."""
        for thread in self._threads.values():
            thread.close()

    def _put_back(self, done: Done, result: Any) -> None:
        self._back.put((done, result))
        self._wake.set()


class _Thread:
    """Runs one task after the other; calls ``finished`` with the result of each."""

    def __init__(self, finished: Callable[[Done, Any], None], name: str) -> None:
        self.asked: queue.SimpleQueue[tuple[Callable[[], Any], Done] | None] = queue.SimpleQueue()
        self._finished = finished
        self._closed = False
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def close(self) -> None:
        self._closed = True
        self.asked.put(None)

    def _work(self) -> None:
        while (piece := self.asked.get()) is not None and not self._closed:
            work, done = piece
            try:
                result = work()
            except BaseException as error:  # the thread of the run handles it
                result = error
            self._finished(done, result)
