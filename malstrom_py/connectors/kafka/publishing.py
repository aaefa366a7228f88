"""The commit of an exactly-once sink: staged rows and a marker in one transaction.

The marker is an offset of a consumer group that is named after job and step, for partition 0 of the topic: the number
of the last snapshot that was committed (`number_of`). A commit whose number is not larger does nothing.

Rules:
- First `init_transactions` under a name that belongs to job and step, then the marker is read: it fences an earlier
  committer, whose open transaction ends aborted. One that was stopped and continues is refused by the brokers, or finds
  the marker.
- An error of which it is unknown whether the transaction was committed is followed by the same two steps.
- A marker that Kafka has forgotten is noticed (`recover` writes one before the first commit): the commit is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.connectors.kafka.client import ANSWER_S, LOG, Cluster
from malstrom_py.connectors.kafka.producing import DeliveryError, Sending
from malstrom_py.connectors.kafka.staging import WRITER, Segment, unpacked
from malstrom_py.errors import SinkError, lasting
from malstrom_py.sinks.base import CommitContext
from malstrom_py.snapshot.ids import number_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

_ATTEMPTS: Final = 4
_PAUSE_S: Final = 0.3
_COMMIT_S: Final = 120.0
_TRANSACTION_MS: Final = 600_000
_READ_S: Final = 60.0
_CHUNKS: Final = 16
_WAIT_S: Final = 0.05


class Publisher:
    """Commits to ``topic`` for one job and step."""

    def __init__(self, cluster: Cluster, topic: str, context: CommitContext, *, bytes_max: int) -> None:
        self._cluster = cluster
        self._topic = topic
        self._bytes_max = bytes_max
        self._name = f"malstrom.{context.job}.{context.step}"

    def begin(self, snapshot: str, *, first: bool) -> bool:
        """End what an earlier committer left open. Return whether there was a marker. All later snapshots of this start
        are larger than ``snapshot``.

        ``first``: the job has committed nothing, so that the first marker is written. `SinkError`: the marker is larger
        than ``snapshot``, so that the rows of later snapshots would be taken for committed.
        """

        def begin(sending: Sending, consumer: Consumer) -> bool:
            marker = self._marker(consumer)
            if marker is not None and marker > number_of(snapshot):
                raise self._refusal(
                    f"group {self._name!r} has the offset {marker} for topic {self._topic!r}, partition 0, which is "
                    f"the time of a commit after this start, in microseconds since 1970: the clock here was set back, "
                    f"or another run of this job has started since. Rows of this start would be taken for committed, "
                    f"and be lost: correct the clock, or name the job otherwise"
                )
            if marker is None and first:
                self._publish(sending, consumer, 0, ())
            return marker is not None

        found: bool = self._in_turn(begin)
        return found

    def publish(self, snapshot: str, segments: Sequence[Segment], *, needs_marker: bool) -> None:
        """Publish ``segments`` unless ``snapshot`` has been committed.

        ``needs_marker``: the snapshot is from an earlier start of the job. Without a marker it is unknown then whether
        it was committed: `SinkError`.
        """
        number = number_of(snapshot)

        def publish(sending: Sending, consumer: Consumer) -> None:
            marker = self._marker(consumer)
            if marker is None and needs_marker:
                raise self._refusal(
                    f"Kafka has no offset of group {self._name!r} for topic {self._topic!r}, so it is unknown whether "
                    f"snapshot {snapshot} has been committed: Kafka forgets offsets after offsets.retention.minutes. "
                    f"If the topic has its rows, set the offset of partition 0 in this group to {number}, else to 0; "
                    f"then start again"
                )
            if marker is None or marker < number:
                self._publish(sending, consumer, number, segments)

        self._in_turn(publish)

    def _in_turn(self, act: Callable[[Sending, Consumer], Any]) -> Any:
        """Call ``act`` as the only committer; repeat it with new clients after errors of Kafka."""
        error: Exception | None = None
        for attempt in range(_ATTEMPTS):
            time.sleep(attempt * _PAUSE_S)
            consumer = self._cluster.consumer(
                self._name,
                {"isolation.level": "read_committed", "auto.offset.reset": "error"},
                {"fetch.wait.max.ms": 50},
            )
            sending: Sending | None = None
            try:
                sending = Sending(self._cluster, self._topic, self._settings, bytes_max=self._bytes_max)
                sending.producer.init_transactions(ANSWER_S)
                return act(sending, consumer)
            except (self._cluster.api.KafkaException, DeliveryError, SystemError) as failed:
                # A SystemError is confluent-kafka's answer to a report of a delivery that follows a fatal error.
                error = failed
                LOG.info("%s: a commit is repeated: %s", self._cluster.what, self._text(failed))
            finally:
                consumer.close()
                if sending is not None:
                    sending.close()
        raise SinkError(
            f"{self._cluster.what}: rows could not be committed to topic {self._topic!r}: "
            f"{self._text(error)}. Check the brokers, and that this user may use the transactional id and the group "
            f"{self._name!r}"
        ) from None

    def _text(self, error: Exception | None) -> str:
        return str(error) if isinstance(error, DeliveryError) else self._cluster.safe(error)

    @property
    def _settings(self) -> dict[str, Any]:
        timeout_ms = self._cluster.options.get("transaction.timeout.ms", _TRANSACTION_MS)
        # The broker refuses a delivery that may last longer than its transaction.
        limits = {
            "transaction.timeout.ms": timeout_ms,
            "delivery.timeout.ms": min(int(_COMMIT_S * 1000), int(timeout_ms)),
        }
        return {**limits, "transactional.id": self._name}

    def _marker(self, consumer: Consumer) -> int | None:
        place = self._cluster.api.TopicPartition(self._topic, 0)
        (found,) = consumer.committed([place], timeout=ANSWER_S)
        if found.error is not None:
            raise self._cluster.api.KafkaException(found.error)
        return found.offset if found.offset >= 0 else None

    def _publish(self, sending: Sending, consumer: Consumer, number: int, segments: Sequence[Segment]) -> None:
        """Publish rows and marker in one transaction."""
        producer = sending.producer
        producer.begin_transaction()
        try:
            for segment in segments:
                self._copy(sending, consumer, segment)
            place = self._cluster.api.TopicPartition(self._topic, 0, number)
            producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), ANSWER_S)
            producer.commit_transaction(_COMMIT_S)
        except SinkError:
            with suppress(self._cluster.api.KafkaException):  # the next commit ends it
                producer.abort_transaction(ANSWER_S)
            raise

    def _copy(self, sending: Sending, consumer: Consumer, segment: Segment) -> None:
        """Send the rows of a segment, in their order."""
        place = self._cluster.api.TopicPartition(segment.topic, segment.partition, segment.first)
        consumer.list_topics(segment.topic, timeout=ANSWER_S)  # without it, the first fetch waits half a second
        consumer.assign([place])
        chunks, ends_s = 0, time.monotonic() + _READ_S
        is_done = False
        while not is_done:
            if time.monotonic() > ends_s:
                raise self._silent(consumer, place, segment)
            for message in _arrived(consumer):
                if message.error() is not None:
                    self._unreadable(message, segment)
                    continue
                ends_s, offset = time.monotonic() + _READ_S, message.offset() or 0
                if offset <= segment.last and (WRITER, segment.writer.encode()) in (message.headers() or []):
                    chunks += 1
                    sending.send_all(self._topic, unpacked(message.value() or b""))
                is_done = is_done or offset >= segment.last
            sending.serve()
        consumer.unassign()
        if chunks != segment.chunks:
            raise self._gone(segment, f"{chunks} of {segment.chunks} chunks are left")

    def _silent(self, consumer: Consumer, place: TopicPartition, segment: Segment) -> SinkError:
        """Return the error of a segment of which nothing comes: lasting only if a broker has an end before it."""
        why = f"nothing came within {_READ_S:.0f} s"
        with suppress(self._cluster.api.KafkaException):
            ends = consumer.get_watermark_offsets(place, timeout=ANSWER_S)
            if ends is not None and 0 <= ends[1] <= segment.last:
                return self._gone(segment, f"the partition ends at offset {ends[1]}")
        return DeliveryError(
            f"{self._cluster.what}: rows that were staged in topic {segment.topic!r}, partition {segment.partition}, "
            f"were not read: {why}. Check that the brokers of {self._cluster.bootstrap} run"
        )

    def _unreadable(self, message: Message, segment: Segment) -> None:
        error, codes = message.error(), self._cluster.api.KafkaError
        lost = {
            codes._AUTO_OFFSET_RESET,
            codes.OFFSET_OUT_OF_RANGE,
            codes.UNKNOWN_TOPIC_OR_PART,
            codes._UNKNOWN_PARTITION,
        }
        if error is not None and error.code() in lost:
            raise self._gone(segment, self._cluster.safe(error))

    def _gone(self, segment: Segment, why: str) -> SinkError:
        return self._refusal(
            f"rows that were staged in topic {segment.topic!r}, partition {segment.partition}, cannot be read any more "
            f"({why}): the snapshot that names them cannot be committed. Start the job from its beginning or from "
            f"another snapshot, and keep records of that topic for longer than a job is down"
        )

    def _refusal(self, text: str) -> SinkError:
        return lasting(SinkError(f"{self._cluster.what}: {text}"))


def _arrived(consumer: Consumer) -> list[Message]:
    """Wait for a message, and return it with those that have arrived: `consume` alone waits for all it may take."""
    first = consumer.poll(_WAIT_S)
    return [] if first is None else [first, *consumer.consume(_CHUNKS - 1, 0)]
