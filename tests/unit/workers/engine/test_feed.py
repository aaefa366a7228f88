"""The feed of one region: what it takes in and when, and how barriers are aligned over all its channels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.messages import Epoch, Interrogate, SuspendMarker
from malstrom_py.errors import InternalError
from malstrom_py.rescale.channels.channel import Barrier, ChannelId, Grant, Suspend
from malstrom_py.testing import strategies
from tests.unit.workers.engine.region import CHANNELS, Region


def test_data_and_epochs_are_taken_in_order_from_all_channels() -> None:
    region = Region()
    for number, (exchange, worker) in enumerate(CHANNELS):
        region.send(exchange, worker, [number, number + 10], 5, [number + 20])
    region.take()
    got = region.got()
    assert got.count(Epoch(5)) == 1
    for number in range(4):
        mine = [value for value in got if not isinstance(value, Epoch) and value % 10 == number]
        assert mine == [number, number + 10, number + 20]


def test_t3_an_epoch_passes_when_it_has_come_on_all_channels_of_all_exchanges() -> None:
    region = Region()
    for exchange, worker in CHANNELS[:-1]:
        region.send(exchange, worker, 5)
    region.take()
    assert region.got() == []
    region.send(*CHANNELS[-1], 3)
    region.take()
    assert region.got() == [Epoch(3)]


def test_t2_an_idle_sender_stays_in_the_minimum_and_its_flag_goes_no_further() -> None:
    region = Region()
    for exchange, worker in CHANNELS[:-1]:
        region.send(exchange, worker, 9)
    region.send(*CHANNELS[-1], Epoch(3, idle=True))
    region.take()
    assert region.got() == [Epoch(3)]
    region.send(*CHANNELS[-1], Epoch(3), Epoch(5, idle=True))
    region.take()
    assert region.got() == [Epoch(5)]


def test_s1_a_barrier_passes_when_it_has_come_on_all_channels_of_all_exchanges() -> None:
    region = Region()
    for exchange, worker in CHANNELS[:-1]:
        region.send(exchange, worker, Barrier("1"))
        region.take()
        assert region.made == []
    region.send(*CHANNELS[-1], Barrier("1"))
    region.take()
    assert region.got() == region.made
    assert [barrier.snapshot for barrier in region.made] == ["1"]


def test_s5_with_a_barrier_goes_how_far_epochs_had_come_before_it() -> None:
    region = Region()
    for exchange, worker in CHANNELS:
        region.send(exchange, worker, 5, Barrier("1"), 7)
    region.take()
    assert region.feed.machine.frontier("left") == 7
    assert region.frontiers == {"left": 5, "right": 5}


def test_s1_a_channel_that_is_ahead_waits_and_the_others_go_on() -> None:
    region = Region()
    region.send("left", 1, ["before"], Barrier("1"), ["after"], 7)
    region.send("right", 1, ["late"])
    region.take()
    assert sorted(region.got()) == ["before", "late"]
    for exchange, worker in [("left", 0), ("right", 0), ("right", 1)]:
        region.send(exchange, worker, ["last"], Barrier("1"))
    region.take()
    assert region.got() == ["last", "last", "last", region.made[0], "after"]


def test_s1_channels_of_the_worker_to_itself_wait_too() -> None:
    region = Region()
    region.send("left", 0, Barrier("1"), ["after"])
    region.take()
    assert region.got() == []
    assert len(region.exchanges["left"].loopback) == 1


def test_s1_a_region_with_sources_waits_for_the_barrier_at_these_too() -> None:
    region = Region(source=True)
    for exchange, worker in CHANNELS:
        region.send(exchange, worker, Barrier("1"))
    region.take()
    assert region.made == []
    assert region.feed.sources_open
    region.feed.at_sources(Barrier("1"))
    assert [barrier.snapshot for barrier in region.made] == ["1"]
    assert region.got() == region.made


def test_s1_sources_are_not_polled_from_their_barrier_until_it_has_come_everywhere() -> None:
    region = Region(source=True)
    region.feed.at_sources(Barrier("1"))
    assert not region.feed.sources_open
    for exchange, worker in CHANNELS:
        region.send(exchange, worker, Barrier("1"))
    region.take()
    assert region.feed.sources_open


def test_s1_a_barrier_at_the_sources_does_not_concern_a_region_without_any() -> None:
    region = Region()
    region.feed.at_sources(Barrier("1"))
    assert region.made == []
    region.send("left", 1, ["on"])
    region.take()
    assert region.got() == ["on"]


def test_s1_two_barriers_are_not_mixed() -> None:
    region = Region()
    for number in ("1", "2"):
        for exchange, worker in CHANNELS:
            region.send(exchange, worker, [number], Barrier(number))
    region.take()
    assert region.got() == ["1"] * 4 + [region.made[0]] + ["2"] * 4 + [region.made[1]]


def test_r7_a_barrier_while_another_is_aligned_is_our_fault() -> None:
    region = Region()
    region.send("left", 0, Barrier("1"))
    region.send("left", 1, Barrier("2"))
    with pytest.raises(InternalError, match="R7"):
        region.take()


def test_a_suspension_is_aligned_like_a_barrier_and_ends_the_region() -> None:
    region = Region(source=True)
    region.feed.at_sources(Suspend())
    for exchange, worker in CHANNELS:
        assert not region.feed.suspended
        region.send(exchange, worker, ["last"], Suspend())
    region.take()
    (*values, marker) = region.got()
    assert (values, type(marker)) == (["last"] * 4, SuspendMarker)
    assert region.feed.suspended
    assert not region.feed.sources_open


def test_s3_a_region_stops_where_the_last_barrier_passes_it() -> None:
    region = Region(source=True)
    region.feed.at_sources(Barrier("1"), last=True)
    for exchange, worker in CHANNELS:
        region.send(exchange, worker, ["before"], Barrier("1"), Suspend())
    region.take()
    (*values, barrier, marker) = region.got()
    assert (values, barrier, type(marker)) == (["before"] * 4, region.made[0], SuspendMarker)
    assert [type(frame.control) for frame in region.sent if frame.control] == [Barrier, Suspend]
    assert region.feed.suspended
    assert not region.feed.sources_open
    assert not region.feed.ready, "later messages are taken and have no effect"


def test_s1_a_region_goes_on_behind_a_barrier_that_is_not_the_last() -> None:
    region = Region(source=True)
    region.feed.at_sources(Barrier("1"))
    for exchange, worker in CHANNELS:
        region.send(exchange, worker, Barrier("1"), ["after"])
    region.take()
    assert region.got() == [region.made[0], *["after"] * 4]
    assert not region.feed.suspended
    assert region.feed.sources_open


def test_what_is_injected_passes_once_between_two_messages() -> None:
    region = Region(source=True)
    message = Interrogate(lambda key: True)
    region.send("left", 1, ["waiting"])
    region.feed.inject(message)
    assert region.got() == [message]
    region.take()
    assert region.got() == ["waiting"]


def test_f2_while_an_output_is_backlogged_neither_data_nor_epochs_are_taken() -> None:
    region = Region(source=True, exit_credit=1)
    region.send("left", 1, ["one"], ["two"], ["three"], 5)
    region.take()
    assert region.got() == ["one", "two"]
    assert not region.feed.open
    assert not region.feed.sources_open
    region.exit.remote[1].grant(Grant(ChannelId("exit", 0, 1), 1, 1, 0))
    region.take()
    assert region.got() == []
    region.exit.remote[1].grant(Grant(ChannelId("exit", 0, 1), 1, 2, 1000))
    region.take()
    assert region.got() == ["three"]


@pytest.mark.parametrize("busy", CHANNELS)
def test_f2_a_channel_that_always_has_something_does_not_starve_the_others(busy: tuple[str, int]) -> None:
    region = Region(exit_credit=1)
    for channel in CHANNELS:
        if channel != busy:
            region.send(*channel, [f"{channel}"])
    for _ in range(8):
        region.send(*busy, ["busy"], ["busy"])
        region.feed.take()
        region.sent += region.exit.remote[1].take()
        region.exit.remote[1].grant(Grant(ChannelId("exit", 0, 1), 1, 1, 1_000))
    assert {f"{channel}" for channel in CHANNELS if channel != busy} < set(region.got())


def test_f2_credit_goes_back_when_a_frame_has_been_taken() -> None:
    region = Region()
    region.send("left", 1, ["a", "b"])
    region.send("left", 0, ["c"])
    (grant,) = region.take()
    assert (grant.channel, grant.rows) == (ChannelId("left", 1, 0), 2)


@given(st.data())
def test_s1_in_any_order_of_arrival_each_channel_is_cut_at_its_barrier(data: st.DataObject) -> None:
    region = Region()
    scripts = [
        [[f"{exchange}-{worker}-{number}"] for number in range(data.draw(st.integers(0, 3)))]
        + [Barrier("1")]
        + [[f"{exchange}-{worker}-after-{number}"] for number in range(data.draw(st.integers(0, 3)))]
        for exchange, worker in CHANNELS
    ]
    expected = {value for script in scripts for item in script if isinstance(item, list) for value in item}
    for turn in [*data.draw(strategies.schedules(4)), *(number for number in range(4) for _ in range(9))]:
        if scripts[turn]:
            region.send(*CHANNELS[turn], scripts[turn].pop(0))
        region.feed.take()
        region.exit.remote[1].take()
    region.take()
    got = region.got()
    (barrier,) = region.made
    place = got.index(barrier)
    assert set(got) == expected | {barrier}
    assert not any("after" in value for value in got[:place])
    assert all("after" in value for value in got[place + 1 :])
