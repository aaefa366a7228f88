"""A partition while it is read: rows of messages, and the offset after the last one.

A position is ``{"offset": n}``, the offset of the next record to read; None at the beginning of the partition. At the
end, with ``follow=False``, it has ``"finished": True`` too, which a later run does not heed. Offsets have gaps where
records were compacted, and where a transaction ended: the position passes the gaps at the end of a partition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from malstrom_py.connectors.kafka.client import LOG, Cluster, kafka
from malstrom_py.connectors.kafka.reader import Feed
from malstrom_py.connectors.kafka.records import Decoder
from malstrom_py.connectors.read_ahead import raise_unless_malformed
from malstrom_py.errors import MalformedRecord, SourceError
from malstrom_py.errors.text import describe_error, describe_function
from malstrom_py.sources.base import BasePart
from malstrom_py.sources.up_to_ends import FINISHED

if TYPE_CHECKING:
    from confluent_kafka import Message

BEGINNING: Final = -2
"""The offset by which Kafka names the beginning of a partition."""

OnLost = Literal["fail", "earliest"]


@dataclass(frozen=True)
class Reading:
    """What the partitions of a source share."""

    cluster: Cluster
    decoder: Decoder
    on_lost: OnLost
    open: Callable[[str, int, int], Feed]


def position_of(state: Any, part: str) -> int | None:
    """Return the offset in a position; `SourceError` if it is none of ours."""
    if state is None:
        return None
    offset = state.get("offset") if isinstance(state, dict) else None
    if type(offset) is not int or offset < 0:
        raise SourceError(f"the snapshot has an offset of partition {part!r} that sources.Kafka has not written")
    return offset


class KafkaPart(BasePart[Any]):
    """Reads one partition from ``offset``, None for its beginning, up to ``stop``, None for ever."""

    wait_max_s = 0.1

    def __init__(self, reading: Reading, topic: str, partition: int, offset: int | None, *, stop: int | None) -> None:
        self._reading = reading
        self._topic = topic
        self._partition = partition
        self._offset = offset
        self._stop = stop
        self._is_lost = stop is not None and offset is not None and offset > stop
        self._feed: Feed | None = None
        if not self.is_finished():
            self._feed = self._opened(offset)

    def poll(self, rows_max: int) -> list[Any] | None:
        if self._feed is None:
            return None
        messages = self._feed.take(rows_max)
        if not messages:
            self._pass_end(self._feed)
            return None
        self._is_lost = False
        if self._stop is not None and (messages[-1].offset() or 0) >= self._stop:
            messages = [message for message in messages if (message.offset() or 0) < self._stop]
            self._offset = self._stop if not messages else self._offset
            if not messages:
                self._end()
                return None
        return self._rows(messages, self._feed)

    def is_finished(self) -> bool:
        return self._stop is not None and (self._offset or 0) >= self._stop and not self._is_lost

    def snapshot(self) -> dict[str, Any] | None:
        if self.is_finished():
            return {"offset": self._offset or 0, FINISHED: True}
        return None if self._offset is None else {"offset": self._offset}

    def lag_rows(self) -> int | None:
        """Return how many offsets there are between the position and the end of the partition."""
        mark = None if self._feed is None else self._feed.high_watermark()
        return None if mark is None else max(0, mark - (self._offset or 0))

    def close(self) -> None:
        self._end()

    def _rows(self, messages: list[Message], feed: Feed) -> list[Any]:
        try:
            rows = self._reading.decoder.rows(messages)
        except Exception:  # one of them cannot be read: find it
            return self._rows_before_malformed(messages, feed)
        self._passed(messages[-1])
        return rows

    def _rows_before_malformed(self, messages: list[Message], feed: Feed) -> list[Any]:
        """Return the rows before the record that cannot be read; raise `MalformedRecord` if it is the first."""
        rows: list[Any] = []
        for number, message in enumerate(messages):
            try:
                rows += self._reading.decoder.rows([message])
            except Exception as error:
                raise_unless_malformed(error)
                if rows:
                    feed.put_back(messages[number:])
                    break
                feed.put_back(messages[1:])
                self._passed(message)
                raise self._malformed(message, error) from error
            self._passed(message)
        return rows

    def _malformed(self, message: Message, error: Exception) -> MalformedRecord:
        decoder = describe_function(self._reading.decoder.value)
        return MalformedRecord(
            f"{self._name}: the record at offset {message.offset()} cannot be decoded: {describe_error(error)}, in "
            f"{decoder} or in key=. Correct value= or key=, or leave the record out by on_error=",
            record=message.value(),
        )

    def _passed(self, message: Message) -> None:
        self._offset = (message.offset() or 0) + 1
        if self.is_finished():
            self._end()

    def _pass_end(self, feed: Feed) -> None:
        """Pass what follows the last record and is none: the end of a transaction, or compacted records."""
        if feed.end is not None:
            end = feed.end if self._stop is None else min(feed.end, self._stop)
            self._offset = max(end, self._offset or 0)
            self._is_lost = False
            feed.end = None
        if self.is_finished():
            self._end()
        elif feed.error is not None:
            self._failed(feed)

    def _failed(self, feed: Feed) -> None:
        """Raise the error of the partition, or continue at its earliest record if records are lost."""
        error = feed.error
        assert error is not None
        if isinstance(error, SourceError):
            raise error
        codes = kafka(self._reading.cluster.what).KafkaError
        if error.code() in {codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE}:
            self._lost(feed)
            return
        text = self._reading.cluster.safe(error)
        if error.code() in {codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_PARTITION, codes._UNKNOWN_TOPIC}:
            raise SourceError(
                f"{self._name}: the partition does not exist any more ({text}): the topic was deleted, or created "
                f"again with fewer partitions. Create it, or start the job without its snapshots"
            )
        if not error.retriable() or error.fatal():
            raise SourceError(f"{self._name} cannot be read: {text}")
        feed.error = None  # librdkafka tries again

    def _lost(self, feed: Feed) -> None:
        if self._offset is not None and self._reading.on_lost == "fail":
            raise SourceError(
                f"{self._name}: the record at offset {self._offset} does not exist any more: retention has deleted it "
                f'before it was read, or the topic was created again. Use on_lost="earliest" to continue with the '
                f"earliest record that is left, and keep records for longer"
            )
        if self._offset is not None:
            LOG.warning(
                "%s: the record at offset %s does not exist any more: reading continues at the earliest record",
                self._name,
                self._offset,
            )
            self._offset = 0
            self._is_lost = False
        feed.close()
        self._feed = self._opened(None)

    def _opened(self, offset: int | None) -> Feed:
        return self._reading.open(self._topic, self._partition, BEGINNING if offset is None else offset)

    def _end(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.close()

    @property
    def _name(self) -> str:
        return f"{self._reading.cluster.what}: {self._topic}/{self._partition}"
