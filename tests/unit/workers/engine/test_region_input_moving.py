"""A feed while slots move: what is held and in which order, what credit it keeps, what is let in regardless."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import Epoch
from malstrom_py.rescale.channels.channel import ChannelId, Credit, Frame, Grant, RemoteInbound
from malstrom_py.rescale.moves.protocol import (
    Bye,
    ByesTaken,
    MarkersIn,
    OpenSlots,
    RegionDone,
    Shipped,
    ShippedIn,
    StartMove,
    StateChunk,
)
from malstrom_py.rescale.moves.receiving_machine import ReceivingPhase
from malstrom_py.testing import VirtualClock, strategies
from malstrom_py.workers.engine.region_input import MovePause
from malstrom_py.workers.engine.state_transfer import SHIPS_S
from tests.unit.workers.engine.region import (
    BEFORE_GAIN,
    BIG,
    CHANNELS,
    MARK_GAIN,
    MARK_LOSE,
    SLOTS,
    Region,
    gaining,
    open_up,
    rest_marked,
)

# What is taken in however full the outputs are.


def full() -> Region:
    """A region whose output is backlogged, about to lose slots 1 and 3."""
    region = Region(exit_credit=1)
    region.send("left", 1, [0], [2])
    region.take()
    assert not region.region_input.open
    region.got()
    return region


def test_f2_what_moves_slots_is_taken_in_while_the_region_is_backlogged() -> None:
    region = full()
    assert not region.region_input.ready
    region.send("left", 1, MARK_LOSE)
    assert region.region_input.ready
    rest_marked(region, MARK_LOSE)
    assert MarkersIn(1, 0, "left") in region.told()
    assert region.region_input.ready, "a parcel is to be sent"
    region.region_input.ship()
    assert region.told() == [RegionDone(1, 0, "R")]
    for exchange, worker in CHANNELS:
        region.send(exchange, worker, Shipped(1))
    region.take()
    assert region.told() == [ShippedIn(1, 0, "left"), ShippedIn(1, 0, "right")]
    region.send("left", 1, Bye())
    region.take()
    assert region.told() == [ByesTaken(1, 0, "left")]
    assert not region.region_input.open


@pytest.mark.parametrize("worker", [0, 1])
def test_f2_what_moves_slots_waits_behind_the_rows_before_it(worker: int) -> None:
    region = full()
    region.send("left", worker, [4], MARK_LOSE)
    assert not region.region_input.ready
    region.take()
    assert (region.got(), region.told()) == ([], [])
    region.exit.remote[1].grant(Grant(ChannelId("exit", 0, 1), 1, 100, 10_000))
    region.sent += region.exit.remote[1].take()
    region.take()
    assert region.got() == [4]
    assert len(region.exchanges["left"].loopback) == 0


def test_f2_what_is_left_of_an_opened_frame_is_not_overtaken() -> None:
    """A frame with an epoch among its rows is opened item by item: a marker in the next frame is not yet its turn."""
    region = Region(exit_credit=1)
    out = region.remote["left"]
    for row, epoch in ((0, 3), (2, 4)):
        out.put(Batch([row], keys=[row]))
        out.put_epoch(Epoch(epoch))
    out.put(Batch([4], keys=[4]))
    region.send("left", 1, MARK_LOSE)
    region.take()
    region.take()
    assert region.got() == [0, 2]
    assert region.told() == []
    assert not region.region_input.ready


# Shipping.


def losing(*keys: int, **options: Any) -> Region:
    """A region that has state of ``keys`` and all markers of `LOSE`."""
    region = Region(**options)
    for key in keys:
        region.send("left", 1, [key])
    region.take()
    region.got()
    for exchange, worker in CHANNELS:
        region.send(exchange, worker, MARK_LOSE)
    region.take()
    return region


def commands(frames: list[Frame]) -> list[Any]:
    return [frame.control for frame in frames if frame.control is not None]


def test_a_move_that_has_ended_says_what_it_took() -> None:
    region = losing(1, 3, 5, 2, keys_first=1)
    while region.region_input.ship():
        region.clock.advance(0.25)
    (report,) = [report for report in region.told() if isinstance(report, RegionDone)]
    assert report.paused_s > 0
    assert report.paused_s % 0.25 == 0
    assert (report.keys, report.bytes) == (3, region.shipping.bytes_moved)
    taker = gaining()
    rest_marked(taker, MARK_GAIN)
    taker.clock.advance(9.0)
    open_up(taker)
    (report,) = [report for report in taker.told() if isinstance(report, RegionDone)]
    assert (report.paused_s, report.keys, report.bytes) == (0.0, 0, 0)


def test_what_leaves_is_looked_for_from_the_order_on_while_rows_come() -> None:
    region = Region(keys_first=1)
    region.send("left", 1, [1], [3], [2])
    region.take()
    assert not region.region_input.has_to_ship
    region.region_input.prepare(StartMove(MARK_LOSE.move))
    assert region.region_input.has_to_ship
    assert region.region_input.ready
    region.send("right", 0, [5], [2])
    region.take()
    assert region.region_input.steady
    while region.region_input.has_to_ship:
        assert region.region_input.ship() == 1
    for exchange, worker in CHANNELS:
        region.send(exchange, worker, MARK_LOSE)
    region.take()
    while region.region_input.ship():
        pass
    parcels = [message for receiver, message in region.messages if isinstance(message, StateChunk)]
    assert sorted(slot for parcel in parcels for slot in parcel.slots) == [1, 3]
    assert region.shipping.keys_moved == 3
    assert set(region.kept.state.values) == {2}
    assert not region.shipping.watching


def test_chunks_are_shipped_one_after_the_other_until_their_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    region = losing(1, 3, 5, 7, 9, 11, keys_first=1)
    region.shipping.ships_s = SHIPS_S
    real = region.shipping.next

    def takes_some_time() -> tuple[int, StateChunk]:
        region.clock.advance(0.4 * SHIPS_S)
        monkeypatch.setattr(region.shipping, "_keys_max", 1)
        return real()

    monkeypatch.setattr(region.shipping, "next", takes_some_time)
    shipped = []
    while region.region_input.ship():
        shipped.append(sum(isinstance(message, StateChunk) for _, message in region.messages))
    assert shipped[:2] == [3, 6]
    assert region.shipping.keys_moved == 6


def test_r6_shipped_goes_out_behind_what_was_sent_before_and_once_all_is_shipped() -> None:
    region = losing(1, 3, keys_first=1)
    region.sent.clear()
    region.region_input.ship()
    assert commands(region.exit.remote[1].take()) == []
    region.send("left", 1, [2])
    region.take()
    while region.region_input.ship():
        pass
    region.sent += region.exit.remote[1].take()
    assert [frame.control or frame.rows for frame in region.sent] == [1, Shipped(1)]
    assert Shipped(1) in [region.exit.loopback.take() for _ in range(9)]
    assert region.told()[-1] == RegionDone(1, 0, "R")


# What rows that are held cost: their credit, all of it and no more (F2, R5).


@pytest.mark.parametrize("keys", [[1], [0, 1], [0, 1, 1]])
def test_f2_no_byte_of_credit_is_lost_when_rows_are_held(keys: list[int]) -> None:
    """Bytes are shared out by rows, which does not always come out even."""
    region = gaining()
    for times in range(1, 100):
        region.send("left", 1, keys * times)
    region.give(region.take())
    rest_marked(region, MARK_GAIN)
    region.give(open_up(region))
    out, into = region.remote["left"], region.exchanges["left"].inbound[1]
    assert isinstance(into, RemoteInbound)
    assert (out._rows + into.gathered.rows, out._size + into.gathered.size) == (BIG.rows, BIG.size)


def test_f2_held_rows_count_in_the_loopback_until_they_go_in() -> None:
    region = gaining(credit=Credit(rows=3))
    region.send("left", 0, MARK_GAIN, [0, 1, 4, 5, 9])
    region.take()
    assert region.got() == [0, 4]
    assert region.exchanges["left"].loopback.backlogged
    for channel in [("right", 0), ("right", 1)]:
        region.send(*channel, MARK_GAIN)
    region.take()
    open_up(region)
    assert not region.exchanges["left"].loopback.backlogged


@st.composite
def channel_scripts(draw: st.DrawFn) -> list[list[Any]]:
    """What comes on each channel: rows of slots that do not move, the marker, rows of all slots."""
    before = st.lists(st.sampled_from([[0], [2]]), max_size=3)
    after = st.lists(st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=4), max_size=4)
    return [[*draw(before), MARK_GAIN, *draw(after)] for _ in CHANNELS]


@given(scripts=channel_scripts(), schedule=strategies.schedules(5), rows=st.integers(1, 9))
def test_r5_in_whatever_order_things_come_each_key_keeps_its_own_on_each_channel(
    scripts: list[list[Any]], schedule: list[int], rows: int
) -> None:
    """Rows before and after the markers, chunks at any time, OpenSlots after the cut: every row passes exactly once."""
    region = Region(table=BEFORE_GAIN, credit=Credit(rows=rows, size=1))
    messages: list[StateChunk | OpenSlots] = [
        StateChunk("R", 1, 1, (1,)),
        OpenSlots(1, "R"),
        StateChunk("R", 1, 1, (3,)),
    ]
    expected: dict[tuple[int, int], list[Any]] = {}
    for turn in [*schedule, *(number for _ in range(20) for number in range(5))]:
        # The coordinator sends OpenSlots when all workers have sent Shipped, which is after the cut.
        if (
            turn == 4
            and messages
            and (region.machine.phase is ReceivingPhase.MOVING or isinstance(messages[0], StateChunk))
        ):
            region.region_input.receive(messages.pop(0))
        elif turn < 4 and scripts[turn]:
            region.send(*CHANNELS[turn], numbered(scripts[turn].pop(0), turn, expected))
        region.give(region.take())
    region.give(region.take())
    found = region.kept.state.values
    assert {
        (number, key): [value for value in of_key if value[0] == number]
        for key, of_key in found.items()
        for number in range(4)
        if any(value[0] == number for value in of_key)
    } == expected
    assert region.region_input.steady
    assert [(len(out._backlog), out._rows, out._size) for out in region.remote.values()] == [(0, rows, 1)] * 2
    assert not any(exchange.loopback._rows for exchange in region.exchanges.values())


def numbered(item: Any, channel: int, sent: dict[tuple[int, int], list[Any]]) -> Any:
    """Group rows, which carry their channel and number, by channel and key; other items are unchanged."""
    if not isinstance(item, list):
        return item
    before = sum(len(of_key) for (other, _), of_key in sent.items() if other == channel)
    rows = [(channel, before + place) for place in range(len(item))]
    for key, row in zip(item, rows, strict=True):
        sent.setdefault((channel, key), []).append(row)
    return Batch(rows, keys=item)


# How long the keys of a move are held.


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def test_what_leaves_is_held_from_the_last_marker_until_all_has_left(clock: VirtualClock) -> None:
    pause = MovePause(clock)
    pause.marked()
    clock.advance(10.0)
    pause.marked()
    clock.advance(0.5)
    pause.shipped()
    clock.advance(10.0)
    assert pause.taken() == 0.5


def test_what_comes_is_held_from_the_first_parcel_until_the_last_is_in(clock: VirtualClock) -> None:
    pause = MovePause(clock)
    pause.marked()
    clock.advance(10.0)
    for _ in range(3):
        pause.begins()
        clock.advance(0.25)
        pause.put_in()
    clock.advance(10.0)
    assert pause.taken() == 0.75


def test_the_longer_one_counts_and_the_next_move_begins_with_nothing(clock: VirtualClock) -> None:
    pause = MovePause(clock)
    pause.marked()
    pause.begins()
    clock.advance(0.25)
    pause.put_in()
    clock.advance(0.5)
    pause.shipped()
    assert (pause.taken(), pause.taken()) == (0.75, 0.0)
    pause.begins()
    clock.advance(0.125)
    pause.put_in()
    assert pause.taken() == 0.125
