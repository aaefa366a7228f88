"""Coordinator machine: decides on a rescale, move by move, and when the barrier of a snapshot may go. Pure.

The words of the coordinator machine: what it is told, and what it has done.

Everything here is immutable. What it sends to workers, and they to it, stands in `rescale.protocol`.

What a rescale waits for, in words and in order: reports that have not come.

Coordinator machine: the one place that decides on a rescale, move by move, and when the barrier of a snapshot goes.

Every state change is in TRANSITIONS; nothing here does I/O. Requests during a rescale are coalesced, the last one wins
(R9). A move ends when everyone has reported everything (R7), a rescale when all leavers' Byes have been taken (R8). It
can be called off only while workers join, for until then nobody but them knows of it. No barrier is on its way while a
move is (R7): it goes when nothing moves, or between two moves of a rescale, and the next move waits until it has passed
everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from malstrom_py.errors import InternalError, MalstromError
from malstrom_py.rescale.moves.move_sizing import Pacing, pause_by_size
from malstrom_py.rescale.moves.placement import opening_move, plan_moves
from malstrom_py.rescale.moves.protocol import (
    BarrierPassed,
    ByeTaken,
    InjectBarrier,
    Leave,
    MarkersIn,
    OpenSlots,
    Order,
    PartsPolled,
    PollParts,
    RegionDone,
    Report,
    RescaleMove,
    ShippedIn,
    StartMove,
    Switched,
    Table,
)
from malstrom_py.workers.transport.messages import Connected


@dataclass(frozen=True, slots=True)
class Topology:
    """What the coordinator must know of the job: its exchanges, and which of them each region and source feeds."""

    exchanges: tuple[str, ...]
    regions: Mapping[str, tuple[str, ...]]
    sources: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class RescaleRequested:
    """Rescale to ``members``."""

    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReportReceived:
    """A worker reports."""

    report: Report


@dataclass(frozen=True, slots=True)
class RescaleCalledOff:
    """Joiners have not come up: the rescale under way is not to be, for what ``error`` says."""

    error: MalstromError


@dataclass(frozen=True, slots=True)
class SnapshotWanted:
    """Have the barrier of ``snapshot`` pass as soon as no move is under way (R7). ``last``: nothing goes on behind it,
    so that it waits for the end of a rescale, and what is asked for then does not begin.
    """

    snapshot: str
    parent: str | None = None
    last: bool = False


Event = RescaleRequested | Connected | ReportReceived | RescaleCalledOff | SnapshotWanted


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Start and connect ``workers``: built with ``members``, ``table`` and ``version`` of now."""

    workers: tuple[int, ...]
    members: tuple[int, ...]
    table: tuple[int, ...]
    version: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send an order to a worker."""

    worker: int
    order: Order


@dataclass(frozen=True, slots=True)
class Ended:
    """A rescale has ended: ``members`` are there, and nobody else. ``error``: it was called off, nothing changed."""

    members: tuple[int, ...]
    version: int
    error: MalstromError | None = None


@dataclass(frozen=True, slots=True)
class BarrierBegun:
    """The barrier of ``snapshot`` has been ordered: these are the ``members`` that it has to pass, and no others."""

    snapshot: str
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CutMade:
    """S1: the barrier of ``snapshot`` has passed all workers."""

    snapshot: str
    paused_s: float


Effect = StartWorkers | Send | Ended | BarrierBegun | CutMade


_ORDER: Final = (BarrierPassed, Switched, MarkersIn, ShippedIn, RegionDone, PartsPolled, ByeTaken)
"""Each waits for those before it, or for nothing."""


def in_order(report: Report) -> tuple[int, int, str]:
    """By which those that others wait for come first."""
    return _ORDER.index(type(report)), report.worker, as_awaited(report)


def as_awaited(report: Report) -> str:
    """What ``report`` will tell of, when it comes."""
    match report:
        case BarrierPassed():
            return f"the barrier of snapshot {report.snapshot} to pass worker {report.worker}"
        case Switched():
            return f"worker {report.worker} to switch to version {report.version}"
        case MarkersIn():
            return f"all markers on exchange {report.exchange!r} at worker {report.worker}"
        case ShippedIn():
            return f"Shipped of everyone on exchange {report.exchange!r} at worker {report.worker}"
        case RegionDone():
            return f"region {report.region!r} on worker {report.worker}"
        case PartsPolled():
            return f"worker {report.worker} to read on the parts of {report.source!r} that it gains"
        case ByeTaken():
            return f"Bye of worker {report.leaver} on exchange {report.exchange!r} at worker {report.worker}"


class CoordinatorPhase(StrEnum):
    """Where the coordinator stands."""

    STEADY = "steady"
    JOINING = "joining"
    MOVING = "moving"
    LEAVING = "leaving"
    BARRIER = "barrier"


TRANSITIONS: Final = {
    (CoordinatorPhase.STEADY, "request, someone joins"): CoordinatorPhase.JOINING,
    (CoordinatorPhase.STEADY, "request"): CoordinatorPhase.MOVING,
    (CoordinatorPhase.JOINING, "all connected"): CoordinatorPhase.MOVING,
    (CoordinatorPhase.JOINING, "called off"): CoordinatorPhase.STEADY,
    (CoordinatorPhase.MOVING, "move ended"): CoordinatorPhase.MOVING,
    (CoordinatorPhase.MOVING, "last move ended, someone leaves"): CoordinatorPhase.LEAVING,
    (CoordinatorPhase.MOVING, "last move ended"): CoordinatorPhase.STEADY,
    (CoordinatorPhase.LEAVING, "all Byes taken"): CoordinatorPhase.STEADY,
    (CoordinatorPhase.STEADY, "snapshot"): CoordinatorPhase.BARRIER,
    (CoordinatorPhase.MOVING, "move ended, snapshot"): CoordinatorPhase.BARRIER,
    (CoordinatorPhase.BARRIER, "barrier passed"): CoordinatorPhase.STEADY,
    (CoordinatorPhase.BARRIER, "barrier passed, moves follow"): CoordinatorPhase.MOVING,
}
"""All changes of phase."""


AWAITED_MAX: Final = 4
"""So many of the things that are waited for are named."""


class PlanMoves(Protocol):
    """As `plan_moves` of `placement`."""

    def __call__(
        self,
        version: int,
        members: Sequence[int],
        table: Table,
        parts: Mapping[tuple[str, str], int],
        wanted: Sequence[int],
        *,
        slots_max: int,
    ) -> Iterable[RescaleMove]:
        """The moves to ``wanted``, of at most ``slots_max`` slots each; there is at least one."""
        ...


class CoordinatorMachine:
    """Coordinates the workers ``members``, whose slots lie as ``table`` says.

    After each move the rest is planned anew, in moves of the size that ``pacing`` comes to by what this one took.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        members: Sequence[int],
        table: Table,
        parts: Mapping[tuple[str, str], int],
        pacing: Pacing,
        plan_moves: PlanMoves = plan_moves,
    ) -> None:
        self.phase = CoordinatorPhase.STEADY
        self.members = tuple(members)
        self.table = table
        self.parts = dict(parts)
        self.version = 0
        self.keys_moved = 0
        self.bytes_moved = 0
        self._topology = topology
        self._plan_moves = plan_moves
        self._pacing = self._paced = pacing
        self._before_move = (0, 0)
        self._pause_s = 0.0
        self._wanted: tuple[int, ...] | None = None
        self._barrier: SnapshotWanted | None = None
        self._is_over = False
        self.moves_follow = False
        self._paused_s = 0.0
        self._target: tuple[int, ...] = tuple(members)
        self._joining: set[int] = set()
        self._move: RescaleMove | None = None
        self._leavers: tuple[int, ...] = ()
        self._missing: set[Report] = set()
        self._shipped: dict[str, set[tuple[int, str]]] = {}
        self._marked: dict[str, set[tuple[int, str]]] = {}

    def handle(self, event: Event) -> list[Effect]:
        """Take one event; what is to be done about it, in order."""
        match event:
            case RescaleRequested():
                self._wanted = event.members  # R9: the last one wins
                return self._begin() if self.phase is CoordinatorPhase.STEADY and not self._is_over else []
            case Connected():
                return self._connected(event.worker)
            case RescaleCalledOff():
                return self._called_off(event.error)
            case SnapshotWanted():
                self._require(
                    self._barrier is None and self.phase is not CoordinatorPhase.BARRIER, "one snapshot at a time"
                )
                self._barrier = event
                return self._cut("snapshot") if self.phase is CoordinatorPhase.STEADY else []
            case ReportReceived(report=BarrierPassed() as report):
                return self._barrier_passed(report)
            case ReportReceived(report=ByeTaken() as report):
                return self._bye_taken(report)
            case ReportReceived():
                return self._reported(event.report)

    @property
    def target(self) -> tuple[int, ...]:
        """The members that the rescale under way leads to. What waits behind it may be overtaken yet (R9)."""
        return self.members if self.nothing_moves else self._target

    @property
    def nothing_moves(self) -> bool:
        """Whether no rescale has begun: of what is asked for while a barrier passes only the last begins, behind it."""
        return self.phase is CoordinatorPhase.STEADY or (
            self.phase is CoordinatorPhase.BARRIER and not self.moves_follow
        )

    def waiting_for(self) -> str:
        """R7: what has to be reported before a rescale goes on, for people: what other things wait for comes first.

        >>> topology = Topology(("by-key",), {"count": ()}, {"numbers": ("by-key",)})
        >>> coordinator = CoordinatorMachine(topology, members=[0], table=(0,), parts={}, pacing=Pacing.of(1))
        >>> coordinator.waiting_for()
        'nothing'
        >>> _ = coordinator.handle(RescaleRequested((0, 1)))
        >>> coordinator.waiting_for()
        'worker 1 to connect'
        """
        awaited = [f"worker {worker} to connect" for worker in sorted(self._joining)]
        awaited += map(as_awaited, sorted(self._awaited(), key=in_order))
        left_out = len(awaited) - AWAITED_MAX
        more = [f"and {left_out} more"] if left_out > 0 else []
        return ", ".join([*awaited[:AWAITED_MAX], *more]) or "nothing"

    def _awaited(self) -> set[Report]:
        version = self.version + 1
        marked = {MarkersIn(version, *place) for places in self._marked.values() for place in places}
        shipped = {ShippedIn(version, *place) for places in self._shipped.values() for place in places}
        return {*self._missing, *marked, *shipped}

    def check(self) -> None:
        """What must hold between two events, else `InternalError`."""
        self._require((self.phase is CoordinatorPhase.MOVING) == (self._move is not None), "a phase without its move")
        self._require(set(self.table) <= set(self.members), "a slot belongs to nobody")
        self._require((self.phase is CoordinatorPhase.JOINING) == bool(self._joining), "a phase without those who join")
        self._require(
            self.phase is not CoordinatorPhase.STEADY or self._barrier is None, "a snapshot is wanted and nobody goes"
        )

    def _cut(self, what: str) -> list[Effect]:
        barrier, self._barrier = self._barrier, None
        assert barrier is not None
        self._is_over = barrier.last
        self._to(what)
        self._paused_s = 0.0
        self._missing = {BarrierPassed(barrier.snapshot, worker) for worker in self.members}
        order = InjectBarrier(barrier.snapshot, barrier.parent, barrier.last)
        return [BarrierBegun(barrier.snapshot, self.members), *(Send(worker, order) for worker in self.members)]

    def _barrier_passed(self, report: BarrierPassed) -> list[Effect]:
        self._require(self.phase is CoordinatorPhase.BARRIER and report in self._missing, f"{report} was not expected")
        self._missing.discard(report)
        self._paused_s = max(self._paused_s, report.paused_s)
        if self._missing:
            return []
        follow, self.moves_follow = self.moves_follow, False
        self._to("barrier passed, moves follow" if follow else "barrier passed")
        behind = [] if self._is_over else self._order_move() if follow else self._begin()
        return [CutMade(report.snapshot, self._paused_s), *behind]

    def _begin(self) -> list[Effect]:
        if self._barrier is not None:
            return self._cut("snapshot")
        wanted, self._wanted = self._wanted, None
        if wanted is None or wanted == self.members:
            return [] if wanted is None else [Ended(self.members, self.version)]
        self._target = wanted
        joiners = tuple(worker for worker in wanted if worker not in self.members)
        if joiners:
            self._to("request, someone joins")
            self._joining = set(joiners)
            return [StartWorkers(joiners, self.members, self.table, self.version)]
        self._to("request")
        return self._start_moving(planned=True)

    def _connected(self, joiner: int) -> list[Effect]:
        if joiner not in self._joining:
            return []  # its rescale has been called off
        self._joining.discard(joiner)
        return [] if self._joining else self._start_moving()

    def _called_off(self, error: MalstromError) -> list[Effect]:
        self._to("called off")
        self._joining = set()
        return [Ended(self.members, self.version, error), *self._begin()]

    def _start_moving(self, *, planned: bool = False) -> list[Effect]:
        if not planned:
            self._to("all connected")
        self._paced = self._pacing
        opening = opening_move(self.version, self.members, self.table, self._target) if self._paced.adapts else None
        return self._order_move() if opening is None else self._order(opening)

    def _order_move(self) -> list[Effect]:
        slots_max = self._paced.slots_max
        planned = self._plan_moves(
            self.version, self.members, self.table, self.parts, self._target, slots_max=slots_max
        )
        return self._order(next(iter(planned)))

    def _order(self, move: RescaleMove) -> list[Effect]:
        self._move = move
        self._pause_s, self._before_move = 0.0, (self.keys_moved, self.bytes_moved)
        topology = self._topology
        # A leaver of this move reports like everyone; it says Bye when all is over.
        self._missing = {Switched(move.version, worker) for worker in move.everyone}
        self._missing |= {
            RegionDone(move.version, worker, region) for worker in move.everyone for region in topology.regions
        }
        gaining = {(part.taker, part.source) for part in move.parts}
        self._missing |= {PartsPolled(move.version, worker, source) for worker, source in gaining}
        self._shipped = {
            region: {(worker, exchange) for worker in move.everyone for exchange in exchanges}
            for region, exchanges in topology.regions.items()
            if exchanges
        }
        self._marked = {
            source: {(worker, exchange) for worker in move.everyone for exchange in exchanges}
            for source, exchanges in topology.sources.items()
        }
        orders: list[Effect] = [Send(worker, StartMove(move)) for worker in move.everyone]
        return orders + [effect for source in topology.sources for effect in self._maybe_poll(source)]

    def _reported(self, report: Report) -> list[Effect]:
        self._require(self.phase is CoordinatorPhase.MOVING, f"{report} while nothing moves")
        effects: list[Effect] = []
        match report:
            case ShippedIn():
                for region, missing in self._shipped.items():
                    if (report.worker, report.exchange) in missing:
                        missing.discard((report.worker, report.exchange))
                        effects += self._maybe_open(region)
            case MarkersIn():
                for source, missing in self._marked.items():
                    if (report.worker, report.exchange) in missing:
                        missing.discard((report.worker, report.exchange))
                        effects += self._maybe_poll(source)
            case _:
                self._require(report in self._missing, f"{report} was not expected")
                self._missing.discard(report)
                if isinstance(report, RegionDone):
                    self._pause_s = max(self._pause_s, report.paused_s)
                    self.keys_moved += report.keys
                    self.bytes_moved += report.bytes
        return effects + self._maybe_end()

    def _maybe_open(self, region: str) -> list[Effect]:
        """R6: order behind a region: everyone has taken Shipped from all on everything the region feeds."""
        move = self._under_way()
        if self._shipped[region]:
            return []
        return [Send(worker, OpenSlots(move.version, region)) for worker in move.new]

    def _maybe_poll(self, source: str) -> list[Effect]:
        """R6: order behind a source: everyone has all markers on every exchange that the source feeds."""
        move = self._under_way()
        if self._marked[source]:
            return []
        takers = sorted({part.taker for part in move.parts if part.source == source})
        return [Send(worker, PollParts(move.version, source)) for worker in takers]

    def _maybe_end(self) -> list[Effect]:
        if self._missing or any(self._shipped.values()) or any(self._marked.values()):
            return []
        move, self._move = self._under_way(), None
        moved = sum(was != now for was, now in zip(self.table, move.table, strict=True))
        keys, size = self.keys_moved - self._before_move[0], self.bytes_moved - self._before_move[1]
        self._paced = self._paced.after(moved, pause_by_size(self._pause_s, keys=keys, size=size))
        leavers = tuple(worker for worker in move.old if worker not in move.new)
        self.version, self.members, self.table = move.version, move.new, move.table
        self.parts |= {(part.source, part.part): part.taker for part in move.parts}
        if move.more and self._barrier is not None and not self._barrier.last:
            self.moves_follow = True
            return self._cut("move ended, snapshot")
        if move.more:
            self._to("move ended")
            return self._order_move()
        if leavers:
            self._to("last move ended, someone leaves")
            self._leavers = leavers
            self._missing = {
                ByeTaken(worker, exchange, leaver)
                for worker in self.members
                for exchange in self._topology.exchanges
                for leaver in leavers
            }
            # Without exchanges there is no Bye to be said, and nobody to take it.
            return [Send(worker, Leave()) for worker in leavers] if self._missing else self._all_gone()
        self._to("last move ended")
        return [Ended(self.members, self.version), *self._begin()]

    def _under_way(self) -> RescaleMove:
        assert self._move is not None
        return self._move

    def _bye_taken(self, report: ByeTaken) -> list[Effect]:
        self._missing.discard(report)
        return self._all_gone() if self.phase is CoordinatorPhase.LEAVING and not self._missing else []

    def _all_gone(self) -> list[Effect]:
        self._to("all Byes taken")
        self._leavers = ()
        return [Ended(self.members, self.version), *self._begin()]

    def _to(self, what: str) -> None:
        key = (self.phase, what)
        self._require(key in TRANSITIONS, f"{what} is not expected")
        self.phase = TRANSITIONS[key]

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise InternalError(f"coordinator, {self.phase}: {what}")
