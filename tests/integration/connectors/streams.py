"""Streams of Redis and of NATS with one interface: the tests of both sources fill, read and damage them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import closing
from typing import Any, ClassVar

import nats
import redis
from nats.js.api import StreamConfig

from malstrom_py import sources
from malstrom_py.sources.base import SourcePart
from tests.integration.connectors.patient import read
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
        return sources.RedisStream(self.url, names, value=number_of, **options)


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


Stream = RedisStream | NatsStream
