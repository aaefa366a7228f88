"""The receiving side of a region: each rule alone. Two workers, 0 and 1; slot 1 moves from 0 to 1 unless said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.errors import InternalError
from malstrom_py.rescale.moves import receiving_machine as re
from malstrom_py.rescale.moves.protocol import (
    Bye,
    ByesTaken,
    InBand,
    Marker,
    MarkersIn,
    OpenSlots,
    RegionDone,
    RescaleMove,
    SendReport,
    Shipped,
    ShippedIn,
    StateChunk,
)
from malstrom_py.rescale.moves.receiving_machine import TRANSITIONS, ReceivingMachine, ReceivingPhase

MOVE = RescaleMove(1, (0, 1), (0, 1), (0, 1))
JOIN = RescaleMove(1, (0,), (0, 1), (0, 1))
LEAVE = RescaleMove(1, (0, 1), (0,), (0, 0))


class Region:
    """A machine under test, and every machine that a test made: `check()` is called on all of them at its end."""

    made: list[ReceivingMachine]

    def __init__(self) -> None:
        self.made = []

    def __call__(
        self,
        worker: int = 1,
        *,
        exchanges: tuple[str, ...] = ("A",),
        feeds_exchanges: bool = False,
        members: tuple[int, ...] = (0, 1),
        table: tuple[int, ...] = (0, 0),
    ) -> ReceivingMachine:
        machine = ReceivingMachine(
            "R", worker, exchanges=exchanges, feeds_exchanges=feeds_exchanges, members=members, table=table
        )
        self.made.append(machine)
        return machine


@pytest.fixture
def region() -> Iterator[Region]:
    made = Region()
    yield made
    for machine in made.made:
        machine.check()


def take(machine: ReceivingMachine, sender: int, message: InBand, exchange: str = "A") -> list[re.Effect]:
    return machine.handle(re.InBandTaken(exchange, sender, message))


def epoch(
    machine: ReceivingMachine, sender: int, time: int, *, idle: bool = False, exchange: str = "A"
) -> list[re.Effect]:
    return machine.handle(re.EpochTaken(exchange, sender, time, idle))


def marked(machine: ReceivingMachine, move: RescaleMove, **epochs: int) -> list[re.Effect]:
    """All markers of ``move``, in order, each before=after=5 unless said; the effects of the last."""
    effects: list[re.Effect] = []
    for sender in move.everyone:
        before, after = epochs.get(f"before{sender}", 5), epochs.get(f"after{sender}", 5)
        effects = take(machine, sender, Marker(move, before, after))
    return effects


PARCEL = StateChunk("R", 1, 0, (1,), {"1": b"state"})


def test_t3_the_frontier_is_the_minimum_over_the_senders(region: Region) -> None:
    machine = region()
    assert epoch(machine, 0, 7) == []
    assert epoch(machine, 1, 4) == [re.Advance("A", 4)]
    assert epoch(machine, 1, 9) == [re.Advance("A", 7)]
    assert machine.frontier("A") == 7


def test_t3_an_epoch_that_comes_again_moves_nothing(region: Region) -> None:
    machine = region(members=(0,), worker=0)
    assert epoch(machine, 0, 7) == [re.Advance("A", 7)]
    assert epoch(machine, 0, 7) == []


def test_t2_an_idle_sender_counts_in_the_minimum_and_is_not_followed(region: Region) -> None:
    machine = region()
    epoch(machine, 0, 3, idle=True)
    epoch(machine, 1, 8)
    assert machine.frontier("A") == 3
    assert machine.active("A") == 8
    epoch(machine, 0, 3)
    assert machine.active("A") == 3


def test_t2_finished_senders_are_not_followed(region: Region) -> None:
    machine = region()
    epoch(machine, 0, 3, idle=True)
    epoch(machine, 1, MAX_EPOCH)
    assert machine.active("A") is None


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(-9, 9) | st.just(MAX_EPOCH), st.booleans()),
        max_size=30,
    )
)
def test_t3_a_receiver_waits_for_every_sender_idle_or_not(epochs: list[tuple[int, int, bool]]) -> None:
    machine = ReceivingMachine("R", 1, exchanges=("A",), feeds_exchanges=False, members=(0, 1, 2), table=(0,))
    reached, idle, merged = [MIN_EPOCH] * 3, [False] * 3, MIN_EPOCH
    for sender, time, at_rest in epochs:
        effects = epoch(machine, sender, time, idle=at_rest)
        machine.check()
        reached[sender], idle[sender] = max(time, reached[sender]), at_rest
        assert effects == ([re.Advance("A", min(reached))] if min(reached) > merged else [])
        merged = max(merged, min(reached))
        assert machine.frontier("A") == merged
        active = [at for at, rests in zip(reached, idle, strict=True) if not rests and at != MAX_EPOCH]
        assert machine.active("A") == min(active, default=None)


def test_t2_the_flag_travels_with_the_marker_and_with_held_epochs(region: Region) -> None:
    machine = region()
    take(machine, 0, Marker(MOVE, 5, 5, idle=True))
    take(machine, 1, Marker(MOVE, 5, 6))
    assert machine.active("A") == 6
    epoch(machine, 1, 9, idle=True)
    assert machine.active("A") == 6
    machine.handle(re.StateTaken(PARCEL))
    assert machine.active("A") is None


def test_r3_rows_are_not_blocked_by_a_marker(region: Region) -> None:
    machine = region(0)
    take(machine, 0, Marker(MOVE, 5, 5))
    assert machine.handle(re.RowsTaken("A", 0, 1, "new")) == [re.Pass("A", "new")]
    assert machine.handle(re.RowsTaken("A", 1, 0, "old")) == [re.Pass("A", "old")]


def test_r3_an_epoch_behind_a_marker_waits_for_all_markers_and_open_slots(region: Region) -> None:
    machine = region()
    take(machine, 0, Marker(MOVE, 5, 5))
    assert epoch(machine, 0, 8) == []
    take(machine, 1, Marker(MOVE, 5, 9))
    assert machine.frontier("A") == 5
    effects = machine.handle(re.StateTaken(PARCEL))
    assert effects == [re.Install(PARCEL), re.Release(), re.Advance("A", 8), SendReport(RegionDone(1, 1, "R"))]


def test_r3_the_cut_is_the_minimum_of_the_old_senders_last_epochs(region: Region) -> None:
    machine = region(members=(0,))
    effects = marked(machine, JOIN, before0=6, before1=2, after0=6, after1=MAX_EPOCH)
    assert effects == [SendReport(MarkersIn(1, 1, "A")), re.Advance("A", 6)]


def test_r3_the_frontier_does_not_go_back_behind_the_cut(region: Region) -> None:
    machine = region(0)
    epoch(machine, 0, 9)
    epoch(machine, 1, 9)
    marked(machine, MOVE, before0=9, before1=9, after0=9, after1=2)
    machine.handle(re.ShippingEnded(1))
    assert machine.frontier("A") == 9
    assert epoch(machine, 1, 7) == []
    assert epoch(machine, 0, 12) == []
    assert epoch(machine, 1, 11) == [re.Advance("A", 11)]


def test_r3_a_joiner_emits_nothing_before_its_cut(region: Region) -> None:
    machine = region(members=(0,))
    assert epoch(machine, 0, 4) == []
    assert marked(machine, JOIN, before0=4)[-1] == re.Advance("A", 4)


def test_r4_all_inputs_of_the_region_are_aligned(region: Region) -> None:
    machine = region(0, exchanges=("A", "B"))
    assert marked(machine, MOVE) == [SendReport(MarkersIn(1, 0, "A"))]
    take(machine, 0, Marker(MOVE, 3, 3), "B")
    last = take(machine, 1, Marker(MOVE, 3, 3), "B")
    assert last[-1] == re.Ship(1, ((1, 1),))
    assert {effect.exchange for effect in last if isinstance(effect, re.Advance)} == {"A", "B"}


def test_r4_moved_slots_are_frozen_while_they_are_shipped(region: Region) -> None:
    machine = region(0)
    marked(machine, MOVE)
    assert epoch(machine, 0, 9) == []
    assert epoch(machine, 1, 9) == []
    assert machine.handle(re.ShippingEnded(1)) == [re.Advance("A", 9), SendReport(RegionDone(1, 0, "R"))]


def test_r4_slots_without_state_are_asked_for_too(region: Region) -> None:
    machine = region(0, table=(0, 0))
    assert marked(machine, RescaleMove(1, (0, 1), (0, 1), (1, 1)))[-1] == re.Ship(1, ((0, 1), (1, 1)))


def test_r5_rows_of_slots_that_are_not_here_yet_are_held(region: Region) -> None:
    machine = region()
    take(machine, 0, Marker(MOVE, 5, 5))
    assert machine.handle(re.RowsTaken("A", 0, 1, "rows")) == [re.Pass("A", "rows", frozenset({1}))]
    assert machine.pending == {1}


def test_r5_a_parcel_before_any_marker_is_kept_until_the_cut(region: Region) -> None:
    machine = region()
    assert machine.handle(re.StateTaken(PARCEL)) == []
    assert marked(machine, MOVE)[1:4] == [re.Advance("A", 5), re.Install(PARCEL), re.Release()]


def test_r5_a_parcel_between_markers_waits_for_the_cut(region: Region) -> None:
    machine = region()
    take(machine, 0, Marker(MOVE, 5, 5))
    assert machine.handle(re.StateTaken(PARCEL)) == []
    assert re.Install(PARCEL) in take(machine, 1, Marker(MOVE, 5, 5))


def test_r6_a_region_that_feeds_exchanges_opens_its_slots_when_it_may(region: Region) -> None:
    machine = region(feeds_exchanges=True)
    assert re.SendShipped(1) in marked(machine, MOVE)
    assert machine.handle(re.StateTaken(PARCEL)) == [re.Install(PARCEL)]
    assert machine.handle(re.OpenTaken(OpenSlots(1, "R"))) == [re.Release(), SendReport(RegionDone(1, 1, "R"))]


def test_r6_leave_to_open_may_come_before_the_state(region: Region) -> None:
    machine = region(feeds_exchanges=True)
    marked(machine, MOVE)
    assert machine.handle(re.OpenTaken(OpenSlots(1, "R"))) == []
    assert re.Release() in machine.handle(re.StateTaken(PARCEL))


def test_r6_a_region_that_gains_nothing_does_not_wait(region: Region) -> None:
    machine = region(0, feeds_exchanges=True)
    marked(machine, MOVE)
    assert machine.handle(re.ShippingEnded(1)) == [re.SendShipped(1), SendReport(RegionDone(1, 0, "R"))]
    assert machine.handle(re.OpenTaken(OpenSlots(1, "R"))) == []


def test_r6_shipped_is_reported_when_it_has_come_from_all_senders(region: Region) -> None:
    machine = region(0)
    marked(machine, MOVE)
    assert take(machine, 0, Shipped(1)) == []
    assert take(machine, 1, Shipped(1)) == [SendReport(ShippedIn(1, 0, "A"))]


def test_r7_who_neither_gains_nor_loses_is_done_at_the_cut(region: Region) -> None:
    machine = region(2, members=(0, 1, 2))
    move = RescaleMove(1, (0, 1, 2), (0, 1, 2), (0, 1))
    assert marked(machine, move)[-1] == SendReport(RegionDone(1, 2, "R"))
    assert machine.phase is ReceivingPhase.STEADY


def test_r8_a_leaver_counts_until_its_bye(region: Region) -> None:
    machine = region(0, table=(0, 1))
    marked(machine, LEAVE)
    machine.handle(re.StateTaken(StateChunk("R", 1, 1, (1,))))
    assert epoch(machine, 0, 9) == []
    assert take(machine, 1, Bye()) == [re.Advance("A", 9), SendReport(ByesTaken(1, 0, "A"))]


def test_all_transitions_lead_through_a_whole_move(region: Region) -> None:
    machine = region()
    phases = [machine.phase]
    for step in (Marker(MOVE, 5, 5), Marker(MOVE, 5, 5)):
        take(machine, len(phases) - 1, step)
        phases.append(machine.phase)
    machine.handle(re.StateTaken(PARCEL))
    assert [*phases, machine.phase] == [
        ReceivingPhase.STEADY,
        ReceivingPhase.MARKING,
        ReceivingPhase.MOVING,
        ReceivingPhase.STEADY,
    ]
    assert set(TRANSITIONS.values()) == set(ReceivingPhase)
    assert machine.moving_version == machine.version == 1


def test_r8_the_byes_of_all_leavers_are_one_report(region: Region) -> None:
    machine = region(0, table=(0, 0), members=(0, 1, 2))
    marked(machine, RescaleMove(1, (0, 1, 2), (0,), (0, 0)))
    assert [e for e in take(machine, 2, Bye()) if isinstance(e, SendReport)] == []
    assert SendReport(ByesTaken(1, 0, "A")) in take(machine, 1, Bye())


def marker(sender: int, version: int = 1, table: tuple[int, ...] = (0, 1)) -> re.InBandTaken:
    return re.InBandTaken("A", sender, Marker(RescaleMove(version, (0, 1), (0, 1), table), 5, 5))


MARKERS = (marker(0), marker(1))
STATE_OF_LEAVER = re.StateTaken(StateChunk("R", 1, 1, (1,)))
LEFT = (
    *(re.InBandTaken("A", sender, Marker(LEAVE, 5, 5)) for sender in (0, 1)),
    STATE_OF_LEAVER,
    re.InBandTaken("A", 1, Bye()),
)


@pytest.mark.parametrize(
    ("options", "before", "wrong", "said"),
    [
        (
            {"worker": 0, "members": (0,)},
            (),
            re.EpochTaken("A", 1, 3, False),
            "an epoch of worker 1, which is not a me",
        ),
        ({}, (), re.RowsTaken("A", 0, 1, "rows"), "rows of version 1, expected 0"),
        ({}, MARKERS[:1], re.RowsTaken("A", 0, 0, "rows"), "rows of version 0, expected 1"),
        ({}, MARKERS, re.StateTaken(StateChunk("R", 1, 0, (0,))), "not awaited"),
        ({}, MARKERS, re.StateTaken(StateChunk("R", 2, 0, (1,))), "another move"),
        ({}, (), re.InBandTaken("A", 0, Shipped(1)), "Shipped of version 1 at 0"),
        ({}, MARKERS[:1], marker(1, table=(1, 1)), "another move"),
        ({}, (), marker(0, version=2), "a marker of version 2 at 0"),
        ({}, MARKERS[:1], marker(0), "second marker of worker 0"),
        ({}, (), re.ShippingEnded(1), "nothing is shipped"),
        (
            {"worker": 0, "table": (0, 1)},
            LEFT,
            re.EpochTaken("A", 1, 9, False),
            "an epoch of worker 1, which is not a m",
        ),
    ],
    ids=[
        *("a joiner speaks before its marker", "no marker of this version", "old rows after the marker"),
        *("state of another slot", "state of another move", "Shipped of another version", "a second move"),
        *("a version is left out", "a second marker", "nothing was shipped", "an epoch after Bye"),
    ],
)
def test_r7_what_may_not_come_is_an_internal_error(
    options: dict[str, Any], before: tuple[re.Event, ...], wrong: re.Event, said: str, region: Region
) -> None:
    machine = region(**options)
    for event in before:
        machine.handle(event)
    with pytest.raises(InternalError, match=said):
        machine.handle(wrong)
