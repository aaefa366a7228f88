"""The lock on a staging folder of a run: it tells another run of the job that this one is under way.

Those who have files in it share it: the writer while it is open, and whoever will commit what it has pre-committed.
Who clears the folder away wants it alone.

The folder itself is locked (``flock``), so that nothing is left to remove, and the system lets go of it when the
process ends, however it ends. On a file system without such locks nothing is held, and nobody is kept out.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path


class RunLock:
    """The lock on ``folder``, which may be removed and made again while the lock lives."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None
        self._close: Callable[[], object] | None = None

    def hold(self, *, shared: bool) -> None:
        """Lock the folder as it is there now. OSError: there is none; BlockingIOError: another is in the way."""
        if self._descriptor is not None and os.path.samestat(os.fstat(self._descriptor), self._folder.stat()):
            return
        self.release()
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        self._descriptor, self._close = descriptor, weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise
        except OSError:
            return  # No locks on this file system.

    def release(self) -> None:
        """Let go of the folder; again at will."""
        if self._close is not None:
            self._close()
        self._descriptor = self._close = None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold ``folder`` alone inside; False if another holds it, or it is gone."""
    lock = RunLock(folder)
    try:
        try:
            lock.hold(shared=False)
        except (BlockingIOError, FileNotFoundError):
            yield False
        else:
            yield True
    finally:
        lock.release()
