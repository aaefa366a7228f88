"""An exchange on one worker: the last step of the region before it, and the channels to and from all workers.

F3: a partitioner maps key -> slot, placement maps slot -> worker. With one worker nothing is hashed or encoded. Keys
are not checked here: `key_by` has. T3: every receiver gets the same sequence of epochs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Final, Protocol

from malstrom_py import accelerator
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, AbsBarrier, Epoch, PartMessage, StateMessage, SuspendMarker
from malstrom_py.errors import OperatorError
from malstrom_py.operators.base import Operator, StepContext
from malstrom_py.rescale.channels.channel import (
    OPEN,
    Barrier,
    ChannelId,
    InboundChannel,
    InLine,
    Loopback,
    OutboundChannel,
    RemoteInbound,
    RemoteOutbound,
    Suspend,
)
from malstrom_py.rescale.moves.protocol import Bye, Marker, RescaleMove
from malstrom_py.rescale.slots import StableSlots
from malstrom_py.workers.engine.flow_limits import Batching

_FEW_OWNERS: Final = 8
"""For so many owners a pass over the rows for each is faster than to sort the rows."""


class SlotsOfKeys(Protocol):
    """The slots of legal keys. ``slots_of_arrow(column)``, if there is one, returns those of a column as a column."""

    def slots_of(self, keys: Sequence[Any]) -> list[int]: ...


class Exchange(Operator):
    """The exchange after one ``key_by``. As a step it sends each row to the worker that owns its key's slot.

    ``context``: of the ``key_by``; ``table[slot]``: the worker that owns the slot; ``slots``: the partitioner.
    ``trust``: the number of rows that may be in flight to a new receiver. ``outbound`` and ``inbound``: the channel to
    and from each worker, this one included; ``remote``: the channels to other workers.
    """

    takes_columns = True

    def __init__(
        self,
        context: StepContext,
        members: Sequence[int],
        table: Sequence[int],
        *,
        slots: SlotsOfKeys,
        batching: Batching,
        incarnation: int = 0,
        version: int = 0,
        trust: int = OPEN,
    ) -> None:
        super().__init__(context)
        self.name = context.step
        self.version = version
        self.silent = False
        """Whether epochs are not sent: the marker that follows carries the frontier (R2)."""
        self.routed_rows = 0
        self.waiting_ns = 0
        """For how long rows have waited for credit, measured between the steps of the worker."""
        self.combine: Callable[[Batch], Batch] | None = None
        """F5: gathers the rows of a batch before it is routed, where the next step can merge what they gather."""
        self.columns_sent: frozenset[str] | None = None
        """The columns that the next steps read of columns: the others are not sent. None: all."""
        self.slots_of = slots.slots_of
        self._slots_of_column: Callable[[Any], Any] | None = getattr(slots, "slots_of_arrow", None)
        # Of the class itself: a subclass may have another `slots_of`.
        self._slot_vector = slots.slot_vector if type(slots) is StableSlots else None
        self._worker = context.worker
        self._members = tuple(members)
        self._table = table
        self._owners: Any = None
        """The owners in the table, and by slot the rank of its owner among them, once they were needed."""
        self._batching = batching
        self._incarnation = incarnation
        self._trust = trust
        self._sent_before = 0
        self.loopback = Loopback(batching.credit, version, trust)
        self.outbound: dict[int, OutboundChannel] = {self._worker: self.loopback}
        self.inbound: dict[int, InboundChannel] = {self._worker: self.loopback}
        self.remote: dict[int, RemoteOutbound] = {}
        for member in members:
            if member != self._worker:
                self.connect(member)

    def connect(self, member: int) -> None:
        """R1: open the channels to and from ``member``. Nothing is sent before ``member`` is in the table."""
        import numpy  # noqa: F401, ICN001  now, not with the first rows: in a move these would wait for it, 70 ms

        batching, codec = self._batching, self.context.codec
        self.outbound[member] = self.remote[member] = RemoteOutbound(
            ChannelId(self.name, self._worker, member),
            partial(codec.encode_batch, step=self.name),
            self._incarnation,
            batching.credit,
            rows_max=batching.rows_max,
            columns_rows_max=batching.columns_rows_max,
            bytes_max=batching.bytes_max,
            version=self.version,
            trust=self._trust,
        )
        decode = partial(codec.decode_batch, step=self.name)
        channel = ChannelId(self.name, member, self._worker)
        self.inbound[member] = RemoteInbound(channel, decode, self._incarnation, batching.credit, trust=self._trust)

    def disconnect(self, member: int) -> None:
        """R8: close the channels to and from ``member``, which has left and has taken everything."""
        outbound = self.remote.pop(member)
        outbound.close()
        self._sent_before += outbound.sent_bytes
        del self.outbound[member]
        inbound = self.inbound.pop(member)
        assert isinstance(inbound, RemoteInbound)
        inbound.close()

    def switch(self, move: RescaleMove, *, before: int, after: int, idle: bool) -> None:
        """R2: send the marker of ``move`` on every channel, and route by its table from now on.

        ``before``: the last epoch that was broadcast; ``after``: the frontier from now on.
        """
        self.control(Marker(move, before, after, idle), move.everyone)
        self._table, self._members, self.version = move.table, move.new, move.version
        self._owners = None
        self.silent = False

    def leave(self) -> None:
        """R8: send Bye, the last message on every channel; no epoch follows it."""
        self.control(Bye())
        self.silent = True

    def control(self, message: InLine, receivers: Sequence[int] | None = None) -> None:
        """Send ``message`` to ``receivers``, or else to every member."""
        for receiver in self._members if receivers is None else receivers:
            self.outbound[receiver].put_control(message)

    def flush(self) -> None:
        """Make frames of all buffered rows and epochs."""
        for channel in self.remote.values():
            channel.flush()

    def owns(self, slot: int) -> bool:
        """Return whether rows of ``slot`` are sent to this worker."""
        return self._table[slot] == self._worker

    def slots(self, batch: Batch) -> Any:
        """Return the slot of each row's key as a buffer of uint32.

        Raises:
            OperatorError: a user's partitioner returned something else than one slot per key.
        """
        import numpy as np

        if not len(batch):
            return np.empty(0, np.uint32)
        if self._slots_of_column is not None and batch.key_column is not None:
            slots = _integers(self._slots_of_column(batch.key_column))
        else:
            keys = batch.keys or []
            vector = None if self._slot_vector is None else self._slot_vector(keys)
            if vector is not None and len(vector) == len(batch):
                return vector
            slots = _integers(self.slots_of(keys))
        count = len(self._table)
        if slots is None or slots.shape != (len(batch),) or (slots < 0).any() or (slots >= count).any():
            raise OperatorError(
                f"step {self.name!r}: the partitioner must return one slot for each key, a whole number from 0 to "
                f"{count - 1}.",
                step=self.name,
            )
        return np.ascontiguousarray(slots, np.uint32)

    @property
    def load(self) -> float:
        """Return the largest excess of waiting rows of all channels. Above 1, the last batch was too large.

        A batch may exceed the window by half, because its channel may have been almost full.
        """
        return max(channel.excess for channel in self.outbound.values())

    @property
    def waits_for_time(self) -> bool:
        """Whether rows with credit wait for a slow receiver."""
        return any(channel.waits_for_time for channel in self.outbound.values())

    @property
    def sent_bytes(self) -> int:
        """The bytes of the frames for other workers so far."""
        return self._sent_before + sum(channel.sent_bytes for channel in self.remote.values())

    @property
    def backlog(self) -> int:
        """The number of rows that wait for credit."""
        return sum(channel.backlog for channel in self.outbound.values() if channel.backlogged)

    @property
    def backlogged(self) -> bool:
        """Whether any row waits for credit."""
        for channel in self.outbound.values():  # noqa: SIM110  called for every batch, as `RegionInput.open` is
            if channel.backlogged:
                return True
        return False

    # The step. It sends on its channels only, and never to the outlet.

    def on_batch(self, batch: Batch, out: object = None) -> None:
        if self.combine is not None and self.remote:
            batch = self.combine(batch)
        self.routed_rows += len(batch)
        if not self.remote:
            self.loopback.put(batch)
            return
        if self.columns_sent is not None and isinstance(batch, ColumnBatch):
            batch = batch.narrowed(self.columns_sent)
        for owner, share in self._shares(batch):
            self.outbound[owner].put(share)

    def on_epoch(self, epoch: Epoch, out: object = None) -> None:
        if self.silent:
            return
        for member in self._members:
            self.outbound[member].put_epoch(epoch)
        if epoch.time == MAX_EPOCH:
            self.flush()

    def on_part(self, message: PartMessage, out: object = None) -> None:
        """Parts belong to the source region, which ends here."""

    def on_control(self, message: StateMessage, out: object = None) -> None:
        """Barriers and suspension cross to the next region; what acts on this region's state ends here."""
        if isinstance(message, AbsBarrier):
            self.control(Barrier(message.snapshot, message.parent))
        elif isinstance(message, SuspendMarker):
            self.control(Suspend())

    def _shares(self, batch: Batch) -> Iterator[tuple[int, Batch]]:
        """Yield the rows of ``batch`` by the worker that owns their keys' slots.

        They are copies and not cuts of one: a step that keeps its own would keep those of all workers.
        """
        if self._owners is None:
            import numpy as np

            owners, ranks = np.unique(self._table, return_inverse=True)
            self._owners = owners.tolist(), ranks.astype(np.uint16)  # which numpy sorts by radix
        owners, ranks = self._owners
        slots = self.slots(batch)
        native = None if isinstance(batch, ColumnBatch) else accelerator.rows()
        if native is None or not _is_of_lists(batch):
            yield from _taken_by_owner(batch, slots, owners, ranks)
            return
        lists = native.split(slots, ranks, len(owners), (batch.values, batch.keys, batch.timestamps))
        for owner, values, keys, timestamps in zip(owners, *(one or repeat(None) for one in lists), strict=False):
            if values:
                yield owner, Batch(values, keys=keys, timestamps=timestamps, part=batch.part)


def _is_of_lists(batch: Batch) -> bool:
    """Return whether rows are in lists: a batch that a user has made may have others."""
    columns = (batch.values, batch.keys, batch.timestamps)
    return all(column is None or type(column) is list for column in columns)


def _integers(given: Any) -> Any:
    """Return what a partitioner returned as an array of integers; None if it is something else."""
    import numpy as np

    try:
        slots = np.asarray(given)
        return slots if slots.dtype.kind in "iub" else np.fromiter(map(operator.index, given), np.int64)
    except Exception:  # of a user's object
        return None


def _taken_by_owner(batch: Batch, slots: Any, owners: Sequence[int], ranks: Any) -> Iterator[tuple[int, Batch]]:
    import numpy as np

    by_row = ranks[np.asarray(slots)]
    if len(owners) <= _FEW_OWNERS:
        rows_of = [np.flatnonzero(by_row == rank) for rank in range(len(owners))]
    else:
        ends = np.bincount(by_row, minlength=len(owners)).cumsum()[:-1]
        rows_of = np.split(np.argsort(by_row, kind="stable"), ends)
    for owner, rows in zip(owners, rows_of, strict=True):
        if len(rows):
            taken: Any = rows if isinstance(batch, ColumnBatch) else rows.tolist()
            yield owner, batch if len(rows) == len(batch) else batch.take(taken)
