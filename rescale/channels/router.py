"""The sender's side of one exchange on one worker: maps keys to slots to workers and cuts frames.

F3: a partitioner maps key -> slot, placement maps slot -> worker. With one worker nothing is hashed or encoded. Rows
for another worker are buffered until they are enough rows, enough bytes, or old enough. The epochs among the rows keep
their place (T3: every receiver gets the same sequence of epochs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, Epoch
from malstrom_py.errors import InternalError
from malstrom_py.rescale.channels.channel import (
    OPEN,
    ChannelId,
    ChannelOut,
    Credit,
    Frame,
    InLine,
    Loopback,
    PlacedEpoch,
)
from malstrom_py.rescale.moves.protocol import Bye, Marker, RescaleMove

if TYPE_CHECKING:
    import pyarrow as pa


class Gathering:
    """The outbound buffer for one worker: rows of one layout, and the epochs among them.

    ``size``: the bytes of columns; 0 for rows, whose size is unknown before they are encoded.

    >>> gathering = Gathering()
    >>> gathering.add(Batch(["x", "y", "z"], keys=[1, 2, 3]), [0, 2])
    >>> gathering.epochs.append(PlacedEpoch(gathering.rows, 7))
    >>> gathering.batch().values, gathering.epochs
    (['x', 'z'], [PlacedEpoch(row=2, time=7, idle=False)])
    """

    __slots__ = ("_columns", "_keys", "_timestamps", "_values", "epochs", "rows", "size")

    def __init__(self) -> None:
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._timestamps: list[int] = []
        self._columns: list[ColumnBatch] = []
        self.epochs: list[PlacedEpoch] = []
        self.rows = 0
        self.size = 0

    def takes(self, batch: Batch) -> bool:
        """Return whether ``batch`` can be appended: the same layout, and for columns the same schema."""
        if not self.rows:
            return True
        if not isinstance(batch, ColumnBatch):
            return not self._columns
        return bool(self._columns) and _shape(self._columns[0]) == _shape(batch)

    def add(self, batch: Batch, indices: Sequence[int]) -> None:
        """Add the rows of ``batch`` at ``indices``, which are not empty."""
        pick: Callable[[list[Any]], Sequence[Any]] = (
            itemgetter(*indices) if len(indices) > 1 else lambda column: (column[indices[0]],)
        )
        self._keys.extend(pick(batch.keys or []))
        self._values.extend(pick(batch.values))
        if batch.timestamps is not None:
            self._timestamps.extend(pick(batch.timestamps))
        self.rows = len(self._values)

    def add_columns(self, batch: ColumnBatch) -> None:
        """Add all rows of ``batch``."""
        self._columns.append(batch)
        self.rows += len(batch)
        self.size += batch.columns.nbytes

    def batch(self) -> Batch:
        """Return all rows as one batch."""
        if not self._columns:
            return Batch(self._values, keys=self._keys, timestamps=self._timestamps or None)
        return self._columns[0] if len(self._columns) == 1 else _joined(self._columns)


def _shape(batch: ColumnBatch) -> tuple[object, ...]:
    """Return what must be equal in batches that are joined."""
    return (
        batch.columns.schema,
        None if batch.key_column is None else batch.key_column.type,
        batch.time_column is None,
        batch.is_timed,
    )


def _joined(batches: Sequence[ColumnBatch]) -> ColumnBatch:
    import pyarrow as pa

    first = batches[0]
    lists = first.key_column is None
    return ColumnBatch(
        pa.concat_batches([batch.columns for batch in batches]),
        keys=[key for batch in batches for key in batch.keys or []] if lists else None,
        key_column=None if lists else _concatenated([batch.key_column for batch in batches]),
        timestamps=[time for batch in batches for time in batch.timestamps or []]
        if first.is_timed and first.time_column is None
        else None,
        time_column=None if first.time_column is None else _concatenated([batch.time_column for batch in batches]),
    )


def _concatenated(arrays: Sequence[pa.Array | None]) -> pa.Array:
    import pyarrow as pa

    return pa.concat_arrays(arrays)


class Router:
    """Routes the output of one ``key_by``.

    ``table[slot]``: the worker that owns the slot. ``slots_of`` and ``slots_of_column`` return the slots of keys, as a
    list and as an Arrow column; ``encode`` returns a batch as bytes; all three raise typed errors. Columns for one
    worker are cut into batches of ``columns_rows_max`` rows, rows into batches of ``rows_max``, and both into smaller
    ones for a slow receiver with a small window. ``trust``: the number of rows that may be in flight to a new receiver.
    """

    def __init__(
        self,
        exchange: str,
        worker: int,
        members: Sequence[int],
        table: Sequence[int],
        *,
        slots_of: Callable[[Sequence[Any]], list[int]],
        encode: Callable[[Batch], bytes],
        rows_max: int,
        bytes_max: int,
        slots_of_column: Callable[[Any], Any] | None = None,
        columns_rows_max: int = 65_536,
        incarnation: int = 0,
        credit: Credit | None = None,
        version: int = 0,
        trust: int = OPEN,
    ) -> None:
        self.exchange = exchange
        self.version = version
        self.silent = False
        """Whether epochs are not sent: the marker that follows carries the frontier (R2)."""
        self.channels: dict[int, ChannelOut] = {}
        self.routed_rows = 0
        self._credit = credit or Credit()
        self._incarnation = incarnation
        self._trust = trust
        self.loopback = Loopback(self._credit, version, trust)
        self._worker = worker
        self._encode = encode
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._row_bytes = 1.0
        self._table = table
        self.slots_of = slots_of
        self._slots_of_column = slots_of_column
        self._columns_rows_max = columns_rows_max
        self._members = tuple(members)
        self._gathering: dict[int, Gathering] = {}
        for member in members:
            if member != worker:
                self.connect(member)

    def connect(self, member: int) -> None:
        """Open the channel to ``member``. Nothing is sent on it before ``member`` is in the table (R1)."""
        self.channels[member] = ChannelOut(
            ChannelId(self.exchange, self._worker, member), self._incarnation, self._credit, self._trust
        )
        self._gathering[member] = Gathering()

    def disconnect(self, member: int) -> None:
        """R8: close the channel to ``member``, which has left and has taken everything."""
        gathering = self._gathering.pop(member)
        if self.channels.pop(member).backlog or gathering.rows or gathering.epochs:
            raise InternalError(f"exchange {self.exchange!r}: the channel to worker {member} is dropped before its end")

    def switch(self, move: RescaleMove, *, before: int, after: int, idle: bool) -> None:
        """R2: send the marker of ``move`` on every channel, and route by its table from now on.

        ``before``: the last epoch that was broadcast; ``after``: the frontier from now on.
        """
        self.control(Marker(move, before, after, idle), move.everyone)
        self._table, self._members, self.version = move.table, move.new, move.version
        self.silent = False

    def leave(self) -> None:
        """R8: send Bye, the last message on every channel; no epoch follows it."""
        self.control(Bye())
        self.silent = True

    def route(self, batch: Batch) -> None:
        """Send each row to the worker that owns its key's slot."""
        self.routed_rows += len(batch)
        if not self._gathering:
            self.loopback.put(batch)
        elif isinstance(batch, ColumnBatch):
            self._route_columns(batch)
        else:
            self._route_rows(batch)

    def _route_rows(self, batch: Batch) -> None:
        rows: dict[int, list[int]] = {member: [] for member in (self._worker, *self.channels)}
        append = {member: indices.append for member, indices in rows.items()}
        for index, owner in enumerate(map(self._table.__getitem__, self.slots(batch))):
            append[owner](index)
        for owner, indices in rows.items():
            if not indices:
                continue
            if owner == self._worker:
                self.loopback.put(batch.take(indices))
            else:
                self._gather(owner, batch, indices)

    def _route_columns(self, batch: ColumnBatch) -> None:
        for owner, rows in self._shares(batch):
            if owner == self._worker:
                self.loopback.put(rows)
                continue
            if not self._gathering[owner].takes(rows):
                self._cut(owner)
            share = self.channels[owner].share
            most = min(self._columns_rows_max, share)
            for start in range(0, len(rows), share):
                piece = rows if len(rows) <= share else rows.cut(start, start + share)
                gathering = self._gathering[owner]
                gathering.add_columns(piece)
                if gathering.rows >= most or gathering.size >= self._bytes_max:
                    self._cut(owner)

    def _shares(self, batch: ColumnBatch) -> Iterator[tuple[int, ColumnBatch]]:
        """Yield the rows of ``batch`` by the worker that owns their keys' slots."""
        import pyarrow as pa
        import pyarrow.compute as pc

        slots = self.slots(batch)
        owners = pc.take(self._table_column(), slots if isinstance(slots, pa.Array) else pa.array(slots, pa.uint32()))
        for owner in owners.unique().to_pylist():
            is_here = pc.call_function("equal", [owners, pa.scalar(owner, owners.type)])
            rows = pc.call_function("indices_nonzero", [is_here])
            yield owner, batch if len(rows) == len(batch) else batch.take(rows)

    def _table_column(self) -> Any:
        import pyarrow as pa

        return pa.array(self._table, pa.uint32())

    def slots(self, batch: Batch) -> Any:
        """Return the slot of each row's key: a list, or a column for a column of keys."""
        if batch.key_column is not None and self._slots_of_column is not None:
            return self._slots_of_column(batch.key_column)
        return self.slots_of(batch.keys or [])

    def epoch(self, epoch: Epoch) -> None:
        """Send ``epoch`` to every member, in its place among rows (T2: also whether its sender is idle)."""
        if self.silent:
            return
        for member in self._members:
            if member == self._worker:
                self.loopback.put(epoch)
            else:
                gathering = self._gathering[member]
                gathering.epochs.append(PlacedEpoch(gathering.rows, epoch.time, epoch.idle))
        if epoch.time == MAX_EPOCH:
            self.flush()

    def control(self, message: InLine, receivers: Sequence[int] | None = None) -> None:
        """Send ``message`` to ``receivers``, or else to every member, after all buffered rows."""
        self.flush()
        for receiver in self._members if receivers is None else receivers:
            if receiver == self._worker:
                self.loopback.put(message)
            else:
                self.channels[receiver].put(control=message)

    def flush(self) -> None:
        """Cut frames from all buffered rows and epochs."""
        for member, gathering in list(self._gathering.items()):
            if gathering.rows or gathering.epochs:
                self._cut(member)

    def take(self) -> list[Frame]:
        """Take the frames for other workers that have credit."""
        return [frame for channel in self.channels.values() for frame in channel.take()]

    def load(self) -> float:
        """Return the largest excess of waiting rows of all channels. Above 1, the last batch was too large.

        A batch may exceed the window by half, because its channel may have been almost full.
        """
        load = self.loopback.excess
        for channel in self.channels.values():
            load = max(load, channel.excess)
        return load

    @property
    def waits_for_time(self) -> bool:
        """Whether rows with credit wait for a slow receiver."""
        return self.loopback.waits_for_time or any(channel.waits_for_time for channel in self.channels.values())

    @property
    def backlogged(self) -> bool:
        """Whether any row waits for credit."""
        if self.loopback.full:
            return True
        for channel in self.channels.values():  # noqa: SIM110  called for every batch, as `RegionInput.open` is
            if channel.backlog:
                return True
        return False

    def _gather(self, owner: int, batch: Batch, rows: list[int]) -> None:
        if not self._gathering[owner].takes(batch):
            self._cut(owner)
        share = self.channels[owner].share
        for start in range(0, len(rows), share):
            gathering = self._gathering[owner]
            gathering.add(batch, rows[start : start + share] if share < len(rows) else rows)
            most = min(self._rows_max, share)
            if gathering.rows >= most or gathering.rows * self._row_bytes >= self._bytes_max:
                self._cut(owner)

    def _cut(self, owner: int) -> None:
        gathering, self._gathering[owner] = self._gathering[owner], Gathering()
        payload: bytes | None = None
        if gathering.rows:
            payload = self._encode(gathering.batch())
            self._row_bytes = len(payload) / gathering.rows
        self.channels[owner].put(
            payload,
            rows=gathering.rows,
            size=0 if payload is None else len(payload),
            epochs=tuple(gathering.epochs),
            version=self.version,
        )
