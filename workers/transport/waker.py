"""How one thread has another's wait return: a pipe, whose reading end is waited for among others.

Rule: a wake is never lost. One that comes while nobody waits ends the next wait.
"""

from __future__ import annotations

import contextlib
import os
import threading


class Waker:
    """One waits for `fileno` and then asks `taken`; any other, a handler of a signal too, calls `wake`."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        self._closed = False
        # Reentrant: a handler of a signal may interrupt the very thread that holds it.
        self._lock = threading.RLock()

    def fileno(self) -> int:
        """What becomes readable by `wake`."""
        return self._reading

    def wake(self) -> None:
        """Have the wait end. Nothing after `close`: by then the descriptor may be another's."""
        with self._lock, contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
            if not self._closed:
                os.write(self._writing, b"w")

    def taken(self) -> bool:
        """Whether there were wakes since this was last asked."""
        try:
            return bool(os.read(self._reading, 4096))
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Free the descriptors."""
        with self._lock:
            self._closed = True
            os.close(self._reading)
            os.close(self._writing)
