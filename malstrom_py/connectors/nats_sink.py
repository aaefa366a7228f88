"""``sinks.JetStream``: publishes values to subjects of a stream of NATS JetStream, at least once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.connectors.nats import checked_servers, hosts_of
from malstrom_py.data.batch import Batch
from malstrom_py.errors import PlanError, SinkError, lasting
from malstrom_py.errors.text import describe_error, describe_function, text_with_place
from malstrom_py.formats import Format
from malstrom_py.sinks.base import BaseStatelessSink, BaseWriter
from malstrom_py.validation import function_of
from malstrom_py.worker_context import WorkerInfo

if TYPE_CHECKING:
    from nats.aio.client import Client

_WHAT: Final = "sinks.JetStream"
_OURS: Final = {"allow_reconnect": False, "max_reconnect_attempts": 1}
"""A job that has lost its server fails, and restarts from its last snapshot."""
_FLIGHT_MAX: Final = 256
_TIMEOUT_S: Final = 10.0
_IDLE_MAX_S: Final = 30.0
"""After such a pause the connection is made again: nothing has answered the server since."""


class JetStream(BaseStatelessSink):
    """A sink that publishes each value to a subject, at least once.

    A batch is written when the stream has stored all of its messages. After a failure, rows since the last snapshot
    come again. The messages of one worker keep their order.

    ``servers``: a URL such as ``"nats://localhost:4222"``, or several of one cluster. ``subject``: one that a stream
    takes, or a function that returns it for a value. ``value``: a function that returns bytes or a str for a value, or
    one of `formats`; by default it is JSON. ``connect``: further arguments of ``nats.connect``.

    PlanError: wrong arguments, or the client is not installed. SinkError: the server cannot be reached, no stream takes
    a subject, or ``subject`` or ``value`` fails.

    >>> JetStream("nats://localhost:4222", "totals")
    JetStream('totals' at localhost:4222)
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        subject: str | Callable[[Any], str],
        *,
        value: Callable[[Any], bytes | str] | Format | None = None,
        connect: Mapping[str, Any] | None = None,
    ) -> None:
        self._options: dict[str, Any] = {**(connect or {}), "servers": checked_servers(servers, _WHAT)}
        is_name = isinstance(subject, str) and bool(subject) and not any(sign in subject for sign in " *>")
        if not is_name and not callable(subject):
            raise PlanError(f"{_WHAT}: subject is a subject without wildcards, or a function of the value")
        value = value.encode if isinstance(value, Format) else value
        self._subject = subject
        self._value = None if value is None else function_of(value, "value", "value= a function of the value")

    def __repr__(self) -> str:
        subject = repr(self._subject) if isinstance(self._subject, str) else describe_function(self._subject)
        return f"JetStream({subject} at {hosts_of(self._options)})"

    def build(self, worker: WorkerInfo) -> JetStreamWriter:
        """Open the writer of one worker."""
        return JetStreamWriter(self._options, self._subject, self._value)


class JetStreamWriter(BaseWriter):
    """Publishes the rows of one worker, each batch until the stream has stored it."""

    def __init__(
        self, options: Mapping[str, Any], subject: str | Callable[[Any], str], value: Callable[[Any], Any] | None
    ) -> None:
        import msgspec

        self._options = options
        self._subject = subject
        self._value: Callable[[Any], Any] = value or msgspec.json.Encoder().encode
        self._loop = asyncio.new_event_loop()
        self._client: Client | None = None
        self._used_at_s = 0.0

    def write(self, batch: Batch) -> None:
        """See `SinkWriter.write`."""
        import nats.errors
        import nats.js.errors

        messages = list(map(self._message, batch.values))
        try:
            self._loop.run_until_complete(self._publish(messages))
        except nats.js.errors.NoStreamResponseError:
            subjects = ", ".join(sorted({subject for subject, _ in messages})[:3])
            # The job may be started again: a stream whose leader is being elected does not answer either.
            raise SinkError(f"{_WHAT}: no stream takes {subjects}: add the subject to a stream") from None
        except (OSError, TimeoutError, nats.errors.Error) as error:
            where = hosts_of(self._options)
            raise SinkError(f"{_WHAT}: {where} has not stored a batch: {describe_error(error)}") from error

    def close(self) -> None:
        """See `SinkWriter.close`."""
        self._loop.run_until_complete(self._disconnect())
        self._loop.close()

    def _message(self, value: Any) -> tuple[str, bytes]:
        try:
            data = self._value(value)
            subject = self._subject if isinstance(self._subject, str) else self._subject(value)
        except SinkError:
            raise  # of a schema registry
        except Exception as error:
            raise lasting(SinkError(f"{_WHAT}: value= or subject= failed: {text_with_place(error)}")) from error
        data = data.encode() if isinstance(data, str) else data
        if not isinstance(data, bytes) or not isinstance(subject, str):
            raise lasting(SinkError(f"{_WHAT}: value= returns bytes or a str, and subject= a str"))
        return subject, data

    async def _publish(self, messages: Sequence[tuple[str, bytes]]) -> None:
        stream = (await self._connected()).jetstream(timeout=_TIMEOUT_S)
        # The first one alone: it makes the client listen for answers, and the others keep their order then.
        for start in (0, *range(1, len(messages), _FLIGHT_MAX)):
            some = messages[start : start + _FLIGHT_MAX] if start else messages[:1]
            await asyncio.gather(*(stream.publish(subject, data) for subject, data in some))
        self._used_at_s = time.monotonic()

    async def _connected(self) -> Client:
        import nats

        if self._client is None or time.monotonic() - self._used_at_s > _IDLE_MAX_S:
            await self._disconnect()
            self._client = await nats.connect(**{"connect_timeout": _TIMEOUT_S, **self._options, **_OURS})
        return self._client

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()
