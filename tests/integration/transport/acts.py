"""The actions of ends: functions that take the transport first, and run in its process."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from malstrom_py.errors import PeerError
from malstrom_py.rescale.channels.channel import ChannelId, Frame
from malstrom_py.workers.transport.base import Transport
from malstrom_py.workers.transport.messages import Connected, Content
from malstrom_py.workers.transport.zeromq import ZeroMQTransport
from tests.integration.transport.ends import PATIENCE_S

ROUNDS = 10
QUIET_S = 1.0


def connect(transport: Transport, peer: int, address: Any) -> None:
    transport.connect(peer, address)


def disconnect(transport: Transport, peer: int) -> None:
    transport.disconnect(peer)


def close(transport: Transport, linger_s: float = 5.0) -> None:
    transport.close(linger_s=linger_s)


def send(transport: Transport, receiver: int, contents: Sequence[Content]) -> None:
    transport.send(receiver, contents)


def send_frames(transport: Transport, sender: int, receiver: int, count: int, payload_bytes: int) -> None:
    """Frames with numbers, a few at a time."""
    channel = ChannelId("by-key", sender, receiver)
    payload = bytes(payload_bytes)
    frames = [Frame(channel, payload, rows=1, size=payload_bytes, version=number) for number in range(count)]
    for start in range(0, count, 7):
        transport.send(receiver, frames[start : start + 7])


def send_large(transport: Transport, sender: int, receiver: int, payload_bytes: int) -> str:
    """One frame of random bytes; their digest."""
    payload = os.urandom(payload_bytes)
    transport.send(receiver, [Frame(ChannelId("by-key", sender, receiver), payload)])
    return hashlib.sha256(payload).hexdigest()


def lose_one(transport: Any, receiver: int) -> None:
    """A message to ``receiver`` gets its number, and is not sent."""
    list(transport._peers.connected[receiver].messages([Connected(0)]))


def receive(transport: Transport, count: int) -> list[Content]:
    """The next contents, at least ``count``."""
    contents: list[Content] = []
    deadline = monotonic() + PATIENCE_S
    while len(contents) < count:
        assert monotonic() < deadline, f"only {len(contents)} of {count} came"
        contents += transport.receive(1.0)
    return contents


def numbers_received(transport: Transport, count: int) -> dict[int, list[int]]:
    """The numbers of the next frames, by sender."""
    numbers = defaultdict[int, list[int]](list)
    for content in receive(transport, count):
        assert isinstance(content, Frame)
        numbers[content.channel.sender].append(content.version)
    return dict(numbers)


def digest_received(transport: Transport) -> str:
    [frame] = receive(transport, 1)
    assert isinstance(frame, Frame)
    assert type(frame.payload) is bytes
    return hashlib.sha256(frame.payload).hexdigest()


def receive_quietly(transport: Transport) -> list[Content]:
    """What comes while nothing is expected."""
    contents: list[Content] = []
    deadline = monotonic() + QUIET_S
    while monotonic() < deadline:
        contents += transport.receive(0.1)
    return contents


def receive_until_lost(transport: Transport) -> tuple[list[Content], int | None, str]:
    """What comes, until a peer is lost; which, and what is said of it."""
    contents: list[Content] = []
    deadline = monotonic() + PATIENCE_S
    while True:
        try:
            contents += transport.receive(1.0)
        except PeerError as error:
            return contents, error.peer, str(error)
        assert monotonic() < deadline, "no loss was reported"


def lost_again(transport: Transport) -> int | None:
    """Who is lost, said at the next call."""
    try:
        transport.receive(0.0)
    except PeerError as error:
        return error.peer
    return None


def wake_from_another_thread(transport: Transport) -> list[Content]:
    timer = threading.Timer(0.2, transport.wake)
    timer.start()
    contents = transport.receive(600.0)
    timer.join()
    return contents


def wake_before(transport: Transport) -> list[Content]:
    transport.wake()
    return transport.receive(600.0)


def stale(transport: Transport) -> int:
    return transport.stale


def refused(transport: Any) -> int:
    count: int = transport.refused
    return count


def held() -> tuple[int, int]:
    """How many descriptors and threads this process has."""
    return len(list(Path("/proc/self/fd").iterdir())), len(list(Path("/proc/self/task").iterdir()))


def open_and_close(transport: Any, address: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """What this process holds before, and after transports like this one were made, used and closed."""
    _rounds(transport, address)  # descriptors that a library opens once are not a leak
    before = held()
    _rounds(transport, address)
    deadline = monotonic() + PATIENCE_S
    while leaked(before, after := held()) and monotonic() < deadline:
        sleep(0.1)
    return before, after


def leaked(before: tuple[int, int], after: tuple[int, int]) -> bool:
    """Whether each of the transports has left a descriptor or a thread. A library may start one as well."""
    return any(now - then >= ROUNDS for then, now in zip(before, after, strict=True))


def _rounds(transport: Any, address: Any) -> None:
    for _ in range(ROUNDS):
        other = ZeroMQTransport(2, incarnation=1, secret=transport._secret)
        other.connect(1, address)
        other.send(1, [Connected(2)])
        other.receive(0.01)
        other.close(linger_s=5.0)
        other.close(linger_s=5.0)
