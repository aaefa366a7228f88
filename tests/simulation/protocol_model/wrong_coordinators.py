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
        if isinstance(report, ShippedIn):
            self._shipped = {
                region: set() if any(name == report.exchange for _, name in missing) else missing
                for region, missing in self._shipped.items()
            }
            opened = [e for region in self._shipped for e in self._maybe_open(region)]
            return [*opened, *self._maybe_end()]
        return super()._reported(report)


class ReleasesAfterOneExchange(Coordinator):
    """R6: a part is released when one of its source's exchanges has all markers."""

    def _reported(self, report: Report) -> list[ce.Effect]:
        effects = super()._reported(report)
        if isinstance(report, MarkersIn) and self.phase is cm.CoordinatorPhase.MOVING:
            effects += [e for source in self._marked for e in self._maybe_poll(source)]
        return effects

    def _maybe_poll(self, source: str) -> list[ce.Effect]:
        missing, exchanges = self._marked[source], self._topology.sources[source]
        full = {name for _, name in missing}
        if not missing or all(name in full for name in exchanges):
            return super()._maybe_poll(source)
        self._marked[source] = set()
        return super()._maybe_poll(source)


class ReleasesAfterOneWorker(Coordinator):
    """R6: a part is released when one worker has all markers."""

    def _reported(self, report: Report) -> list[ce.Effect]:
        if isinstance(report, MarkersIn):
            here = [s for s, exs in self._topology.sources.items() if report.exchange in exs and self._marked[s]]
            for source in here:
                self._marked[source] = set()
            return [e for source in here for e in self._maybe_poll(source)] + self._maybe_end()
        return super()._reported(report)


class UninvolvedNotAsked(Coordinator):
    """R7: only those that gain or lose something must have ended."""

    def _maybe_end(self) -> list[ce.Effect]:
        move = self._current_move()
        involved = {w for was, now in zip(self.table, move.table, strict=True) if was != now for w in (was, now)}
        involved |= {worker for part in move.parts for worker in (part.giver, part.taker)}
        kept = (self._missing, self._shipped, self._marked)
        self._missing = {report for report in self._missing if report.worker in involved}
        self._shipped, self._marked = (
            {name: {pair for pair in missing if pair[0] in involved} for name, missing in waits.items()}
            for waits in (self._shipped, self._marked)
        )
        effects = super()._maybe_end()
        if self._move is move:
            self._missing, self._shipped, self._marked = kept
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
        self._forget(PartsPolled)
        self._marked = {source: set() for source in self._marked}
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
