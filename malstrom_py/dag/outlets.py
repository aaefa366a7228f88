"""Outlets that an operator is given when its image is taken, or put back: what it sends then goes no further."""

from __future__ import annotations

from malstrom_py.batches import Batch
from malstrom_py.messages import MIN_EPOCH, AbsBarrier, Control
from malstrom_py.operators.base import Outlet


class BarrierStops:
    """Sends on all but the barrier itself, which each node is given in its turn, upstream first."""

    def __init__(self, out: Outlet) -> None:
        self._out = out

    def send(self, message: Batch | Control, port: int = 0) -> None:
        """Queue what is no barrier at the successors."""
        if not isinstance(message, AbsBarrier):
            self._out.send(message, port)

    def forward(self, message: Control) -> None:
        """The same, for control messages."""
        if not isinstance(message, AbsBarrier):
            self._out.forward(message)

    def drain(self) -> None:
        """Nothing runs while images are taken: what is queued is in them."""

    def passed(self) -> int:
        """What has been passed on."""
        return self._out.passed()


class Nowhere:
    """Forgets what it is given: it was sent before, where the image was taken."""

    def send(self, message: Batch | Control, port: int = 0) -> None:
        """Forget it."""

    def forward(self, message: Control) -> None:
        """Forget it."""

    def drain(self) -> None:
        """There is nothing."""

    def passed(self) -> int:
        """Nothing."""
        return MIN_EPOCH


class KeptStates:
    """The backend of a barrier: keeps what is persisted, by operator."""

    def __init__(self) -> None:
        self.states: dict[str, bytes] = {}

    def persist(self, operator: str, state: bytes) -> None:
        """Keep it."""
        self.states[operator] = state
