"""What is done beside the work of a run: writing and reading of snapshots. Comes back into the thread of the run.

Rule: what has been done is looked at in `turn` alone, by the thread that owns the run, so nobody else needs a lock.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

Done = Callable[[Any], None]
"""Told what the work came to: its result, or the exception that it has raised."""


class Background(Protocol):
    """Does work elsewhere, or later."""

    @property
    def pending(self) -> int:
        """How much of it has not come back."""
        ...

    def submit(self, work: Callable[[], T], done: Callable[[T | BaseException], None], *, urgent: bool = True) -> None:
        """Have ``work`` done; ``done`` is told in a later `turn`. What is ``urgent`` waits for nothing that is not."""
        ...

    def turn(self) -> bool:
        """Tell of what has been done since: whether there was any."""
        ...

    def close(self) -> None:
        """What has not begun is not begun any more, and nobody is told of the rest."""
        ...


class ThreadBackground:
    """Does work in two threads, one for what is urgent; sets ``wake`` when something has come back.

    The threads are daemons: a store that does not answer does not hold up the end of the program.

    >>> background, told = ThreadBackground(threading.Event()), []
    >>> background.submit(lambda: 6 * 7, told.append)
    >>> while background.pending:
    ...     _ = background.turn()
    >>> background.close()
    >>> told
    [42]
    """

    def __init__(self, wake: threading.Event) -> None:
        self._wake = wake
        self._back: queue.SimpleQueue[tuple[Done, Any]] = queue.SimpleQueue()
        self._threads: dict[bool, _Thread] = {}
        self.pending = 0

    def submit(self, work: Callable[[], T], done: Callable[[T | BaseException], None], *, urgent: bool = True) -> None:
        """Have ``work`` done."""
        self.pending += 1
        if urgent not in self._threads:
            self._threads[urgent] = _Thread(self._come_back)
        self._threads[urgent].asked.put((work, done))

    def turn(self) -> bool:
        """Tell of what has been done since."""
        told = False
        while not self._back.empty():
            done, result = self._back.get()
            self.pending -= 1
            told = True
            done(result)
        return told

    def close(self) -> None:
        """End, without waiting for a store that does not answer. What has not begun is not begun any more."""
        for thread in self._threads.values():
            thread.close()

    def _come_back(self, done: Done, result: Any) -> None:
        self._back.put((done, result))
        self._wake.set()


class _Thread:
    """Does one piece of work after the other; ``told`` is called with what each came to."""

    def __init__(self, told: Callable[[Done, Any], None]) -> None:
        self.asked: queue.SimpleQueue[tuple[Callable[[], Any], Done] | None] = queue.SimpleQueue()
        self._told = told
        self._closed = False
        threading.Thread(target=self._work, name="malstrom-snapshots", daemon=True).start()

    def close(self) -> None:
        self._closed = True
        self.asked.put(None)

    def _work(self) -> None:
        while (piece := self.asked.get()) is not None and not self._closed:
            work, done = piece
            try:
                result = work()
            except BaseException as error:  # it is looked at in the thread of the run
                result = error
            self._told(done, result)
