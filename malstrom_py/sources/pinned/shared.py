"""What a source has pinned, for all jobs of a process that read it at the same time.

Rule: the first job pins, the others share its pin, and what it needed is released after the last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from malstrom_py.errors import SourceError

P = TypeVar("P")


class SharedPin(Generic[P]):
    """The pin of a source, to which it does not refer, so that a source ends with its last user.

    A copy for another process has the pin, and no jobs.

    >>> shared = SharedPin[str]()
    >>> shared.take("table", lambda: "version 7"); shared.take("table", lambda: "version 8"); shared.of("table")
    'version 7'
    >>> shared.leave(lambda keep: print("released")); shared.leave(lambda keep: print("released"))
    released
    """

    def __init__(self) -> None:
        self._start(None)

    def _start(self, pin: P | None) -> None:
        self.known = pin
        """The pin; None if there is none."""
        self.is_copy = pin is not None
        """Whether it was pinned in another process."""
        self._jobs = 0
        self._keep = False
        self._lock = threading.Lock()

    def __getstate__(self) -> tuple[P | None]:
        return (self.known,)

    def __setstate__(self, state: tuple[P | None]) -> None:
        self._start(*state)

    def of(self, source: object) -> P:
        """Return the pin of ``source``. `SourceError` if there is none."""
        if self.known is None:
            raise SourceError(
                f"{source!r} is not pinned: a runtime pins it when a job starts; to pin it yourself, call .pin('name')"
            )
        return self.known

    def take(self, source: object, find: Callable[[], P], fits: Callable[[P], bool] = lambda pin: True) -> None:
        """Pin ``source`` for a job: ``find`` does it, if no other job has a pin; else the one that there is must fit.

        Raises:
            SourceError: another job reads other rows of the source.
        """
        with self._lock:
            if not self._jobs:
                self.known = find()
            elif not fits(self.of(source)):
                raise SourceError(
                    f"another job is reading {source!r}, and this job reads other rows of it: give each job a "
                    f"separate source"
                )
            self._jobs += 1

    def leave(self, release: Callable[[bool], Any], *, keep: bool = False) -> None:
        """Note that a job has ended. After the last one call ``release``, and forget the pin unless this is a copy.

        The argument of ``release`` is whether ``keep`` was true of any of the jobs.
        """
        with self._lock:
            self._keep |= keep
            self._jobs -= 1
            if self._jobs > 0:
                return
            keep, self._keep, self._jobs = self._keep, False, 0
            release(keep)
            if not self.is_copy:
                self.known = None
