"""Two network namespaces whose packets pass through this process: late, with losses, and not at all after a cut.

``python -m tests.integration.netns.relay NEAR FAR`` makes the namespaces, each with a TUN device of the same name (root
only). A line on standard input has a `Quality` for each direction as JSON; a line on standard output answers, once it
holds, with what each direction has carried and lost. When the input ends, for instance because the test was killed, the
process kills all that runs in the namespaces, removes them and ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import select
import struct
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from tests.integration.netns.namespaces import ip, namespaces

ADDRESSES: Final = {"near": "10.88.0.1", "far": "10.88.0.2"}
"""The side -> its address."""

_TUNSETIFF: Final = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_PACKET: Final = 65536
_TURN: Final = 128
"""Packets that one direction may carry before the other one and the input are looked at."""

QUEUED: Final = 20_000
"""Packets under way in one direction. As a router does, the relay loses what is more."""


@dataclass(frozen=True, slots=True)
class Quality:
    """The quality of one direction. ``loss``: the probability that a packet is lost."""

    delay_s: float = 0.0
    loss: float = 0.0
    is_cut: bool = False


class Direction:
    """The packets under way in one direction. Pure, but for the random numbers.

    >>> direction = Direction(Quality(delay_s=0.5))
    >>> direction.take(b"ping", now_s=10.0)
    >>> direction.due(now_s=10.4), direction.wait_s(now_s=10.25), direction.due(now_s=10.5)
    ([], 0.25, [b'ping'])
    """

    def __init__(self, quality: Quality | None = None) -> None:
        self.carried = self.lost = 0
        self._quality = quality or Quality()
        self._under_way = deque[tuple[float, bytes]]()

    def change(self, quality: Quality) -> None:
        """Change the quality. A cut loses what is under way."""
        self._quality = quality
        if quality.is_cut:
            self.lost += len(self._under_way)
            self._under_way.clear()

    def take(self, packet: bytes, now_s: float) -> None:
        """Take a packet, or lose it."""
        quality = self._quality
        if quality.is_cut or len(self._under_way) >= QUEUED or random.random() < quality.loss:
            self.lost += 1
        else:
            self._under_way.append((now_s + quality.delay_s, packet))

    def due(self, now_s: float) -> list[bytes]:
        """Remove and return the packets that arrive by now, in their order."""
        arrived = list[bytes]()
        while self._under_way and self._under_way[0][0] <= now_s:
            arrived.append(self._under_way.popleft()[1])
        self.carried += len(arrived)
        return arrived

    def wait_s(self, now_s: float) -> float | None:
        """Return the time until the next packet arrives, None if there is none."""
        return max(0.0, self._under_way[0][0] - now_s) if self._under_way else None


def open_tun(name: str) -> int:
    """Make a TUN device in this network namespace and return its descriptor, with which it ends."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    except OSError:
        os.close(device)
        raise
    return device


def read_from(device: int, direction: Direction) -> None:
    """Take what the namespace of ``device`` sends."""
    with suppress(BlockingIOError):
        for _ in range(_TURN):
            direction.take(os.read(device, _PACKET), time.monotonic())


def relay(near: int, far: int, commands: Any, answers: Any) -> None:
    """Carry packets between two devices until ``commands`` ends."""
    directions = {"to_far": Direction(), "to_near": Direction()}
    readers, writers = {near: directions["to_far"], far: directions["to_near"]}, {"to_far": far, "to_near": near}
    poll = select.poll()
    for source in (near, far, commands.fileno()):
        poll.register(source, select.POLLIN)
    while True:
        now_s = time.monotonic()
        waits = [wait_s for direction in directions.values() if (wait_s := direction.wait_s(now_s)) is not None]
        for ready, _ in poll.poll(min(waits) * 1000 if waits else None):
            if ready in readers:
                read_from(ready, readers[ready])
            elif line := commands.readline():
                for name, quality in json.loads(line).items():
                    directions[name].change(Quality(**quality))
                counts = {name: (direction.carried, direction.lost) for name, direction in directions.items()}
                print(json.dumps(counts), file=answers, flush=True)
            else:
                return
        for name, direction in directions.items():
            for packet in direction.due(time.monotonic()):
                with suppress(OSError):  # the device is down, or full: the packet is lost
                    os.write(writers[name], packet)


def connect(name: str, address: str) -> int:
    """Make a device, move it into the namespace of the same name, and return its descriptor."""
    device = open_tun(name)
    ip("link", "set", name, "netns", name)
    ip("-n", name, "addr", "add", f"{address}/30", "dev", name)
    ip("-n", name, "link", "set", name, "up")
    ip("-n", name, "route", "add", "default", "dev", name)  # Ray asks the routes which address it has
    return device


def main() -> None:
    """Make the namespaces that are named on the command line, report it, and carry packets."""
    with namespaces(sys.argv[1:]), open(0, "rb", buffering=0) as commands:
        near, far = map(connect, sys.argv[1:], ADDRESSES.values())
        print("ready", flush=True)
        relay(near, far, commands, sys.stdout)


if __name__ == "__main__":
    main()
