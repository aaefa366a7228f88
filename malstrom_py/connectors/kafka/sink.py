"""``sinks.Kafka``: writes rows to a topic, at least once or exactly once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from malstrom_py.connectors.kafka.client import Cluster, checked_bootstrap, checked_options, checked_topic, kafka
from malstrom_py.connectors.kafka.producing import Encoder, Sending, bytes_max_of, create_topic
from malstrom_py.connectors.kafka.publishing import Publisher
from malstrom_py.connectors.kafka.staging import StagingWriter, segments_of
from malstrom_py.data.batch import Batch
from malstrom_py.errors import PlanError, SinkError, lasting
from malstrom_py.formats import Format, converter
from malstrom_py.sinks.base import BaseStatelessSink, BaseTransactionalSink, BaseWriter, CommitContext, SnapshotId
from malstrom_py.validation import checked_flag
from malstrom_py.worker_context import WorkerInfo

_WHAT: Final = "sinks.Kafka"
_STAGING_DAYS: Final = 7
_MARKER_S: Final = 24 * 3600.0
"""How old a marker may become: a commit without rows writes it again, or Kafka would forget it."""


class Kafka(BaseStatelessSink):
    """A sink that writes rows to a topic of Kafka: at least once, or exactly once with ``exactly_once=True``.

    A row becomes a record: its value as JSON, or what ``value`` returns for it (bytes, a str, or None for a tombstone),
    a function or one of `formats`.
    The key of the record is what ``key`` returns for the row; without ``key`` it is the key of a keyed stream (text and
    bytes unchanged, others as JSON), and none on another stream. The key chooses the partition as Java's clients do.
    The records of a key keep their order. ``headers`` returns a dict of names and bytes, str or None for a row. With
    ``event_time=True`` a record has the event time of its row as its timestamp, in milliseconds, else that of its
    writing; the topic's ``retention.ms`` counts from it.

    - **At least once**: an idempotent producer; a batch is stored by all brokers in sync (``acks=all``) when it has
      been written. After a failure, rows since the last snapshot come again.
    - **Exactly once**, for readers with ``isolation.level=read_committed``: rows are staged in the topic
      ``<topic>.malstrom-staging`` (or ``staging=``), which is created if it is missing and keeps them for seven days.
      At the commit of a snapshot one transaction contains its rows and a marker, an offset of the group
      ``malstrom.<job>.<step>``. Its transactional id is the same, so one job of that name may write at a time per
      cluster.

    ``options``: of librdkafka, such as ``{"compression.type": "zstd"}``. Their values are in no error and no log.

    PlanError: a wrong argument or option, or confluent-kafka is not installed. SinkError: the topic does not exist, no
    broker answers, a record is too large or is refused, ``key`` or ``value`` fails, staged rows are gone.

    >>> from malstrom_py import sinks
    >>> sinks.Kafka("broker1:9092", "totals", exactly_once=True)
    Kafka('broker1:9092', 'totals', exactly_once=True)
    """

    _exactly_once = False

    def __new__(cls, *args: Any, exactly_once: bool = False, **options: Any) -> Kafka:
        """Return an object with a commit, a `TransactionalSink`, or one without, a `StatelessSink`."""
        kind: Any = ExactlyOnceKafka if exactly_once is True else cls
        made: Kafka = super().__new__(kind)
        return made

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        key: Callable[[Any], bytes | str | None] | None = None,
        value: Callable[[Any], bytes | str | None] | Format | None = None,
        headers: Callable[[Any], Mapping[str, bytes | str | None]] | None = None,
        event_time: bool = False,
        exactly_once: bool = False,
        staging: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        kafka(_WHAT)
        self._cluster = Cluster(_WHAT, checked_bootstrap(bootstrap, _WHAT), checked_options(options, _WHAT))
        self._topic = checked_topic(topic, _WHAT)
        self._functions = {
            name: converter(encode, f"{_WHAT}: {name}", "the value", lambda format: format.encode)
            for name, encode in (("key", key), ("value", value), ("headers", headers))
        }
        self._event_time = checked_flag(event_time, f"{_WHAT}: event_time")
        checked_flag(exactly_once, f"{_WHAT}: exactly_once")
        if staging is not None and not exactly_once:
            raise PlanError(f"{_WHAT}: staging= names a topic for exactly_once=True")
        self._staging = checked_topic(f"{topic}.malstrom-staging" if staging is None else staging, _WHAT)
        if self._staging == self._topic:
            raise PlanError(f"{_WHAT}: staging= must be another topic than the one that is written")

    def __repr__(self) -> str:
        named = f", options={sorted(self._cluster.options)}" if self._cluster.options else ""
        return f"Kafka({self._cluster.bootstrap!r}, {self._topic!r}, exactly_once={self._exactly_once}{named})"

    def build(self, worker: WorkerInfo) -> KafkaWriter:
        """Open the writer of one worker."""
        self._partitions(self._topic)
        bytes_max = bytes_max_of(self._cluster, self._topic)
        return KafkaWriter(self._cluster, self._encoder(worker), self._topic, bytes_max)

    def _encoder(self, worker: WorkerInfo) -> Encoder:
        if self._event_time and worker.unit is None:
            raise lasting(
                SinkError(
                    f"{_WHAT}: event_time=True writes event times, and the stream of step {worker.step!r} has none: "
                    f"use assign_timestamps before it"
                )
            )
        unit = worker.unit if self._event_time else None
        return Encoder(_WHAT, **self._functions, unit=unit)

    def _partitions(self, topic: str) -> int:
        with self._cluster.asking(SinkError) as consumer:
            return len(self._cluster.partitions(consumer, topic, SinkError))


class KafkaWriter(BaseWriter):
    """Writes the rows of one worker, each batch until the brokers have stored it.

    It waits for each batch: so a snapshot contains no row that could be lost, and the rows of a key that has moved to
    another worker come after those that this one wrote.
    """

    def __init__(self, cluster: Cluster, encoder: Encoder, topic: str, bytes_max: int) -> None:
        self._encoder = encoder
        self._topic = topic
        self._sending = Sending(cluster, topic, {"delivery.report.only.error": True}, bytes_max=bytes_max)

    def write(self, batch: Batch) -> None:
        self._sending.send_all(self._topic, self._encoder.records(batch))
        self._sending.finish()

    def close(self) -> None:
        self._sending.close()


class ExactlyOnceKafka(Kafka, BaseTransactionalSink):
    """A `Kafka` with ``exactly_once=True``, which makes it."""

    _exactly_once = True
    _in_doubt: frozenset[str] = frozenset()
    """Snapshots of an earlier start for which there was no marker."""
    _marked_at_s = -math.inf
    """When the marker was last written, as far as is known here, in monotonic time."""

    def open(self, worker: WorkerInfo) -> StagingWriter:
        """Open the writer of one worker, and create the topic for staging if it is missing."""
        target_bytes = bytes_max_of(self._cluster, self._topic)
        retention = {
            "retention.ms": str(_STAGING_DAYS * 24 * 3600 * 1000),
            "retention.bytes": "-1",
            "max.message.bytes": str(2 * target_bytes),
            "cleanup.policy": "delete",
        }
        create_topic(self._cluster, self._staging, self._partitions(self._topic), retention)
        return StagingWriter(
            self._cluster,
            self._encoder(worker),
            self._topic,
            staging=self._staging,
            partitions=self._partitions(self._staging),
            target_bytes=target_bytes,
            staging_bytes=bytes_max_of(self._cluster, self._staging),
        )

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        """Publish the staged rows with a marker, in one transaction."""
        segments = segments_of(payloads, context)
        is_in_doubt = context.snapshot in self._in_doubt
        if segments or (not is_in_doubt and time.monotonic() - self._marked_at_s > _MARKER_S):
            self._publisher(context).publish(context.snapshot, segments, needs_marker=is_in_doubt)
            self._marked_at_s = time.monotonic()

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        """Do nothing: rows that no commit names are never published, and the topic for staging forgets them."""

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        """End the transaction that an interrupted commit left open, and write the first marker of a new job."""
        # The run that this one has fenced off may have committed a snapshot that is larger than that of this start.
        newest = max((context.snapshot, *committed))
        has_marker = self._publisher(context).begin(newest, first=not committed)
        self._in_doubt = frozenset() if has_marker else frozenset(committed)

    def _publisher(self, context: CommitContext) -> Publisher:
        self._partitions(self._topic)
        return Publisher(self._cluster, self._topic, context, bytes_max=bytes_max_of(self._cluster, self._topic))
