"""Coordinator machine: decides each move of a rescale, and when the barrier of a snapshot is injected. Pure.

Every state change is in TRANSITIONS; nothing here does I/O. The messages to and from workers are in
`rescale.moves.protocol`. Requests during a rescale are coalesced, the last one wins (R9). A move ends when all workers
have reported everything (R7), a rescale when all Byes of leavers have been taken (R8). A rescale can be called off only
while workers join, because until then only the joiners know of it, and the workers that list their keys for it. A
barrier and a move never overlap (R7): the barrier is injected when nothing moves, or between two moves of a rescale,
and the next move waits until the barrier has passed all workers. Before a move, state may go ahead of it (R12); that is
bounded, and a barrier waits for it as for the move. New parts of a source get their workers while nothing moves, before
the next barrier or move (R13). Before a barrier goes, workers pack their state ahead (S2), during moves, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from malstrom_py.errors import InternalError, MalstromError
from malstrom_py.rescale.load import Weights, pays, placed
from malstrom_py.rescale.moves.move_sizing import Pacing, pause_by_size
from malstrom_py.rescale.moves.placement import dealt_parts, opening_move, plan_moves
from malstrom_py.rescale.moves.protocol import (
    AddParts,
    BarrierPassed,
    ByesTaken,
    FindKeys,
    ForgetKeys,
    InjectBarrier,
    Leave,
    MarkersIn,
    Moved,
    OpenSlots,
    Order,
    PackAhead,
    PackedAhead,
    PartsPolled,
    PollParts,
    RegionDone,
    Report,
    RescaleMove,
    SendAhead,
    SentAhead,
    ShippedIn,
    StartMove,
    Switched,
    Table,
    as_awaited,
    in_order,
)
from malstrom_py.workers.transport.messages import Connected


@dataclass(frozen=True, slots=True)
class Topology:
    """The exchanges of a job, and which of them each region and each source feeds."""

    exchanges: tuple[str, ...]
    regions: Mapping[str, tuple[str, ...]]
    sources: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class RescaleRequested:
    """A rescale to ``members`` is requested.

    ``weights``: of the slots, None if they are not known (R10). ``evens_out``: slots move by weight though the members
    stay, if that pays.
    """

    members: tuple[int, ...]
    weights: Weights | None = None
    evens_out: bool = False


@dataclass(frozen=True, slots=True)
class ReportReceived:
    """A report of a worker has arrived."""

    report: Report


@dataclass(frozen=True, slots=True)
class RescaleCalledOff:
    """The joiners of the current rescale did not start, because of ``error``."""

    error: MalstromError


@dataclass(frozen=True, slots=True)
class SnapshotWanted:
    """The barrier of ``snapshot`` is to be injected when no move is in progress (R7).

    ``last``: workers stop after the barrier. So the barrier waits for the end of a rescale, and no rescale starts after
    it. ``packs``: workers pack their state first (S2); joiners are not waited for.
    """

    snapshot: str
    parent: str | None = None
    last: bool = False
    packs: bool = False


@dataclass(frozen=True, slots=True)
class PartsFound:
    """R13: ``source`` has new parts, each with the position at which it begins."""

    source: str
    parts: tuple[tuple[str, Any], ...]


Event = RescaleRequested | Connected | ReportReceived | RescaleCalledOff | SnapshotWanted | PartsFound


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Start and connect ``workers``, built with the current ``members``, ``table`` and ``version``."""

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
    """A rescale has ended with ``members``. ``error``: it was called off, and nothing has changed."""

    members: tuple[int, ...]
    version: int
    error: MalstromError | None = None


@dataclass(frozen=True, slots=True)
class BarrierBegun:
    """The barrier of ``snapshot`` has been ordered: it has to pass ``members``."""

    snapshot: str
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CutMade:
    """S1: the barrier of ``snapshot`` has passed all workers."""

    snapshot: str
    paused_s: float


Effect = StartWorkers | Send | Ended | BarrierBegun | CutMade


class CoordinatorPhase(StrEnum):
    """The phase of the coordinator."""

    STEADY = "steady"
    JOINING = "joining"
    COPYING = "copying"
    MOVING = "moving"
    LEAVING = "leaving"
    BARRIER = "barrier"


TRANSITIONS: Final = {
    (CoordinatorPhase.STEADY, "request, someone joins"): CoordinatorPhase.JOINING,
    (CoordinatorPhase.STEADY, "request"): CoordinatorPhase.MOVING,
    (CoordinatorPhase.JOINING, "all connected"): CoordinatorPhase.MOVING,
    (CoordinatorPhase.JOINING, "called off"): CoordinatorPhase.STEADY,
    (CoordinatorPhase.MOVING, "state goes ahead"): CoordinatorPhase.COPYING,
    (CoordinatorPhase.COPYING, "state is ahead"): CoordinatorPhase.MOVING,
    (CoordinatorPhase.MOVING, "move ended"): CoordinatorPhase.MOVING,
    (CoordinatorPhase.MOVING, "last move ended, someone leaves"): CoordinatorPhase.LEAVING,
    (CoordinatorPhase.MOVING, "last move ended"): CoordinatorPhase.STEADY,
    (CoordinatorPhase.LEAVING, "all Byes taken"): CoordinatorPhase.STEADY,
    (CoordinatorPhase.STEADY, "parts found"): CoordinatorPhase.STEADY,
    (CoordinatorPhase.STEADY, "snapshot"): CoordinatorPhase.BARRIER,
    (CoordinatorPhase.MOVING, "move ended, snapshot"): CoordinatorPhase.BARRIER,
    (CoordinatorPhase.BARRIER, "barrier passed"): CoordinatorPhase.STEADY,
    (CoordinatorPhase.BARRIER, "barrier passed, moves follow"): CoordinatorPhase.MOVING,
}
"""All changes of phase."""


AWAITED_MAX: Final = 4
"""The number of missing reports that `waiting_for` names."""


@dataclass(frozen=True, slots=True)
class Rescale:
    """The last rescale: to ``members`` and ``table``, placed by ``weights``; None: by number.

    ``joining``: the joiners that are not connected. ``pacing``: of its next move. ``sends_ahead``: state goes ahead.
    """

    members: tuple[int, ...]
    table: Table = field(repr=False)
    pacing: Pacing
    weights: Weights | None = None
    joining: frozenset[int] = frozenset()
    sends_ahead: bool = False


Feeds = type[ShippedIn] | type[MarkersIn]
"""What workers report of an exchange that regions feed, and of one that sources feed."""

PlanMoves = Callable[..., Iterable[RescaleMove]]
"""As `placement.plan_moves`: the moves to a target, at least one, each of at most ``slots_max`` slots."""


class CoordinatorMachine:
    """The coordinator of the workers ``members``, whose slots are placed by ``table``.

    After each move the rest is planned again, with the size that ``pacing`` derives from the pause of this move. The
    table at the end of a rescale is decided at its beginning, by the weights of its request (R10).
    ``ahead_least``: R12: a move with so many bytes of state is worth sending them ahead; None: nothing is sent ahead.
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
        ahead_least: int | None = None,
    ) -> None:
        self.phase = CoordinatorPhase.STEADY
        self.members = tuple(members)
        self.table = table
        self.parts = dict(parts)
        self.version = 0
        self.moved = Moved()
        self.rescale = Rescale(self.members, table, pacing)
        self._topology = topology
        self._plan_moves = plan_moves
        self._pacing = pacing
        self._ahead_least = ahead_least
        self._wanted: RescaleRequested | None = None
        self._barrier: SnapshotWanted | None = None
        self._unpacked: set[int] = set()  # the workers that the barrier waits for
        self._found: dict[tuple[str, str], Any] = {}
        self._is_over = False
        self.moves_follow = False
        self._move: RescaleMove | None = None  # in progress, or the one that state goes ahead of
        self._before_move = self.moved
        self._pause_s = 0.0  # the longest one of a worker in this move, or by this barrier
        self._placed: tuple[Table, tuple[int, ...]] = ((), ())
        self._missing: set[Report] = set()
        self._unreported: dict[tuple[Feeds, str], int] = {}  # how many of `_missing` are of a kind and an exchange

    def handle(self, event: Event) -> list[Effect]:
        """Take one event and return the effects, in order."""
        match event:
            case RescaleRequested():
                # R9: the last one wins, and evens out for those that it supersedes.
                evens_out = event.evens_out or (self._wanted is not None and self._wanted.evens_out)
                self._wanted = replace(event, evens_out=evens_out)
                return self._begin() if self.phase is CoordinatorPhase.STEADY and not self._is_over else []
            case Connected():
                return self._connected(event.worker)
            case RescaleCalledOff():
                return self._called_off(event.error)
            case SnapshotWanted():
                return self._snapshot_wanted(event)
            case PartsFound():
                new = {(event.source, part): position for part, position in event.parts}
                self._found |= {part: position for part, position in new.items() if part not in self.parts}
                return self._add_parts() if self.phase is CoordinatorPhase.STEADY else []
            case ReportReceived():
                return self._taken(event.report)

    def _taken(self, report: Report) -> list[Effect]:
        match report:
            case PackedAhead():
                was_packing = self.is_packing
                self._unpacked.discard(report.worker)
                return self._maybe_cut() if was_packing else []
            case BarrierPassed():
                return self._barrier_passed(report)
            case ByesTaken():
                return self._byes_taken(report)
            case SentAhead():
                return self._sent_ahead(report)
            case _:
                return self._reported(report)

    @property
    def target(self) -> tuple[int, ...]:
        """The members after the current rescale. Waiting requests are left out: a later one may supersede them (R9)."""
        return self.members if self.nothing_moves else self.rescale.members

    @property
    def nothing_moves(self) -> bool:
        """Whether no rescale has started. Of the requests during a barrier only the last starts, after the barrier."""
        between = self.phase is CoordinatorPhase.BARRIER and not self.moves_follow
        return self.phase is CoordinatorPhase.STEADY or between

    @property
    def barrier_waits(self) -> bool:
        """Whether a barrier waits only for the end of a move, and of what is sent ahead of it."""
        return self._barrier is not None and not self._unpacked

    @property
    def is_packing(self) -> bool:
        """S2: whether a barrier waits for workers that pack their state."""
        return bool(self._unpacked)

    def waiting_for(self) -> str:
        """R7: return a description of the missing reports, first the reports that others wait for.

        >>> topology = Topology(("by-key",), {"count": ()}, {"numbers": ("by-key",)})
        >>> coordinator = CoordinatorMachine(topology, members=[0], table=(0,), parts={}, pacing=Pacing.of(1))
        >>> coordinator.waiting_for()
        'nothing'
        >>> _ = coordinator.handle(RescaleRequested((0, 1)))
        >>> coordinator.waiting_for()
        'worker 1 to connect'
        """
        awaited = [f"worker {worker} to connect" for worker in sorted(self.rescale.joining)]
        awaited += map(as_awaited, sorted(self._missing, key=in_order))
        left_out = len(awaited) - AWAITED_MAX
        more = [f"and {left_out} more"] if left_out > 0 else []
        return ", ".join([*awaited[:AWAITED_MAX], *more]) or "nothing"

    def check(self) -> None:
        """Raise `InternalError` if an invariant is broken."""
        has_move = self.phase in {CoordinatorPhase.COPYING, CoordinatorPhase.MOVING}
        self._require(has_move == (self._move is not None), "a phase without its move")
        if self._placed[0] is not self.table or self._placed[1] is not self.members:
            # Few events change the table, which may be long.
            self._require(set(self.table) <= set(self.members), "a slot has no owner")
            self._placed = self.table, self.members
        self._require((self.phase is CoordinatorPhase.JOINING) == bool(self.rescale.joining), "joining without joiners")
        self._require(
            self.phase is not CoordinatorPhase.STEADY or not self.barrier_waits,
            "a wanted snapshot has no barrier",
        )

    def _snapshot_wanted(self, wanted: SnapshotWanted) -> list[Effect]:
        is_free = self._barrier is None and self.phase is not CoordinatorPhase.BARRIER
        self._require(is_free, "one snapshot at a time")
        self._barrier = wanted
        if not wanted.packs:
            return self._maybe_cut()
        self._unpacked = {*self.members, *self.target} - self.rescale.joining
        return [self._pack(wanted, worker) for worker in sorted(self._unpacked)]

    def _pack(self, wanted: SnapshotWanted, worker: int) -> Effect:
        return Send(worker, PackAhead(wanted.snapshot, wanted.parent))

    def _maybe_cut(self) -> list[Effect]:
        return self._cut("snapshot") if self.phase is CoordinatorPhase.STEADY and self.barrier_waits else []

    def _cut(self, what: str) -> list[Effect]:
        barrier, self._barrier = self._barrier, None
        assert barrier is not None
        self._is_over = barrier.last
        self._to(what)
        self._pause_s = 0.0
        self._missing = {BarrierPassed(barrier.snapshot, worker) for worker in self.members}
        order = InjectBarrier(barrier.snapshot, barrier.parent, barrier.last)
        return [BarrierBegun(barrier.snapshot, self.members), *(Send(worker, order) for worker in self.members)]

    def _barrier_passed(self, report: BarrierPassed) -> list[Effect]:
        self._require(self.phase is CoordinatorPhase.BARRIER and report in self._missing, f"{report} was not expected")
        self._missing.discard(report)
        self._pause_s = max(self._pause_s, report.paused_s)
        if self._missing:
            return []
        paused_s = self._pause_s
        follow, self.moves_follow = self.moves_follow, False
        self._to("barrier passed, moves follow" if follow else "barrier passed")
        following = self._order_move() if follow else self._begin()
        return [CutMade(report.snapshot, paused_s), *following]

    def _add_parts(self) -> list[Effect]:
        """R13: give the parts that were found to workers. Every later order to a worker arrives after its parts."""
        if self._is_over or not self._found:
            return []
        self._to("parts found")
        found, self._found = self._found, {}
        dealt = dealt_parts(self.parts, list(found), self.members)
        self.parts |= dealt
        orders: dict[tuple[int, str], list[tuple[str, Any]]] = {}
        for part, worker in dealt.items():
            orders.setdefault((worker, part[0]), []).append((part[1], found[part]))
        return [Send(worker, AddParts(source, tuple(parts))) for (worker, source), parts in orders.items()]

    def _begin(self) -> list[Effect]:
        self._unpacked.intersection_update(self.members)  # S2: who has left, or was called off, packs nothing
        added = self._add_parts()
        if self._is_over:
            return []
        return [*added, *(self._maybe_cut() or self._begin_rescale())]

    def _begin_rescale(self) -> list[Effect]:
        asked, self._wanted = self._wanted, None
        if asked is None:
            return []
        stays = asked.members == self.members
        table = placed(self.table, asked.members, asked.weights) if asked.evens_out or not stays else self.table
        here = set(self.members)
        joiners = tuple(worker for worker in asked.members if worker not in here)
        if stays and not pays(self.table, table, self.members, asked.weights):
            self.rescale = replace(self.rescale, weights=asked.weights)
            return [Ended(self.members, self.version)]
        self.rescale = Rescale(asked.members, table, self._pacing, asked.weights, frozenset(joiners))
        if joiners:
            self._to("request, someone joins")
            return [StartWorkers(joiners, self.members, self.table, self.version), *self._find_keys()]
        self._to("request")
        return self._start_moving()

    def _losing(self) -> list[int]:
        """Return the workers that lose slots in the rescale that begins."""
        return sorted({was for was, now in zip(self.table, self.rescale.table, strict=True) if was != now})

    def _find_keys(self) -> list[Effect]:
        return [Send(worker, FindKeys()) for worker in self._losing()]

    def _connected(self, joiner: int) -> list[Effect]:
        if joiner not in self.rescale.joining:
            return []  # its rescale has been called off
        self.rescale = replace(self.rescale, joining=self.rescale.joining - {joiner})
        wanted = self._barrier
        packing = [] if wanted is None or not wanted.packs else [self._pack(wanted, joiner)]
        if self.rescale.joining:
            return packing
        self._to("all connected")
        return [*packing, *self._start_moving()]

    def _called_off(self, error: MalstromError) -> list[Effect]:
        self._to("called off")
        self.rescale = replace(self.rescale, joining=frozenset())
        # A rebalance that waited for the joiners does not start them again.
        if self._wanted is not None and self._wanted.evens_out and self._wanted.members == self.rescale.members:
            self._wanted = replace(self._wanted, members=self.members)
        forgotten = [Send(worker, ForgetKeys()) for worker in self._losing()]
        return [Ended(self.members, self.version, error), *forgotten, *self._begin()]

    def _start_moving(self) -> list[Effect]:
        self.rescale = rescale = replace(self.rescale, sends_ahead=self._ahead_least is not None)
        if rescale.pacing.adapts:
            opening = opening_move(self.version, self.members, self.table, rescale.members, target=rescale.table)
            if opening is not None:
                return self._order(opening)
        return self._order_move()

    def _order_move(self) -> list[Effect]:
        rescale = self.rescale
        place = (self.version, self.members, self.table, self.parts, rescale.members)
        planned = self._plan_moves(*place, slots_max=rescale.pacing.slots_max, target=rescale.table)
        move = next(iter(planned))
        losing = {was for was, now in zip(self.table, move.table, strict=True) if was != now}
        if not losing or not rescale.sends_ahead or self._ahead_least is None:
            return self._order(move)
        self._to("state goes ahead")
        self._move = move
        self._missing = {SentAhead(move.version, worker) for worker in losing}
        return [Send(worker, SendAhead(move, self._ahead_least)) for worker in sorted(losing)]

    def _sent_ahead(self, report: SentAhead) -> list[Effect]:
        """R12: begin the move when all state that goes ahead of it has been sent."""
        self._require(self.phase is CoordinatorPhase.COPYING and report in self._missing, f"{report} was not expected")
        self._missing.discard(report)
        if self._missing:
            return []
        self._to("state is ahead")
        return self._order(self._current_move())

    def _order(self, move: RescaleMove) -> list[Effect]:
        self._move = move
        self._pause_s, self._before_move = 0.0, self.moved
        topology = self._topology
        # A leaver of this move reports like all others; it sends Bye at the end of the rescale.
        self._missing = {Switched(move.version, worker) for worker in move.everyone}
        self._missing |= {
            RegionDone(move.version, worker, region) for worker in move.everyone for region in topology.regions
        }
        gaining = {(part.taker, part.source) for part in move.parts}
        self._missing |= {PartsPolled(move.version, worker, source) for worker, source in gaining}
        feeds: list[Feeds] = [ShippedIn, MarkersIn]
        fed = {(kind, exchange) for kind in feeds for exits in self._fed(kind).values() for exchange in exits}
        self._missing |= {kind(move.version, worker, exchange) for kind, exchange in fed for worker in move.everyone}
        self._unreported = dict.fromkeys(fed, len(move.everyone))
        orders: list[Effect] = [Send(worker, StartMove(move)) for worker in move.everyone]
        polled = (source for source, exits in topology.sources.items() if not exits)
        return orders + [order for source in polled for order in self._complete(MarkersIn, source)]

    def _reported(self, report: Report) -> list[Effect]:
        self._require(self.phase is CoordinatorPhase.MOVING, f"{report} while nothing moves")
        effects: list[Effect] = []
        match report:
            case ShippedIn() | MarkersIn():
                effects = self._exchange_reported(report)
            case _:
                self._require(report in self._missing, f"{report} was not expected")
                self._missing.discard(report)
                if isinstance(report, RegionDone):
                    self._pause_s = max(self._pause_s, report.paused_s)
                    self.moved = self.moved.plus(report)
        return effects + self._maybe_end()

    def _fed(self, kind: Feeds) -> Mapping[str, tuple[str, ...]]:
        """Return what sends ``kind`` on which exchanges: regions Shipped, sources markers."""
        return self._topology.regions if kind is ShippedIn else self._topology.sources

    def _exchange_reported(self, report: ShippedIn | MarkersIn) -> list[Effect]:
        """R6: continue with what all workers have reported on each exchange that it feeds."""
        if report not in self._missing:
            return []  # only regions feed the exchange, or only sources
        self._missing.discard(report)
        kind, unreported = type(report), self._unreported
        unreported[kind, report.exchange] -= 1
        if unreported[kind, report.exchange]:
            return []
        complete = (
            name
            for name, exits in self._fed(kind).items()
            if report.exchange in exits and not any(unreported[kind, exchange] for exchange in exits)
        )
        return [order for name in complete for order in self._complete(kind, name)]

    def _complete(self, kind: Feeds, name: str) -> list[Effect]:
        """R6: open the gained slots of a region, or poll the gained parts of a source."""
        move = self._current_move()
        if kind is ShippedIn:
            return [Send(worker, OpenSlots(move.version, name)) for worker in move.new]
        takers = sorted({part.taker for part in move.parts if part.source == name})
        return [Send(worker, PollParts(move.version, name)) for worker in takers]

    def _maybe_end(self) -> list[Effect]:
        if self._missing:
            return []
        move, self._move = self._current_move(), None
        slots = sum(was != now for was, now in zip(self.table, move.table, strict=True))
        moved, rescale = self.moved.since(self._before_move), self.rescale
        pause = pause_by_size(self._pause_s, keys=moved.keys, size=moved.bytes - moved.ahead)
        ahead = moved.bytes >= self._ahead_least if slots and self._ahead_least is not None else rescale.sends_ahead
        pacing = rescale.pacing.after(slots, pause, size=moved.bytes)
        self.rescale = replace(rescale, pacing=pacing, sends_ahead=ahead)
        staying = set(move.new)
        leavers = tuple(worker for worker in move.old if worker not in staying)
        self.version, self.members, self.table = move.version, move.new, move.table
        self.parts |= {(part.source, part.part): part.taker for part in move.parts}
        if move.more and self.barrier_waits and self._barrier is not None and not self._barrier.last:
            self.moves_follow = True
            return self._cut("move ended, snapshot")
        if move.more:
            self._to("move ended")
            return self._order_move()
        if leavers:
            self._to("last move ended, someone leaves")
            self._missing = {
                ByesTaken(self.version, worker, exchange)
                for worker in self.members
                for exchange in self._topology.exchanges
            }
            # A job without exchanges has no channels, and so no Byes.
            return [Send(worker, Leave()) for worker in leavers] if self._missing else self._all_gone()
        self._to("last move ended")
        return [Ended(self.members, self.version), *self._begin()]

    def _current_move(self) -> RescaleMove:
        assert self._move is not None
        return self._move

    def _byes_taken(self, report: ByesTaken) -> list[Effect]:
        self._missing.discard(report)
        return self._all_gone() if self.phase is CoordinatorPhase.LEAVING and not self._missing else []

    def _all_gone(self) -> list[Effect]:
        self._to("all Byes taken")
        return [Ended(self.members, self.version), *self._begin()]

    def _to(self, what: str) -> None:
        key = (self.phase, what)
        self._require(key in TRANSITIONS, f"{what} is not expected")
        self.phase = TRANSITIONS[key]

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise InternalError(f"coordinator, {self.phase}: {what}")
