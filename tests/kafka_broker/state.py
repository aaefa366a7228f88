"""What a broker knows: topics, transactions and offsets of groups, and the rules of transactions. No sockets.

The rules: the epoch of a transactional id grows with each `init_producer`, which aborts what the earlier epoch left
open; requests of an earlier epoch are refused. Records of an open transaction are stored, and end below the last
stable offset only when it ends. Offsets of a transaction become those of the group when it is committed. A producer's
sequence numbers have no gap, and a batch that comes twice is stored once.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from tests.kafka_broker.batches import StoredBatch, StoredRecord, control, records_in, split, stored

NONE = 0
OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
MESSAGE_TOO_LARGE = 10
TOPIC_ALREADY_EXISTS = 36
OUT_OF_ORDER_SEQUENCE = 45
DUPLICATE_SEQUENCE = 46
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49

Place = tuple[str, int]


@dataclass
class Log:
    """The records of one partition. ``open``: producer -> first offset of its transaction."""

    batches: list[StoredBatch] = field(default_factory=list)
    start: int = 0
    end: int = 0
    open: dict[int, int] = field(default_factory=dict)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """Producer, first and last offset of each transaction that was aborted."""
    sequences: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    """Producer and epoch -> first and next sequence number of its last batch, and the offset of it."""

    @property
    def stable(self) -> int:
        """The first offset of an open transaction, or the end."""
        return min(self.open.values(), default=self.end)

    def append(self, data: bytes) -> StoredBatch:
        batch = stored(data, self.end)
        self.batches.append(batch)
        self.end = batch.last + 1
        return batch


@dataclass
class Topic:
    logs: list[Log]
    settings: dict[str, str]

    @property
    def bytes_max(self) -> int:
        return int(self.settings.get("max.message.bytes", "1048588"))


@dataclass
class Transaction:
    """The state of one transactional id."""

    producer: int
    epoch: int
    places: set[Place] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    offsets: dict[str, dict[Place, int]] = field(default_factory=dict)


class BrokerState:
    """Everything, under one lock; ``changed`` wakes those who wait for records."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.topics: dict[str, Topic] = {}
        self.transactions: dict[str, Transaction] = {}
        self.offsets: dict[str, dict[Place, int]] = {}
        self._producers = 1000
        self.time_ms = 1_700_000_000_000

    def create(self, name: str, partitions: int, settings: dict[str, str] | None = None) -> int:
        with self.changed:
            if name in self.topics:
                return TOPIC_ALREADY_EXISTS
            self.topics[name] = Topic([Log() for _ in range(partitions)], settings or {})
            return NONE

    def grow(self, name: str, partitions: int) -> int:
        with self.changed:
            topic = self.topics.get(name)
            if topic is None:
                return UNKNOWN_TOPIC_OR_PARTITION
            topic.logs += [Log() for _ in range(partitions - len(topic.logs))]
            return NONE

    def delete(self, name: str) -> int:
        with self.changed:
            found = self.topics.pop(name, None)
            self.changed.notify_all()
            return NONE if found is not None else UNKNOWN_TOPIC_OR_PARTITION

    def delete_before(self, name: str, partition: int, offset: int) -> None:
        """Delete records, as retention does."""
        with self.changed:
            log = self.topics[name].logs[partition]
            log.start = offset
            log.batches = [batch for batch in log.batches if batch.last >= offset]

    def log(self, place: Place) -> Log | None:
        topic = self.topics.get(place[0])
        return topic.logs[place[1]] if topic is not None and 0 <= place[1] < len(topic.logs) else None

    def init_producer(self, name: str | None) -> tuple[int, int]:
        """Return a producer and its epoch; abort what the earlier epoch of ``name`` has open."""
        with self.changed:
            if name is None:
                self._producers += 1
                return self._producers, 0
            known = self.transactions.get(name)
            if known is None:
                self._producers += 1
                known = self.transactions[name] = Transaction(self._producers, -1)
            elif known.places or known.groups:
                known.epoch += 1
                self._end(known, is_commit=False)
            known.epoch += 1
            return known.producer, known.epoch

    def fenced(self, name: str | None, producer: int, epoch: int) -> int:
        """Return the error of a request of an earlier epoch, or `NONE`."""
        known = self.transactions.get(name or "")
        if known is None or known.producer != producer:
            return INVALID_PRODUCER_ID_MAPPING
        return INVALID_PRODUCER_EPOCH if known.epoch != epoch else NONE

    def add_partitions(self, name: str | None, producer: int, epoch: int, places: list[Place]) -> int:
        with self.changed:
            error = self.fenced(name, producer, epoch)
            if not error and any(self.log(place) is None for place in places):
                error = UNKNOWN_TOPIC_OR_PARTITION
            if not error:
                self.transactions[name or ""].places.update(places)
            return error

    def add_offsets(self, name: str | None, producer: int, epoch: int, group: str) -> int:
        with self.changed:
            error = self.fenced(name, producer, epoch)
            if not error:
                self.transactions[name or ""].groups.add(group)
            return error

    def commit_offsets_in(
        self, name: str | None, producer: int, epoch: int, group: str, offsets: dict[Place, int]
    ) -> int:
        with self.changed:
            error = self.fenced(name, producer, epoch)
            if not error and group not in self.transactions[name or ""].groups:
                error = INVALID_TXN_STATE
            if not error:
                self.transactions[name or ""].offsets.setdefault(group, {}).update(offsets)
            return error

    def end_transaction(self, name: str | None, producer: int, epoch: int, *, is_commit: bool) -> int:
        with self.changed:
            error = self.fenced(name, producer, epoch)
            if not error:
                self._end(self.transactions[name or ""], is_commit=is_commit)
            return error

    def _end(self, transaction: Transaction, *, is_commit: bool) -> None:
        for place in transaction.places:
            log = self.log(place)
            if log is None:
                continue
            ending = control(transaction.producer, transaction.epoch, is_commit=is_commit, time_ms=self.time_ms)
            first = log.open.pop(transaction.producer, None)
            batch = log.append(ending)
            if first is not None and not is_commit:
                log.aborted.append((transaction.producer, first, batch.last))
        if is_commit:
            for group, offsets in transaction.offsets.items():
                self.offsets.setdefault(group, {}).update(offsets)
        transaction.places, transaction.groups, transaction.offsets = set(), set(), {}
        self.changed.notify_all()

    def produce(self, name: str | None, place: Place, data: bytes) -> tuple[int, int]:
        """Append what a client sends: return the error and the offset of its first record."""
        with self.changed:
            log = self.log(place)
            if log is None:
                return UNKNOWN_TOPIC_OR_PARTITION, -1
            batches = split(data)
            if any(len(batch) > self.topics[place[0]].bytes_max for batch in batches):
                return MESSAGE_TOO_LARGE, -1
            first = -1
            for batch in batches:
                error, offset = self._append(name, place, log, batch)
                if error:
                    return error, offset
                first = offset if first < 0 else first
            self.changed.notify_all()
            return NONE, first

    def _append(self, name: str | None, place: Place, log: Log, data: bytes) -> tuple[int, int]:
        seen = stored(data, 0)
        if seen.is_transactional:
            error = self.fenced(name, seen.producer, seen.epoch)
            if not error and place not in self.transactions[name or ""].places:
                error = INVALID_TXN_STATE
            if error:
                return error, -1
        if seen.producer >= 0:
            who = (seen.producer, seen.epoch)
            first, expected, offset = log.sequences.get(who, (-1, 0, -1))
            if seen.sequence == first:
                return DUPLICATE_SEQUENCE, offset
            if seen.sequence != expected:
                return OUT_OF_ORDER_SEQUENCE, -1
            log.sequences[who] = (seen.sequence, seen.sequence + seen.last + 1, log.end)
        batch = log.append(data)
        if seen.is_transactional:
            log.open.setdefault(seen.producer, batch.base)
        return NONE, batch.base

    def committed(self, name: str, partition: int) -> list[StoredRecord]:
        """Return the records that a reader of committed transactions sees."""
        with self.changed:
            log = self.topics[name].logs[partition]
            seen: list[StoredRecord] = []
            for batch in log.batches:
                is_aborted = batch.is_transactional and any(
                    producer == batch.producer and first <= batch.base <= last for producer, first, last in log.aborted
                )
                if not batch.is_control and not is_aborted and batch.base < log.stable:
                    seen += records_in(batch)
            return seen
