"""Records of Kafka as rows: the value alone, or a `KafkaRecord` with all that Kafka has about it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from malstrom_py.data.batch import ColumnBatch
from malstrom_py.data.json_columns import JsonColumns

if TYPE_CHECKING:
    from confluent_kafka import Message

Decode = Callable[[bytes], Any]


class KafkaRecord(NamedTuple):
    """A record of Kafka.

    - ``value``: decoded; None for a tombstone. ``key``: decoded by ``key=`` of the source, else bytes; None without
      one.
    - ``timestamp_ms``: milliseconds since 1970, set by the producer or the broker; None if there is none.
    - ``headers``: pairs of name and bytes (or None).
    - ``topic``, ``partition``, ``offset``: where it is.
    """

    value: Any
    key: Any
    timestamp_ms: int | None
    headers: tuple[tuple[str, bytes | None], ...]
    topic: str
    partition: int
    offset: int


def rows_of(messages: Sequence[Message], value: Decode | None, key: Decode | None, *, records: bool) -> Iterator[Any]:
    """Yield a row per message, a `KafkaRecord` or a value. Raises at a message what the user's functions raise."""
    values = _decoded([message.value() for message in messages], value or _json())
    if not records:
        return values
    keys: list[Any] = [message.key() for message in messages]
    return map(_record, messages, values, keys if key is None else _decoded(keys, key))


def column_decoder(names: Collection[str]) -> Callable[[Sequence[Message]], ColumnBatch | None]:
    """Return what decodes the fields ``names`` of JSON into columns, or returns None where `rows_of` must decode."""
    decoder = JsonColumns(names)

    def columns_of(messages: Sequence[Message]) -> ColumnBatch | None:
        columns = decoder.decode([message.value() for message in messages])
        return None if columns is None else ColumnBatch(columns, computed=True)

    return columns_of


def _decoded(texts: list[Any], decode: Decode) -> Iterator[Any]:
    if None in texts:
        return (None if text is None else decode(text) for text in texts)
    return map(decode, texts)


def _record(message: Any, value: Any, key: Any) -> KafkaRecord:
    kind, timestamp_ms = message.timestamp()
    headers = message.headers()
    return KafkaRecord(
        value,
        key,
        timestamp_ms if kind else None,
        tuple(headers) if headers else (),
        message.topic(),
        message.partition(),
        message.offset(),
    )


@cache
def _json() -> Decode:
    import msgspec

    decode: Decode = msgspec.json.Decoder().decode
    return decode
