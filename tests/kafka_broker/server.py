"""A small broker that heeds the rules of transactions, for tests: the requests that librdkafka and kafka-python send.

librdkafka's own mock shows the records of transactions that were aborted, so nothing about transactions can be tested
on it. `state` has the rules; here are the requests, in one version each where that will do, and sockets.
"""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from tests.kafka_broker.state import NONE, OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, BrokerState, Log, Place
from tests.kafka_broker.wire import Reader, Writer

_UNSUPPORTED_VERSION: Final = 35
_VERSIONS: Final = {
    0: (7, 7),  # Produce
    1: (4, 4),  # Fetch
    2: (2, 2),  # ListOffsets
    3: (4, 8),  # Metadata
    8: (7, 7),  # OffsetCommit
    9: (5, 5),  # OffsetFetch
    10: (2, 2),  # FindCoordinator
    18: (0, 2),  # ApiVersions
    19: (4, 4),  # CreateTopics
    20: (3, 3),  # DeleteTopics
    22: (0, 1),  # InitProducerId
    24: (0, 1),  # AddPartitionsToTxn
    25: (0, 1),  # AddOffsetsToTxn
    26: (0, 1),  # EndTxn
    28: (2, 2),  # TxnOffsetCommit
    32: (1, 1),  # DescribeConfigs
    37: (1, 1),  # CreatePartitions
}
NAMES: Final = {
    0: "Produce",
    1: "Fetch",
    22: "InitProducerId",
    24: "AddPartitionsToTxn",
    25: "AddOffsetsToTxn",
    26: "EndTxn",
    28: "TxnOffsetCommit",
}


class ModelBroker:
    """One broker, in threads of this process.

    ``before``: called with the name of each request that writes, before it is executed; an error of it closes the
    connection, as if the broker had died there. ``after``: the same, after it was executed and before the answer.
    """

    def __init__(self) -> None:
        self.state = BrokerState()
        self.before: Callable[[str], None] = lambda _name: None
        self.after: Callable[[str], None] = lambda _name: None
        self._server = _Server(("127.0.0.1", 0), _Connection)
        self._server.broker = self
        self.host, self.port = "127.0.0.1", int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="kafka-model", daemon=True
        )
        self._thread.start()

    @property
    def bootstrap(self) -> str:
        """Where clients connect."""
        return f"{self.host}:{self.port}"

    def close(self) -> None:
        self._server.closing = True
        self._server.shutdown()
        self._server.server_close()
        with self.state.changed:
            self.state.changed.notify_all()
        for connection in list(self._server.connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in list(self._server.running):
            thread.join(5)
        self._thread.join(5)


@contextmanager
def model_broker() -> Iterator[ModelBroker]:
    """Run a broker without topics."""
    broker = ModelBroker()
    try:
        yield broker
    finally:
        broker.close()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    broker: ModelBroker
    closing = False

    def __init__(self, *args: Any) -> None:
        self.connections: set[socket.socket] = set()
        self.running: set[threading.Thread] = set()
        super().__init__(*args)


class _Connection(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.server.connections.add(self.request)
        self.server.running.add(threading.current_thread())
        try:
            while True:
                (length,) = struct.unpack(">i", self._read(4))
                answer = Answering(self.server).answer(self._read(length))
                if answer is not None:
                    self.request.sendall(struct.pack(">i", len(answer)) + answer)
        except (OSError, EOFError, ConnectionError):
            """The client has gone, or the test wants it to find a dead broker."""
        finally:
            self.server.connections.discard(self.request)
            self.server.running.discard(threading.current_thread())

    def _read(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            more = self.request.recv(length - len(data))
            if not more:
                raise EOFError
            data += more
        return bytes(data)


class Answering:
    """Answers one request."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._broker = server.broker
        self._state: BrokerState = server.broker.state
        self._version = 0

    def answer(self, data: bytes) -> bytes | None:
        request = Reader(data)
        api, version, correlation = request.int16(), request.int16(), request.int32()
        request.text()  # the name of the client
        self._version = version
        out = Writer().int32(correlation)
        lowest, highest = _VERSIONS.get(api, (1, 0))
        if not lowest <= version <= highest:
            assert api == 18, f"request {api} in version {version}"
            version, error = 0, _UNSUPPORTED_VERSION
        else:
            error = NONE
        if api == 18:
            self._versions(out, version, error)
            return out.all()
        name = NAMES.get(api, "")
        if name and api != 1:
            self._broker.before(name)
        if not _HANDLERS[api](self, request, out):
            return None
        if name and api != 1:
            self._broker.after(name)
        return out.all()

    def _versions(self, out: Writer, version: int, error: int) -> None:
        out.int16(error)
        out.many(_VERSIONS.items(), lambda item: out.int16(item[0]).int16(item[1][0]).int16(item[1][1]))
        if version >= 1:
            out.int32(0)

    def _metadata(self, request: Reader, out: Writer) -> bool:
        count = request.int32()
        asked = [request.text() or "" for _ in range(count)] if count >= 0 else list(self._state.topics)
        out.int32(0)
        out.many([0], lambda _: out.int32(1).text(self._broker.host).int32(self._broker.port).text(None))
        out.text("model").int32(1)

        def topic(name: str) -> None:
            found = self._state.topics.get(name)
            out.int16(NONE if found else UNKNOWN_TOPIC_OR_PARTITION).text(name).int8(0)
            out.many(range(len(found.logs)) if found else (), partition)
            if self._version >= 8:
                out.int32(-(1 << 31))

        def partition(number: int) -> None:
            out.int16(NONE).int32(number).int32(1)
            if self._version >= 7:
                out.int32(0)
            for _ in range(2):
                out.many([1], out.int32)
            if self._version >= 5:
                out.many((), out.int32)

        with self._state.changed:
            out.many(asked, topic)
        if self._version >= 8:
            out.int32(-(1 << 31))
        return True

    def _produce(self, request: Reader, out: Writer) -> bool:
        name, acks = request.text(), request.int16()
        request.int32()
        answers = self._places(request, request.data)

        def partition(item: tuple[Place, bytes | None]) -> None:
            error, offset = self._state.produce(name, item[0], item[1] or b"")
            out.int32(item[0][1]).int16(error).int64(offset).int64(-1).int64(0)

        self._by_topic(out, answers, partition)
        out.int32(0)
        return acks != 0

    def _fetch(self, request: Reader, out: Writer) -> bool:
        request.int32()
        wait_ms, _bytes_min, _bytes_max, isolation = request.int32(), request.int32(), request.int32(), request.int8()
        asked = self._places(request, lambda: (request.int64(), request.int32()))
        ends = time.monotonic() + wait_ms / 1000
        with self._state.changed:
            while not self._server.closing and not any(self._has(place, at, isolation) for place, at in asked):
                left = ends - time.monotonic()
                if left <= 0:
                    break
                self._state.changed.wait(left)
            out.int32(0)
            self._by_topic(out, asked, lambda item: self._fetched(out, item[0], item[1], isolation))
        return True

    def _upto(self, log: Log, isolation: int) -> int:
        return log.stable if isolation else log.end

    def _has(self, place: Place, at: tuple[int, int], isolation: int) -> bool:
        log = self._state.log(place)
        return log is None or not log.start <= at[0] <= log.end or at[0] < self._upto(log, isolation)

    def _fetched(self, out: Writer, place: Place, at: tuple[int, int], isolation: int) -> None:
        log, (offset, bytes_max) = self._state.log(place), at
        out.int32(place[1])
        if log is None or not log.start <= offset <= log.end:
            error = UNKNOWN_TOPIC_OR_PARTITION if log is None else OFFSET_OUT_OF_RANGE
            out.int16(error).int64(-1).int64(-1).many((), out.int32).data(b"")
            return
        data = b""
        for batch in log.batches:
            if batch.last < offset or batch.base >= self._upto(log, isolation):
                continue
            if data and len(data) + len(batch.data) > bytes_max:
                break
            data += batch.data
        aborted = [(one, first) for one, first, last in log.aborted if last >= offset] if isolation else []
        out.int16(NONE).int64(log.end).int64(log.stable)
        out.many(aborted, lambda each: out.int64(each[0]).int64(each[1]))
        out.data(data)

    def _list_offsets(self, request: Reader, out: Writer) -> bool:
        request.int32()
        isolation = request.int8()
        asked = self._places(request, request.int64)

        def partition(item: tuple[Place, int]) -> None:
            place, time_ms = item
            log = self._state.log(place)
            if log is None:
                out.int32(place[1]).int16(UNKNOWN_TOPIC_OR_PARTITION).int64(-1).int64(-1)
                return
            found = {-1: self._upto(log, isolation), -2: log.start}.get(time_ms)
            if found is None:
                found = next((b.base for b in log.batches if b.time_ms >= time_ms and not b.is_control), -1)
            out.int32(place[1]).int16(NONE).int64(-1).int64(found)

        with self._state.changed:
            out.int32(0)
            self._by_topic(out, asked, partition)
        return True

    def _find_coordinator(self, request: Reader, out: Writer) -> bool:
        out.int32(0).int16(NONE).text(None).int32(1).text(self._broker.host).int32(self._broker.port)
        return True

    def _init_producer(self, request: Reader, out: Writer) -> bool:
        producer, epoch = self._state.init_producer(request.text())
        out.int32(0).int16(NONE).int64(producer).int16(epoch)
        return True

    def _add_partitions(self, request: Reader, out: Writer) -> bool:
        name, producer, epoch = request.text(), request.int64(), request.int16()
        topics = request.many(lambda: (request.text() or "", request.many(request.int32)))
        places = [(topic, partition) for topic, partitions in topics for partition in partitions]
        error = self._state.add_partitions(name, producer, epoch, places)
        out.int32(0)
        self._by_topic(out, [(place, None) for place in places], lambda item: out.int32(item[0][1]).int16(error))
        return True

    def _add_offsets(self, request: Reader, out: Writer) -> bool:
        name, producer, epoch, group = request.text(), request.int64(), request.int16(), request.text()
        out.int32(0).int16(self._state.add_offsets(name, producer, epoch, group or ""))
        return True

    def _end_transaction(self, request: Reader, out: Writer) -> bool:
        name, producer, epoch, is_commit = request.text(), request.int64(), request.int16(), request.boolean()
        out.int32(0).int16(self._state.end_transaction(name, producer, epoch, is_commit=is_commit))
        return True

    def _commit_offsets_in(self, request: Reader, out: Writer) -> bool:
        name, group, producer, epoch = request.text(), request.text(), request.int64(), request.int16()
        asked = self._places(request, lambda: (request.int64(), request.int32(), request.text())[0])
        error = self._state.commit_offsets_in(name, producer, epoch, group or "", dict(asked))
        out.int32(0)
        self._by_topic(out, asked, lambda item: out.int32(item[0][1]).int16(error))
        return True

    def _commit_offsets(self, request: Reader, out: Writer) -> bool:
        group = request.text()
        request.int32(), request.text(), request.text()
        asked = self._places(request, lambda: (request.int64(), request.int32(), request.text())[0])
        with self._state.changed:
            self._state.offsets.setdefault(group or "", {}).update(dict(asked))
        out.int32(0)
        self._by_topic(out, asked, lambda item: out.int32(item[0][1]).int16(NONE))
        return True

    def _fetch_offsets(self, request: Reader, out: Writer) -> bool:
        group, count = request.text(), request.int32()
        known = self._state.offsets.get(group or "", {})
        topics = [(request.text() or "", request.many(request.int32)) for _ in range(max(0, count))]
        places = [(topic, partition) for topic, partitions in topics for partition in partitions]
        out.int32(0)

        def partition(item: tuple[Place, None]) -> None:
            out.int32(item[0][1]).int64(known.get(item[0], -1)).int32(-1).text("").int16(NONE)

        self._by_topic(out, [(place, None) for place in (places if count >= 0 else list(known))], partition)
        out.int16(NONE)
        return True

    def _create_topics(self, request: Reader, out: Writer) -> bool:
        def topic() -> tuple[str, int]:
            name, partitions = request.text() or "", request.int32()
            request.int16()
            request.many(lambda: (request.int32(), request.many(request.int32)))
            settings = dict(request.many(lambda: (request.text() or "", request.text() or "")))
            return name, self._state.create(name, max(1, partitions), settings)

        done = request.many(topic)
        out.int32(0).many(done, lambda item: out.text(item[0]).int16(item[1]).text(None))
        return True

    def _delete_topics(self, request: Reader, out: Writer) -> bool:
        done = [(name or "", self._state.delete(name or "")) for name in request.many(request.text)]
        out.int32(0).many(done, lambda item: out.text(item[0]).int16(item[1]))
        return True

    def _create_partitions(self, request: Reader, out: Writer) -> bool:
        def topic() -> tuple[str, int]:
            name, count = request.text() or "", request.int32()
            request.many(lambda: request.many(request.int32))
            return name, self._state.grow(name, count)

        done = request.many(topic)
        out.int32(0).many(done, lambda item: out.text(item[0]).int16(item[1]).text(None))
        return True

    def _describe_configs(self, request: Reader, out: Writer) -> bool:
        asked = request.many(lambda: (request.int8(), request.text() or "", request.many(request.text)))
        out.int32(0)

        def resource(item: tuple[int, str, list[str | None]]) -> None:
            kind, name, _ = item
            topic = self._state.topics.get(name)
            out.int16(NONE if topic else UNKNOWN_TOPIC_OR_PARTITION).text(None).int8(kind).text(name)
            settings = {"max.message.bytes": str(topic.bytes_max), **topic.settings} if topic else {}
            out.many(settings.items(), lambda one: setting(*one))

        def setting(name: str, value: str) -> None:
            out.text(name).text(value).int8(0).int8(5).int8(0).many((), out.text)

        out.many(asked, resource)
        return True

    def _places(self, request: Reader, read: Callable[[], Any]) -> list[tuple[Place, Any]]:
        topics = request.many(lambda: (request.text() or "", request.many(lambda: (request.int32(), read()))))
        return [((topic, partition), rest) for topic, partitions in topics for partition, rest in partitions]

    def _by_topic(self, out: Writer, items: list[tuple[Place, Any]], write: Callable[[Any], Any]) -> None:
        topics = list(dict.fromkeys(place[0] for place, _ in items))
        out.many(topics, lambda topic: out.text(topic).many([item for item in items if item[0][0] == topic], write))


_HANDLERS: Final[dict[int, Callable[[Answering, Reader, Writer], bool]]] = {
    0: Answering._produce,
    1: Answering._fetch,
    2: Answering._list_offsets,
    3: Answering._metadata,
    8: Answering._commit_offsets,
    9: Answering._fetch_offsets,
    10: Answering._find_coordinator,
    19: Answering._create_topics,
    20: Answering._delete_topics,
    22: Answering._init_producer,
    24: Answering._add_partitions,
    25: Answering._add_offsets,
    26: Answering._end_transaction,
    28: Answering._commit_offsets_in,
    32: Answering._describe_configs,
    37: Answering._create_partitions,
}
