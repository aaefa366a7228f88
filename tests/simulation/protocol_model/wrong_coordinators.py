"""Wrong coordinators and planners, each with one clause broken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from malstrom_py.rescale.moves.placement import first_table, plan_moves
from malstrom_py.rescale.moves.protocol import (
    ByesTaken,
    Leave,
    MarkersIn,
    PartMove,
    PartsPolled,
    RegionDone,
    Report,
    RescaleMove,
    ShippedIn,
    Table,
)
from malstrom_py.workers.coordinator import machine as ce
from malstrom_py.workers.coordinator import machine as cm


class Coordinator(cm.CoordinatorMachine):
    """A coordinator that notices nothing."""

    def check(self) -> None:
        """Nothing is checked."""

    def _require(self, holds: bool, what: str) -> None:
        """Nothing is required."""

    def _reported(self, report: Report) -> list[ce.Effect]:
        return super()._reported(report) if self.phase is cm.CoordinatorPhase.MOVING else []

    def _forget(self, *kinds: type[Report]) -> None:
        self._missing = {report for report in self._missing if not isinstance(report, kinds)}

    def _take_for_all(self, report: ShippedIn | MarkersIn) -> None:
        """Take it that all other workers have reported the same."""
        kind = type(report)
        others = {r for r in self._missing if isinstance(r, kind) and r.exchange == report.exchange and r != report}
        self._missing -= others
        self._unreported[kind, report.exchange] -= len(others)


class RequestLost(Coordinator):
    """R9: a request during a rescale is dropped."""

    def handle(self, event: ce.Event) -> list[ce.Effect]:
        if isinstance(event, ce.RescaleRequested) and self.phase is not cm.CoordinatorPhase.STEADY:
            return []
        return super().handle(event)


class FirstRequestWins(Coordinator):
    """R9: of several requests during a rescale the first is done."""

    def handle(self, event: ce.Event) -> list[ce.Effect]:
        if (
            isinstance(event, ce.RescaleRequested)
            and self.phase is not cm.CoordinatorPhase.STEADY
            and self._wanted is not None
        ):
            return []
        return super().handle(event)


class OpensAtTheFirstShipped(Coordinator):
    """R6: gained slots are opened when one worker has taken Shipped."""

    def _reported(self, report: Report) -> list[ce.Effect]:
        if isinstance(report, ShippedIn) and report in self._missing:
            self._take_for_all(report)
        return super()._reported(report)


class ReleasesAfterOneExchange(Coordinator):
    """R6: a part is released when one of its source's exchanges has all markers."""

    def _reported(self, report: Report) -> list[ce.Effect]:
        if isinstance(report, MarkersIn) and self._unreported.get((MarkersIn, report.exchange)) == 1:
            beside = {name for exits in self._topology.sources.values() if report.exchange in exits for name in exits}
            for exchange in beside - {report.exchange}:
                self._missing = {r for r in self._missing if not (isinstance(r, MarkersIn) and r.exchange == exchange)}
                self._unreported[MarkersIn, exchange] = 0
        return super()._reported(report)


class ReleasesAfterOneWorker(Coordinator):
    """R6: a part is released when one worker has all markers."""

    def _reported(self, report: Report) -> list[ce.Effect]:
        if isinstance(report, MarkersIn) and report in self._missing:
            self._take_for_all(report)
        return super()._reported(report)


class UninvolvedNotAsked(Coordinator):
    """R7: only those that gain or lose something must have ended."""

    def _maybe_end(self) -> list[ce.Effect]:
        move = self._current_move()
        involved = {w for was, now in zip(self.table, move.table, strict=True) if was != now for w in (was, now)}
        involved |= {worker for part in move.parts for worker in (part.giver, part.taker)}
        missing = self._missing
        self._missing = {report for report in missing if report.worker in involved}
        effects = super()._maybe_end()
        if self._move is move:
            self._missing = missing
        return effects


class EndsBeforeRegionsAreDone(Coordinator):
    """R7: a move ends when everyone has switched."""

    def _order_move(self) -> list[ce.Effect]:
        effects = super()._order_move()
        self._forget(RegionDone)
        return effects


class EndsBeforePartsAreReleased(Coordinator):
    """R7: a move ends while gained parts are not polled."""

    def _order_move(self) -> list[ce.Effect]:
        effects = super()._order_move()
        self._forget(PartsPolled, MarkersIn)
        return effects


class LeavesEarly(Coordinator):
    """R8: leavers are ordered to leave with their last move."""

    def _order_move(self) -> list[ce.Effect]:
        effects, move = super()._order_move(), self._current_move()
        return [*effects, *(ce.Send(worker, Leave()) for worker in move.old if worker not in move.new)]


class EndsBeforeBye(Coordinator):
    """R8: the rescale ends without waiting for Byes."""

    def _maybe_end(self) -> list[ce.Effect]:
        effects = super()._maybe_end()
        return effects + self._all_gone() if self.phase is cm.CoordinatorPhase.LEAVING else effects


class ByeOfOneExchange(Coordinator):
    """R8: Bye is waited for on one exchange."""

    def _maybe_end(self) -> list[ce.Effect]:
        effects = super()._maybe_end()
        first = self._topology.exchanges[0]
        self._missing = {r for r in self._missing if not isinstance(r, ByesTaken) or r.exchange == first}
        return effects


class ByeOfOneMember(Coordinator):
    """R8: Bye is waited for at one member."""

    def _maybe_end(self) -> list[ce.Effect]:
        effects = super()._maybe_end()
        first = self.members[0]
        self._missing = {r for r in self._missing if not isinstance(r, ByesTaken) or r.worker == first}
        return effects


class PartsOfNobody(Coordinator):
    """R2: where parts are is not kept after a move."""

    def _maybe_end(self) -> list[ce.Effect]:
        parts = dict(self.parts)
        effects = super()._maybe_end()
        self.parts = parts
        return effects


def dealt_anew(
    version: int,
    members: Sequence[int],
    table: Table,
    parts: Mapping[tuple[str, str], int],
    wanted: Sequence[int],
    **options: Any,
) -> list[RescaleMove]:
    """R10: all slots are dealt again, without regard to their owners."""
    moves = list(plan_moves(version, members, table, parts, wanted, **options))
    new = first_table(len(table), sorted(wanted))
    return [*moves[:-1], replace(moves[-1], table=new)]


def unbalanced(
    version: int,
    members: Sequence[int],
    table: Table,
    parts: Mapping[tuple[str, str], int],
    wanted: Sequence[int],
    **options: Any,
) -> list[RescaleMove]:
    """R10: the slots of a leaver go to one worker, and no other slot moves."""
    heir = min(wanted)
    new = tuple(owner if owner in wanted else heir for owner in table)
    moved = tuple(PartMove(*name, owner, heir) for name, owner in parts.items() if owner not in wanted)
    return [RescaleMove(version + 1, tuple(members), tuple(sorted(wanted)), new, moved)]
