"""Conversion of a user's events (values, messages or a batch) to batches.

Rule: every record in a DAG has a key, None by default; a batch has timestamps for all records or for none.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import index
from typing import Any, Final

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.equality import settled_keys
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, DataMessage
from malstrom_py.errors import DagError

_INTS: Final = frozenset((int,))
_ALWAYS_KEYS: Final = frozenset((type(None), str, int, bytes, bool))


def batches_of(event: Any, node: str, part: str | None) -> list[Batch]:
    """Convert ``event`` (a value, a `DataMessage`, a list of these messages or a `Batch`) to batches, none empty.

    ``part`` is the source of the records. `DagError` if a timestamp or a key is illegal.
    """
    kind = type(event)
    if kind is DataMessage:
        times = None if event.timestamp is None else _times([event.timestamp], node)
        return [Batch([event.value], keys=_checked_keys([event.key], node), timestamps=times, part=part)]
    if kind is list and event and all(type(one) is DataMessage for one in event):
        return _batches(event, node, part)
    if isinstance(event, Batch):
        return [_checked(event, node, part)] if len(event) else []
    return [Batch([event], keys=[None], part=part)]


def batches_of_all(events: Iterable[Any] | Batch, node: str, part: str | None) -> list[Batch]:
    """Convert many events to batches: a `Batch`, or an iterable of values and messages."""
    if not isinstance(events, Iterable | Batch):
        raise DagError(
            f"node {node!r}: events must be a list of values or messages, or a Batch, got {type(events).__name__}: "
            f"write [event] for a single one",
            node=node,
        )
    return batches_of(events, node, part) if isinstance(events, Batch) else _batches(events, node, part)


def time_of(moment: Any, what: str, node: str = "") -> int:
    """Return ``moment`` as an int above `MIN_EPOCH`, up to `MAX_EPOCH`; else raise `DagError` for ``what``."""
    try:
        time = None if isinstance(moment, bool) else index(moment)
    except TypeError:
        time = None
    if time is None:
        raise DagError(f"{what} must be an int in the stream's unit, got {type(moment).__name__}", node=node)
    if not MIN_EPOCH < time <= MAX_EPOCH:
        raise DagError(f"{what} must be an int64 above {MIN_EPOCH}, got {time}", node=node)
    return time


def _batches(events: Iterable[Any], node: str, part: str | None) -> list[Batch]:
    given = list(events)
    if given and DataMessage not in set(map(type, given)):
        return [Batch(given, keys=[None] * len(given), part=part)]
    rows = [
        (event.key, event.value, event.timestamp) if type(event) is DataMessage else (None, event, None)
        for event in given
    ]
    batches = []
    for untimed, run in groupby(rows, key=lambda row: row[2] is None):
        keys, values, times = (list(column) for column in zip(*run, strict=True))
        batches.append(
            Batch(
                values, keys=_checked_keys(keys, node), timestamps=None if untimed else _times(times, node), part=part
            )
        )
    return batches


def _checked(batch: Batch, node: str, part: str | None) -> Batch:
    rows = len(batch)
    for column in (batch.keys, batch.timestamps):
        if column is not None and len(column) != rows:
            raise DagError(f"node {node!r}: keys, values and timestamps of a batch are lists of one length", node=node)
    times = None if batch.timestamps is None else list(_times(batch.timestamps, node))
    keys = [None] * rows if batch.keys is None else _checked_keys(batch.keys, node)
    if isinstance(batch, ColumnBatch):
        # A copy that shares the columns: the caller's batch must not change.
        checked = batch.cut(0, rows) if batch.is_keyed else batch.with_keys([None] * rows)
        return checked.of_part(part or batch.part, named=batch.named)
    # Copies: a queued batch, or one in a sink, must not change when the caller changes the original.
    return Batch(list(batch.values), keys=list(keys), timestamps=times, part=part or batch.part)


def _checked_keys(keys: list[Any], node: str) -> list[Any]:
    """Return ``keys`` settled. `DagError` if one cannot be looked up: it cannot be hashed, or does not equal itself."""
    if _ALWAYS_KEYS.issuperset(map(type, keys)):
        return keys
    for key in keys:
        try:
            hash(key)
        except Exception as error:  # a TypeError, or any exception of the user's __hash__
            raise DagError(
                f"node {node!r}: a key of type {type(key).__name__} cannot be hashed: give the event a key that is "
                f"immutable, for instance a tuple instead of a list",
                node=node,
            ) from error
        if isinstance(key, float) and key != key:
            raise DagError(
                f"node {node!r}: a key is NaN, which equals no key, not even itself: give the event another key, "
                f"for instance None",
                node=node,
            )
    return settled_keys(keys)


def _times(times: list[Any], node: str) -> list[int]:
    if _INTS.issuperset(map(type, times)) and min(times) > MIN_EPOCH and max(times) < MAX_EPOCH:
        return times
    whole = [time_of(time, f"node {node!r}: a timestamp", node) for time in times]
    if MAX_EPOCH in whole:
        raise DagError(
            f"node {node!r}: a timestamp is the maximum watermark, the end of the stream; give a smaller one",
            node=node,
        )
    return whole
