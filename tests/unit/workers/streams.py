"""Streams inside one thread, for loops and hosts that are driven by a test: a `Transport` that keeps what is sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from malstrom_py.errors import InternalError
from malstrom_py.workers.transport.messages import Content


class Streams:
    """``sent``: receiver -> what was sent to it. ``coming`` is what the next calls of `receive` give, one by one."""

    def __init__(self) -> None:
        self.address: Any = "here"
        self.stale = 0
        self.sent: dict[int, list[Content]] = {}
        self.sendings: list[tuple[int, int]] = []
        self.coming: deque[list[Content] | Exception] = deque()
        self.waits_s: list[float] = []
        self.woken = 0
        self.connected: dict[int, Any] = {}
        self.closed = False

    def connect(self, peer: int, address: Any) -> None:
        self.connected[peer] = address

    def disconnect(self, peer: int) -> None:
        del self.connected[peer]

    def send(self, receiver: int, contents: Sequence[Content]) -> None:
        if receiver not in self.connected:
            raise InternalError(f"{receiver} was never connected")
        self.sendings.append((receiver, len(contents)))
        self.sent.setdefault(receiver, []).extend(contents)

    def receive(self, timeout_s: float) -> list[Content]:
        self.waits_s.append(timeout_s)
        came = self.coming.popleft() if self.coming else []
        if isinstance(came, Exception):
            raise came
        return came

    def wake(self) -> None:
        self.woken += 1

    def close(self, *, linger_s: float) -> None:
        self.closed = True
