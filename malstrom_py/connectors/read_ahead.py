"""Reads ahead of the polls of a partition, in a thread: clients of other systems block, and `SourcePart.poll` must not.

Rules:
- At most ``chunks_max`` chunks wait; then the thread waits too.
- A position belongs to what was taken, never to what was read ahead.
- An error of the thread is raised by the next `take` after the chunks that were read before it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from malstrom_py.errors import MalformedRecord, SourceError
from malstrom_py.errors.text import describe_error, sentence

T = TypeVar("T")
V = TypeVar("V")

_JOIN_S: Final = 5.0


class ReadAhead(Generic[T]):
    """Calls ``fetch`` in a thread and keeps what it returns until it is taken.

    ``fetch`` blocks for half a second at most, and returns None if nothing came in that time; `StopIteration` ends the
    input. ``release`` is called in the thread at its end, to close what ``fetch`` uses.

    >>> chunks = iter([["a"], ["b"]])
    >>> ahead = ReadAhead(lambda: next(chunks), name="docs")
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
        self._chunks_max = chunks_max
        self._chunks: deque[T] = deque()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._ended = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"malstrom-{name}", daemon=True)
        self._thread.start()

    @property
    def is_finished(self) -> bool:
        """Whether the input has ended and all of it was taken. An error is still to be raised by `take`."""
        return self._ended and not self._chunks and self._error is None

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

    def close(self) -> None:
        """End the thread, which has five seconds for the call of ``fetch`` that it is in."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
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
            self._changed.wait_for(lambda: self._closed or len(self._chunks) < self._chunks_max)
            return not self._closed


def raise_unless_malformed(error: Exception) -> None:
    """Raise an ``error`` of ``value=`` that is not one of the record: the schema registry does not answer."""
    if isinstance(error, SourceError) and not isinstance(error, MalformedRecord):
        raise error


def values_of(
    records: Sequence[T],
    value: Callable[[T], V],
    *,
    advance: Callable[[int], None],
    described: Callable[[T], tuple[str, Any]],
) -> list[V]:
    """Return the values of ``records`` up to the first for which ``value`` raises; call ``advance`` with their number.

    `MalformedRecord`: it raises for the very first, which ``advance`` then passes. ``described``: returns what that
    record is called in the error, and what is shown of it.

    >>> values_of(["1", "2", "x"], int, advance=print, described=lambda text: (f"line {text!r}", text))
    2
    [1, 2]
    """
    values: list[V] = []
    for record in records:
        try:
            values.append(value(record))
        except Exception as error:
            raise_unless_malformed(error)
            if values:
                break
            advance(1)
            name, shown = described(record)
            raise MalformedRecord(
                f"{name} is not what value= takes: {sentence(describe_error(error))}.", record=shown
            ) from error
    advance(len(values))
    return values
