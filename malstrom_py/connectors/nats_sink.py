"""``sinks.JetStream``: publishes values to subjects of a stream of NATS JetStream, at least once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from malstrom_py.connectors.nats import Connection, checked_servers, hosts_of
from malstrom_py.data.batch import Batch
from malstrom_py.errors import PlanError, SinkError, lasting
from malstrom_py.errors.text import describe_error, describe_function
from malstrom_py.formats import Format, converter
from malstrom_py.sinks.base import BaseStatelessSink, BaseWriter
from malstrom_py.sinks.records import as_bytes, converted
from malstrom_py.worker_context import WorkerInfo

_WHAT: Final = "sinks.JetStream"
_FLIGHT_MAX: Final = 256
_TIMEOUT_S: Final = 10.0


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
        self._subject = subject
        self._value = converter(value, f"{_WHAT}: value", "the value", lambda format: format.encode)

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

        self._connection = Connection(options)
        self._subject = subject
        self._value: Callable[[Any], Any] = value or msgspec.json.Encoder().encode

    def write(self, batch: Batch) -> None:
        import nats.errors
        import nats.js.errors

        messages = self._messages(batch.values)
        try:
            self._connection.run(self._publish(messages))
        except nats.js.errors.NoStreamResponseError:
            subjects = ", ".join(sorted({subject for subject, _ in messages})[:3])
            # The job may be started again: a stream whose leader is being elected does not answer either.
            raise SinkError(f"{_WHAT}: no stream takes {subjects}: add the subject to a stream") from None
        except (OSError, TimeoutError, nats.errors.Error) as error:
            raise SinkError(f"{_WHAT}: {self._connection} has not stored a batch: {describe_error(error)}") from error

    def close(self) -> None:
        self._connection.close()

    def _messages(self, values: list[Any]) -> list[tuple[str, bytes]]:
        subjects: list[Any] = [self._subject] * len(values)
        if not isinstance(self._subject, str):
            subjects = converted(self._subject, values, f"{_WHAT}: subject", "a str")
        argument, returns = f"{_WHAT}: value", "bytes or a str"
        found = converted(self._value, values, argument, returns)
        data: list[Any] = [as_bytes(one, argument, returns) for one in found]
        if None in data or not all(isinstance(subject, str) for subject in subjects):
            raise lasting(SinkError(f"{_WHAT}: value= returns bytes or a str, and subject= a str"))
        return list(zip(subjects, data, strict=True))

    async def _publish(self, messages: Sequence[tuple[str, bytes]]) -> None:
        if self._connection.is_idle:
            await self._connection.drop()
        stream = (await self._connection.client()).jetstream(timeout=_TIMEOUT_S)
        # The first one alone: it makes the client listen for answers, and the others keep their order then.
        for start in (0, *range(1, len(messages), _FLIGHT_MAX)):
            some = messages[start : start + _FLIGHT_MAX] if start else messages[:1]
            await asyncio.gather(*(stream.publish(subject, data) for subject, data in some))
        self._connection.used_at_s = time.monotonic()
