"""What rows that are held cost: their credit, all of it and no more; and that they keep their order (F2, R5)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch
from malstrom_py.rescale.channels.channel import ChannelId, Credit
from malstrom_py.rescale.moves.protocol import OpenSlots, StateChunk
from malstrom_py.rescale.moves.receiving_machine import ReceivingPhase
from malstrom_py.testing import strategies
from tests.unit.workers.engine.region import (
    BEFORE_GAIN,
    BIG,
    CHANNELS,
    CODEC,
    MARK_GAIN,
    SLOTS,
    Region,
    gaining,
    open_up,
    rest_marked,
    values,
)


def cost_of(batch: list[int]) -> tuple[int, int]:
    return len(batch), len(CODEC.encode_batch(Batch(batch, keys=batch), step="left"))


def test_f2_held_rows_keep_their_credit_until_they_go_in() -> None:
    region = gaining()
    region.send("left", 1, [0, 1, 2, 3])
    (grant,) = region.take()
    rows, size = cost_of([0, 1, 2, 3])
    assert (grant.rows, grant.size) == (2, size - size // 2)
    rest_marked(region, MARK_GAIN)
    (rest,) = open_up(region)
    assert (rest.channel, rest.rows, rest.size) == (ChannelId("left", 1, 0), 2, size // 2)
    assert rows == 4


def test_f2_the_sender_of_held_rows_runs_out_of_credit_and_gets_it_back() -> None:
    region = gaining(credit=Credit(rows=4))
    for key in range(10):
        region.send("left", 1, [4 * key + 1])
    region.give(region.take())
    assert len(region.remote["left"]._backlog) == 6
    rest_marked(region, MARK_GAIN)
    region.give(region.take())
    assert len(region.remote["left"]._backlog) == 6
    region.give(open_up(region))
    region.give(region.take())
    region.give(region.take())
    assert len(region.remote["left"]._backlog) == 0
    assert values(region) == [4 * key + 1 for key in range(10)]


@pytest.mark.parametrize("keys", [[1], [0, 1], [0, 1, 1]])
def test_f2_no_byte_of_credit_is_lost_when_rows_are_held(keys: list[int]) -> None:
    """Bytes are shared out by rows, which does not always come out even."""
    region = gaining()
    for times in range(1, 100):
        region.send("left", 1, keys * times)
    region.give(region.take())
    rest_marked(region, MARK_GAIN)
    region.give(open_up(region))
    out = region.remote["left"]
    assert (out._rows, out._size) == (BIG.rows, BIG.size)


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
    letters: list[StateChunk | OpenSlots] = [
        StateChunk("R", 1, 1, (1,)),
        OpenSlots(1, "R"),
        StateChunk("R", 1, 1, (3,)),
    ]
    expected: dict[tuple[int, int], list[Any]] = {}
    for turn in [*schedule, *(number for _ in range(20) for number in range(5))]:
        # The coordinator sends OpenSlots when all workers have sent Shipped, which is after the cut.
        if (
            turn == 4
            and letters
            and (region.machine.phase is ReceivingPhase.MOVING or isinstance(letters[0], StateChunk))
        ):
            region.feed.receive(letters.pop(0))
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
    assert region.feed.steady
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
