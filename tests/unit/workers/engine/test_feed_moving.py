"""A feed while slots move: what is held and in which order, what credit it keeps, what is let in regardless."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import Epoch
from malstrom_py.rescale.channels.channel import ChannelId, Frame, Grant
from malstrom_py.rescale.moves.protocol import (
    Bye,
    ByesTaken,
    Marker,
    MarkersIn,
    OpenSlots,
    RegionDone,
    RescaleMove,
    Shipped,
    ShippedIn,
    StartMove,
    StateChunk,
)
from tests.unit.workers.engine.region import (
    BEFORE_GAIN,
    CHANNELS,
    EMPTY,
    MARK_GAIN,
    MARK_LOSE,
    Region,
    gaining,
    open_up,
    rest_marked,
    values,
)


def test_r5_rows_of_slots_that_are_not_here_are_held_and_those_of_others_go_in() -> None:
    region = gaining()
    region.send("left", 1, [0, 1, 2, 3, 4, 5])
    region.take()
    assert region.got() == [0, 2, 4]
    region.send("left", 1, [1, 9], [8])
    region.take()
    assert region.got() == [8]
    rest_marked(region, MARK_GAIN)
    assert values(region) == []
    open_up(region)
    assert values(region) == [1, 3, 5, 1, 9]


def test_r5_held_rows_of_all_channels_go_in_as_they_came() -> None:
    region = gaining()
    rest_marked(region, MARK_GAIN)
    region.send("left", 1, [1])
    region.take()
    region.send("right", 0, [5])
    region.take()
    region.send("left", 1, [9])
    region.take()
    region.send("left", 0, [13])
    region.take()
    assert values(region) == []
    open_up(region)
    assert values(region) == [1, 5, 9, 13]


def test_r5_held_rows_go_in_before_the_epochs_that_waited_behind_them() -> None:
    region = gaining()
    region.send("left", 1, [1], 8)
    rest_marked(region, MARK_GAIN)
    for exchange, worker in CHANNELS[:1] + CHANNELS[2:]:
        region.send(exchange, worker, 9)
    region.take()
    assert region.got() == [Epoch(5)]
    open_up(region)
    assert region.got() == [1, Epoch(8)]


def test_r5_the_state_is_in_before_the_rows_that_waited_for_it() -> None:
    giver = Region()
    giver.send("left", 1, [1], [3], [1])
    giver.take()
    for exchange, worker in CHANNELS:
        giver.send(exchange, worker, MARK_LOSE)
    giver.take()
    while giver.feed.ship():
        pass
    ((owner, parcel),) = [letter for letter in giver.letters if letter[0] == 1]
    assert (owner, type(parcel)) == (1, StateChunk)
    taker = gaining()
    taker.send("left", 1, [1])
    rest_marked(taker, MARK_GAIN)
    assert isinstance(parcel, StateChunk)
    open_up(taker, parcel)
    assert taker.kept.state.values == {1: [1, 1, 1], 3: [3]}
    assert (giver.kept.state.values, giver.shipping.keys_moved) == ({}, 2)


def test_r5_rows_of_the_old_version_are_let_in_while_others_have_marked() -> None:
    region = gaining()
    region.send("right", 1, [0, 2])
    region.send("right", 0, [4])
    region.take()
    assert sorted(region.got()) == [0, 2, 4]


@pytest.mark.parametrize("columns", [False, True])
def test_r5_columns_are_parted_like_rows(columns: bool) -> None:
    region = gaining()
    batch: Batch = Batch([{"n": n} for n in range(4)], keys=[0, 1, 2, 3])
    if columns:
        batch = ColumnBatch(pa.RecordBatch.from_pydict({"n": [0, 1, 2, 3]}), keys=[0, 1, 2, 3])
    region.send("left", 1, batch)
    region.take()
    assert region.got() == [{"n": 0}, {"n": 2}]
    rest_marked(region, MARK_GAIN)
    open_up(region)
    assert values(region) == [{"n": 1}, {"n": 3}]


# What is taken in however full the outputs are.


def full() -> Region:
    """A region whose output is backlogged, about to lose slots 1 and 3."""
    region = Region(exit_credit=1)
    region.send("left", 1, [0], [2])
    region.take()
    assert not region.feed.open
    region.got()
    return region


def test_f2_what_moves_slots_is_taken_in_while_the_region_is_backlogged() -> None:
    region = full()
    assert not region.feed.ready
    region.send("left", 1, MARK_LOSE)
    assert region.feed.ready
    rest_marked(region, MARK_LOSE)
    assert MarkersIn(1, 0, "left") in region.told()
    assert region.feed.ready, "a parcel is to be sent"
    region.feed.ship()
    assert region.told() == [RegionDone(1, 0, "R")]
    for exchange, worker in CHANNELS:
        region.send(exchange, worker, Shipped(1))
    region.take()
    assert region.told() == [ShippedIn(1, 0, "left"), ShippedIn(1, 0, "right")]
    region.send("left", 1, Bye())
    region.take()
    assert region.told() == [ByesTaken(1, 0, "left")]
    assert not region.feed.open


@pytest.mark.parametrize("worker", [0, 1])
def test_f2_what_moves_slots_waits_behind_the_rows_before_it(worker: int) -> None:
    region = full()
    region.send("left", worker, [4], MARK_LOSE)
    assert not region.feed.ready
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
    assert not region.feed.ready


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


def test_r4_parcels_are_sent_one_at_a_time_and_the_region_goes_on_between_them() -> None:
    region = losing(1, 3, 5, 2, keys_first=1)
    assert region.feed.ready
    assert region.feed.ship() == 1
    region.send("left", 1, [2])
    region.take()
    assert region.kept.state.values[2] == [2, 2]
    assert [receiver for receiver, letter in region.letters if isinstance(letter, StateChunk)] == [1]
    while region.feed.ship():
        pass
    assert not region.feed.ready
    parcels = [letter for receiver, letter in region.letters if receiver == 1 and isinstance(letter, StateChunk)]
    assert [slot for parcel in parcels for slot in parcel.slots] == [1, 3]
    assert set(region.kept.state.values) == {2}


def test_r4_epochs_wait_until_all_is_shipped() -> None:
    region = losing(1, 3, keys_first=1)
    assert region.got() == [Epoch(5)]
    for exchange, worker in CHANNELS:
        region.send(exchange, worker, 9)
    region.take()
    assert region.feed.ship() == 1
    assert region.got() == []
    assert not region.feed.steady
    while region.feed.ship():
        pass
    assert region.got() == [Epoch(9)]
    assert region.feed.steady


def controls(frames: list[Frame]) -> list[Any]:
    return [frame.control for frame in frames if frame.control is not None]


def test_a_move_that_has_ended_says_what_it_took() -> None:
    region = losing(1, 3, 5, 2, keys_first=1)
    while region.feed.ship():
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
    assert not region.feed.has_to_ship
    region.feed.prepare(StartMove(MARK_LOSE.move))
    assert region.feed.has_to_ship
    assert region.feed.ready
    region.send("right", 0, [5], [2])
    region.take()
    assert region.feed.steady
    while region.feed.has_to_ship:
        assert region.feed.ship() == 1
    for exchange, worker in CHANNELS:
        region.send(exchange, worker, MARK_LOSE)
    region.take()
    while region.feed.ship():
        pass
    parcels = [letter for receiver, letter in region.letters if isinstance(letter, StateChunk)]
    assert sorted(slot for parcel in parcels for slot in parcel.slots) == [1, 3]
    assert region.shipping.keys_moved == 3
    assert set(region.kept.state.values) == {2}
    assert not region.shipping.watching


def test_a_region_that_loses_nothing_looks_for_nothing() -> None:
    region = gaining()
    region.feed.prepare(StartMove(MARK_GAIN.move))
    assert not region.shipping.watching


def test_r6_shipped_goes_out_behind_what_was_sent_before_and_once_all_is_shipped() -> None:
    region = losing(1, 3, keys_first=1)
    region.sent.clear()
    region.feed.ship()
    assert controls(region.exit.remote[1].take()) == []
    region.send("left", 1, [2])
    region.take()
    while region.feed.ship():
        pass
    region.sent += region.exit.remote[1].take()
    assert [frame.control or frame.rows for frame in region.sent] == [1, Shipped(1)]
    assert Shipped(1) in [region.exit.loopback.take() for _ in range(9)]
    assert region.told()[-1] == RegionDone(1, 0, "R")


def test_r6_shipped_goes_to_those_that_leave_too() -> None:
    region = Region(table=BEFORE_GAIN)
    move = RescaleMove(1, (0, 1), (0,), (0, 0, 0, 0))
    for exchange, worker in CHANNELS:
        region.send(exchange, worker, Marker(move, 5, 5))
    region.take()
    assert controls(region.sent) == [Shipped(1)]


def test_r6_a_region_that_feeds_no_exchange_opens_its_slots_by_itself() -> None:
    region = gaining(feeds_exchanges=False)
    region.send("left", 1, [1])
    rest_marked(region, MARK_GAIN)
    region.feed.receive(EMPTY)
    assert values(region) == [1]
    assert region.told()[-1] == RegionDone(1, 0, "R")


def test_r6_a_region_that_feeds_exchanges_opens_them_when_it_may() -> None:
    region = gaining()
    region.send("left", 1, [1])
    rest_marked(region, MARK_GAIN)
    region.feed.receive(EMPTY)
    assert values(region) == []
    region.feed.receive(OpenSlots(1, "R"))
    assert values(region) == [1]


def test_r5_a_parcel_that_comes_before_any_marker_is_put_in_at_the_cut() -> None:
    region = Region(table=BEFORE_GAIN)
    giver = losing(1)
    giver.feed.ship()
    (parcel,) = [letter for receiver, letter in giver.letters if receiver == 1]
    assert isinstance(parcel, StateChunk)
    region.feed.receive(parcel)
    assert region.kept.state.values == {}
    for exchange, worker in CHANNELS:
        region.send(exchange, worker, MARK_GAIN)
    region.take()
    assert region.kept.state.values == {1: [1]}
    assert region.got() == [Epoch(5)]
