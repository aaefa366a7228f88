"""The queue of a step that holds records back: its entries, their stored form, and the merge of two queues.

Rule: entries are in the order of arrival, and an epoch comes after every record that it must not overtake.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import itemgetter
from typing import Any

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import Epoch
from malstrom_py.errors import InternalError
from malstrom_py.operators.base import Outlet, StepContext
from malstrom_py.operators.enrich.calls import Call
from malstrom_py.state.artefact import artefact, by_slot, encoded_entries, entries_in
from malstrom_py.state.change_log import SlotsOf


class Held:
    """A record and the call it waits for; None before the call. ``image``: its encoded form on arrival (test mode)."""

    __slots__ = ("call", "image", "key", "timestamp", "value")

    def __init__(self, key: Any, value: Any, timestamp: int | None, call: Call | None = None) -> None:
        self.key = key
        self.value = value
        self.timestamp = timestamp
        self.call = call
        self.image: bytes | None = None

    def as_batch(self) -> Batch:
        """Return a batch of this record."""
        return Batch([self.value], keys=[self.key], timestamps=None if self.timestamp is None else [self.timestamp])


class Gathered:
    """Rows for ``out``, gathered into batches until the next epoch."""

    __slots__ = ("_keys", "_out", "_timestamps", "_values")

    def __init__(self, out: Outlet) -> None:
        self._out = out
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._timestamps: list[int | None] = []

    def add(self, held: Held, value: Any) -> None:
        """Add ``held`` with its new ``value``."""
        if self._timestamps and (self._timestamps[-1] is None) is not (held.timestamp is None):
            self.send()  # a batch is timed as a whole
        self._keys.append(held.key)
        self._values.append(value)
        self._timestamps.append(held.timestamp)

    def send(self) -> None:
        """Send the gathered rows."""
        if self._values:
            timestamps: Any = None if self._timestamps[0] is None else self._timestamps
            self._out.send(Batch(self._values, keys=self._keys, timestamps=timestamps))
            self._keys, self._values, self._timestamps = [], [], []


def encoded(queue: Iterable[Held | Epoch], context: StepContext) -> bytes:
    """Encode ``queue`` for a snapshot. `CodecError` names the key of a record that cannot be stored."""
    rows = [
        (None, None, None, entry.time) if isinstance(entry, Epoch) else (entry.key, entry.value, entry.timestamp, None)
        for entry in queue
    ]
    return context.codec.encode_rows_at_rest(rows, step=context.step)


def decoded(state: bytes, context: StepContext, owned: Callable[[Any], bool]) -> list[Held | Epoch]:
    """Decode the result of `encoded`: the epochs, and the records whose keys are ``owned``."""
    queue: list[Held | Epoch] = []
    for key, value, timestamp, epoch in context.codec.decode_at_rest(state, step=context.step):
        if epoch is not None:
            queue.append(Epoch(epoch))
        elif owned(key):
            queue.append(Held(key, value, timestamp))
    return queue


def artefact_of(queue: Iterable[Held | Epoch], slots_of: SlotsOf, context: StepContext) -> bytes:
    """Return a full keyed artefact of the records: key -> [value, timestamp, place in the queue] of each.

    Raises:
        CodecError: a record cannot be stored; names its key.
        InternalError: the queue has an epoch, which a keyed artefact cannot hold.
    """
    rows: dict[bytes, tuple[Any, list[Any]]] = {}
    entries = list(queue)
    if any(isinstance(entry, Epoch) for entry in entries):
        raise InternalError(f"step {context.step!r} was persisted while it held back epochs")
    held = [entry for entry in entries if isinstance(entry, Held)]
    names = context.codec.encode_each_at_rest(
        [one.key for one in held], step=context.step, keys=[one.key for one in held]
    )
    for place, (name, one) in enumerate(zip(names, held, strict=True)):
        rows.setdefault(name, (one.key, []))[1].append([one.value, one.timestamp, place])
    keys = [key for key, _ in rows.values()]
    made = encoded_entries(context.codec, keys, [some for _, some in rows.values()], {}, step=context.step)
    return artefact(by_slot(slots_of(keys), list(rows), made), delta=False)


def held_in(chain: Sequence[bytes], slots: Collection[int], context: StepContext) -> list[Held]:
    """Return the records of ``slots`` from the artefacts of one worker, in the order of its queue.

    Raises:
        SnapshotError, CodecError: an artefact is damaged, or holds a class that is not registered.
    """
    placed: list[tuple[int, Held]] = []
    for entry in entries_in(chain, context.codec, slots=slots, step=context.step):
        placed += [(place, Held(entry.key, value, timestamp)) for value, timestamp, place in entry.value]
    return [one for _, one in sorted(placed, key=itemgetter(0))]


def merged(one: Iterable[Held | Epoch], other: Iterable[Held | Epoch]) -> list[Held | Epoch]:
    """Merge the queues of two workers that received the same epochs.

    The result has each epoch once, after all records that preceded it in either queue. If a queue lacks the epoch, the
    records before its next epoch precede it, or all its records if it has no later one. Records of one queue keep
    their order.

    >>> one = [Held("a", 1, 3), Epoch(5), Held("a", 2, 7)]
    >>> other = [Held("b", 3, 4), Epoch(5)]
    >>> [entry.time if isinstance(entry, Epoch) else entry.value for entry in merged(one, other)]
    [1, 3, 5, 2]
    """
    queues = [deque(one), deque(other)]
    times = {entry.time for queue in queues for entry in queue if isinstance(entry, Epoch)}
    result: list[Held | Epoch] = []
    for time in sorted(times):
        for queue in queues:
            while queue:
                entry = queue[0]
                if isinstance(entry, Epoch):
                    if entry.time > time:
                        break
                    queue.popleft()
                    if entry.time == time:
                        break
                else:
                    result.append(entry)
                    queue.popleft()
        result.append(Epoch(time))
    return [*result, *queues[0], *queues[1]]
