"""The queue of a step that holds records back: its entries and their stored form.

Rule: entries are in the order of arrival, and an epoch comes after every record that it must not overtake.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
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


def encoded(held: Held, context: StepContext) -> bytes:
    """Return the record as a snapshot stores it. `CodecError` names its key if it cannot be stored."""
    return context.codec.encode_rows_at_rest([(held.key, held.value, held.timestamp)], step=context.step)


def in_one_slot(keys: Sequence[Any]) -> list[int]:
    """Return slot 0 for each of ``keys``: for a step whose keys are on no other worker."""
    return [0] * len(keys)


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
