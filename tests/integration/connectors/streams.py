"""Streams of Redis, NATS, Kafka and a model broker with one interface: the contract of polled sources fills, reads and
damages them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import nats
import redis
from nats.js.api import StreamConfig

from malstrom_py import sources
from malstrom_py.sources.base import Part, SourcePart
from malstrom_py.sources.polled import PolledChunk, PolledReader, PolledSource
from tests.integration.connectors.patient import read
from tests.kafka_broker import Broker
from tests.servers import Server, wait_until


def opened(source: Any, state: Any = None) -> closing[SourcePart[Any]]:
    """Open the first part of ``source``, for a block."""
    return closing(source.build_part(source.list_parts()[0], state))


class _Stream:
    """A stream of numbers, and another one beside it that the same source can read.

    ``position``: the field of a position with the number of messages before it. ``malformed``: the error of a text.
    """

    position: ClassVar[str]
    malformed: ClassVar[str]

    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.name = name

    def rows_before(self, state: Any) -> Any:
        return state[self.position] or 0

    def position_after(self, rows: int, **options: Any) -> Any:
        """Read so many rows and return the position after them."""
        with opened(self.source(**options)) as part:  # type: ignore[attr-defined]  # of the subclasses
            read(part, rows)
            wait_until(lambda: not part.poll(1) and part.snapshot()[self.position] is not None, "it is known")
            return part.snapshot()


def number_of(id: str, fields: dict[bytes, bytes]) -> int:
    return int(fields[b"n"])


class RedisStream(_Stream):
    position = "added"
    malformed = "ValueError.*secret"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.server.port}/0"

    def call(self, do: Callable[[Any], Any]) -> Any:
        """Return what ``do`` returns of a client."""
        with closing(redis.Redis(port=self.server.port, protocol=2)) as client:
            return do(client)

    def create(self) -> None:
        """The first entry makes it."""

    def remove(self) -> None:
        self.call(lambda client: client.delete(self.name))

    def add(self, values: Iterable[Any], *, beside: bool = False) -> None:
        def fill(client: Any) -> None:
            pipe = client.pipeline()
            for value in values:
                pipe.xadd(f"{self.name}-b" if beside else self.name, {"n": value})
            pipe.execute()

        self.call(fill)

    def add_unseen(self) -> None:
        """Add what the source leaves out."""
        self.call(lambda client: client.xdel(self.name, client.xadd(self.name, {"n": 99})))

    def record(self, value: bytes) -> Any:
        """Return what a malformed record of ``value`` holds."""
        return {b"n": value}

    def source(self, *, both: bool = False, **options: Any) -> sources.RedisStream[int]:
        names = [self.name, f"{self.name}-b"] if both else self.name
        return sources.RedisStream(self.url, names, **{"value": number_of, **options})


class NatsStream(_Stream):
    position = "sequence"
    malformed = "message 2 of .*JSONDecodeError: Expecting value"

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.server.port}"

    def call(self, do: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        """Return what ``do`` returns of a JetStream context."""

        async def run() -> Any:
            client = await nats.connect(self.url)
            try:
                return await do(client.jetstream())
            finally:
                await client.close()

        return asyncio.run(run())

    def create(self, **config: Any) -> None:
        self.call(lambda js: js.add_stream(StreamConfig(name=self.name, subjects=[f"{self.name}.>"], **config)))

    def remove(self) -> None:
        self.call(lambda js: js.delete_stream(self.name))

    def add(self, values: Iterable[Any], *, beside: bool = False) -> None:
        async def publish(js: Any) -> None:
            for value in values:
                await js.publish(f"{self.name}.{'b' if beside else 'a'}", str(value).encode())

        self.call(publish)

    def add_unseen(self) -> None:
        self.add([99], beside=True)

    def record(self, value: bytes) -> Any:
        return value

    def source(self, *, both: bool = False, **options: Any) -> sources.JetStream[Any]:
        subjects = [f"{self.name}.a", f"{self.name}.b"] if both else f"{self.name}.a"
        return sources.JetStream(self.url, self.name, **{"subject": subjects, **options})


class KafkaStream:
    """A topic of Kafka, with two partitions."""

    malformed = "offset 1 of .*cannot be decoded: "

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.name = broker.new_topic(2)

    def create(self) -> None:
        """It exists."""

    def add(self, values: Iterable[Any], *, beside: bool = False) -> None:
        texts = [str(value).encode() for value in values]
        self.broker.send(self.name, texts, partition=int(beside), raw=True)

    def add_unseen(self) -> None:
        self.add([99], beside=True)

    def record(self, value: bytes) -> Any:
        return value

    def rows_before(self, state: Any) -> Any:
        return state["offset"]

    def source(self, *, both: bool = False, start: Any = "earliest", **options: Any) -> Any:
        start = {"first": "earliest", "new": "latest"}.get(start, start)
        source = sources.Kafka(self.broker.bootstrap, self.name, start=start, **options)
        return source if both else OnePart(source)


class OnePart:
    """The first part of a source alone."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def list_parts(self) -> Any:
        return self._source.list_parts()[:1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


@dataclass
class ModelStream:
    """A stream in memory of a broker that can be down or silent. ``asked``: the calls for records."""

    malformed = "record 1.*cannot be decoded: ValueError"

    logs: dict[str, list[bytes]] = field(default_factory=lambda: {"a": [], "b": []})
    state: Literal["up", "down", "silent"] = "up"
    asked: int = 0
    poison: int | None = None
    """The number of a record at which the broker fails, with the error ``raised``."""
    raised: Exception = field(default_factory=lambda: KeyError("poison"))

    def create(self) -> None:
        """It exists."""

    def add(self, values: Iterable[Any], *, beside: bool = False) -> None:
        self.logs["b" if beside else "a"] += [str(value).encode() for value in values]

    def add_unseen(self) -> None:
        self.add([99], beside=True)

    def record(self, value: bytes) -> Any:
        return value

    def rows_before(self, state: Any) -> Any:
        return state["position"]

    def source(self, *, both: bool = False, **options: Any) -> Any:
        return ModelSource(self, ["a", "b"] if both else ["a"], **options)


class ModelSource(PolledSource[int]):
    """The smallest polled source. A position is the number of records before it."""

    def __init__(
        self,
        stream: ModelStream,
        names: list[str],
        *,
        start: str = "first",
        value: Callable[[bytes], int] = int,
        follow: bool = True,
    ) -> None:
        super().__init__("Model", follow=follow)
        self.stream, self.names, self.start, self.value = stream, names, start, value

    def list_parts(self) -> list[Part]:
        return [Part(name) for name in self.names]

    def open(self, part: Part, position: Any, end: Any) -> ModelReader:
        return ModelReader(self.stream, part, position or 0)

    def find_ends(self) -> dict[str, int]:
        return {name: len(self.stream.logs[name]) for name in self.names}

    def find_start(self, part: Part) -> int | None:
        return None if self.start == "first" else len(self.stream.logs[part])

    def values(self, records: Any) -> Iterable[int]:
        return map(self.value, records)

    def describe(self, part: Part, record: bytes) -> tuple[str, Any]:
        return f"record {self.stream.logs[part].index(record)} of {part}", record


class ModelReader(PolledReader[bytes]):
    patience_s = 0.4
    idle_s = 0.01

    def __init__(self, stream: ModelStream, name: str, at: int) -> None:
        self.stream, self.name, self.at = stream, name, at

    def read(self, rows_max: int) -> PolledChunk[bytes] | None:
        self.stream.asked += 1
        if self.stream.state == "down":
            raise ConnectionError("the broker does not answer: https://me:hunter2@broker")
        begin, log = self.at, self.stream.logs[self.name]
        records = [] if self.stream.state == "silent" else log[begin : begin + rows_max]
        if self.stream.poison is not None and begin <= self.stream.poison < begin + len(records):
            records = records[: self.stream.poison - begin]
            if not records:
                raise self.stream.raised
        self.at += len(records)
        left = len(log) - self.at
        return PolledChunk(records, lambda number: begin + number + 1, left=left) if records else None


Stream = RedisStream | NatsStream | KafkaStream | ModelStream
