"""``sources.Kafka``: reads topics, from offsets in the snapshots of the job.

Rules:
- Partitions are assigned by the job. Kafka's groups assign nothing; a group only gets a copy of the offsets.
- Where a job begins is determined once, by `pin`, and recorded in its snapshots. A partition that was not there then is
  read from its beginning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from malstrom_py.connectors.kafka.client import (
    ANSWER_S,
    Cluster,
    checked_bootstrap,
    checked_options,
    checked_topic,
    kafka,
)
from malstrom_py.connectors.kafka.part import OnLost, PartitionFeed, Reading, position_of
from malstrom_py.connectors.kafka.reader import Readers
from malstrom_py.connectors.kafka.records import Decode, KafkaRecord, column_decoder, rows_of
from malstrom_py.errors import PlanError, SourceError, lasting
from malstrom_py.formats import Format, converter
from malstrom_py.sources.base import Part
from malstrom_py.sources.polled import PolledPart, PolledSource
from malstrom_py.validation import checked_choice, checked_names, checked_number, checked_text

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

_WHAT: Final = "sources.Kafka"
_GROUP: Final = "malstrom-py"
_ENDS: Final = -1
_PARTS_OPEN_MAX: Final = 1 << 20

Start = Literal["earliest", "latest"] | datetime


class Kafka(PolledSource[Any]):
    """A source that reads topics of Kafka: each record once per state of the job, from offsets in its snapshots.

    Rows of a partition come in their order. A row is the value, decoded from JSON, or what ``value`` returns for its
    bytes, a function or one of `formats`; a record without a value (a tombstone) is the row None, and ``value`` is not
    called for it. With ``records=True`` a row is a `KafkaRecord` (``value``, ``key``, ``timestamp_ms``, ``headers``,
    ``topic``, ``partition``, ``offset``), and ``key`` decodes its key, which is bytes otherwise.

    - ``start``: where a job begins that resumes from no snapshot: at the "earliest" record, after the "latest", or at
      the first one with this time or later (a datetime with a zone). It is determined once, when the job starts.
    - ``follow``: whether to wait for further records, for ever. False: read up to the end that each partition has when
      the job starts. A job with snapshots that has finished reads, when it is started again, what is new since.
    - ``new_partitions_every_s``: how often to look for new partitions while the job runs. They are read from their
      beginning, also with ``start="latest"``, also if they appeared while the job was down.
    - ``on_lost``: what to do where records were deleted before they were read: "fail", or continue at the "earliest"
      one.
    - ``group``: a consumer group that gets the offsets of each committed snapshot, for tools that show lag. The job
      never reads them, and never joins the group.
    - ``options``: of librdkafka, such as ``{"security.protocol": "SSL"}``. Their values are in no error and no log.

    Only records of committed transactions are read, unless ``options={"isolation.level": "read_uncommitted"}``.

    PlanError: a wrong argument or option, or confluent-kafka is not installed. SourceError: no broker answers, a topic
    does not exist or was deleted, records are lost. MalformedRecord: ``value`` or ``key`` raised.

    >>> from malstrom_py import sources
    >>> sources.Kafka("broker1:9092", "orders", start="latest", options={"sasl.password": "secret"})
    Kafka('broker1:9092', 'orders', start='latest', options=['sasl.password'])
    """

    parts_open_max = _PARTS_OPEN_MAX

    def __init__(
        self,
        bootstrap: str,
        topics: str | Sequence[str],
        *,
        start: Start = "earliest",
        value: Decode | Format | None = None,
        key: Decode | Format | None = None,
        records: bool = False,
        follow: bool = True,
        new_partitions_every_s: float = 60.0,
        on_lost: OnLost = "fail",
        group: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        kafka(_WHAT)
        self._cluster = Cluster(_WHAT, checked_bootstrap(bootstrap, _WHAT), checked_options(options, _WHAT))
        named = checked_names(topics, f"{_WHAT}: topics", "the names of one or more topics")
        self._topics = [checked_topic(topic, _WHAT) for topic in named]
        self._start = _checked_start(start)
        if key is not None and not records:
            raise PlanError(f"{_WHAT}: key= decodes the keys of records: add records=True")
        self._group = None if group is None else checked_text(group, f"{_WHAT}: group", "the name of a consumer group")
        self.is_acknowledging = group is not None
        self._on_lost: OnLost = checked_choice(on_lost, f"{_WHAT}: on_lost", "fail", "earliest")
        self._records = records is True
        self.rows = KafkaRecord if self._records else None
        self._functions = [
            converter(decode, f"{_WHAT}: {name}", "bytes, or one of formats", lambda format: format.decode)
            for name, decode in (("value", value), ("key", key))
        ]
        self.is_narrowing = self.is_decoding = value is None and not self._records
        super().__init__(_WHAT, follow=follow)
        self.lists_again_every_s = (
            checked_number(new_partitions_every_s, f"{_WHAT}: new_partitions_every_s") if follow else None
        )
        self._reading: Reading | None = None

    def __repr__(self) -> str:
        topics: Any = self._topics[0] if len(self._topics) == 1 else self._topics
        named = f", options={sorted(self._cluster.options)}" if self._cluster.options else ""
        return f"Kafka({self._cluster.bootstrap!r}, {topics!r}, start={self._start!r}{named})"

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the consumers of this process."""
        return {**self.__dict__, "_reading": None}

    def list_parts(self) -> list[Part]:
        with self._cluster.asking() as consumer:
            return [Part(part) for part in self._listed(consumer)]

    def build_part(self, part: Part, state: Any) -> PolledPart[Message, Any]:
        self._check(part, state)
        return super().build_part(part, state)

    def build_narrow_part(self, part: Part, state: Any, columns: Collection[str]) -> PolledPart[Message, Any]:
        self._check(part, state)
        return self._built(part, state, column_decoder(columns))

    def _check(self, part: Part, state: Any) -> None:
        topic, _ = _place_of(part)
        if topic not in self._topics:
            raise lasting(
                SourceError(
                    f"{_WHAT}: the job resumes from a snapshot in which it reads topic {topic!r}, which topics= leaves "
                    f"out: name it, or start the job without its snapshots"
                )
            )
        position_of(state, part)

    def open(self, part: Part, position: Any, end: Any) -> PartitionFeed:
        return PartitionFeed(self._shared(), _place_of(part), position_of(position, part), end)

    def find_ends(self) -> dict[str, int]:
        with self._cluster.asking() as consumer:
            return self._offsets_at(consumer, self._listed(consumer), _ENDS)

    def find_start(self, part: Part) -> dict[str, int] | None:
        pin = self._pin.known
        if pin is None:  # read outside a job
            with self._cluster.asking() as consumer:
                pin = self._determined(consumer, [part])
        offset = pin["starts"].get(part)
        return None if offset is None else {"offset": offset}

    def order(self, position: Any) -> int:
        return position if isinstance(position, int) else position_of(position, "") or 0

    def values(self, records: Sequence[Message]) -> Iterator[Any]:
        return rows_of(records, *self._functions, records=self._records)

    def describe(self, part: Part, record: Message) -> tuple[str, Any]:
        return f"the record at offset {record.offset()} of {part}", record.value()

    def _start_of(self, part: Part) -> Any:
        return self.find_start(part) or ({"offset": 0} if self._end_of(part) == 0 else None)

    def _end_of(self, part: Part) -> Any:
        """Return the pinned end; 0 for a partition that has appeared since: the next run reads it."""
        end = super()._end_of(part)
        return 0 if end is None and self._pin.known is not None and not self._follow else end

    def _pin_now(self, record: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return where each partition begins and, with ``follow=False``, ends. It begins where ``record`` says."""
        if record is not None:
            return {**super()._pin_now(record), "starts": record["starts"]}
        with self._cluster.asking() as consumer:
            return self._determined(consumer, self._listed(consumer))

    def _recorded(self, record: Any, job: str) -> Mapping[str, Any]:
        starts = record.get("starts") if isinstance(record, dict) else None
        return super()._recorded(record if isinstance(starts, dict) else None, job)

    def acknowledge(self, job: str, positions: Mapping[Part, Any]) -> None:
        """Commit the offsets to ``group``, for tools that show lag."""
        if self._group is None:
            return
        found = kafka(_WHAT)
        offsets = [
            found.TopicPartition(*_place_of(part), position_of(position, part))
            for part, position in positions.items()
            if position is not None
        ]
        if not offsets:
            return
        consumer = self._cluster.consumer(self._group, {})
        try:
            done = consumer.commit(offsets=offsets, asynchronous=False) or []
            wrong = next((offset.error for offset in done if offset.error is not None), None)
        except found.KafkaException as error:
            wrong = error
        finally:
            consumer.close()
        if wrong is not None:
            raise SourceError(
                f"{_WHAT}: offsets could not be committed to group {self._group!r}: {self._cluster.safe(wrong)}. No "
                f"other consumer may use this group; the job itself does not need it"
            )

    def _listed(self, consumer: Consumer) -> list[str]:
        found = {topic: self._cluster.partitions(consumer, topic) for topic in self._topics}
        return [f"{topic}/{partition}" for topic, partitions in found.items() for partition in partitions]

    def _determined(self, consumer: Consumer, parts: Sequence[str]) -> dict[str, Any]:
        """Return the offset where each of ``parts`` begins, none for its beginning, and where it ends."""
        if self._start == "earliest" and self._follow:
            return {"starts": {}, "stops": None}
        ends = self._offsets_at(consumer, parts, _ENDS)
        starts: dict[str, int] = {}
        if self._start == "latest":
            starts = dict(ends)
        elif isinstance(self._start, datetime):
            found = self._offsets_at(consumer, parts, round(self._start.timestamp() * 1000))
            starts = {part: ends[part] if offset == _ENDS else offset for part, offset in found.items()}
        return {"starts": starts, "stops": None if self._follow else ends}

    def _offsets_at(self, consumer: Consumer, parts: Sequence[str], time_ms: int) -> dict[str, int]:
        """Return the first offset of each partition with this time or later; `_ENDS` means its end."""
        found = kafka(_WHAT)
        asked = [found.TopicPartition(*_place_of(part), time_ms) for part in parts]
        answers = consumer.offsets_for_times(asked, timeout=ANSWER_S)
        for answer in answers:
            if answer.error is not None:
                raise found.KafkaException(answer.error)
        return {f"{answer.topic}/{answer.partition}": answer.offset for answer in answers}

    def _shared(self) -> Reading:
        """Return what all partitions in this process share."""
        if self._reading is None:
            readers = Readers(self._cluster, self._group or _GROUP)
            self._reading = Reading(self._cluster, self._on_lost, readers.open)
        return self._reading


def _place_of(part: str) -> tuple[str, int]:
    topic, _, partition = part.rpartition("/")
    if not topic or not partition.isdecimal():
        raise SourceError(
            f"{_WHAT}: {part!r} is not a partition of this source: it was in a snapshot of another source"
        )
    return topic, int(partition)


def _checked_start(start: object) -> Start:
    if isinstance(start, datetime) and start.tzinfo is not None:
        return start
    if start == "earliest":
        return "earliest"
    if start == "latest":
        return "latest"
    raise PlanError(f'{_WHAT}: start must be "earliest", "latest" or a datetime with a zone, got {start!r}')
