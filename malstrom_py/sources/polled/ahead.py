"""Reads ahead of the polls of a partition, in a thread: clients of other systems block, and `SourcePart.poll` must not.

Rules:
- At most ``chunks_max`` chunks wait; then the thread waits too.
- A position belongs to what was taken, never to what was read ahead.
- An error of the thread is raised by the next `take` after the chunks that were read before it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_JOIN_S: Final = 5.0


class ReadAhead(Generic[T]):
    """Calls ``fetch`` in a thread, from `start` on, and keeps what it returns until it is taken.

    ``fetch`` blocks for half a second at most, and returns None if nothing came in that time; `StopIteration` ends the
    input. ``release`` is called once, at the end of the thread, to close what ``fetch`` uses.

    >>> chunks = iter([["a"], ["b"]])
    >>> ahead = ReadAhead(lambda: next(chunks), name="docs")
    >>> ahead.start()
    >>> taken = []
    >>> while not ahead.is_finished:
    ...     taken += ahead.take(wait_s=1.0) or []
    >>> taken
    ['a', 'b']
    >>> ahead.close()
    """

    def __init__(
        self,
        fetch: Callable[[], T | None],
        *,
        name: str,
        chunks_max: int = 2,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self._fetch = fetch
        self._release = release
        self._name = f"malstrom-{name}"
        self._chunks_max = chunks_max
        self._chunks: deque[T] = deque()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._ended = False
        self._stopped = False
        self._thread: threading.Thread | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the input has ended and all of it was taken. An error is still to be raised by `take`."""
        return self._ended and not self._chunks and self._error is None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def take(self, *, wait_s: float = 0.0) -> T | None:
        """Return the next chunk; None if there is none within ``wait_s``. Raises what ``fetch`` raised, each time."""
        with self._changed:
            if wait_s:
                self._changed.wait_for(lambda: self._chunks or self._ended, wait_s)
            if self._chunks:
                chunk = self._chunks.popleft()
                self._changed.notify_all()
                return chunk
            if self._error is not None:
                raise self._error
            return None

    def pause(self, seconds: float) -> bool:
        """Wait in the thread; return whether it is to end, as soon as that is known."""
        with self._changed:
            return self._changed.wait_for(lambda: self._stopped, max(0.0, seconds))

    def stop(self) -> None:
        """Let the thread end after the call of ``fetch`` that it is in, without waiting for it."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def close(self, interrupt: Callable[[], None] = lambda: None) -> None:
        """End the thread: it has five seconds for the call of ``fetch`` that it is in, which ``interrupt`` may end."""
        self.stop()
        if self._thread is None:
            if not self._ended:
                self._ended = True
                self._release()
            return
        if not self._ended:
            interrupt()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        try:
            while self._has_room():
                chunk = self._fetch()
                if chunk is not None:
                    with self._changed:
                        self._chunks.append(chunk)
                        self._changed.notify_all()
        except StopIteration:
            pass
        except BaseException as error:  # raised by `take`, in the thread of the partition
            self._error = error
        finally:
            try:
                self._release()
            except Exception as error:
                self._error = self._error or error
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _has_room(self) -> bool:
        """Wait until a chunk may be read; False once the partition is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or len(self._chunks) < self._chunks_max)
            return not self._stopped
