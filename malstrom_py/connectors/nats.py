"""``JetStream``: a source over streams of NATS JetStream. A position is the sequence number of a message.

Each partition has an asyncio client in the thread that reads ahead. It reads by a consumer that NATS keeps in memory,
and that is made again, after the position, whenever anything is in doubt: the server keeps no state for the job.

Rule: a position moves past a number only if its message was read, or if the consumer says that it has delivered all
messages up to there, and as many have arrived.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

from malstrom_py.errors import PlanError, SourceError, imported, lasting, shown
from malstrom_py.formats import Format, converter
from malstrom_py.sources.base import Part
from malstrom_py.sources.polled import PolledChunk, PolledReader, PolledSource, problems
from malstrom_py.sources.polled.reading import ReaderFeed
from malstrom_py.validation import checked_choice, checked_names

if TYPE_CHECKING:
    import nats.aio.client
    import nats.js.api
    import nats.js.client

    Consumer = nats.js.client.JetStreamContext.PullSubscription

V_co = TypeVar("V_co", covariant=True)
T = TypeVar("T")

Message = tuple[int, str, bytes]
"""Sequence number, subject, payload."""

_log = logging.getLogger(__name__)

_OURS: Final = {"allow_reconnect": False, "max_reconnect_attempts": 1, "reconnect_time_wait": 0.1}
"""A lost connection is made again by its user: a consumer has to be made again too, and a sink's job restarts."""
_NOT_FOUND: Final = 404
_KEEP_LONGER: Final = "A limit of the stream or a purge did it: keep messages longer"
_FETCH_S: Final = 0.2
_TIMEOUT_S: Final = 5.0
_IDLE_MAX_S: Final = 30.0


def json_of(subject: str, data: bytes) -> Any:
    """Return what the payload is as JSON.

    >>> json_of("orders.new", b'{"item": "lamp"}')
    {'item': 'lamp'}
    """
    return json.loads(data)


class JetStream(PolledSource[V_co]):
    """A source of the messages of a JetStream stream, exactly once into the state of the job.

    ``servers``: a URL such as ``"nats://localhost:4222"``, or several of one cluster. ``stream``: the name of the
    stream, which is one partition. ``subject``: reads only the messages of a subject, with wildcards if you like.
    Several subjects are several partitions; a message that matches two is read twice. ``connect``: further arguments of
    ``nats.connect``, such as ``{"user_credentials": "job.creds"}``.

    Messages are read in the order of the stream, without end. ``follow=False`` reads up to the message that is the
    newest when the job starts; a job with snapshots that has finished reads, when it is started again, what is new
    since. Positions are sequence numbers, stored in the snapshots
    of the job. Nothing is acknowledged, so other readers see all messages, and a stream with the retention "workqueue"
    is refused.

    ``start``: where a job begins that does not resume: ``"first"``, the oldest message; ``"new"``, after the newest; or
    a sequence number; one after the newest means ``"new"``.

    ``value(subject, data)`` makes the value of a message of its payload, or one of `formats` does; by default it is
    JSON. If it raises, the record is malformed (``on_error=`` of ``job.source``).

    Messages that the limits of the stream or a purge removed before they were read are a `SourceError`. With
    ``on_gap="skip"`` they are a warning with their numbers, and the job continues with the messages that follow.
    Messages that were deleted singly, or replaced because of a limit per subject, are not missed, unless they were the
    oldest. A stream that was deleted and made again is a `SourceError` always.

    While a server does not answer, it is tried again for 20 seconds.

    PlanError: wrong arguments, or the client is not installed. SourceError: the server cannot be reached, there is no
    such stream, or messages are missing.

    >>> source = JetStream("nats://localhost:4222", "orders", subject=["orders.new", "orders.paid"])
    >>> source.list_parts()
    ['orders:orders.new', 'orders:orders.paid']
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        stream: str,
        *,
        subject: str | Sequence[str] | None = None,
        start: int | Literal["first", "new"] = "first",
        value: Callable[[str, bytes], V_co] | Format | None = None,
        on_gap: problems.Gap = "fail",
        connect: Mapping[str, Any] | None = None,
        follow: bool = True,
    ) -> None:
        super().__init__("sources.JetStream", follow=follow)
        urls = checked_servers(servers, "sources.JetStream")
        if not isinstance(stream, str) or not stream or any(sign in stream for sign in " .*>"):
            raise PlanError("sources.JetStream: stream is the name of a stream, not a subject")
        subjects = None
        if subject is not None:
            subjects = checked_names(subject, "sources.JetStream: subject", "a subject, or several")
        if start not in ("first", "new") and (type(start) is not int or start < 1):
            raise PlanError(f"sources.JetStream: start is 'first', 'new' or a number of at least 1, got {shown(start)}")
        self._stream = stream
        self._filters = {Part(stream): None} if subjects is None else {Part(f"{stream}:{one}"): one for one in subjects}
        self._start = start
        self._value: Callable[[str, bytes], Any] = (
            converter(value, "sources.JetStream: value", "subject and data", partial(partial, _decoded)) or json_of
        )
        self._options: dict[str, Any] = {**(connect or {}), "servers": urls}
        self._on_gap: problems.Gap = checked_choice(on_gap, "sources.JetStream: on_gap", "fail", "skip")

    def __repr__(self) -> str:
        return f"JetStream({', '.join(self._filters)} at {hosts_of(self._options)})"

    def list_parts(self) -> Sequence[Part]:
        return list(self._filters)

    def open(self, part: Part, position: Any, end: int | None) -> Reader:
        at = Position() if position is None else Position(position["sequence"], position["created"])
        return Reader(self._options, self._stream, self._filters[part], self._on_gap, at, end)

    def find_ends(self) -> dict[str, int]:
        newest = self._newest().sequence or 0
        return {str(part): newest for part in self._filters}

    def find_start(self, part: Part) -> dict[str, Any] | None:
        if self._start == "first":
            return None
        newest = self._newest()
        if isinstance(self._start, int):
            newest = replace(newest, sequence=min(self._start - 1, newest.sequence or 0))
        return newest.plain()

    def order(self, position: Any) -> int:
        return position if isinstance(position, int) else 0 if position is None else position["sequence"] or 0

    def values(self, records: Sequence[Message]) -> Iterator[V_co]:
        return (self._value(subject, data) for _, subject, data in records)

    def describe(self, part: Part, record: Message) -> tuple[str, Any]:
        return f"message {record[0]} of the stream {self._stream!r}", record[2]

    def _newest(self) -> Position:
        """Return the position after the newest message there has been."""
        feed = ReaderFeed(
            Reader(self._options, self._stream, None, self._on_gap, Position(), is_new=True), "nats-newest"
        )
        feed.start()
        try:
            chunk = feed.take(wait_s=PolledReader.patience_s + _TIMEOUT_S)
        finally:
            feed.close()
        if chunk is None:
            raise SourceError(f"the newest message of {self._stream!r} is not known in time: run it again")
        return Position(chunk.after["sequence"], chunk.after["created"])


def _decoded(format: Format, subject: str, data: bytes) -> Any:
    return format.decode(data)


def checked_servers(servers: str | Sequence[str], what: str) -> list[str]:
    """Return the URLs of servers; `PlanError` if one is none, or the client is not installed."""
    urls = [servers] if isinstance(servers, str) else list(servers)
    if not urls or not all(map(_is_url, urls)):
        raise PlanError(
            f"{what}: servers is a URL such as nats://user:password@localhost:4222, or several. Write characters such "
            f"as @ / ? # of a password as %40 %2F %3F %23"
        )
    imported("nats", f"{what} needs the client of NATS", "nats")
    return urls


def _is_url(url: object) -> bool:
    """Return whether ``url`` has a host and a port, and not a part of a password in their place."""
    if not isinstance(url, str) or "://" not in url:
        return False
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def hosts_of(options: Mapping[str, Any]) -> str:
    """Return hosts and ports of the servers, for messages: without users and passwords."""
    parts = [urlsplit(url) for url in options["servers"]]
    return ", ".join(f"{part.hostname}:{part.port or 4222}" for part in parts)


@dataclass(frozen=True, slots=True)
class Position:
    """The number up to which all is read, None before that is known; and when the stream was ``created``."""

    sequence: int | None = None
    created: str | None = None

    def plain(self) -> dict[str, Any]:
        """Return the position in plain types."""
        return {"sequence": self.sequence, "created": self.created}


@dataclass(frozen=True, slots=True)
class _Info:
    """What the server says of a stream: when it was made, its ``first`` and ``last`` number, and its retention."""

    created: str
    first: int
    last: int
    retention: str


class _Again(Exception):
    """The consumer cannot be relied on: make it again."""


class Connection:
    """A client of NATS in the loop of asyncio that it has for itself. It connects when it is first needed."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        self.used_at_s = time.monotonic()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: nats.aio.client.Client | None = None

    def __str__(self) -> str:
        return hosts_of(self.options)

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``call``."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(call)

    @property
    def is_idle(self) -> bool:
        """Whether it was not used for so long that it has to be made again: nothing has answered the server since."""
        return time.monotonic() - self.used_at_s > _IDLE_MAX_S

    async def client(self) -> nats.aio.client.Client:
        """Return the client, connected."""
        from nats.aio.client import Client

        if self._client is None:
            self._client = Client()  # closed also if it cannot connect
            ours = {**_OURS, "error_cb": _ignore}
            await self._client.connect(**{"connect_timeout": _TIMEOUT_S, **self.options, **ours})
        return self._client

    async def drop(self) -> None:
        """Close the client: the next call of `client` makes another one."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def close(self) -> None:
        """Close the client and its loop."""
        if self._loop is not None:
            self._loop.run_until_complete(self.drop())
            self._loop.close()


class Reader(PolledReader[Message]):
    """Reads messages of one partition after ``at``, up to the number ``end``; with ``is_new``, after the newest."""

    def __init__(
        self,
        options: Mapping[str, Any],
        stream: str,
        subject: str | None,
        on_gap: problems.Gap,
        at: Position,
        end: int | None = None,
        *,
        is_new: bool = False,
    ) -> None:
        self._connection = Connection(options)
        self.name = f"the stream {stream!r} at {self._connection}"
        self._stream = stream
        self._subject = subject
        self._on_gap: problems.Gap = on_gap
        self._at = at
        self._given: Position | None = None
        self._end = end
        self._is_new = is_new
        self._consumer: Consumer | None = None
        self._arrived = self._doubts = 0

    def read(self, rows_max: int) -> PolledChunk[Message] | None:
        return self._connection.run(self._read(max(2, rows_max)))

    def is_retried(self, error: BaseException) -> bool:
        import nats.errors

        return isinstance(error, _Again | OSError | TimeoutError | nats.errors.Error)

    def reset(self) -> None:
        self._consumer = None
        self._connection.run(self._connection.drop())

    def close(self) -> None:
        self._connection.close()

    async def _read(self, count: int) -> PolledChunk[Message] | None:
        """Fetch once. An error leaves the position unchanged."""
        if self._connection.is_idle:
            self._consumer = None
            await self._connection.drop()
        consumer = self._consumer or await self._subscribe()
        if self._at != self._given:
            return self._given_on()
        try:
            messages = await consumer.fetch(count, timeout=_FETCH_S)
        except TimeoutError:
            messages = []
        self._connection.used_at_s = time.monotonic()
        if not messages:
            return await self._caught_up(consumer)
        found: list[Message] = []
        for message in messages:
            data = message.metadata
            self._arrived += 1
            if data.sequence.consumer != self._arrived:
                raise _Again  # one was lost between the server and this process
            found.append((data.sequence.stream, message.subject, message.data))
        await self._check(found)
        self._doubts = 0
        created = self._at.created
        self._at = self._given = Position(found[-1][0], created)
        return PolledChunk(
            found,
            lambda number: Position(found[number][0], created).plain(),
            left=messages[-1].metadata.num_pending,
            size=sum(len(data) for _, _, data in found),
        )

    def _given_on(self, *, is_end: bool = False) -> PolledChunk[Message]:
        """Return a chunk that moves the position without a message, at most to the end."""
        self._given = at = self._at
        if self._end is not None and at.sequence is not None:
            at = replace(at, sequence=min(at.sequence, self._end))
        return PolledChunk(after=at.plain(), left=0 if is_end else None, is_end=is_end)

    async def _caught_up(
        self, consumer: nats.js.client.JetStreamContext.PullSubscription
    ) -> PolledChunk[Message] | None:
        """Move the position to the newest number, if the consumer has nothing left to deliver, and nothing was lost."""
        newest = (await self._checked_info()).last
        info = await consumer.consumer_info()  # `NotFoundError` is an error of NATS: it is made again
        delivered = info.delivered.consumer_seq if info.delivered else 0
        if delivered != self._arrived:
            self._doubts += 1  # it may be here, after the time of `fetch`: the next call has it
            if self._doubts > 1:
                raise _Again
            return None
        known = self._at.sequence
        if info.num_pending or (known is not None and known >= newest):
            return None
        self._at = replace(self._at, sequence=newest)
        return self._given_on(is_end=True)

    async def _check(self, found: Sequence[Message]) -> None:
        """Fail or warn if messages between two numbers were removed by limits or a purge."""
        first = (await self._checked_info()).first
        before = self._at.sequence
        for sequence, _, _ in found:
            if before is not None and before + 1 < sequence and before + 1 < first:
                gone = f"messages {before + 1} to {min(first, sequence) - 1} of the stream {self._stream!r}"
                problems.missing(gone, _KEEP_LONGER, self._on_gap, _log)
            before = sequence

    async def _checked_info(self) -> _Info:
        """Return what the server says of the stream; `SourceError` if it is another one than before."""
        client = await self._connection.client()
        answer = json.loads((await client.request(f"$JS.API.STREAM.INFO.{self._stream}", timeout=_TIMEOUT_S)).data)
        known = self._at
        if "error" in answer:
            if answer["error"].get("code") != _NOT_FOUND:
                raise _Again
            if known.created is not None:
                raise problems.another(self.name, f"number {known.sequence}")
            raise lasting(SourceError(f"there is no stream {self._stream!r} at {self._connection}: create it first"))
        info = _Info(
            answer["created"],
            answer["state"]["first_seq"],
            answer["state"]["last_seq"],
            answer["config"].get("retention", "limits"),
        )
        if known.created is None:
            # A start after the newest message means the newest.
            self._at = Position(None if known.sequence is None else min(known.sequence, info.last), info.created)
        elif known.created != info.created or info.last < (known.sequence or 0):
            raise problems.another(self.name, f"number {known.sequence}")
        return info

    async def _subscribe(self) -> Consumer:
        """Connect if need be, and make a consumer that begins after the position."""
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        info = await self._checked_info()
        if info.retention == "workqueue":
            raise lasting(
                SourceError(
                    f"the stream {self._stream!r} has the retention workqueue, which removes acknowledged "
                    f"messages: read a stream with the retention limits"
                )
            )
        if self._is_new and self._at.sequence is None:
            self._at = Position(info.last, info.created)
        begin = self._at.sequence
        config = ConsumerConfig(
            ack_policy=AckPolicy.NONE,
            inactive_threshold=2 * _IDLE_MAX_S,
            mem_storage=True,
            deliver_policy=DeliverPolicy.ALL if begin is None else DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=None if begin is None else begin + 1,
        )
        js = (await self._connection.client()).jetstream(timeout=_TIMEOUT_S)
        self._consumer = await js.pull_subscribe(self._subject or ">", stream=self._stream, config=config)
        self._arrived = self._doubts = 0
        return self._consumer


async def _ignore(error: Exception) -> None:
    """Take the errors that the client would log: each call raises its own."""
