"""A partition while it is polled: values, the position after the last one, and the end of a bounded run.

Rules:
- The position is that of the last record whose value was returned. Before the first it is where the partition begins.
- A value function that raises at a record ends the poll before it. The next poll raises, and passes the record; a
  `SourceError` is not of the record, which is not passed then.
- A bounded run returns no record after its end, and is finished as soon as the last record up to it was returned.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from malstrom_py.data.batch import ColumnBatch
from malstrom_py.errors import MalformedRecord, SourceError
from malstrom_py.sources.base import BasePart, PolledRows
from malstrom_py.sources.polled import problems
from malstrom_py.sources.polled.reading import Feed, PolledChunk

R = TypeVar("R")
V = TypeVar("V")

FINISHED: Final = "finished"
"""The item of a position that says that its partition was read up to the end of a bounded run."""

_WRAPPED: Final = "position"
"""The item that holds a position which is not a dict."""


def has_finished(state: Any) -> bool:
    """Whether ``state`` is a position at the end of a partition.

    >>> has_finished({"offset": 3, "finished": True}), has_finished({"offset": 3}), has_finished(None)
    (True, False, False)
    """
    return isinstance(state, Mapping) and state.get(FINISHED) is True


def stored(position: Any, *, is_finished: bool) -> Any:
    """Return a position as snapshots hold it.

    >>> stored(7, is_finished=True), stored({"id": "7-0"}, is_finished=False), stored(None, is_finished=False)
    ({'position': 7, 'finished': True}, {'id': '7-0'}, None)
    """
    if position is None and not is_finished:
        return None
    plain = dict(position) if isinstance(position, Mapping) else {_WRAPPED: position}
    return plain | ({FINISHED: True} if is_finished else {})


def position_in(state: Any) -> Any:
    """Return the position that was `stored`.

    >>> position_in({"position": 7, "finished": True}), position_in({"id": "7-0"}), position_in(None)
    (7, {'id': '7-0'}, None)
    """
    if state is None:
        return None
    plain = {name: item for name, item in state.items() if name != FINISHED}
    return plain[_WRAPPED] if plain.keys() == {_WRAPPED} else plain


@dataclass(frozen=True, slots=True)
class UpTo:
    """The end of a bounded run. ``order``: what orders positions and ends; ``end`` None: where the reader ends."""

    order: Callable[[Any], Any] = lambda position: position
    end: Any = None

    def kept(self, chunk: PolledChunk[Any]) -> int:
        """Return how many records of ``chunk`` are not after the end."""
        count = len(chunk.records)
        if self.end is None or not count:
            return count
        end = self.order(self.end)
        if self.order(chunk.position(count - 1)) <= end:
            return count
        return bisect_right(range(count), end, key=lambda number: self.order(chunk.position(number)))

    def is_reached(self, position: Any) -> bool:
        """Return whether nothing follows ``position`` up to the end."""
        return self.end is not None and bool(self.order(position) >= self.order(self.end))


class PolledPart(BasePart[V], Generic[R, V]):
    """Returns the values of what a feed reads.

    ``values`` returns an iterator of one value per record, whose errors are those of the record that it is at.
    ``describe`` names a record that it refuses, and returns what is shown of it. ``up_to``: the end of a bounded run.
    ``columns`` returns what ``values`` does as columns, or None if that must be called.
    """

    wait_max_s = 0.1

    def __init__(
        self,
        feed: Feed[R],
        position: Any,
        *,
        values: Callable[[Sequence[R]], Iterable[V]],
        describe: Callable[[R], tuple[str, Any]],
        up_to: UpTo | None = None,
        is_finished: bool = False,
        columns: Callable[[Sequence[R]], ColumnBatch | None] | None = None,
    ) -> None:
        self._feed = feed
        self._position = position
        self._values = values
        self._describe = describe
        self._columns = columns
        self._up_to = up_to
        self._is_finished = is_finished
        self._is_closed = False
        self._chunk: PolledChunk[R] = PolledChunk()
        self._count = self._taken = 0
        """The records of the chunk up to the end of a bounded run, and how many of them were taken."""
        if not is_finished:
            feed.start()

    def poll(self, rows_max: int) -> list[V] | PolledRows | None:
        """See `SourcePart.poll`."""
        if self._is_finished:
            return None
        if self._taken == self._count:
            chunk = self._feed.take()
            if chunk is None:
                return None
            self._begin(chunk)
            if not self._count:
                return None
        records = self._chunk.records[self._taken : min(self._taken + rows_max, self._count)]
        if self._columns is not None and (made := self._columns(records)) is not None:
            self._advance(len(records))
            return PolledRows(made, 0, iter(()))
        values: list[V] = []
        error = None
        try:
            values.extend(islice(self._values(records), len(records) + 1))
        except Exception as raised:  # what was added before it stays
            error = raised
        if not values:
            if isinstance(error, SourceError) and not isinstance(error, MalformedRecord):
                raise error  # not of the record: a schema registry does not answer
            self._advance(1)
            raise problems.malformed(*self._describe(records[0]), error) from error
        if len(values) > len(records):
            raise problems.uncounted(len(values), len(records))
        self._advance(len(values))
        return values

    def is_finished(self) -> bool:
        """See `SourcePart.is_finished`."""
        return self._is_finished

    def snapshot(self) -> Any:
        """See `SourcePart.snapshot`."""
        return stored(self._position, is_finished=self._is_finished)

    def lag_rows(self) -> int | None:
        """Return how many records are not read yet, if that is known."""
        if self._is_closed:
            return None
        found = self._feed.lag_rows(self._position)
        left = self._chunk.left
        return found if found is not None or left is None else left + len(self._chunk.records) - self._taken

    def lag_bytes(self) -> int | None:
        """Return how many bytes are not read yet, if that is known."""
        return None if self._is_closed else self._feed.lag_bytes(self._position)

    def close(self) -> None:
        """See `SourcePart.close`."""
        if not self._is_closed:
            self._is_closed = True
            self._feed.close()

    def _begin(self, chunk: PolledChunk[R]) -> None:
        self._chunk, self._taken = chunk, 0
        self._count = len(chunk.records) if self._up_to is None else self._up_to.kept(chunk)
        if chunk.before is not None:
            self._position = chunk.before
        if not self._count:
            self._pass_chunk()

    def _advance(self, records: int) -> None:
        self._taken += records
        self._position = self._chunk.position(self._taken - 1)
        if self._taken == self._count:
            self._pass_chunk()

    def _pass_chunk(self) -> None:
        """Move the position after all that the chunk accounts for, and notice the end of a bounded run."""
        chunk = self._chunk
        is_whole = self._count == len(chunk.records)
        if is_whole and chunk.after is not None:
            self._position = chunk.after
        self._chunk, self._count, self._taken = PolledChunk(left=chunk.left), 0, 0  # an idle partition holds no records
        if self._up_to is not None:
            self._is_finished = chunk.is_end or not is_whole or self._up_to.is_reached(self._position)
            if self._is_finished:
                self._feed.stop()
