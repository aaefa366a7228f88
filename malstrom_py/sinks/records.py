"""What sinks of records share: what users' functions make of values, and writers that stage records in segments.

Rule: rows of a key are published in the order of the versions of the routing table, on any worker. So a segment ends
where keys have moved, and a commit publishes segments by their version.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from malstrom_py.data.batch import Batch
from malstrom_py.errors import SinkError, lasting
from malstrom_py.errors.text import describe_function, text_with_place
from malstrom_py.sinks.base import BaseTransactionalWriter, CommitContext

T = TypeVar("T")


def converted(function: Callable[[Any], T], values: Iterable[Any], argument: str, returns: str) -> list[T]:
    """Return what ``function``, an ``argument`` that ``returns`` something, returns for each of ``values``."""
    try:
        return list(map(function, values))
    except SinkError:
        raise  # of a schema registry
    except Exception as error:
        raise lasting(
            SinkError(
                f"{argument}={describe_function(function)} failed: {text_with_place(error)}. It returns {returns}"
            )
        ) from error


def as_bytes(made: object, argument: str, returns: str = "bytes, a str or None") -> bytes | None:
    """Return bytes, a str or None, which a function has returned, as bytes or None."""
    if isinstance(made, str):
        return made.encode()
    if made is None or isinstance(made, bytes):
        return made
    raise lasting(SinkError(f"{argument}= returned {type(made).__name__}: it returns {returns}"))


def payloads_as(kind: type[T], payloads: Sequence[bytes], context: CommitContext) -> list[T]:
    """Return the payloads of a commit, which are JSON of ``kind``."""
    try:
        return [msgspec.json.decode(payload, type=kind) for payload in payloads]
    except msgspec.DecodeError:
        raise SinkError(
            f"a pre-commit payload of step {context.step!r} is damaged: resume from an older snapshot"
        ) from None


class HasVersion(Protocol):
    """A segment; ``version``: that of the routing table under which its rows were written."""

    version: int


S = TypeVar("S", bound=HasVersion)


class SegmentedWriter(BaseTransactionalWriter, Generic[S]):
    """Stages the records of one worker, as many at a time as have ``bytes_max`` bytes, up to ``rows_max``."""

    def __init__(self, *, bytes_max: int, rows_max: int = 1 << 62) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._waiting: list[Any] = []
        self._bytes = 0
        self._version = 0
        self.segments: list[S] = []
        """What was staged since the last pre-commit."""

    @abstractmethod
    def records(self, batch: Batch) -> Iterable[tuple[Any, int]]:
        """Return the record of each row, and about how many bytes it has."""

    @abstractmethod
    def new_segment(self, version: int) -> S:
        """Return a segment without records."""

    @abstractmethod
    def stage(self, segment: S, records: list[Any]) -> None:
        """Add records to a segment."""

    def write(self, batch: Batch) -> None:
        for record, size in self.records(batch):
            if self._waiting and (len(self._waiting) >= self._rows_max or self._bytes + size > self._bytes_max):
                self._flush()
            self._waiting.append(record)
            self._bytes += size

    def moved(self, version: int) -> None:
        self._flush()
        self._version = version

    def taken(self) -> list[S]:
        """Stage what waits, and return all segments; the caller empties `segments` once they are pre-committed."""
        self._flush()
        return self.segments

    def _flush(self) -> None:
        if not self._waiting:
            return
        if not self.segments or self.segments[-1].version != self._version:
            self.segments.append(self.new_segment(self._version))
        self.stage(self.segments[-1], self._waiting)
        self._waiting, self._bytes = [], 0
