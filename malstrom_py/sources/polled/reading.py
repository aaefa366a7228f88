"""What a connector implements to read one partition, and the thread that calls it.

Rules:
- A reader is called by one thread, but for `PolledReader.interrupt` and the lags.
- An error that is retried leaves the reader at its place: `PolledReader.reset` drops the connection, and the next call
  of `read` connects again, after the last chunk that was returned.
- An error that is not retried, or for too long, is raised by the poll after the last record before it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from malstrom_py.errors import MalformedRecord
from malstrom_py.sources.polled import problems
from malstrom_py.sources.polled.ahead import ReadAhead

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_ROWS_FIRST: Final = 64
_ROWS_MAX: Final = 1000
_CHUNK_BYTES: Final = 8 << 20
_PAUSE_S: Final = 0.1


def _no_position(number: int) -> Any:
    raise AssertionError("a chunk without records has no position of a record")


@dataclass(frozen=True, slots=True)
class PolledChunk(Generic[R_co]):
    """Records in order, and the positions in plain types that belong to them.

    - ``position``: a function of the number of a record in the chunk, from 0: the position after this record.
    - ``before``, ``after``: the positions before the first record and after all, if they are not those of the records
      there, because there are gaps. A chunk without records moves the position to ``after``.
    - ``left``: how many more records there were, for lag. ``size``: about how many bytes the records take.
    - ``is_end``: there was no further record. A bounded run is finished then.
    """

    records: Sequence[R_co] = ()
    position: Callable[[int], Any] = _no_position
    before: Any = None
    after: Any = None
    left: int | None = None
    size: int = 0
    is_end: bool = False


class PolledReader(ABC, Generic[R_co]):
    """Reads one partition from a position on, which the connector gives to its constructor. Connects in `read`."""

    name: str = "the input"
    """The partition and its server in messages, without logins."""

    retried: ClassVar[tuple[type[BaseException], ...]] = (OSError,)
    """Errors after which `read` is called again, for `patience_s`. Any other fails the job immediately."""

    patience_s: float = 20.0

    idle_s: float = 0.1
    """The shortest time from a call of `read` that found nothing to the next one."""

    @abstractmethod
    def read(self, rows_max: int) -> PolledChunk[R_co] | None:
        """Return the next records, about ``rows_max`` at most; None if none arrived within half a second.

        Raises `errors.lasting(SourceError(…))` for what no restart repairs, such as records that were removed. A record
        that cannot be decoded is returned: `PolledSource.values` raises for it.
        """

    def is_retried(self, error: BaseException) -> bool:
        """Return whether `read` is called again after ``error``."""
        return isinstance(error, self.retried)

    def reset(self) -> None:
        """Drop the connection, after an error that is retried."""

    def interrupt(self) -> None:
        """End a call of `read` that may take seconds. Called by another thread."""

    def close(self) -> None:
        """Drop the connection. Called once."""

    def lag_rows(self, position: Any) -> int | None:
        """Return how many records come after ``position``, if that is known better than by `PolledChunk.left`."""
        return None

    def lag_bytes(self, position: Any) -> int | None:
        """Return how many bytes come after ``position``; None if that is unknown."""
        return None


class Feed(Protocol[R_co]):
    """The chunks of one partition, for the thread of the worker: no method but `close` waits."""

    def start(self) -> None:
        """Begin to read."""
        ...

    def take(self) -> PolledChunk[R_co] | None:
        """Return the next chunk; None if there is none now."""
        ...

    def stop(self) -> None:
        """Read no further: the partition has ended."""
        ...

    def close(self) -> None:
        """Close what is open, within seconds."""
        ...

    def lag_rows(self, position: Any) -> int | None:
        """See `PolledReader.lag_rows`."""
        ...

    def lag_bytes(self, position: Any) -> int | None:
        """See `PolledReader.lag_bytes`."""
        ...


class ReaderFeed(Generic[R]):
    """Calls a reader in a thread, again after errors that pass, and two chunks ahead."""

    def __init__(self, reader: PolledReader[R], name: str) -> None:
        self._reader = reader
        self._rows_max = _ROWS_FIRST
        self._next_at_s = 0.0
        self._ahead = ReadAhead(self._fetch, name=name, release=reader.close)
        self.start = self._ahead.start
        self.take = self._ahead.take
        self.stop = self._ahead.stop
        self.lag_rows = reader.lag_rows
        self.lag_bytes = reader.lag_bytes

    def close(self) -> None:
        self._ahead.close(self._reader.interrupt)

    def _fetch(self) -> PolledChunk[R] | None:
        if self._ahead.pause(self._next_at_s - time.monotonic()):
            return None
        began_s = time.monotonic()
        chunk = self._read(began_s + self._reader.patience_s)
        if chunk is None or (not chunk.records and chunk.after is None):
            self._next_at_s = began_s + self._reader.idle_s
        elif chunk.records:
            # Twice as many as before, unless they are large.
            fit = _CHUNK_BYTES // (chunk.size // len(chunk.records) + 1)
            self._rows_max = max(1, min(_ROWS_MAX, 2 * self._rows_max, fit))
        return chunk

    def _read(self, ends_s: float) -> PolledChunk[R] | None:
        """Read, until it succeeds, the part is closed, or it is too late for a further try."""
        while True:
            try:
                return self._reader.read(self._rows_max)
            except MalformedRecord as error:  # its position is unknown here, and the poll after it would raise it again
                raise problems.misplaced(self._reader.name, error) from error
            except Exception as error:
                if not self._reader.is_retried(error):
                    raise
                self._reader.reset()
                if time.monotonic() >= ends_s:
                    raise problems.unreachable(self._reader.name, error) from error
                if self._ahead.pause(_PAUSE_S):
                    return None
