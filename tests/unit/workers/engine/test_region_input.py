"""The feed of one region: what it takes in and when, and how barriers are aligned over all its channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.messages import Interrogate, SuspendMarker
from malstrom_py.errors import InternalError
from malstrom_py.rescale.channels.channel import GATHERED_ROWS, Barrier, ChannelId, Grant, Suspend
from malstrom_py.rescale.moves.receiving_machine import ReceivingMachine
from malstrom_py.testing import VirtualClock, strategies
from malstrom_py.workers.engine.region_input import RegionInput
from malstrom_py.workers.engine.state_transfer import StateTransfer
from tests.unit.workers.engine.region import CHANNELS, Region


def test_s1_a_region_with_sources_waits_for_the_barrier_at_these_too() -> None:
    region = Region(source=True)
    for exchange, worker in CHANNELS:
        region.send(exchange, worker, Barrier("1"))
    region.take()
    assert region.made == []
    assert region.region_input.sources_open
    region.region_input.at_sources(Barrier("1"))
    assert [barrier.snapshot for barrier in region.made] == ["1"]
    assert region.got() == region.made


def test_s1_sources_are_not_polled_from_their_barrier_until_it_has_come_everywhere() -> None:
    region = Region(source=True)
    region.region_input.at_sources(Barrier("1"))
    assert not region.region_input.sources_open
    for exchange, worker in CHANNELS:
        region.send(exchange, worker, Barrier("1"))
    region.take()
    assert region.region_input.sources_open


def test_s1_a_barrier_at_the_sources_does_not_concern_a_region_without_any() -> None:
    region = Region()
    region.region_input.at_sources(Barrier("1"))
    assert region.made == []
    region.send("left", 1, ["on"])
    region.take()
    assert region.got() == ["on"]


def test_r7_a_barrier_while_another_is_aligned_is_our_fault() -> None:
    region = Region()
    region.send("left", 0, Barrier("1"))
    region.send("left", 1, Barrier("2"))
    with pytest.raises(InternalError, match="R7"):
        region.take()


def test_a_suspension_is_aligned_like_a_barrier_and_ends_the_region() -> None:
    region = Region(source=True)
    region.region_input.at_sources(Suspend())
    for exchange, worker in CHANNELS:
        assert not region.region_input.suspended
        region.send(exchange, worker, ["last"], Suspend())
    region.take()
    (*values, marker) = region.got()
    assert (values, type(marker)) == (["last"] * 4, SuspendMarker)
    assert region.region_input.suspended
    assert not region.region_input.sources_open


def test_s3_a_region_stops_where_the_last_barrier_passes_it() -> None:
    region = Region(source=True)
    region.region_input.at_sources(Barrier("1"), last=True)
    for exchange, worker in CHANNELS:
        region.send(exchange, worker, ["before"], Barrier("1"), Suspend())
    region.take()
    (*values, barrier, marker) = region.got()
    assert (values, barrier, type(marker)) == (["before"] * 4, region.made[0], SuspendMarker)
    assert [type(frame.control) for frame in region.sent if frame.control] == [Barrier, Suspend]
    assert region.region_input.suspended
    assert not region.region_input.sources_open
    assert not region.region_input.ready, "later messages are taken and have no effect"


def test_what_is_injected_passes_once_between_two_messages() -> None:
    region = Region(source=True)
    message = Interrogate(lambda key: True)
    region.send("left", 1, ["waiting"])
    region.region_input.inject(message)
    assert region.got() == [message]
    region.take()
    assert region.got() == ["waiting"]


def test_f2_while_an_output_is_backlogged_neither_data_nor_epochs_are_taken() -> None:
    region = Region(source=True, exit_credit=1)
    region.send("left", 1, ["one"], ["two"], ["three"], 5)
    region.take()
    assert region.got() == ["one", "two"]
    assert not region.region_input.open
    assert not region.region_input.sources_open
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
        region.region_input.take()
        region.sent += region.exit.remote[1].take()
        region.exit.remote[1].grant(Grant(ChannelId("exit", 0, 1), 1, 1, 1_000))
    assert {f"{channel}" for channel in CHANNELS if channel != busy} < set(region.got())


def test_f2_credit_goes_back_when_a_frame_has_been_taken() -> None:
    region = Region()
    region.send("left", 1, ["a"] * GATHERED_ROWS)
    region.send("left", 0, ["c"])
    (grant,) = region.take()
    assert (grant.channel, grant.rows) == (ChannelId("left", 1, 0), GATHERED_ROWS)


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
        region.region_input.take()
        region.exit.remote[1].take()
    region.take()
    got = region.got()
    (barrier,) = region.made
    place = got.index(barrier)
    assert set(got) == expected | {barrier}
    assert not any("after" in value for value in got[:place])
    assert all("after" in value for value in got[place + 1 :])


# Backlogs.


@dataclass
class Limit:
    backlogged: bool = False


def region_input(exits: list[Any], holding: list[Any]) -> RegionInput:
    graph: Any = None

    def pass_barrier(message: object, frontiers: object, let_in: object) -> None:
        raise AssertionError

    machine = ReceivingMachine("R", 0, exchanges=(), feeds_exchanges=bool(exits), members=(0,), table=(0,))
    shipping = StateTransfer("R", 0, graph, [])
    return RegionInput(
        graph,
        [],
        [0],
        exits,
        pass_barrier,
        holding,
        machine=machine,
        shipping=shipping,
        messages=[],
        clock=VirtualClock(),
    )


@pytest.mark.parametrize(
    ("full_exit", "full_step", "is_open", "outputs_open"),
    [
        (False, False, True, True),
        (False, True, False, True),
        (True, False, False, False),
        (True, True, False, False),
    ],
)
def test_f2_what_is_held_back_may_leave_where_nothing_may_come_in(
    full_exit: bool, full_step: bool, is_open: bool, outputs_open: bool
) -> None:
    region = region_input([Limit(), Limit(full_exit)], [Limit(full_step), Limit()])
    assert (region.open, region.sources_open, region.outputs_open) == (is_open, is_open, outputs_open)


def test_f2_a_region_opens_again_when_there_is_room() -> None:
    step = Limit(True)
    region = region_input([], [step])
    assert not region.open
    step.backlogged = False
    assert region.open
