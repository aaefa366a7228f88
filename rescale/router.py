"""The sender's side of one exchange on one worker: from keys to slots to workers, and the cutting of frames.

F3: a partitioner maps key -> slot, placement maps slot -> worker. With one worker nothing is hashed, nothing
encoded. Rows for another worker are gathered until there are enough of them, they are big enough, or they have
lingered; the epochs among them keep their place (T3: every receiver gets the same sequence of epochs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from malstrom_py.batches import Batch
from malstrom_py.messages import MAX_EPOCH, Epoch
from malstrom_py.rescale.channel import Barrier, ChannelId, ChannelOut, Credit, Frame, Loopback, Suspend


class _Gathering:
    """Rows on their way to one other worker, and the epochs among them."""

    __slots__ = ("epochs", "keys", "timestamps", "values")

    def __init__(self) -> None:
        self.keys: list[Any] = []
        self.values: list[Any] = []
        self.timestamps: list[int] = []
        self.epochs: list[tuple[int, int]] = []


class Router:
    """Routes the output of one ``key_by``.

    ``table[slot]`` is the worker that owns a slot, ``slots_of`` gives the slots of keys, ``encode`` makes bytes of a
    batch. Both raise typed errors.
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
        incarnation: int = 0,
        credit: Credit | None = None,
    ) -> None:
        credit = credit or Credit()
        self.loopback = Loopback(credit)
        self.channels = {
            member: ChannelOut(ChannelId(exchange, worker, member), incarnation, credit)
            for member in members
            if member != worker
        }
        self.routed_rows = 0
        self._worker = worker
        self._encode = encode
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._row_bytes = 1.0
        self._table = table
        self._slots_of = slots_of
        self._gathering = {member: _Gathering() for member in self.channels}

    def route(self, batch: Batch) -> None:
        """Send each row to the worker that owns its key's slot."""
        self.routed_rows += len(batch.values)
        if not self._gathering:
            self.loopback.put(batch)
            return
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

    def slots(self, batch: Batch) -> list[int]:
        """The slot of each row's key."""
        return self._slots_of(batch.keys or [])

    def epoch(self, time: int) -> None:
        """Tell every receiver of ``time``, behind the rows before it."""
        self.loopback.put(Epoch(time))
        for gathering in self._gathering.values():
            gathering.epochs.append((len(gathering.values), time))
        if time == MAX_EPOCH:
            self.flush()

    def control(self, message: Barrier | Suspend) -> None:
        """Tell every receiver of ``message``, behind the rows before it."""
        self.flush()
        self.loopback.put(message)
        for channel in self.channels.values():
            channel.put(control=message)

    def flush(self) -> None:
        """Cut a frame of everything that has been gathered."""
        for member, gathering in self._gathering.items():
            if gathering.values or gathering.epochs:
                self._cut(member, gathering)

    def take(self) -> list[Frame]:
        """The frames for other workers that may go now."""
        return [frame for channel in self.channels.values() for frame in channel.take()]

    @property
    def backlogged(self) -> bool:
        """Whether anything waits for credit."""
        if not self.channels:
            return self.loopback.full
        return self.loopback.full or any(channel.backlog for channel in self.channels.values())

    def _gather(self, owner: int, batch: Batch, rows: list[int]) -> None:
        gathering = self._gathering[owner]
        pick: Callable[[list[Any]], Sequence[Any]] = (
            itemgetter(*rows) if len(rows) > 1 else lambda column: (column[rows[0]],)
        )
        gathering.keys.extend(pick(batch.keys or []))
        gathering.values.extend(pick(batch.values))
        if batch.timestamps is not None:
            gathering.timestamps.extend(pick(batch.timestamps))
        count = len(gathering.values)
        if count >= self._rows_max or count * self._row_bytes >= self._bytes_max:
            self._cut(owner, gathering)

    def _cut(self, owner: int, gathering: _Gathering) -> None:
        self._gathering[owner] = _Gathering()
        channel = self.channels[owner]
        rows = len(gathering.values)
        payload: bytes | None = None
        if rows:
            timestamps = gathering.timestamps or None
            payload = self._encode(Batch(gathering.values, keys=gathering.keys, timestamps=timestamps))
            self._row_bytes = len(payload) / rows
        channel.put(payload, rows=rows, size=0 if payload is None else len(payload), epochs=tuple(gathering.epochs))
