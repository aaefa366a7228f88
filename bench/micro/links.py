"""The links between processes that `bench.micro.transport` compares, each with the same interface.

Rule: each is written as a runtime would write it, with one connection per direction, and `send` never waits.
"""

from __future__ import annotations

import select
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol, cast

import pyarrow as pa
import pyarrow.flight as fl
import zmq

from malstrom_py.rescale.channels.channel import ChannelId, Frame
from malstrom_py.workers.transport.base import JobSecret
from malstrom_py.workers.transport.peers import Waker
from malstrom_py.workers.transport.zeromq import ZeroMQTransport

SECRET = JobSecret(b"of a benchmark, and of nothing else")


class Link(Protocol):
    """One end, with one peer."""

    @property
    def address(self) -> Any: ...

    def connect(self, address: Any) -> None: ...

    def send(self, data: bytes) -> None: ...

    def take(self, timeout_s: float) -> Sequence[bytes]: ...

    def close(self, patience_s: float) -> None:
        """End; what takes longer than ``patience_s`` is a `TimeoutError`."""
        ...


class ZeroMQLink:
    """ZeroMQ by hand: a PULL and a PUSH socket, plain or with CURVE."""

    def __init__(self, keys: tuple[bytes, bytes] | None) -> None:
        self._keys = keys
        self._context = zmq.Context()
        self._pull = self._context.socket(zmq.PULL)
        self._push = self._context.socket(zmq.PUSH)
        for socket in (self._pull, self._push):
            socket.set_hwm(0)
        if keys:
            public, secret = keys
            self._pull.setsockopt(zmq.CURVE_SERVER, 1)
            self._pull.setsockopt(zmq.CURVE_SECRETKEY, secret)
            for option, key in (
                (zmq.CURVE_SERVERKEY, public),
                (zmq.CURVE_PUBLICKEY, public),
                (zmq.CURVE_SECRETKEY, secret),
            ):
                self._push.setsockopt(option, key)
        self.address = f"tcp://127.0.0.1:{self._pull.bind_to_random_port('tcp://127.0.0.1')}"

    def connect(self, address: Any) -> None:
        self._push.connect(address)

    def send(self, data: bytes) -> None:
        self._push.send(data, zmq.NOBLOCK)

    def take(self, timeout_s: float) -> Sequence[bytes]:
        if timeout_s and not self._pull.poll(int(timeout_s * 1000)):
            return ()
        taken: list[bytes] = []
        while len(taken) < 64:
            try:
                taken.append(self._pull.recv(zmq.NOBLOCK))
            except zmq.Again:
                break
        return taken

    def close(self, patience_s: float) -> None:
        self._context.destroy(linger=int(patience_s * 1000))


class TransportLink:
    """The product's direct stream, with a frame around each piece of data."""

    CHANNEL = ChannelId("by-key", 0, 1)

    def __init__(self) -> None:
        self._transport = ZeroMQTransport(0, incarnation=1, secret=SECRET)
        self.address = self._transport.address

    def connect(self, address: Any) -> None:
        self._transport.connect(0, address)

    def send(self, data: bytes) -> None:
        self._transport.send(0, [Frame(self.CHANNEL, data, 1024, len(data), (), None, 1, 1)])

    def take(self, timeout_s: float) -> Sequence[bytes]:
        return [
            cast("bytes", content.payload)  # or a view of them
            for content in self._transport.receive(timeout_s)
            if isinstance(content, Frame) and content.payload is not None
        ]

    def close(self, patience_s: float) -> None:
        self._transport.close(linger_s=patience_s)


class Arrived:
    """What other threads have put down for the one that takes it."""

    def __init__(self) -> None:
        self._data = deque[bytes]()
        self._waker = Waker()

    def put(self, data: bytes) -> None:
        self._data.append(data)
        self._waker.wake()

    def take(self, timeout_s: float) -> Sequence[bytes]:
        if not self._data and timeout_s:
            select.select([self._waker], [], [], timeout_s)
        self._waker.taken()
        return [self._data.popleft() for _ in range(len(self._data))]


class FlightLink:
    """Arrow Flight: a stream of record batches of one column by do_put, and a server whose handlers are Python."""

    SCHEMA = pa.schema([("data", pa.uint8())])
    STREAM_S = 1800.0
    """A stream that is open for longer is stuck."""

    def __init__(self) -> None:
        arrived = self._arrived = Arrived()

        class Server(fl.FlightServerBase):  # type: ignore[misc]  # it is not annotated
            def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
                for chunk in reader:
                    arrived.put(chunk.data.column(0).buffers()[1].to_pybytes())

        self._server = Server("grpc://127.0.0.1:0")
        self.address = f"grpc://127.0.0.1:{self._server.port}"
        self._client: Any = None
        self._writer: Any = None

    def connect(self, address: Any) -> None:
        self._client = fl.connect(address)
        limit = fl.FlightCallOptions(timeout=self.STREAM_S)
        self._writer, _ = self._client.do_put(fl.FlightDescriptor.for_path("stream"), self.SCHEMA, limit)

    def send(self, data: bytes) -> None:
        column = pa.Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)])
        self._writer.write_batch(pa.RecordBatch.from_arrays([column], schema=self.SCHEMA))

    def take(self, timeout_s: float) -> Sequence[bytes]:
        return self._arrived.take(timeout_s)

    def close(self, patience_s: float) -> None:
        for what, end in (
            ("the receiver to end the stream", self._writer.close),
            ("the client to end", self._client.close),
            ("the server to end, for which the peer has to end its stream", self._server.shutdown),
        ):
            ending = threading.Thread(target=end, daemon=True)
            ending.start()
            ending.join(patience_s)
            if ending.is_alive():
                raise TimeoutError(f"waited {patience_s:.0f} s for {what}")


class CallLink:
    """Calls of a Ray actor, not waited for. Lives in the actor, whose `deliver` calls `arrived`."""

    def __init__(self, handle: Any) -> None:
        self.address = handle
        self.arrived = Arrived()
        self._peer: Any = None
        self._calls: list[Any] = []

    def connect(self, address: Any) -> None:
        self._peer = address

    def send(self, data: bytes) -> None:
        self._calls.append(self._peer.deliver.remote(data))
        if len(self._calls) >= 64:
            self._calls.clear()

    def take(self, timeout_s: float) -> Sequence[bytes]:
        return self.arrived.take(timeout_s)

    def close(self, patience_s: float) -> None:
        self._calls.clear()


def made(name: str) -> Link:
    """A new end of the link ``name``, which is not one of Ray's."""
    if name == "Arrow Flight":
        return FlightLink()
    if name == "transport":
        return TransportLink()
    return ZeroMQLink(KEYS if name == "ZeroMQ CURVE" else None)


KEYS = (
    b"Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID",
    b"D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs",
)
"""The keys of the page of CURVE's authors, known to everybody."""
