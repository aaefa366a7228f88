"""Rows of an exactly-once sink before their commit: in chunks, in a topic for staging that its readers do not read.

A chunk is one message: rows as key and value, and time and headers if they are written, packed by msgpack; its header
names the writer. A payload says where the chunks of one writer are, in segments: a segment ends where keys have moved,
so that the rows of a key are published in the order of the versions of the routing table, on any worker.

Rule: what no payload names is never published: rows of a writer that died, was aborted, or wrote on as a zombie. The
topic's retention deletes it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgpack
import msgspec

from malstrom_py.connectors.kafka.client import Cluster
from malstrom_py.connectors.kafka.producing import OVERHEAD_BYTES, Encoder, Headers, Record, Sending, size_of, too_large
from malstrom_py.data.batch import Batch
from malstrom_py.errors import SinkError, lasting
from malstrom_py.sinks.base import CommitContext
from malstrom_py.sinks.records import SegmentedWriter, payloads_as

if TYPE_CHECKING:
    from confluent_kafka import Message

WRITER: Final = "malstrom-writer"
CHUNK_BYTES: Final = 256 << 10
_RECORD_BYTES: Final = 16


class Segment(msgspec.Struct, frozen=True):
    """Chunks of one writer under one version of the routing table, from offset ``first`` to ``last``."""

    version: int
    topic: str
    partition: int
    writer: str
    first: int
    last: int
    chunks: int


class Payload(msgspec.Struct, frozen=True):
    """What one writer has staged for one snapshot."""

    segments: list[Segment]


def segments_of(payloads: Sequence[bytes], context: CommitContext) -> list[Segment]:
    """Return the segments of all payloads in the order in which they are published."""
    found = [segment for payload in payloads_as(Payload, payloads, context) for segment in payload.segments]
    return sorted(found, key=lambda segment: segment.version)


@dataclass
class _Open:
    """A segment that is being staged."""

    version: int
    sent: int = 0
    offsets: list[int] = field(default_factory=list)

    def stored(self, message: Message) -> None:
        self.offsets.append(message.offset() or 0)


def packed(records: Sequence[Record]) -> bytes:
    """Return a chunk."""
    data: Any = msgpack.packb(records)
    return bytes(data)


def unpacked(chunk: bytes) -> list[Record]:
    """Return the rows of a chunk."""
    rows: list[Any] = msgpack.unpackb(chunk, use_list=False)
    return list(rows)


class StagingWriter(SegmentedWriter[_Open]):
    """Stages the rows of one worker. ``target_bytes``: the limit of a record of the topic for which they are."""

    def __init__(
        self,
        cluster: Cluster,
        encoder: Encoder,
        topic: str,
        *,
        staging: str,
        partitions: int,
        target_bytes: int,
        staging_bytes: int,
    ) -> None:
        self._target_bytes = min(target_bytes, staging_bytes - OVERHEAD_BYTES)
        super().__init__(bytes_max=min(CHUNK_BYTES, self._target_bytes // 2))
        self._cluster = cluster
        self._encoder = encoder
        self._topic = topic
        self._staging = staging
        self._partition = secrets.randbelow(partitions)
        self._writer = secrets.token_hex(8)
        self._headers: Headers = [(WRITER, self._writer.encode())]
        self._sending = Sending(cluster, staging, {}, bytes_max=staging_bytes)

    def records(self, batch: Batch) -> Iterator[tuple[Record, int]]:
        for record in self._encoder.records(batch):
            size = size_of(record)
            if size + OVERHEAD_BYTES > self._target_bytes:
                raise lasting(too_large(self._cluster.what, self._topic, record, self._target_bytes))
            yield record, size + _RECORD_BYTES

    def write(self, batch: Batch) -> None:
        super().write(batch)
        self._sending.serve()

    def new_segment(self, version: int) -> _Open:
        return _Open(version)

    def stage(self, segment: _Open, records: list[Record]) -> None:
        chunk = (None, packed(records), 0, self._headers)
        self._sending.send(self._staging, chunk, partition=self._partition, on_delivery=segment.stored)
        segment.sent += 1

    def pre_commit(self, context: CommitContext) -> bytes:
        segments = self.taken()
        self._sending.finish()
        self.segments = []
        return msgspec.json.encode(Payload(list(map(self._closed, segments))))

    def close(self) -> None:
        self._sending.close()

    def _closed(self, segment: _Open) -> Segment:
        offsets = segment.offsets
        if len(offsets) != segment.sent or offsets != sorted(set(offsets)):
            raise SinkError(f"{self._cluster.what}: the brokers have not confirmed all staged rows in their order")
        return Segment(
            segment.version, self._staging, self._partition, self._writer, offsets[0], offsets[-1], segment.sent
        )
