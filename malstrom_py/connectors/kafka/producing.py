"""Writes rows to a topic with an idempotent producer, which repeats and reorders nothing while it lives.

Rules: a record that the topic would refuse for its size is refused when it is written. What a producer holds is
bounded by ``queue.buffering.max.kbytes``. No error has a value or key of a record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.connectors.kafka.client import ANSWER_S, LOG, Cluster
from malstrom_py.data.batch import Batch
from malstrom_py.data.time import PER_SECOND
from malstrom_py.errors import SinkError, imported, lasting
from malstrom_py.sinks.records import as_bytes, converted

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer

Headers = Sequence[tuple[str, bytes | None]]
Record = tuple[bytes | None, bytes | None] | tuple[bytes | None, bytes | None, int, Headers]
"""Key and value of a record; with event times or headers, also the time in ms, 0 for now, and the headers."""

DELIVERY_S: Final = 120
_PRIME_S: Final = 1.0
OVERHEAD_BYTES: Final = 200
"""What a record and its batch take besides key and value, at most."""

BYTES_MAX: Final = 1_000_000
"""The limit of a record where the topic's own is unknown."""

DEFAULTS: Final = {
    "delivery.timeout.ms": DELIVERY_S * 1000,
    "partitioner": "murmur2_random",  # that of the Java client: each key has the same partition for all producers
    "queue.buffering.max.kbytes": 65_536,
    "queue.buffering.max.messages": 500_000,
}
"""Options of the producer that a user may replace."""


class DeliveryError(SinkError):
    """Kafka has not stored a record, or it is unknown whether it has."""


class Encoder:
    """Makes records of rows. ``key``: a function of the value; None takes the key of a keyed stream.

    ``unit``: that of the event times that are written; None writes none.
    """

    def __init__(
        self,
        what: str,
        *,
        key: Callable[[Any], Any] | None = None,
        value: Callable[[Any], Any] | None = None,
        headers: Callable[[Any], Any] | None = None,
        unit: str | None = None,
    ) -> None:
        import msgspec

        self._key = key
        self._value = value
        self._headers = headers
        self._unit = unit
        self._json: Callable[[Any], bytes] = msgspec.json.Encoder().encode
        self._what = what

    def records(self, batch: Batch) -> Iterable[Record]:
        """Return the record of each row, in order."""
        values = batch.values
        keys: Any = [None] * len(values)
        if self._key is not None:
            keys = self._encoded(self._key, values, "key")
        elif batch.keys is not None:
            keys = self._encoded(self._of_stream, batch.keys, "key")
        encoded = self._encoded(self._value or self._json, values, "value")
        if self._headers is None and self._unit is None:
            return zip(keys, encoded, strict=True)
        times = [0] * len(values) if self._unit is None else self._times(batch.timestamps, self._unit)
        headers = [()] * len(values) if self._headers is None else self._headers_of(self._headers, values)
        return zip(keys, encoded, times, headers, strict=True)

    def _times(self, timestamps: Sequence[int] | None, unit: str) -> list[int]:
        per_second = PER_SECOND[unit]
        times = [time * 1000 // per_second for time in timestamps or ()]
        if times and min(times) < 1:
            raise lasting(
                SinkError(f"{self._what}: a row has an event time in or before 1970, which Kafka cannot store")
            )
        return times

    def _headers_of(self, function: Callable[[Any], Any], values: list[Any]) -> list[Headers]:
        argument, returns = f"{self._what}: headers", "a dict of names and bytes, str or None"
        made = converted(function, values, argument, returns)
        if wrong := [one for one in made if not isinstance(one, Mapping)]:
            raise lasting(SinkError(f"{argument}= returned {type(wrong[0]).__name__}: it returns {returns}"))
        return [[(str(name), as_bytes(one, argument)) for name, one in headers.items()] for headers in made]

    def _of_stream(self, key: Any) -> Any:
        return key if isinstance(key, str | bytes) else self._json(key)

    def _encoded(self, encode: Callable[[Any], Any], things: list[Any], name: str) -> list[bytes | None]:
        encoded = converted(encode, things, f"{self._what}: {name}", "bytes, a str or None")
        if set(map(type, encoded)) - {bytes}:
            return [as_bytes(one, f"{self._what}: {name}") for one in encoded]
        return encoded


def bytes_max_of(cluster: Cluster, topic: str) -> int:
    """Return how many bytes a record of ``topic`` may have; the default where this user may not ask."""
    admin_module = _admin(cluster)
    resource = admin_module.ConfigResource(admin_module.ConfigResource.Type.TOPIC, topic)
    admin = cluster.made(admin_module.AdminClient, {})
    try:
        (found,) = admin.describe_configs([resource], request_timeout=ANSWER_S).values()
        return int(found.result(ANSWER_S)["max.message.bytes"].value)
    except (cluster.api.KafkaException, TimeoutError, KeyError, ValueError) as error:
        LOG.info(
            "%s: the limit of topic %s is unknown (%s): %d bytes", cluster.what, topic, cluster.safe(error), BYTES_MAX
        )
        return BYTES_MAX


def create_topic(cluster: Cluster, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
    """Create ``topic`` unless it exists, and wait until it does; `SinkError` if it cannot be created."""
    admin_module, found = _admin(cluster), cluster.api
    with cluster.asking(SinkError) as consumer:
        if _exists(consumer, topic):
            return
        admin = cluster.made(admin_module.AdminClient, {})
        new = admin_module.NewTopic(topic, partitions, replication_factor=-1, config=dict(settings))
        try:
            admin.create_topics([new], request_timeout=ANSWER_S)[topic].result(ANSWER_S)
        except (found.KafkaException, TimeoutError) as error:
            code = error.args[0].code() if isinstance(error, found.KafkaException) else None
            if code != found.KafkaError.TOPIC_ALREADY_EXISTS:
                raise SinkError(
                    f"{cluster.what}: topic {topic!r} could not be created: {cluster.safe(error)}. Create it, or let "
                    f"this user"
                ) from None
        ends_s = time.monotonic() + ANSWER_S
        while not _exists(consumer, topic):
            if time.monotonic() > ends_s:
                raise SinkError(f"{cluster.what}: topic {topic!r} was created, but no broker has it after {ANSWER_S} s")
            time.sleep(0.05)


def _exists(consumer: Consumer, topic: str) -> bool:
    known = consumer.list_topics(topic, timeout=ANSWER_S).topics.get(topic)
    return known is not None and known.error is None and bool(known.partitions)


def _admin(cluster: Cluster) -> Any:
    return imported("confluent_kafka.admin", f"{cluster.what} needs confluent-kafka", "kafka")


class Sending:
    """A producer whose failed deliveries are raised by `finish`. ``settings`` win over the user's options.

    ``topic``: one that exists.
    """

    def __init__(self, cluster: Cluster, topic: str, settings: Mapping[str, Any], *, bytes_max: int) -> None:
        fixed = {"message.max.bytes": max(1000, bytes_max), "batch.size": max(1, min(BYTES_MAX, bytes_max))}
        self._cluster = cluster
        self._last: KafkaError | None = None
        self._failed: KafkaError | None = None
        self._bytes_max = bytes_max
        self.producer: Producer = cluster.made(
            cluster.api.Producer,
            {"enable.idempotence": True, "error_cb": self._on_error, **settings},
            {**DEFAULTS, **fixed},
        )
        # After the first question librdkafka knows the brokers, by the second it connects to one of them. If none is
        # connected when it asks for a producer id, it waits half a second before it tries again.
        with suppress(cluster.api.KafkaException):
            for _ in range(2):
                self.producer.list_topics(topic, timeout=_PRIME_S)

    def send(
        self,
        topic: str,
        record: Record,
        *,
        partition: int = -1,
        on_delivery: Callable[[Message], None] | None = None,
    ) -> None:
        """Send a record, after those that were sent before it. Waits while too many bytes are under way."""
        if size_of(record) + OVERHEAD_BYTES > self._bytes_max:
            raise lasting(too_large(self._cluster.what, topic, record, self._bytes_max))
        # Without these two arguments the call takes half the time, also where they say nothing.
        more: dict[str, Any] = {} if len(record) == 2 else {"timestamp": record[2], "headers": list(record[3])}
        callback = self._delivered if on_delivery is None else partial(self._reported, on_delivery)
        ends_s = 0.0
        while True:
            try:
                self.producer.produce(topic, record[1], record[0], partition, callback, **more)
                return
            except BufferError:
                now_s = time.monotonic()
                ends_s = ends_s or now_s + 2 * DELIVERY_S
                if now_s > ends_s:
                    raise self._error("its queue stays full") from None
                self.producer.poll(0.1)
            except self._cluster.api.KafkaException as error:
                raise self._error(self._cluster.safe(error)) from None

    def send_all(self, topic: str, records: Iterable[Record]) -> None:
        """Send records in their order, as `send` does."""
        produce, delivered, most = self.producer.produce, self._delivered, self._bytes_max - OVERHEAD_BYTES
        for record in records:
            if len(record) > 2 or len(record[0] or b"") + len(record[1] or b"") > most:
                self.send(topic, record)
                continue
            try:
                produce(topic, record[1], record[0], -1, delivered)
            except (BufferError, self._cluster.api.KafkaException):
                self.send(topic, record)  # it waits, or raises

    def serve(self) -> None:
        """Take the reports of deliveries that have arrived; `SinkError` if one has failed."""
        self.producer.poll(0)
        self._check()

    def finish(self) -> None:
        """Wait until all records are stored by the brokers; `SinkError` if one is not."""
        left = self.producer.flush(DELIVERY_S + 10)
        self._check()
        if left:
            raise self._error(f"{left} records were not stored within {DELIVERY_S + 10} s")

    def close(self) -> None:
        """Forget what is not stored yet."""
        # confluent-kafka raises a SystemError where a report of a delivery follows a fatal error.
        with suppress(self._cluster.api.KafkaException, SystemError):
            self.producer.purge()
            self.producer.flush(1)
        # Not its method close, which fails with a SystemError after a fatal error: without references, it is destroyed.
        del self.producer

    def _check(self) -> None:
        if self._failed is not None:
            raise self._error(self._cluster.safe(self._failed))

    def _error(self, text: str) -> DeliveryError:
        reason = "" if self._last is None else f" ({self._cluster.safe(self._last)})"
        return DeliveryError(
            f"{self._cluster.what}: records were not stored: {text}{reason}. Check that the brokers of "
            f"{self._cluster.bootstrap} run, the limits of the topic, and that this user may write to it"
        )

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._failed = self._failed or error

    def _reported(self, stored: Callable[[Message], None], error: KafkaError | None, message: Message) -> None:
        self._delivered(error, message)
        if error is None:
            stored(message)

    def _on_error(self, error: KafkaError) -> None:
        self._last = error


def size_of(record: Record) -> int:
    """Return how many bytes a record has.

    >>> size_of((b"key", None)), size_of((b"key", b"value", 0, [("name", b"x")]))
    (3, 13)
    """
    size = len(record[0] or b"") + len(record[1] or b"")
    return size if len(record) == 2 else size + sum(len(name) + len(one or b"") for name, one in record[3])


def too_large(what: str, topic: str, record: Record, bytes_max: int) -> SinkError:
    """Return the error of a record that ``topic`` does not take."""
    return SinkError(
        f"{what}: a record of {size_of(record)} bytes is too large: topic {topic!r} takes {bytes_max} bytes, of which "
        f"a record and its batch need {OVERHEAD_BYTES} (before compression). Write smaller records, or raise "
        f"max.message.bytes of the topic"
    )
