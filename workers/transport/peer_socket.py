"""The connection of one end to one peer: a PUSH socket and its monitor.

Rule: it connects once. When its connection ends it is over, for what was under way is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from malstrom_py.workers.outgoing import Content
from malstrom_py.workers.transport.secret import JobSecret
from malstrom_py.workers.transport.wire import OutStream

PART_BYTES_MAX: Final = 2 << 20
"""More is sent in parts: heartbeats pass between them, and nobody need be let send more at once before he has proved
who he is."""
_HEARTBEAT_MS: Final = 1000
_SILENCE_MS: Final = 3000
_CONNECT_MS: Final = 4000

_ENDS: Final = {
    int(zmq.EVENT_DISCONNECTED): "its connection has ended",
    int(zmq.EVENT_CLOSED): "nothing answers at its address",
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): "it does not take the secret, or ended meanwhile",
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): "it does not speak the protocol",
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): "it does not take the secret",
}


class PeerSocket:
    """One end's connection to the peer at ``address``."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        stream: OutStream,
        secret: JobSecret,
    ) -> None:
        self.address = address
        self._stream = stream
        self._end = ""
        self._socket = _connecting(context, secret, ipv6="[" in address)
        # The socket's number is its own as long as it is open.
        name = f"inproc://monitor-{self._socket.underlying}"
        self._socket.monitor(name, sum(_ENDS))
        self.monitor: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        self.monitor.connect(name)
        self._socket.connect(address)

    def send(self, contents: Sequence[Content]) -> None:
        """Send, without waiting. What is sent after the connection has ended is dropped, as `ended` will say."""
        for message in self._stream.messages(contents):
            parts = message if max(map(len, message)) <= PART_BYTES_MAX else _cut(message)
            try:
                for part in parts[:-1]:
                    self._socket.send(part, zmq.NOBLOCK | zmq.SNDMORE)
                self._socket.send(parts[-1], zmq.NOBLOCK)
            except zmq.Again:
                return

    def ended(self) -> str:
        """How the connection has ended; empty while it has not."""
        while not self._end:
            try:
                event = parse_monitor_message(self.monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                break
            self._end = _ENDS.get(event["event"], "")
        return self._end

    def close(self, *, linger_s: float) -> None:
        """End the connection; what was sent may still go out for ``linger_s`` while the context is open."""
        self._socket.close(linger=int(linger_s * 1000))
        self.monitor.close(linger=0)


def _connecting(context: zmq.Context[zmq.Socket[bytes]], secret: JobSecret, *, ipv6: bool) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.PUSH)
    server = zmq.curve_public(z85.encode(secret.derive("stream server")))
    own = z85.encode(secret.derive("stream client"))
    options: dict[int, int | bytes] = {
        zmq.SNDHWM: 0,  # `send` never waits; how much may be under way is bounded by credits (F2)
        zmq.RECONNECT_IVL: -1,
        zmq.CONNECT_TIMEOUT: _CONNECT_MS,
        zmq.HANDSHAKE_IVL: _CONNECT_MS,
        zmq.HEARTBEAT_IVL: _HEARTBEAT_MS,
        zmq.HEARTBEAT_TIMEOUT: _SILENCE_MS,
        zmq.HEARTBEAT_TTL: _HEARTBEAT_MS + _SILENCE_MS,
        zmq.CURVE_SERVERKEY: server,
        zmq.CURVE_SECRETKEY: own,
        zmq.CURVE_PUBLICKEY: zmq.curve_public(own),
        zmq.IPV6: int(ipv6),
    }
    for option, value in options.items():
        socket.setsockopt(option, value)
    return socket


def _cut(parts: Sequence[bytes]) -> list[bytes | memoryview]:
    """``parts``, and none of them larger than may be."""
    return [
        part if len(part) <= PART_BYTES_MAX else memoryview(part)[at : at + PART_BYTES_MAX]
        for part in parts
        for at in range(0, len(part), PART_BYTES_MAX)
    ]
