"""The direct transport: ZeroMQ between ends that share the secret of their job; over TCP always encrypted.

Each end binds one PULL socket, its address, and has one PUSH socket per peer, whose monitor reports the end of the
connection. A connection is made once and never again, because messages in flight are lost with it. ZeroMQ transfers,
encrypts and answers heartbeats in a thread that needs no GIL, so a busy worker delays no other worker and is not taken
for dead. Rule: no byte over TCP reaches Python before its sender has passed CURVE. Ends of one Linux machine use Unix
sockets, to which the kernel lets no other user: no message is opened that does not begin with a proof of the secret.
"""

from __future__ import annotations

import errno
import math
import os
import random
import secrets
import struct
import sys
from collections.abc import Sequence
from hmac import compare_digest
from threading import Thread
from time import monotonic
from typing import Final

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from malstrom_py.errors import InternalError, PlanError
from malstrom_py.workers.transport.base import JobSecret, peer_name
from malstrom_py.workers.transport.messages import Content
from malstrom_py.workers.transport.peers import Peers, Waker
from malstrom_py.workers.transport.wire import InStreams, OutStream

PART_BYTES_MAX: Final = 2 << 20
"""Larger messages are sent in parts: heartbeats pass between the parts, and an end that has not proved its identity can
send at most this much."""
_HEARTBEAT_MS: Final = 1000
_SILENCE_MS: Final = 3000
_CONNECT_MS: Final = 4000
_COPIED: Final = 64 << 10
"""A part of fewer bytes is copied where it is sent and received; others are used in place, which costs 10 µs or so."""
_LOCAL: Final = "ipc://@"
"""The beginning of the address of a Unix socket without a file: a process that is killed leaves none."""
_PROCESS: Final = struct.Struct("iII")
"""What the kernel says of the process at the other end of a Unix socket: its number, user and group."""

_ENDS: Final = {
    int(zmq.EVENT_DISCONNECTED): "its connection has ended",
    int(zmq.EVENT_CLOSED): "nothing answers at its address",
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): "it does not accept the secret, or ended during the handshake",
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): "it does not speak the protocol",
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): "it does not accept the secret",
}


class PeerSocket(OutStream):
    """The stream of the end ``me`` to ``peer`` at ``address``, over one connection."""

    def __init__(
        self,
        me: int,
        peer: int,
        incarnation: int,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        secret: JobSecret,
    ) -> None:
        super().__init__(me, peer, incarnation)
        self.address = address
        self._end = ""
        self._proof = _proof(secret) if _is_local(address) else b""
        self._socket = _connecting(context, secret, address)
        # The number of a socket is unique while the socket is open.
        name = f"inproc://monitor-{self._socket.underlying}"
        self._socket.monitor(name, sum(_ENDS))
        self.monitor: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        self.monitor.connect(name)
        if self._proof and not _is_of_this_user(address):
            self._end = "its address is of another user of this machine"
        else:
            self._socket.connect(address)

    def send(self, contents: Sequence[Content]) -> None:
        """Send without waiting. Messages after the end of the connection are dropped; `ended` reports the end."""
        for message in self.messages(contents):
            message[0] = self._proof + message[0]
            parts = message if max(map(len, message)) <= PART_BYTES_MAX else _cut(message)
            try:
                for part in parts[:-1]:
                    self._socket.send(part, zmq.NOBLOCK | zmq.SNDMORE, copy=len(part) < _COPIED)
                self._socket.send(parts[-1], zmq.NOBLOCK, copy=len(parts[-1]) < _COPIED)
            except zmq.Again:
                return

    def ended(self) -> str:
        """Return how the connection has ended; empty while it is open."""
        while not self._end:
            try:
                event = parse_monitor_message(self.monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                break
            self._end = _ENDS.get(event["event"], "")
        return self._end

    def close(self, *, linger_s: float) -> None:
        """Close the connection; queued messages still go out for ``linger_s`` while the context is open."""
        self._socket.close(linger=int(linger_s * 1000))
        self.monitor.close(linger=0)


def _is_local(address: str) -> bool:
    return address.startswith(_LOCAL)


def _is_of_this_user(address: str) -> bool:
    """Return whether a process of this user listens at ``address``, or none does: the name of the socket of a worker
    that has ended is free for all users.
    """
    from socket import AF_UNIX, SO_PEERCRED, SOL_SOCKET, socket  # Linux alone has all of them

    with socket(AF_UNIX) as client:
        client.setblocking(False)
        try:
            client.connect("\0" + address.removeprefix(_LOCAL))
        except OSError:
            return True  # the connection reports it
        _, user, _ = _PROCESS.unpack(client.getsockopt(SOL_SOCKET, SO_PEERCRED, _PROCESS.size))
    return bool(user == os.getuid())


def _proof(secret: JobSecret) -> bytes:
    return secret.derive("stream proof")


def _connecting(context: zmq.Context[zmq.Socket[bytes]], secret: JobSecret, address: str) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.PUSH)
    options: dict[int, int | bytes] = {
        zmq.SNDHWM: 0,  # `send` never waits; credits bound the data in flight (F2)
        zmq.RECONNECT_IVL: -1,
        zmq.HANDSHAKE_IVL: _CONNECT_MS,
        zmq.HEARTBEAT_IVL: _HEARTBEAT_MS,
        zmq.HEARTBEAT_TIMEOUT: _SILENCE_MS,
        zmq.HEARTBEAT_TTL: _HEARTBEAT_MS + _SILENCE_MS,
    }
    if not _is_local(address):
        own = z85.encode(secret.derive("stream client"))
        options |= {
            zmq.CONNECT_TIMEOUT: _CONNECT_MS,
            zmq.CURVE_SERVERKEY: zmq.curve_public(z85.encode(secret.derive("stream server"))),
            zmq.CURVE_SECRETKEY: own,
            zmq.CURVE_PUBLICKEY: zmq.curve_public(own),
            zmq.IPV6: int("[" in address),
        }
    for option, value in options.items():
        socket.setsockopt(option, value)
    return socket


def _cut(parts: Sequence[bytes]) -> list[bytes | memoryview]:
    """Return ``parts`` cut to at most PART_BYTES_MAX each."""
    return [
        part if len(part) <= PART_BYTES_MAX else memoryview(part)[at : at + PART_BYTES_MAX]
        for part in parts
        for at in range(0, len(part), PART_BYTES_MAX)
    ]


_MESSAGES_MAX: Final = 256
_BYTES_MAX: Final = 16 << 20
"""`receive` returns at most _MESSAGES_MAX messages, and stops after the message that reaches _BYTES_MAX bytes."""
_LOOK_S: Final = 0.1
"""The interval at which a busy end checks its connections."""
_HANDSHAKE_MS: Final = 5000
_SOCKETS_MAX: Final = 16_384
"""Each peer takes three."""
_WAITING_MAX: Final = 4096
"""So many clients may wait to be let in: all other workers may connect in one moment. The kernel may allow fewer."""


_TERM_S: Final = 1.0
"""How long a context may take to end once nothing lingers."""


class ZeroMQTransport:
    """One end of the direct streams of a job. A `Transport`.

    ``me``: the number of this worker, or ``COORDINATOR``. ``incarnation``: the incarnation of the job; messages of an
    older one are dropped. ``secret``: the secret of this start of the job, the same at all ends. ``host``: the one
    address of this machine that the others reach; None: all ends are on this machine, and of this user. ``ports``: the
    first and the last port that may be bound; None: any free port.

    Raises:
        PlanError: no port of ``ports`` is free, or ``host`` is not an address of this machine.

    >>> from malstrom_py.workers.coordinator.machine import Connected
    >>> secret = JobSecret.new()
    >>> here, there = (ZeroMQTransport(worker, incarnation=1, secret=secret) for worker in (0, 1))
    >>> here.connect(1, there.address)
    >>> here.send(1, [Connected(0)])
    >>> there.receive(5.0)
    [Connected(worker=0)]
    >>> here.close(linger_s=1.0), there.close(linger_s=1.0)
    (None, None)
    """

    def __init__(
        self,
        me: int,
        *,
        incarnation: int,
        secret: JobSecret,
        host: str | None = "127.0.0.1",
        ports: tuple[int, int] | None = None,
    ) -> None:
        self._me = me
        self._incarnation = incarnation
        self._secret = secret
        self._peers = Peers[PeerSocket](me)
        self._in = InStreams(me, incarnation)
        self._look_at = 0.0
        self._closed = False
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, _SOCKETS_MAX)
        try:
            is_local = host is None and ports is None and sys.platform == "linux"
            self._proof = _proof(secret) if is_local else b""
            self._pull = _listening(self._context, secret, is_local=is_local)
            self._address = (
                _bound_here(self._pull)
                if is_local
                else _bound(self._pull, "127.0.0.1" if host is None else host, ports)
            )
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._waker = Waker()
        self._poller = zmq.Poller()
        self._poller.register(self._pull, zmq.POLLIN)
        self._poller.register(self._waker, zmq.POLLIN)

    @property
    def address(self) -> str:
        return self._address

    @property
    def stale(self) -> int:
        return self._in.stale

    def connect(self, peer: int, address: str) -> None:
        self._check_open()
        about = (self._me, peer, self._incarnation)
        socket = self._peers.connect(peer, lambda: PeerSocket(*about, self._context, address, self._secret))
        self._poller.register(socket.monitor, zmq.POLLIN)

    def disconnect(self, peer: int) -> None:
        self._check_open()
        self._peers.disconnect(peer)

    def send(self, receiver: int, contents: Sequence[Content]) -> None:
        self._check_open()
        if peer := self._peers.of(receiver):
            peer.send(contents)

    def receive(self, timeout_s: float) -> list[Content]:
        self._check_open()
        deadline = monotonic() + timeout_s
        while True:
            contents = self._take()
            now = monotonic()
            if now >= self._look_at:
                self._look(now)
            self._peers.losses.check(now, quiet=not contents)
            if contents or now >= deadline or self._wait(min(deadline, self._peers.losses.due(now)) - now):
                return contents

    def wake(self) -> None:
        self._waker.wake()

    def close(self, *, linger_s: float) -> None:
        if self._closed:
            return
        self._closed = True
        self._waker.close()
        self._pull.close(linger=0)
        for socket in (*self._peers.connected.values(), *self._peers.leaving):
            socket.close(linger_s=linger_s)
        self._peers.clear()
        # After a peer was killed a context sometimes never ends, also when no socket lingers.
        ender = Thread(target=self._context.term, name="malstrom-ends", daemon=True)
        ender.start()
        ender.join(linger_s + _TERM_S)

    def _check_open(self) -> None:
        if self._closed:
            raise InternalError(f"the transport of {peer_name(self._me)} is closed")

    def _take(self) -> list[Content]:
        """Return received contents, a bounded number, without waiting."""
        contents: list[Content] = []
        size = 0
        for _ in range(_MESSAGES_MAX):
            if not int(self._pull.get(zmq.EVENTS)) & zmq.POLLIN:  # `Again` would take twice as long
                break
            parts = self._parts()
            if self._proof:
                proof, parts[0] = parts[0][: len(self._proof)], memoryview(parts[0])[len(self._proof) :]
                if not compare_digest(proof, self._proof):
                    continue
            contents += self._in.open(parts)
            size += sum(map(len, parts))
            if size >= _BYTES_MAX:
                break
        return contents

    def _parts(self) -> list[bytes | memoryview]:
        """Return the parts of the next message, which has arrived."""
        parts: list[bytes | memoryview] = []
        is_last = False
        while not is_last:
            frame = self._pull.recv(zmq.NOBLOCK, copy=False)
            parts.append(frame.bytes if len(frame) < _COPIED else frame.buffer)
            is_last = not frame.more
        return parts

    def _wait(self, seconds: float) -> bool:
        """Wait for a message, an event or a wake-up. Return whether it was a wake-up."""
        ready = dict(self._poller.poll(max(0, math.ceil(seconds * 1000))))
        if len(ready) > (self._pull in ready):
            self._look_at = 0.0
        return self._waker.fileno() in ready and self._waker.taken()

    def _look(self, now: float) -> None:
        """Check which connections have ended."""
        self._look_at = now + _LOOK_S
        for peer, socket in [(peer, socket) for peer, socket in self._peers.connected.items() if socket.ended()]:
            self._peers.lose(peer, now, f"{socket.ended()} ({socket.address})")
            self._drop(socket)
        for socket in [socket for socket in self._peers.leaving if socket.ended()]:
            self._peers.leaving.remove(socket)
            self._drop(socket)

    def _drop(self, socket: PeerSocket) -> None:
        self._poller.unregister(socket.monitor)
        socket.close(linger_s=0.0)


def _listening(context: zmq.Context[zmq.Socket[bytes]], secret: JobSecret, *, is_local: bool) -> zmq.Socket[bytes]:
    """Return a PULL socket that receives only from ends that have the secret, or, if it is local, are of this user."""
    socket = context.socket(zmq.PULL)
    # Credits bound the data in flight (F2). A limit here would stop reading, and with it heartbeats.
    socket.setsockopt(zmq.RCVHWM, 0)
    # A Unix socket refuses a client for which there is no place in its queue; TCP would let it try again.
    socket.setsockopt(zmq.BACKLOG, _WAITING_MAX)
    if is_local:
        socket.setsockopt(zmq.IPC_FILTER_UID, os.getuid())
    else:
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, z85.encode(secret.derive("stream server")))
    # The limits of an end without the secret: the time of its connection, and the bytes it makes this end keep.
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    socket.setsockopt(zmq.MAXMSGSIZE, PART_BYTES_MAX + 1024)
    return socket


def _bound_here(socket: zmq.Socket[bytes]) -> str:
    """Bind ``socket`` to a new Unix socket and return its address."""
    address = f"{_LOCAL}malstrom-{secrets.token_hex(16)}"
    socket.bind(address)
    return address


def _bound(socket: zmq.Socket[bytes], host: str, ports: tuple[int, int] | None) -> str:
    """Bind ``socket`` and return its address."""
    if host in ("", "*", "0.0.0.0", "::"):
        raise PlanError(f"host {host!r} means all addresses of a machine: give the one that the others reach")
    at = f"[{host}]" if ":" in host else host
    if ":" in host:
        socket.setsockopt(zmq.IPV6, 1)
    for port in _candidates(ports):
        try:
            socket.bind(f"tcp://{at}:{port}")
        except zmq.ZMQError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            raise PlanError(
                f"cannot listen at {host!r} ({error}): give as host= an address of this machine that the others reach"
            ) from error
        endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        return endpoint.rstrip(b"\0").decode()
    where = "" if ports is None else f" from {ports[0]} to {ports[1]}"
    raise PlanError(
        f"no port{where} is free at {host!r}: stop the programs that use them, or give a wider range as ports="
    )


def _candidates(ports: tuple[int, int] | None) -> Sequence[int | str]:
    """Return the ports to try, in random order, so that ends that start together do not race for the first port."""
    if ports is None:
        return ["*"]
    first, last = ports
    if not 1 <= first <= last <= 65_535:
        raise PlanError(f"ports must be (first, last) with 1 <= first <= last <= 65535, got {ports!r}")
    return random.sample(range(first, last + 1), last - first + 1)
