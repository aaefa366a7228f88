"""How tests write rows: as the stream has them. And batches as the messages they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from malstrom_py.batches import Batch
from malstrom_py.messages import DataMessage


def batch_of(rows: Sequence[Any], *, keyed: bool, timed: bool, part: str | None = None) -> Batch:
    """A batch of rows written as ``(key, value, timestamp)``, without what the stream has not.

    A `DataMessage` is a row of any stream. ValueError for a row that is written otherwise.

    >>> batch_of([("a", 1), ("b", 2)], keyed=True, timed=False).keys, batch_of([1, 2], keyed=False, timed=False).values
    (['a', 'b'], [1, 2])
    """
    messages = [_message_of(row, keyed=keyed, timed=timed) for row in rows]
    return Batch(
        [message.value for message in messages],
        keys=[message.key for message in messages] if keyed else None,
        timestamps=cast("list[int]", [message.timestamp for message in messages]) if timed else None,
        part=part,
    )


def messages_of(batch: Batch) -> list[DataMessage[Any, Any]]:
    """The rows of a batch as messages.

    >>> messages_of(Batch([1], keys=["a"]))
    [DataMessage(key='a', value=1, timestamp=None)]
    """
    nothing = [None] * len(batch)
    columns = zip(batch.keys or nothing, batch.values, batch.timestamps or nothing, strict=True)
    return [DataMessage(key, value, timestamp) for key, value, timestamp in columns]


def _message_of(row: Any, *, keyed: bool, timed: bool) -> DataMessage[Any, Any]:
    message = row if isinstance(row, DataMessage) else _written(row, keyed=keyed, timed=timed)
    if timed and type(message.timestamp) is not int:
        raise ValueError("the stream is timed: each row needs a timestamp, an int")
    return message


def _written(row: Any, *, keyed: bool, timed: bool) -> DataMessage[Any, Any]:
    form = [name for name, there in (("key", keyed), ("value", True), ("timestamp", timed)) if there]
    if len(form) == 1:
        return DataMessage(None, row)
    if not isinstance(row, tuple) or len(row) != len(form):
        raise ValueError(f"a row of this stream is a tuple ({', '.join(form)}) or a DataMessage, got {row!r}")
    named = dict(zip(form, row, strict=True))
    return DataMessage(named.get("key"), named["value"], named.get("timestamp"))
