"""``JetStream``: a source over streams of NATS JetStream. A position is the sequence number of a message.

Each partition has an asyncio client in the thread that reads ahead. It reads by a consumer that NATS keeps in memory,
and that is made again, after the position, whenever anything is in doubt: the server keeps no state for the job.

Rule: a position moves past a number only if its message was read, or if the consumer says that it has delivered all
messages up to there, and as many have arrived.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

from malstrom_py.connectors.read_ahead import ReadAhead, values_of
from malstrom_py.errors import PlanError, SourceError, lasting, pip_install, shown
from malstrom_py.errors.text import describe_error, sentence
from malstrom_py.formats import Format
from malstrom_py.object_stores import hidden_logins
from malstrom_py.sources.base import BasePart, Part
from malstrom_py.sources.up_to_ends import FINISHED, UpToEnds, has_finished

if TYPE_CHECKING:
    import nats.aio.client
    import nats.js.api
    import nats.js.client

V_co = TypeVar("V_co", covariant=True)

Gap = Literal["fail", "skip"]
Message = tuple[int, str, bytes]
"""Sequence number, subject, payload."""

_log = logging.getLogger(__name__)

_OURS: Final = {"allow_reconnect": False, "max_reconnect_attempts": 1, "reconnect_time_wait": 0.1}
"""A lost connection is made again here, where the consumer is made again too."""
_NOT_FOUND: Final = 404
_MESSAGES_FIRST: Final = 64
_MESSAGES_MAX: Final = 500
_CHUNK_BYTES: Final = 8 << 20
_FETCH_S: Final = 0.2
_TIMEOUT_S: Final = 5.0
_PAUSE_S: Final = 0.1
_PATIENCE_S: Final = 20.0
"""For so long a server that does not answer is tried again."""
_IDLE_MAX_S: Final = 30.0
"""After such a pause the connection is made again: nothing has answered the server since."""


def json_of(subject: str, data: bytes) -> Any:
    """Return what the payload is as JSON.

    >>> json_of("orders.new", b'{"item": "lamp"}')
    {'item': 'lamp'}
    """
    return json.loads(data)


class JetStream(UpToEnds[V_co]):
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

    parts_open_max = 64

    def __init__(
        self,
        servers: str | Sequence[str],
        stream: str,
        *,
        subject: str | Sequence[str] | None = None,
        start: int | Literal["first", "new"] = "first",
        value: Callable[[str, bytes], V_co] | Format | None = None,
        on_gap: Gap = "fail",
        connect: Mapping[str, Any] | None = None,
        follow: bool = True,
    ) -> None:
        super().__init__("sources.JetStream", follow=follow)
        urls = [servers] if isinstance(servers, str) else list(servers)
        if not urls or not all(map(_is_url, urls)):
            raise PlanError(
                "sources.JetStream: servers is a URL such as nats://user:password@localhost:4222, or several. Write "
                "characters such as @ / ? # of a password as %40 %2F %3F %23"
            )
        if importlib.util.find_spec("nats") is None:
            raise PlanError(f"sources.JetStream needs the client of NATS: {pip_install('nats')}")
        if not isinstance(stream, str) or not stream or any(sign in stream for sign in " .*>"):
            raise PlanError("sources.JetStream: stream is the name of a stream, not a subject")
        subjects = [subject] if isinstance(subject, str) else None if subject is None else list(subject)
        if subjects is not None and (not all(subjects) or len(set(subjects)) != len(subjects) or not subjects):
            raise PlanError("sources.JetStream: subject is a subject, or several different ones")
        if start not in ("first", "new") and (type(start) is not int or start < 1):
            raise PlanError(f"sources.JetStream: start is 'first', 'new' or a number of at least 1, got {shown(start)}")
        if on_gap not in ("fail", "skip"):
            raise PlanError(f"sources.JetStream: on_gap is 'fail' or 'skip', got {shown(on_gap)}")
        if isinstance(value, Format):
            value = partial(_decoded, value)
        if value is not None and not callable(value):
            raise PlanError(f"sources.JetStream: value is a function of subject and data, got {type(value).__name__}")
        self._stream = stream
        self._filters = {Part(stream): None} if subjects is None else {Part(f"{stream}:{one}"): one for one in subjects}
        self._start = start
        self._value: Callable[[str, bytes], Any] = value or json_of
        self._options = {**(connect or {}), "servers": urls}
        self._on_gap: Gap = on_gap

    def __repr__(self) -> str:
        return f"JetStream({', '.join(self._filters)} at {_places(self._options)})"

    def list_parts(self) -> Sequence[Part]:
        return list(self._filters)

    def build_part(self, part: Part, state: Any) -> JetStreamPart[V_co]:
        stop = None if self._follow else self._stop_of(part)
        if state is not None:
            position = Position(state["sequence"], state["created"])
        elif isinstance(self._start, int):
            position = Position(self._start - 1 if stop is None else min(self._start - 1, stop))
        else:
            position = Position()
        is_new = state is None and self._start == "new"
        is_finished = (position.sequence or 0) == stop and not is_new
        is_finished |= has_finished(state) and not self._follow and not self._is_pinned
        reader = Reader(self._options, self._stream, self._filters[part], self._on_gap, position, is_new, stop)
        return JetStreamPart(part, reader, position, self._value, is_finished=is_finished)

    def _stop_of(self, part: Part) -> int:
        end = self._end_of(part)
        return self._newest() if end is None else int(end)

    def _find_ends(self) -> dict[str, int]:
        newest = self._newest()
        return {str(part): newest for part in self._filters}

    def _is_at(self, position: Any, end: int) -> bool:
        return bool(end == (0 if position is None else position["sequence"] or 0))

    def _newest(self) -> int:
        """Return the number of the newest message there has been."""
        reader = Reader(self._options, self._stream, None, self._on_gap, Position(), is_new=True)
        try:
            reader.fetch()
        finally:
            reader.close()
        return reader.position.sequence or 0


def _decoded(format: Format, subject: str, data: bytes) -> Any:
    return format.decode(data)


def _is_url(url: object) -> bool:
    """Return whether ``url`` has a host and a port, and not a part of a password in their place."""
    if not isinstance(url, str) or "://" not in url:
        return False
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _places(options: Mapping[str, Any]) -> str:
    """Return hosts and ports of the servers, for messages: without users and passwords."""
    parts = [urlsplit(url) for url in options["servers"]]
    return ", ".join(f"{part.hostname}:{part.port or 4222}" for part in parts)


@dataclass(frozen=True, slots=True)
class Position:
    """The number up to which all is read, None before that is known; and when the stream was ``created``."""

    sequence: int | None = None
    created: str | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Messages in order, and the position after them. ``left``: how many more there are.

    ``is_last``: nothing follows up to the end at which the partition stops.
    """

    messages: Sequence[Message]
    after: Position
    left: int | None = None
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class _Info:
    """What the server says of a stream: when it was made, its ``first`` and ``last`` number, and its retention."""

    created: str
    first: int
    last: int
    retention: str


class _Again(Exception):
    """The consumer cannot be relied on: make it again."""


@dataclass(slots=True)
class Reader:
    """Reads chunks of one partition, from ``position`` on; with ``is_new``, after the newest message. For one thread.

    ``upto``: the number of the last message to read.
    """

    options: Mapping[str, Any]
    stream: str
    subject: str | None
    on_gap: Gap
    position: Position
    is_new: bool
    upto: int | None = None
    _is_done: bool = False
    _loop: asyncio.AbstractEventLoop | None = None
    _client: nats.aio.client.Client | None = None
    _consumer: nats.js.client.JetStreamContext.PullSubscription | None = None
    _given: Position | None = None
    _count: int = _MESSAGES_FIRST
    _arrived: int = 0
    _doubts: int = 0
    _stopping: bool = False
    _asked_at_s: float = field(default_factory=time.monotonic)

    def fetch(self) -> Chunk | None:
        """Return the next chunk; None if no message came for a while. `StopIteration` after the last one."""
        if self._is_done:
            raise StopIteration
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(self._fetch())

    def close(self) -> None:
        """Close the connection."""
        if self._loop is not None:
            self._loop.run_until_complete(self._disconnect())
            self._loop.close()

    def stop(self) -> None:
        """End a call of `fetch` that tries again and again. Called in another thread."""
        self._stopping = True

    async def _fetch(self) -> Chunk | None:
        import nats.errors

        ends_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                if time.monotonic() - self._asked_at_s > _IDLE_MAX_S:
                    raise _Again
                return await self._try()
            except (_Again, OSError, TimeoutError, nats.errors.Error) as error:
                await self._disconnect()
                self._asked_at_s = time.monotonic()
                if self._stopping or time.monotonic() > ends_s:
                    raise self._unreachable(error) from error
                if not isinstance(error, _Again):
                    await asyncio.sleep(_PAUSE_S)

    async def _try(self) -> Chunk | None:
        """Fetch once. An error leaves the position unchanged."""
        consumer = self._consumer or await self._subscribe()
        if self.position != self._given:
            return self._give((), None)
        try:
            messages = await consumer.fetch(self._count, timeout=_FETCH_S)
        except TimeoutError:
            messages = []
        self._asked_at_s = time.monotonic()
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
        size = sum(len(data) for _, _, data in found) // len(found)
        self._count = max(2, min(_MESSAGES_MAX, 2 * self._count, _CHUNK_BYTES // (size + 1)))
        left = messages[-1].metadata.num_pending
        if self.upto is None:
            self.position = Position(found[-1][0], self.position.created)
            return self._give(found, left)
        self.position = Position(min(found[-1][0], self.upto), self.position.created)
        return self._give([message for message in found if message[0] <= self.upto], left)

    def _give(self, messages: Sequence[Message], left: int | None) -> Chunk:
        self._given = self.position
        # A later start than the end is at its end, too.
        self._is_done = self.upto is not None and (self.position.sequence or 0) >= self.upto
        return Chunk(messages, self.position, left, self._is_done)

    async def _caught_up(self, consumer: nats.js.client.JetStreamContext.PullSubscription) -> Chunk | None:
        """Move the position to the newest number, if the consumer has nothing left to deliver, and nothing was lost."""
        newest = (await self._checked_info()).last
        info = await consumer.consumer_info()  # `NotFoundError` is an error of NATS: it is made again
        delivered = info.delivered.consumer_seq if info.delivered else 0
        if delivered != self._arrived:
            self._doubts += 1  # it may be here, after the time of `fetch`: the next call has it
            if self._doubts > 1:
                raise _Again
            return None
        known = self.position.sequence
        if info.num_pending or (known is not None and known >= newest):
            return None
        self.position = Position(newest if self.upto is None else min(newest, self.upto), self.position.created)
        return self._give((), 0)

    async def _check(self, found: Sequence[Message]) -> None:
        """Fail or warn if messages between two numbers were removed by limits or a purge."""
        first = (await self._checked_info()).first
        before = self.position.sequence
        for sequence, _, _ in found:
            if before is not None and before + 1 < sequence and before + 1 < first:
                self._missing(before + 1, min(first, sequence) - 1)
            before = sequence

    def _missing(self, begin: int, end: int) -> None:
        gone = f"messages {begin} to {end} of the stream {self.stream!r} were removed before they were read"
        if self.on_gap == "fail":
            raise lasting(
                SourceError(
                    f"{gone}, by a limit of the stream or a purge. Keep messages longer. To continue with those that "
                    f"are there, use on_gap='skip'."
                )
            )
        _log.warning("%s: the job continues without them", gone)

    async def _checked_info(self) -> _Info:
        """Return what the server says of the stream; `SourceError` if it is another one than before."""
        assert self._client is not None
        answer = json.loads((await self._client.request(f"$JS.API.STREAM.INFO.{self.stream}", timeout=_TIMEOUT_S)).data)
        known = self.position
        if "error" in answer:
            if answer["error"].get("code") != _NOT_FOUND:
                raise _Again
            if known.created is not None:
                raise self._is_another()
            raise lasting(
                SourceError(f"there is no stream {self.stream!r} at {_places(self.options)}: create it first")
            )
        info = _Info(
            answer["created"],
            answer["state"]["first_seq"],
            answer["state"]["last_seq"],
            answer["config"].get("retention", "limits"),
        )
        if known.created is None:
            chosen = None if known.sequence is None else min(known.sequence, info.last)
            self.position = Position(chosen, info.created)
        elif known.created != info.created or info.last < (known.sequence or 0):
            raise self._is_another()
        return info

    async def _subscribe(self) -> nats.js.client.JetStreamContext.PullSubscription:
        """Connect if need be, and make a consumer that begins after the position."""
        from nats.aio.client import Client
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        if self._client is None:
            self._client = Client()  # closed also if it cannot connect
            await self._client.connect(**{"connect_timeout": _TIMEOUT_S, **self.options, **_OURS, "error_cb": _ignore})
        info = await self._checked_info()
        if info.retention == "workqueue":
            raise lasting(
                SourceError(
                    f"the stream {self.stream!r} has the retention workqueue, which removes acknowledged "
                    f"messages: read a stream with the retention limits"
                )
            )
        if self.is_new and self.position.sequence is None:
            self.position = Position(info.last, info.created)
        begin = self.position.sequence
        config = ConsumerConfig(
            ack_policy=AckPolicy.NONE,
            inactive_threshold=2 * _IDLE_MAX_S,
            mem_storage=True,
            deliver_policy=DeliverPolicy.ALL if begin is None else DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=None if begin is None else begin + 1,
        )
        js = self._client.jetstream(timeout=_TIMEOUT_S)
        self._consumer = await js.pull_subscribe(self.subject or ">", stream=self.stream, config=config)
        self._arrived = self._doubts = 0
        return self._consumer

    async def _disconnect(self) -> None:
        client, self._client, self._consumer = self._client, None, None
        if client is not None:
            await client.close()

    def _unreachable(self, error: Exception) -> SourceError:
        why = sentence(hidden_logins(describe_error(error)))
        return SourceError(
            f"the stream {self.stream!r} at {_places(self.options)} cannot be read: {why}. "
            f"Check that the server runs, and that user and permissions are right, then run the job again"
        )

    def _is_another(self) -> SourceError:
        return lasting(
            SourceError(
                f"the stream {self.stream!r} at {_places(self.options)} is not the one that was read up to number "
                f"{self.position.sequence}: it was deleted or made again, or the server has lost its newest messages. "
                f"Restore the stream, or start the job without resuming."
            )
        )


async def _ignore(error: Exception) -> None:
    """Take the errors that the client would log: each call raises its own."""


class JetStreamPart(BasePart[V_co]):
    """One stream, or one subject of it, while it is read."""

    def __init__(
        self,
        part: Part,
        reader: Reader,
        position: Position,
        value: Callable[[str, bytes], V_co],
        *,
        is_finished: bool = False,
    ) -> None:
        self._part = part
        self._is_finished = is_finished
        self._position = position
        self._value = value
        self._chunk = Chunk((), position)
        self._taken = 0
        is_new = reader.is_new
        self._stop = reader.stop
        self._ahead: ReadAhead[Chunk] | None = None
        if not is_finished:
            self._ahead = ReadAhead(reader.fetch, name=f"nats-{part}", release=reader.close)
        if is_new and self._ahead is not None:
            self._wait_for_start(self._ahead)

    def poll(self, rows_max: int) -> list[V_co] | None:
        if self._is_finished or self._ahead is None:
            return None
        if self._taken >= len(self._chunk.messages):
            chunk = self._ahead.take()
            if chunk is None:
                return None
            self._begin(chunk)
        return values_of(
            self._chunk.messages[self._taken : self._taken + rows_max],
            lambda message: self._value(message[1], message[2]),
            advance=self._advance,
            described=lambda message: (f"message {message[0]} of {self._part!r}", message[2]),
        )

    def is_finished(self) -> bool:
        return self._is_finished

    def snapshot(self) -> dict[str, Any]:
        plain = {"sequence": self._position.sequence, "created": self._position.created}
        return plain | ({FINISHED: True} if self._is_finished else {})

    def lag_rows(self) -> int | None:
        left = self._chunk.left
        return None if left is None else left + len(self._chunk.messages) - self._taken

    def close(self) -> None:
        self._stop()
        if self._ahead is not None:
            self._ahead.close()

    def _wait_for_start(self, ahead: ReadAhead[Chunk]) -> None:
        """Wait until the newest message is known, so that the partition begins when the job does."""
        try:
            chunk = ahead.take(wait_s=_PATIENCE_S + _TIMEOUT_S)
            if chunk is None:
                raise SourceError(
                    f"the newest message of {self._part!r} is not known after {_PATIENCE_S} s: run it again"
                )
        except BaseException:
            self.close()
            raise
        self._begin(chunk)

    def _begin(self, chunk: Chunk) -> None:
        self._chunk, self._taken = chunk, 0
        if not chunk.messages:
            self._pass(chunk)

    def _advance(self, rows: int) -> None:
        if rows:
            self._taken += rows
            self._position = Position(self._chunk.messages[self._taken - 1][0], self._chunk.after.created)
            if self._chunk.is_last and self._taken == len(self._chunk.messages):
                self._pass(self._chunk)

    def _pass(self, chunk: Chunk) -> None:
        """Move the position after ``chunk``, of which all messages are read."""
        self._position = chunk.after
        self._is_finished = chunk.is_last
