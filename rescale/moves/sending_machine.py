"""Rescale machine of one worker's sending side: hands over source parts and switches to the next version (R2).

Every state change is in TRANSITIONS; nothing here does I/O. While the worker awaits parts it polls no source, so no
source epoch is broadcast between the hand-over and the marker. Then all exchanges switch together.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from malstrom_py.errors import InternalError
from malstrom_py.rescale.moves.protocol import (
    Leave,
    PartHandedOver,
    PartMove,
    PartsPolled,
    PollParts,
    RescaleMove,
    SendReport,
    StartMove,
    Switched,
)


class SendingPhase(StrEnum):
    """The phase of the sending side."""

    STEADY = "steady"
    AWAITING = "awaiting parts"
    GONE = "gone"


TRANSITIONS: Final = {
    (SendingPhase.STEADY, "rescale, parts awaited"): SendingPhase.AWAITING,
    (SendingPhase.AWAITING, "last part"): SendingPhase.STEADY,
    (SendingPhase.STEADY, "leave"): SendingPhase.GONE,
}
"""All changes of phase. A move without parts to await changes none."""


@dataclass(frozen=True, slots=True)
class RescaleOrdered:
    """The coordinator has ordered a move."""

    order: StartMove


@dataclass(frozen=True, slots=True)
class PartCame:
    """A part has been handed over to this worker."""

    part: PartHandedOver


@dataclass(frozen=True, slots=True)
class PollOrdered:
    """The coordinator allows polling of the gained parts of a source."""

    order: PollParts


@dataclass(frozen=True, slots=True)
class LeaveOrdered:
    """The coordinator allows this worker to leave."""

    order: Leave


Event = RescaleOrdered | PartCame | PollOrdered | LeaveOrdered


@dataclass(frozen=True, slots=True)
class FlushOutgoing:
    """Send the buffered rows for other workers, under the version before `SwitchExchanges`."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """Stop polling a part and send it to its taker, with its position and the operators' state for it."""

    version: int
    move: PartMove


@dataclass(frozen=True, slots=True)
class TakePart:
    """Add a part: its frontier counts from now on, but the part is not polled yet."""

    part: PartHandedOver


@dataclass(frozen=True, slots=True)
class SwitchExchanges:
    """Route by the table of ``move`` from now on, and send its marker on every channel of every exchange."""

    move: RescaleMove


@dataclass(frozen=True, slots=True)
class PollGained:
    """Poll the gained parts of a source."""

    source: str


@dataclass(frozen=True, slots=True)
class SayBye:
    """Send Bye on every channel of every exchange, and nothing after it (R8)."""


Effect = FlushOutgoing | HandOver | TakePart | SwitchExchanges | PollGained | SayBye | SendReport


class SendingMachine:
    """The machine of the sending side of ``worker``."""

    def __init__(self, worker: int, *, version: int = 0) -> None:
        self.worker = worker
        self.phase = SendingPhase.STEADY
        self.version = version
        self._move: RescaleMove | None = None
        self._came: dict[PartMove, PartHandedOver] = {}
        self._to_poll: tuple[PollParts, ...] = ()

    @property
    def may_poll(self) -> bool:
        """Whether sources may be polled and may send epochs.

        While they may not, regions send no epochs either on exchanges that a source also feeds (R2): the marker
        carries the frontier.
        """
        return self.phase is SendingPhase.STEADY

    def handle(self, event: Event) -> list[Effect]:
        """Take one event and return the effects, in order."""
        match event:
            case RescaleOrdered():
                return self._rescale(event.order.move)
            case PartCame():
                return self._part(event.part)
            case PollOrdered():
                # R6: a source that feeds no exchange has no markers to wait for, and its parts may not be here yet.
                self._to_poll = (*self._to_poll, event.order)
                return [] if self.phase is SendingPhase.AWAITING else self._polled()
            case LeaveOrdered():
                self._to("leave")
                return [SayBye()]

    def check(self) -> None:
        """Raise `InternalError` if an invariant is broken."""
        self._require((self.phase is SendingPhase.AWAITING) == (self._move is not None), "a move without its phase")

    def _rescale(self, move: RescaleMove) -> list[Effect]:
        self._require(self.phase is SendingPhase.STEADY, "a move during another move (R7)")
        self._require(move.version == self.version + 1, f"a move to version {move.version} from {self.version}")
        self._move = move
        effects: list[Effect] = [FlushOutgoing()]
        # R2: the worker hands over its parts before it waits, or two workers might wait for each other.
        effects += [HandOver(move.version, part) for part in move.parts if part.giver == self.worker]
        if self._awaits_parts(move):
            self._to("rescale, parts awaited")
            return effects
        return effects + self._switch(move)

    def _part(self, part: PartHandedOver) -> list[Effect]:
        # The giver may have received the move before this worker.
        self._came[part.move] = part
        move = self._move
        if move is None or self._awaits_parts(move):
            return []
        self._to("last part")
        # Rows that regions sent while parts were awaited were routed by the old table too.
        return [FlushOutgoing(), *self._switch(move)]

    def _awaits_parts(self, move: RescaleMove) -> bool:
        return any(part.taker == self.worker and part not in self._came for part in move.parts)

    def _switch(self, move: RescaleMove) -> list[Effect]:
        taken: list[Effect] = [TakePart(self._came.pop(part)) for part in move.parts if part.taker == self.worker]
        self._move, self.version = None, move.version
        return [*taken, SwitchExchanges(move), SendReport(Switched(move.version, self.worker)), *self._polled()]

    def _polled(self) -> list[Effect]:
        orders, self._to_poll = self._to_poll, ()
        effects: list[Effect] = []
        for order in orders:
            effects += [PollGained(order.source), SendReport(PartsPolled(order.version, self.worker, order.source))]
        return effects

    def _to(self, what: str) -> None:
        key = (self.phase, what)
        self._require(key in TRANSITIONS, f"{what} is not expected")
        self.phase = TRANSITIONS[key]

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise InternalError(f"worker {self.worker}, {self.phase}: {what}")
