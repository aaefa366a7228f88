"""What is read of one partition: chunks of messages, and what is an error of it.

A position is ``{"offset": n}``, the offset of the next record to read; None at the beginning of the partition. Offsets
have gaps where records were compacted, and where a transaction ended: the position passes the gaps at the end of a
partition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from malstrom_py.connectors.kafka.client import LOG, Cluster
from malstrom_py.connectors.kafka.reader import Buffer
from malstrom_py.errors import SourceError
from malstrom_py.sources.polled import PolledChunk

if TYPE_CHECKING:
    from confluent_kafka import Message

BEGINNING: Final = -2
"""The offset by which Kafka names the beginning of a partition."""

OnLost = Literal["fail", "earliest"]


@dataclass(frozen=True)
class Reading:
    """What the partitions of a source share."""

    cluster: Cluster
    on_lost: OnLost
    open: Callable[[str, int, int], Buffer]


def position_of(state: Any, part: str) -> int | None:
    """Return the offset in a position; `SourceError` if it is none of ours."""
    if state is None:
        return None
    offset = state.get("offset") if isinstance(state, dict) else None
    if type(offset) is not int or offset < 0:
        raise SourceError(f"the snapshot has an offset of partition {part!r} that sources.Kafka has not written")
    return offset


class PartitionFeed:
    """Reads one partition from ``offset``, None for its beginning; ``end``: the last offset that it passes, if any."""

    def __init__(self, reading: Reading, place: tuple[str, int], offset: int | None, end: int | None) -> None:
        self._reading = reading
        self._place = place
        self._offset = offset
        self._end = end
        self._buffer: Buffer | None = None

    def start(self) -> None:
        self._buffer = self._opened(self._offset)

    def take(self) -> PolledChunk[Message] | None:
        assert self._buffer is not None, "not started"
        messages, end = self._buffer.reader.take(self._buffer)
        if messages or end is not None:
            return self._chunk(messages, end)
        return None if self._buffer.error is None else self._failed(self._buffer)

    def lag_rows(self, position: Any) -> int | None:
        """Return how many offsets there are between the position and the end of the partition."""
        mark = None if self._buffer is None else self._buffer.reader.high_watermark(self._buffer)
        return None if mark is None else max(0, mark - (0 if position is None else position["offset"]))

    def lag_bytes(self, position: Any) -> int | None:
        return None

    def stop(self) -> None:
        if self._buffer is not None:
            self._buffer.reader.remove(self._buffer)

    def close(self) -> None:
        if self._buffer is not None:
            self._buffer.reader.close(self._buffer)

    def _chunk(self, messages: list[Message], end: int | None) -> PolledChunk[Message]:
        """Return messages with their positions. The end passes what follows the last record and is none: the end of a
        transaction, or compacted records.
        """
        offset = (messages[-1].offset() or 0) + 1 if messages else self._offset or 0
        after = None
        if end is not None:
            offset = max(offset, end if self._end is None else min(end, self._end))
            after = {"offset": offset}
        self._offset = offset
        return PolledChunk(messages, lambda number: {"offset": (messages[number].offset() or 0) + 1}, after=after)

    def _failed(self, buffer: Buffer) -> PolledChunk[Message] | None:
        """Raise the error of the partition, or continue at its earliest record if records are lost."""
        error = buffer.error
        assert error is not None
        if isinstance(error, SourceError):
            raise error
        codes = self._reading.cluster.api.KafkaError
        if error.code() in {codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE}:
            return self._lost(buffer)
        text = self._reading.cluster.safe(error)
        if error.code() in {codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_PARTITION, codes._UNKNOWN_TOPIC}:
            raise SourceError(
                f"{self._name}: the partition does not exist any more ({text}): the topic was deleted, or created "
                f"again with fewer partitions. Create it, or start the job without its snapshots"
            )
        if not error.retriable() or error.fatal():
            raise SourceError(f"{self._name} cannot be read: {text}")
        buffer.error = None  # librdkafka tries again
        return None

    def _lost(self, buffer: Buffer) -> PolledChunk[Message] | None:
        offset = self._offset
        if offset is not None and self._reading.on_lost == "fail":
            raise SourceError(
                f"{self._name}: the record at offset {offset} does not exist any more: retention has deleted it "
                f'before it was read, or the topic was created again. Use on_lost="earliest" to continue with the '
                f"earliest record that is left, and keep records for longer"
            )
        buffer.reader.close(buffer)
        self._buffer = self._opened(None)
        if offset is None:
            return None
        LOG.warning(
            "%s: the record at offset %s does not exist any more: reading continues at the earliest record",
            *(self._name, offset),
        )
        self._offset = 0
        return PolledChunk(after={"offset": 0})

    def _opened(self, offset: int | None) -> Buffer:
        return self._reading.open(*self._place, BEGINNING if offset is None else offset)

    @property
    def _name(self) -> str:
        topic, partition = self._place
        return f"{self._reading.cluster.what}: {topic}/{partition}"
