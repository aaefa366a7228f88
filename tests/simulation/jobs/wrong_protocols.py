"""Wrong protocols in the production code, one clause broken each: the oracle of whole jobs must see every one.

Run it: ``python -m tests.simulation.jobs.wrong_protocols`` searches for the first seed that shows each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, Epoch, PartReleased
from malstrom_py.operators import read_source
from malstrom_py.operators.event_time import GenerateEpochs
from malstrom_py.operators.read_source import ReadSource
from malstrom_py.rescale.channels.channel import Grant, PlacedEpoch, RemoteInbound, RemoteOutbound, Share
from malstrom_py.rescale.moves.placement import plan_moves
from malstrom_py.rescale.moves.protocol import Bye, MarkersIn, RegionDone, RescaleMove, Shipped, ShippedIn, StateChunk
from malstrom_py.rescale.moves.receiving_machine import ReceivingMachine
from malstrom_py.state.ahead import KeptAside, SentKeys
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.state.timers import Timers
from malstrom_py.workers.coordinator.job_machine import SnapshotMachine
from malstrom_py.workers.coordinator.machine import CoordinatorMachine, CoordinatorPhase
from malstrom_py.workers.coordinator.snapshot_coordinator import SnapshotCoordinator
from malstrom_py.workers.engine.exchange import Exchange
from malstrom_py.workers.engine.idle_sources import IdleSource
from malstrom_py.workers.engine.region_input import RegionInput
from malstrom_py.workers.engine.routing_switch import RoutingSwitch
from malstrom_py.workers.engine.state_transfer import StateTransfer
from malstrom_py.workers.simulator import random_schedule
from malstrom_py.workers.simulator.random_schedule import RandomSchedule
from malstrom_py.workers.simulator.simulated_workers import SimulatedWorkers
from tests.simulation.jobs.jobs import GROWING
from tests.simulation.jobs.runs import run
from tests.simulation.jobs.verdicts import Violation
from tests.simulation.jobs.wrong_copies import (
    changes_missed,
    changes_unseen,
    confirmed_already,
    earlier_wins,
    found_late,
    over_what_came,
    taken_from_the_dead,
    the_gone_return,
    used_before_the_cut,
)
from tests.simulation.jobs.wrong_listings import (
    acknowledged_early,
    from_the_start,
    given_twice,
    in_no_snapshot,
    last_dropped,
    listed_only,
    never_late,
    without_unsaved,
)
from tests.simulation.searching import Found, first_seed, search

Right = Callable[..., Any]
Change = tuple[Any, str, Callable[[Right], Any]]
"""A class, the name of its function, and what takes its place."""

SEEDS: Final = 1_000
TURNS_MAX: Final = 60_000


class WrongProtocol(NamedTuple):
    """``changes`` of production code. ``seed``: of a run that shows it; ``shape``: of which jobs, None: of any.

    ``growing``: how probable it is that parts appear. ``ahead``: whether state goes ahead of each move; ``lost``: and
    every crash is then, while that state is in flight.
    """

    changes: tuple[Change, ...]
    seed: int = 0
    shape: str | None = None
    growing: float = GROWING
    ahead: bool = False
    lost: bool = False

    @contextmanager
    def done(self) -> Iterator[None]:
        """As long as this lasts it is done wrong, and a run that does not end is stopped."""
        with ExitStack() as stack:
            least = 0 if self.ahead else None
            stack.enter_context(patch.object(RandomSchedule, "ahead_least", lambda schedule: least))
            if self.lost:
                stack.enter_context(patch.object(random_schedule, "_COPYING", 1.0))
                stack.enter_context(patch.object(RandomSchedule, "ahead_turns", lambda schedule: 200))
                stack.enter_context(patch.object(RandomSchedule, "ahead_held", lambda schedule: StateChunk))
            for place, name, wrong in (*self.changes, (SimulatedWorkers, "receive", _ends)):
                stack.enter_context(patch.object(place, name, wrong(getattr(place, name))))
            yield

    def caught(self, seed: int) -> str | None:
        """How a run shows it: what the oracle says, or an error of the code that was left right."""
        with self.done():
            try:
                run(seed, shape=self.shape, growing=self.growing)
            except Exception as error:
                return f"{type(error).__name__}: {error}"
        return None


def _ends(right: Right) -> Right:
    turns = 0

    def receive(group: Any) -> Any:
        nonlocal turns
        turns += 1
        if turns > TURNS_MAX:
            raise Violation("no end: livelock (P8)")
        return right(group)

    return receive


def not_before_it_has_sent(right: Right) -> Right:
    """A worker follows the others only from its own first epoch on."""

    def follow(source: Any) -> None:
        if source._generator.sent > MIN_EPOCH:
            right(source)

    return follow


def nothing(right: Right) -> Right:
    """It is not done at all."""
    return lambda *given, **named: None


# -- R2: the switch --


def rises_at_hand_over(right: Right) -> Right:
    """A source's epoch rises as soon as its slowest part is handed over."""

    def on_part(step: Any, message: Any, out: Any) -> None:
        right(step, message, out)
        if isinstance(message, PartReleased):
            step._advance(out)

    return on_part


def ended_at_hand_over(right: Right) -> Right:
    """Who hands over its last part says immediately that its source is at its end."""

    def release(source: Any, out: Any, *, part: Any) -> Any:
        released = right(source, out, part=part)
        source.settle(out)
        return released

    return release


def without_its_epoch(right: Right) -> Right:
    """A part comes without its epoch."""
    return lambda switch, part: right(switch, replace(part, state=None))


def _marked(**changed: Callable[[int, int], int]) -> Callable[[Right], Right]:
    def wrong(right: Right) -> Right:
        def switch(exchange: Any, move: Any, *, before: int, after: int, idle: bool) -> None:
            times = {"before": before, "after": after, **{name: of(before, after) for name, of in changed.items()}}
            right(exchange, move, **times, idle=idle)

        return switch

    return wrong


# -- R3: the cut --


def later_lost(right: Right) -> Right:
    """Epochs that waited for the end of a move are dropped."""

    def maybe_done(machine: Any) -> Any:
        for side in machine._sides.values():
            side.later = {}
        return right(machine)

    return maybe_done


# -- R4, R5: state --


def timers_left(right: Right) -> Right:
    """A key moves without its timers."""

    def collect(state: KeyedState, keys: Any) -> bytes | None:
        with patch.object(KeyedState, "_times_of", lambda *given: {}):
            sent: bytes | None = right(state, keys)
        return sent

    return collect


def timers_unseen(right: Right) -> Right:
    """A key that has only timers is not found."""

    def interrogate(state: Any, predicate: Any, found: set[Any]) -> None:
        right(state, predicate, found)
        found.intersection_update({key for key in found if state.values.get(key) is not None})

    return interrogate


def found_once(right: Right) -> Right:
    """Keys that the index has not are not looked for, though they came in an earlier move of the rescale."""

    def start(transfer: Any, ship: Any) -> None:
        transfer._gained = set()
        right(transfer, ship)

    return start


def by_detours(right: Right) -> Right:
    """Not wrong: the first move of a rescale takes every slot to some other worker, and the next ones from there."""

    def init(machine: Any, *given: Any, **named: Any) -> None:
        asked: set[tuple[int, ...]] = set()

        def plan(version: int, members: Any, table: Any, parts: Any, wanted: Any, **options: Any) -> Any:
            between = tuple(sorted({*members, *wanted}))
            if tuple(wanted) in asked:
                return plan_moves(version, members, table, parts, wanted, **options)
            asked.add(tuple(wanted))
            turned = tuple(between[(between.index(owner) + 1) % len(between)] for owner in table)
            return [RescaleMove(version + 1, tuple(members), between, turned, more=True)]

        right(machine, *given, **named, plan_moves=plan)

    return init


def credit_of_held(right: Right) -> Right:
    """Rows that are held give their credit back."""
    return lambda lane, rows: Share(0, 0)


def credit_lost(right: Right) -> Right:
    """The credit of rows that were held never comes back."""

    def withhold(lane: Any, rows: int) -> Share:
        right(lane, rows)
        return Share(0, 0)

    return withhold


def credit_twice(right: Right) -> Right:
    """More credit is granted than was taken."""

    def give_back(lane: Any, share: Share, *given: Any) -> Grant:
        granted: Grant = right(lane, Share(share.rows + 1, share.size), *given)
        return granted

    return give_back


# -- R6, R7, R8: the coordinator --


def opened_after_one(right: Right) -> Right:
    """Gained slots are opened when Shipped is in everywhere on one of the exchanges of their region."""
    return _after_one(right, ShippedIn)


def polled_after_one(right: Right) -> Right:
    """A gained part is read when the markers are in everywhere on one of the exchanges of its source."""
    return _after_one(right, MarkersIn)


def _after_one(right: Right, kind: Any) -> Right:
    def reported(machine: Any, report: Any) -> Any:
        if isinstance(report, kind) and machine._unreported.get((kind, report.exchange)) == 1:
            beside = {name for exits in machine._fed(kind).values() if report.exchange in exits for name in exits}
            beside.discard(report.exchange)
            machine._missing = {r for r in machine._missing if not (isinstance(r, kind) and r.exchange in beside)}
            machine._unreported.update({(kind, name): 0 for name in beside})
        return right(machine, report)

    return reported


def shipped_to_members(right: Right) -> Right:
    """Shipped is not sent to those that leave."""

    def tell(region_input: Any, version: int) -> None:
        for exchange in region_input._exits:
            exchange.control(Shipped(version))

    return tell


def tolerant(right: Right) -> Right:
    """Reports that are not awaited are ignored."""

    def reported(machine: Any, report: Any) -> Any:
        moves = machine.phase is CoordinatorPhase.MOVING
        if not moves or (isinstance(report, RegionDone) and report not in machine._missing):
            return []
        return right(machine, report)

    return reported


def regions_not_awaited(right: Right) -> Right:
    """A move ends when everyone has switched."""

    def order(machine: Any, move: Any) -> Any:
        effects = right(machine, move)
        machine._missing = {report for report in machine._missing if not isinstance(report, RegionDone)}
        return effects

    return order


def no_wait_for_shipped(right: Right) -> Right:
    """Gained slots are opened without the coordinator's leave."""

    def maybe_done(machine: Any) -> Any:
        machine._allowed = True
        return right(machine)

    return maybe_done


def speaks_after_bye(right: Right) -> Right:
    """A leaver sends an epoch after Bye."""

    def leave(exchange: Any) -> None:
        exchange.control(Bye())
        exchange.on_epoch(Epoch(MAX_EPOCH))

    return leave


# -- T: time --


def epoch_first(right: Right) -> Right:
    """An epoch leaves before the rows that were gathered before it."""

    def on_epoch(exchange: Any, epoch: Any, out: Any = None) -> None:
        right(exchange, epoch, out)
        for channel in exchange.remote.values():
            channel._epochs[:] = [PlacedEpoch(0, placed.time, placed.idle) for placed in channel._epochs]

    return on_epoch


def epoch_to_others_only(right: Right) -> Right:
    """An epoch that one member got already is not sent to the others: they get the next one."""

    def on_epoch(exchange: Any, epoch: Any, out: Any = None) -> None:
        members = exchange._members
        if epoch.time != MAX_EPOCH and exchange._worker in members and len(members) > 1 and epoch.time % 2:
            exchange._members = members[:-1]
        right(exchange, epoch, out)
        exchange._members = members

    return on_epoch


def never_limited(right: Right) -> Right:
    """A time far in the future is taken for true."""

    def late(step: Any, part: Any, batch: Any) -> Any:
        most, step._max_ahead = step._max_ahead, None
        found = right(step, part, batch)
        step._max_ahead = most
        return found

    return late


# -- S: snapshots --


def parcels_unnoted(right: Right) -> Right:
    """Keys that came by a parcel are not noted as changed."""

    def take_in(state: Any, keys: Any, values: Any, times: Any, how: str) -> None:
        changes, timers = state._changes, state.timers
        state._changes, noted, timers.noted = None, timers.noted, None
        right(state, keys, values, times, how)
        state._changes, timers.noted = changes, noted

    return take_in


def leaving_unnoted(right: Right) -> Right:
    """Keys that left by a parcel are not noted as changed: a delta without deletes."""

    def collect(state: Any, keys: Any) -> Any:
        changes, timers = state._changes, state.timers
        state._changes, noted, timers.noted = None, timers.noted, None
        taken = right(state, keys)
        state._changes, timers.noted = changes, noted
        return taken

    return collect


def timers_unnoted(right: Right) -> Right:
    """A key whose timer has changed, and nothing else, is not noted."""

    def changed(timers: Any, key: Any, time: int) -> Any:
        noted, timers.noted = timers.noted, None
        result = right(timers, key, time)
        timers.noted = noted
        return result

    return changed


def manifest_of_some(right: Right) -> Right:
    """The manifest is written when some workers have saved."""

    def maybe_commit(machine: Any) -> Any:
        awaited = machine._awaited
        if machine._cut_made and machine._saved:
            machine._awaited = frozenset(machine._saved)
        effects = right(machine)
        machine._awaited = awaited
        return effects

    return maybe_commit


def saved_too_late(right: Right) -> Right:
    """What is saved after that is ignored."""

    def saved(machine: Any, report: Any) -> Any:
        return [] if machine.phase != "saving" or report.snapshot != machine._snapshot else right(machine, report)

    return saved


def finished_forgotten(right: Right) -> Right:
    """Of a finished part that moves the position is lost."""
    return lambda source, *, part, position: None


def always(right: Any) -> Any:
    """It always holds."""
    return property(lambda self: True)


def _of_row_credit(right: Any) -> Any:
    return property(lambda channel: channel._rows > channel._rows_kept)


WRONG: Final[dict[str, WrongProtocol]] = {
    "R2 epoch rises at hand-over": WrongProtocol(((GenerateEpochs, "on_part", rises_at_hand_over),), seed=101),
    "R2 the end is said at hand-over": WrongProtocol(((ReadSource, "release", ended_at_hand_over),), seed=24),
    "R2 a part comes without its epoch": WrongProtocol(((RoutingSwitch, "_take", without_its_epoch),), seed=52),
    "R2 the marker never goes back": WrongProtocol(((Exchange, "switch", _marked(after=max)),), seed=52),
    "R2 the marker forgets what was before": WrongProtocol(
        ((Exchange, "switch", _marked(before=lambda b, a: a)),), seed=24
    ),
    "R3 epochs that waited are lost": WrongProtocol(
        ((ReceivingMachine, "_maybe_done", later_lost),), seed=6, shape="two-stages"
    ),
    "R4 timers do not move": WrongProtocol(((KeyedState, "collect", timers_left),), seed=1, shape="windows-of-windows"),
    "R4 keys of an earlier move are not found": WrongProtocol(
        ((CoordinatorMachine, "__init__", by_detours), (StateTransfer, "start", found_once)), seed=7, shape="two-stages"
    ),
    "R5 held rows give their credit back": WrongProtocol(
        ((RemoteInbound, "withhold", credit_of_held),), seed=9, shape="two-stages"
    ),
    "R5 the credit of held rows is lost": WrongProtocol(
        ((RemoteInbound, "withhold", credit_lost),), seed=9, shape="two-stages"
    ),
    "R6 slots are opened after one exchange": WrongProtocol(
        ((CoordinatorMachine, "_reported", opened_after_one),), seed=5, shape="diamond"
    ),
    "R6 a part is read after one exchange": WrongProtocol(
        ((CoordinatorMachine, "_reported", polled_after_one),), seed=1, shape="diamond"
    ),
    "R6 no wait for Shipped": WrongProtocol(
        ((ReceivingMachine, "_maybe_done", no_wait_for_shipped),), seed=0, shape="three-stages"
    ),
    "R6 Shipped not sent to leavers": WrongProtocol(
        ((RegionInput, "_tell_receivers", shipped_to_members),), seed=0, shape="three-stages"
    ),
    "R7 a move ends when all have switched": WrongProtocol(
        ((CoordinatorMachine, "_order", regions_not_awaited), (CoordinatorMachine, "_reported", tolerant)),
        seed=0,
        shape="two-stages",
    ),
    "R8 epochs after Bye": WrongProtocol(((Exchange, "leave", speaks_after_bye),), seed=0, shape="two-stages"),
    "R12 a change during the copy is missed": WrongProtocol(
        ((SentKeys, "same", changes_missed), (SentKeys, "has", changes_unseen)), seed=16, ahead=True
    ),
    "R12 an earlier copy wins": WrongProtocol(
        # Keys that are found late are copied late, and change during that time.
        ((KeptAside, "put", earlier_wins), (CoordinatorMachine, "_find_keys", found_late)),
        seed=182,
        ahead=True,
    ),
    "R12 a key that is gone comes back": WrongProtocol(
        ((KeyedState, "forget_ahead", the_gone_return),), seed=14, shape="ttl", ahead=True
    ),
    "R12 state is used before the cut": WrongProtocol(
        (
            (KeyedState, "put_aside", used_before_the_cut),
            (KeyedState, "_acquire_aside", confirmed_already),
            (KeyedState, "acquire", over_what_came),
        ),
        seed=16,
        ahead=True,
    ),
    "R12 state of a move that was called off is used": WrongProtocol(
        ((SimulatedWorkers, "_drop", taken_from_the_dead),), seed=25, shape="two-stages", ahead=True, lost=True
    ),
    "R13 a new part is dropped": WrongProtocol(
        ((CoordinatorMachine, "_add_parts", last_dropped),), seed=0, growing=1.0
    ),
    "R13 new parts are given to two workers": WrongProtocol(
        ((CoordinatorMachine, "_add_parts", given_twice),), seed=6, growing=1.0
    ),
    "R13 a new part begins at its start": WrongProtocol(((ReadSource, "add", from_the_start),), seed=0, growing=1.0),
    "R13 a new part begins below its worker": WrongProtocol(
        ((GenerateEpochs, "_new", never_late),), seed=2, growing=1.0
    ),
    "R13 a worker without parts is finished": WrongProtocol(
        ((ReadSource, "expect_parts", nothing),), seed=0, growing=1.0
    ),
    "R13 who has joined does not catch up": WrongProtocol(
        # A worker that has joined follows the others in its next step, so that it seldom has to catch up.
        ((IdleSource, "catch_up", nothing), (IdleSource, "follow", not_before_it_has_sent)),
        seed=104,
        growing=1.0,
    ),
    "R13 a recovery forgets what is listed no more": WrongProtocol(
        ((read_source, "with_known", listed_only),), seed=116, growing=1.0
    ),
    "R13 a new part is in no snapshot": WrongProtocol(
        ((ReadSource, "add", in_no_snapshot), (ReadSource, "on_control", without_unsaved)), seed=28, growing=1.0
    ),
    "S7 acknowledged before it is durable": WrongProtocol(
        ((SnapshotCoordinator, "_store", acknowledged_early),), seed=279, growing=1.0
    ),
    "T2 idle parts keep their epoch": WrongProtocol(
        ((GenerateEpochs, "_catch_up", nothing),), seed=28, shape="several-sources"
    ),
    "T3 an epoch overtakes rows": WrongProtocol(((Exchange, "on_epoch", epoch_first),), seed=9, shape="two-stages"),
    "T3 not the same epochs to all": WrongProtocol(
        ((Exchange, "on_epoch", epoch_to_others_only),), seed=4, shape="two-stages"
    ),
    "T4 the future is let in": WrongProtocol(((GenerateEpochs, "_split", never_limited),), seed=1, shape="linear"),
    "S1 finished parts that move are forgotten": WrongProtocol(
        ((ReadSource, "take_finished", finished_forgotten),), seed=0, shape="linear"
    ),
    "S2 keys of parcels are not noted": WrongProtocol(
        ((KeyedState, "_take_in", parcels_unnoted),), seed=13, shape="two-stages"
    ),
    "S2 keys that left are not noted": WrongProtocol(
        ((KeyedState, "collect", leaving_unnoted),), seed=25, shape="two-stages"
    ),
    "S2 a fired timer is not noted": WrongProtocol(
        ((Timers, "_forget", timers_unnoted),), seed=20, shape="windows-of-windows"
    ),
    "S3 the manifest does not wait for all": WrongProtocol(
        ((SnapshotMachine, "_maybe_commit", manifest_of_some), (SnapshotMachine, "_worker_saved", saved_too_late)),
        seed=6,
        shape="two-stages",
    ),
    "F2 data despite a backlog": WrongProtocol(((RegionInput, "open", always),), seed=0, shape="two-stages"),
    "F2 bytes need no credit": WrongProtocol(
        ((RemoteOutbound, "_has_credit", _of_row_credit),), seed=6, shape="two-stages"
    ),
    "F2 data needs no credit": WrongProtocol(((RemoteOutbound, "_has_credit", always),), seed=4, shape="two-stages"),
    "F2 more credit comes back": WrongProtocol(
        ((RemoteInbound, "give_back", credit_twice),), seed=0, shape="two-stages"
    ),
}


def found(name: str) -> Found:
    """Search for a seed that shows a wrong protocol."""
    return first_seed(WRONG, SEEDS, name)


if __name__ == "__main__":
    sys.exit(search(found, WRONG, __doc__))
