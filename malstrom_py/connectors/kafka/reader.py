"""Reads partitions for the parts of one process: one consumer and one thread, however many partitions they are.

Rules:
- A consumer is assigned each partition once in its life: a part that is opened again, or at another offset, gets a
  consumer that never had it, so that no message of an earlier assignment is taken for a new one.
- What waits is bounded over all parts: by `_WAITING_BYTES` here, by ``queued.max.messages.kbytes`` in librdkafka.
- An error belongs to the part of its partition; one of the whole consumer belongs to all its parts.
- A consumer without parts is closed.
- Only the thread calls the consumer, which holds Python's lock while it waits for its own threads.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from malstrom_py.connectors.kafka.client import Cluster
from malstrom_py.errors import SourceError
from malstrom_py.sources.polled.ahead import ReadAhead

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

_CHUNK: Final = 10_000
_WAITING_BYTES: Final = 64 << 20
_MESSAGE_BYTES: Final = 500
_WAIT_S: Final = 0.05
_SILENT_S: Final = 60.0
_PROBE_S: Final = 4.0
_PRIME_S: Final = 0.3
_MARKS_S: Final = 0.5
_LOOK_S: Final = 10.0
_MISSES: Final = 2

DEFAULTS: Final = {
    "isolation.level": "read_committed",
    "queued.max.messages.kbytes": 16_384,
    "fetch.wait.max.ms": 100,
    "topic.metadata.propagation.max.ms": 5_000,
}
"""Options of the consumer that a user may replace."""


class Run(NamedTuple):
    """What came from one partition: messages in order, then perhaps its end at that offset, then perhaps an error."""

    place: tuple[str, int]
    messages: list[Message]
    end: int | None = None
    error: KafkaError | SourceError | None = None

    @property
    def size(self) -> int:
        """About how many bytes the messages take."""
        return sum(map(len, self.messages)) + _MESSAGE_BYTES * len(self.messages)


@dataclass(eq=False)
class Buffer:
    """What has arrived of one partition and waits to be taken from its ``reader``."""

    reader: SharedReader
    place: tuple[str, int]
    waiting: list[Message] = field(default_factory=list)
    size: int = 0
    polled: int = 0
    """About how many bytes wait, and how many were taken last and may be polled still."""
    end: int | None = None
    """The offset at which the partition ended, after all messages that wait."""
    error: KafkaError | SourceError | None = None


class SharedReader:
    """One consumer, read by one thread, for several buffers."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._closed = False
        self._has_parts = threading.Event()
        self._buffers: dict[tuple[str, int], Buffer] = {}
        self._had: set[tuple[str, int]] = set()
        self._primed: set[str] = set()
        self._gained: list[TopicPartition] = []
        self._lost: list[TopicPartition] = []
        self._marks: dict[tuple[str, int], int] = {}
        self._marks_at_s = 0.0
        self._missing: dict[str, int] = {}
        self._looked_at_s = time.monotonic()
        self._waiting = 0
        self._silent_since_s: float | None = None
        self._consumer: Consumer = cluster.consumer(
            group,
            {"auto.offset.reset": "error", "enable.partition.eof": True, "error_cb": self._on_error},
            DEFAULTS,
        )
        self._errors = cluster.api.KafkaError
        self._place_of = cluster.api.TopicPartition
        self._ahead: ReadAhead[list[Run] | SourceError] = ReadAhead(self._fetch, name="kafka", release=self._release)
        self._ahead.start()

    @property
    def is_closed(self) -> bool:
        """Whether the consumer is closed."""
        return self._closed

    def add(self, topic: str, partition: int, offset: int) -> Buffer | None:
        """Begin to read a partition at ``offset``; None if this consumer has had it, or is closed."""
        place = (topic, partition)
        with self._lock:
            if self._closed or place in self._had:
                return None
            self._had.add(place)
            buffer = self._buffers[place] = Buffer(self, place)
            self._gained.append(self._place_of(topic, partition, offset))
            self._has_parts.set()
            return buffer

    def remove(self, buffer: Buffer) -> None:
        """Stop reading a partition, without waiting for it; without partitions, the consumer closes."""
        with self._lock:
            if self._buffers.pop(buffer.place, None) is None:
                return
            self._waiting -= buffer.size + buffer.polled
            buffer.waiting = []
            self._closed = not self._buffers
            self._lost.append(self._place_of(*buffer.place))
        if self._closed:
            self._ahead.stop()

    def close(self, buffer: Buffer) -> None:
        """Stop reading a partition, and wait for the consumer if it is closed by that."""
        self.remove(buffer)
        if self._closed:
            self._ahead.close()

    def take(self, buffer: Buffer) -> tuple[list[Message], int | None]:
        """Return the next messages, none if there are none now, and the end of the partition if it is known now.

        What was taken before is polled now.
        """
        with self._lock:
            self._waiting -= buffer.polled
            buffer.polled = 0
            if not buffer.waiting and self._waiting < _WAITING_BYTES:
                self._share_out(self._ahead.take())
            taken, buffer.waiting = buffer.waiting, []
            buffer.polled, buffer.size = buffer.size, 0
            end, buffer.end = buffer.end, None
            return taken, end

    def high_watermark(self, buffer: Buffer) -> int | None:
        """Return the offset after the last record of a partition, as far as the consumer knows."""
        return self._marks.get(buffer.place)

    def _share_out(self, chunk: list[Run] | SourceError | None) -> None:
        if isinstance(chunk, SourceError):
            for buffer in self._buffers.values():
                buffer.error = chunk
            return
        for run in chunk or ():
            found = self._buffers.get(run.place)
            if found is not None:
                found.waiting.extend(run.messages)
                size = run.size
                found.size += size
                self._waiting += size
                found.end = run.end if run.end is not None else found.end
                found.error = run.error or found.error

    def _fetch(self) -> list[Run] | SourceError | None:
        """Wait for a message, in the thread, and return it with all that have arrived."""
        if not self._has_parts.wait(_WAIT_S):
            return None
        self._assign()
        self._note_marks()
        if gone := self._deleted():
            return gone
        first = self._consumer.poll(_WAIT_S)
        if first is None:
            return self._silence()
        if first.error() is None:
            self._silent_since_s = None
        return _runs([first, *self._consumer.consume(_CHUNK - 1, 0)], self._errors._PARTITION_EOF)

    def _assign(self) -> None:
        """Give the consumer the partitions that were added, and take away those that were removed."""
        if not self._gained and not self._lost:
            return
        with self._lock:
            gained, lost = self._gained, self._lost
            self._gained, self._lost = [], []
        if gained:
            # Metadata first: without it, the first fetch waits half a second for the next round of questions.
            for topic in {place.topic for place in gained} - self._primed:
                self._primed.add(topic)
                with suppress(self._cluster.api.KafkaException):
                    self._consumer.list_topics(topic, timeout=_PRIME_S)
            self._consumer.incremental_assign(gained)
        if lost:
            self._consumer.incremental_unassign(lost)

    def _note_marks(self) -> None:
        """Note the ends of partitions, about once a second, as the consumer knows them: it asks no broker."""
        now_s = time.monotonic()
        if now_s - self._marks_at_s < _MARKS_S:
            return
        self._marks_at_s = now_s
        for place in list(self._buffers):
            with suppress(self._cluster.api.KafkaException):
                marks = self._consumer.get_watermark_offsets(self._place_of(*place), cached=True)
                if marks and marks[1] >= 0:
                    self._marks[place] = marks[1]

    def _deleted(self) -> list[Run]:
        """Return an error for each partition of a topic that was deleted: librdkafka waits for it to come back."""
        now_s = time.monotonic()
        if now_s - self._looked_at_s < _LOOK_S:
            return []
        self._looked_at_s = now_s
        runs = []
        for topic in {place[0] for place in list(self._buffers)}:
            with suppress(self._cluster.api.KafkaException):
                found = self._consumer.list_topics(topic, timeout=_PRIME_S).topics.get(topic)
                error = None if found is None else found.error
                is_missing = error is not None and error.code() == self._errors.UNKNOWN_TOPIC_OR_PART
                self._missing[topic] = self._missing.get(topic, 0) + 1 if is_missing else 0
            if self._missing.get(topic, 0) >= _MISSES:
                error_of_all = SourceError(
                    f"{self._cluster.what}: topic {topic!r} does not exist any more. Create it again, or leave it out "
                    f"and start the job without its snapshots"
                )
                runs += [Run(place, [], error=error_of_all) for place in list(self._buffers) if place[0] == topic]
        return runs

    def _on_error(self, error: KafkaError) -> None:
        """Notice that no broker is connected: librdkafka tries again for ever. Other errors pass by themselves."""
        if error.code() == self._errors._ALL_BROKERS_DOWN and self._silent_since_s is None:
            self._silent_since_s = time.monotonic()

    def _silence(self) -> SourceError | None:
        """Return an error if no broker has been connected for a minute, and none answers now."""
        since_s = self._silent_since_s
        if since_s is None or time.monotonic() - since_s < _SILENT_S or not self._had:
            return None
        try:
            self._consumer.list_topics(next(iter(self._had))[0], timeout=_PROBE_S)
        except self._cluster.api.KafkaException as error:
            self._silent_since_s = time.monotonic()
            return SourceError(
                f"{self._cluster.what}: no broker of {self._cluster.bootstrap} has answered for {_SILENT_S:.0f} s "
                f"({self._cluster.safe(error)}): check that the brokers run and can be reached"
            )
        self._silent_since_s = None
        return None

    def _release(self) -> None:
        with self._lock:
            self._closed = True
        self._consumer.close()


def _runs(messages: list[Message], end_code: int) -> list[Run]:
    """Cut what was consumed into runs of one partition each; a run ends at an end or an error."""
    if all(message.error() is None for message in messages):
        first, last = messages[0], messages[-1]
        partitions = [message.partition() for message in messages]
        topics = [message.topic() for message in messages]
        place: Any = (first.topic(), first.partition())
        if partitions.count(last.partition()) == len(partitions) and topics.count(last.topic()) == len(topics):
            return [Run(place, messages)]
    runs: list[Run] = []
    for place, group in groupby(messages, key=lambda message: (message.topic(), message.partition())):
        clean: list[Message] = []
        for message in group:
            error = message.error()
            if error is None:
                clean.append(message)
            elif error.code() == end_code:
                runs.append(Run(place, clean, end=message.offset()))
                clean = []
            else:
                runs.append(Run(place, clean, error=error))
                clean = []
        if clean:
            runs.append(Run(place, clean))
    return runs


class Readers:
    """The consumers of one source in one process."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._lock = threading.Lock()
        self._readers: list[SharedReader] = []

    def open(self, topic: str, partition: int, offset: int) -> Buffer:
        """Begin to read a partition at ``offset``."""
        with self._lock:
            for reader in self._readers:
                buffer = reader.add(topic, partition, offset)
                if buffer is not None:
                    return buffer
            self._readers[:] = [reader for reader in self._readers if not reader.is_closed]
            reader = SharedReader(self._cluster, self._group)
            self._readers.append(reader)
            found = reader.add(topic, partition, offset)
            assert found is not None, "a new consumer has had no partition"
            return found
