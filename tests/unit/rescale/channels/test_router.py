"""The router of one exchange: each row to the owner of its slot, in order, epochs and control in their places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, DataMessage, Epoch
from malstrom_py.rescale.channels.channel import Barrier, ChannelIn, Credit, Item, Suspend
from malstrom_py.rescale.channels.router import Router
from malstrom_py.rescale.moves.placement import first_table
from malstrom_py.rescale.slots import slots_of
from malstrom_py.testing import strategies
from malstrom_py.workers.engine.exchange import InputChannel

SLOTS = 64
CODEC = Codec()


class Exchange:
    """The router of worker ``me`` and, at the far end of each of its channels, what the receiver would see."""

    def __init__(self, members: int, *, me: int = 0, rows_max: int = 1024, bytes_max: int = 1 << 20) -> None:
        self.table = first_table(SLOTS, range(members))
        self.me = me
        self.router = Router(
            "by-key",
            me,
            range(members),
            self.table,
            slots_of=lambda keys: slots_of(keys, SLOTS),
            encode=lambda batch: CODEC.encode_batch(batch, step="by-key"),
            rows_max=rows_max,
            bytes_max=bytes_max,
            incarnation=1,
            credit=Credit(),
        )
        self.lanes = {
            member: InputChannel(ChannelIn(out.channel, 1), CODEC.decode_batch)
            for member, out in self.router.channels.items()
        }

    def owner(self, key: Any) -> int:
        return self.table[slots_of([key], SLOTS)[0]]

    def received(self) -> dict[int, list[Any]]:
        """Worker -> all that it is sent: (key, value, timestamp) rows, epochs and control."""
        self.router.flush()
        for frame in self.router.take():
            self.lanes[frame.channel.receiver].channel.receive(frame)
        found: dict[int, list[Any]] = {self.me: _items(self.router.loopback)}
        found |= {member: _items(lane) for member, lane in self.lanes.items()}
        return found


def _items(lane: Any) -> list[Any]:
    items: list[Any] = []
    while (item := lane.take()) is not None:
        items.extend(_rows(item) if isinstance(item, Batch) else [item])
    return items


def _rows(batch: Batch) -> list[tuple[Any, Any, Any]]:
    keys, times = batch.keys, batch.timestamps
    assert keys is not None
    return list(zip(keys, batch.values, times if times is not None else [None] * len(batch), strict=True))


def batch_of(rows: Sequence[Any]) -> Batch:
    keys, values, times = (list(column) for column in zip(*rows, strict=True))
    return Batch(values, keys=keys, timestamps=None if times[0] is None else times)


def feed(exchange: Exchange, steps: Sequence[Item]) -> None:
    for step in steps:
        if isinstance(step, Batch):
            exchange.router.route(step)
        elif isinstance(step, Epoch):
            exchange.router.epoch(step)
        else:
            exchange.router.control(step)


@st.composite
def traffic(draw: st.DrawFn) -> tuple[list[Item], list[Any]]:
    """The input of a router: batches with numbered values, epochs and barriers; and the same row by row."""
    timed = draw(st.booleans())
    atoms = draw(strategies.sequences(keys=strategies.legal_keys(), timed=timed, size_max=40))
    cuts = draw(strategies.batch_cuts(len(atoms)))
    steps: list[Item] = []
    flat: list[Any] = []
    rows: list[Any] = []
    for place, atom in enumerate([*atoms, None]):
        if rows and (place in cuts or not isinstance(atom, DataMessage)):
            steps.append(batch_of(rows))
            rows = []
        if isinstance(atom, DataMessage):
            rows.append((atom.key, place, atom.timestamp))
            flat.append(rows[-1])
        elif isinstance(atom, Epoch):
            steps.append(Epoch(atom.time, idle=draw(st.booleans())))
            flat.append(steps[-1])
        if place in cuts and draw(st.integers(0, 5)) == 5 and not rows:
            steps.append(Barrier(str(place)))
            flat.append(steps[-1])
    return steps, flat


@given(traffic(), st.integers(1, 5), st.integers(1, 9), st.integers(1, 200))
def test_each_row_goes_to_the_owner_of_its_slot_with_epochs_and_control_in_their_places(
    given_traffic: tuple[list[Item], list[Any]], members: int, rows_max: int, bytes_max: int
) -> None:
    """Each row reaches exactly one worker, in order per key; every epoch and barrier reaches every worker in place."""
    steps, flat = given_traffic
    exchange = Exchange(members, me=members - 1, rows_max=rows_max, bytes_max=bytes_max)
    feed(exchange, steps)
    for worker, got in exchange.received().items():
        expected = [item for item in flat if not isinstance(item, tuple) or exchange.owner(item[0]) == worker]
        assert got == expected


def test_order_is_kept_per_key_over_many_batches() -> None:
    exchange = Exchange(3, rows_max=4)
    for start in range(0, 60, 6):
        exchange.router.route(batch_of([(f"key-{n % 5}", n, None) for n in range(start, start + 6)]))
    rows = [row for items in exchange.received().values() for row in items]
    assert len(rows) == 60
    for key in {key for key, _, _ in rows}:
        values = [value for other, value, _ in rows if other == key]
        assert values == sorted(values)


def test_t3_every_receiver_gets_the_same_epochs_in_place() -> None:
    exchange = Exchange(4)
    epochs = [Epoch(3), Epoch(5, idle=True), Epoch(MAX_EPOCH)]
    for epoch in epochs:
        exchange.router.route(batch_of([(n, n, epoch.time - 1) for n in range(20)]))
        exchange.router.epoch(epoch)
    for items in exchange.received().values():
        assert [item for item in items if isinstance(item, Epoch)] == epochs
        for place, item in enumerate(items):
            if isinstance(item, tuple):
                assert next(other.time for other in items[place:] if isinstance(other, Epoch)) == item[2] + 1


@pytest.mark.parametrize("control", [Barrier("1"), Suspend()])
def test_f2_control_comes_behind_all_rows_before_it_and_before_all_after_it(control: Barrier | Suspend) -> None:
    exchange = Exchange(3, rows_max=1000)
    exchange.router.route(batch_of([(n, "before", None) for n in range(30)]))
    exchange.router.control(control)
    exchange.router.route(batch_of([(n, "after", None) for n in range(30)]))
    for items in exchange.received().values():
        place = items.index(control)
        assert {value for _, value, _ in items[:place]} == {"before"}
        assert {value for _, value, _ in items[place + 1 :]} == {"after"}


def test_rows_for_others_wait_for_more_and_are_cut_at_rows_max() -> None:
    exchange = Exchange(2, rows_max=5)
    other = [key for key in range(100) if exchange.owner(key) == 1]
    exchange.router.route(batch_of([(key, 0, None) for key in other[:4]]))
    assert exchange.router.take() == []
    exchange.router.route(batch_of([(key, 0, None) for key in other[4:7]]))
    assert [frame.rows for frame in exchange.router.take()] == [7]
    exchange.router.route(batch_of([(other[0], 0, None)]))
    exchange.router.flush()
    assert [frame.rows for frame in exchange.router.take()] == [1]


def test_a_frame_is_cut_at_bytes_max_once_the_size_of_rows_is_known() -> None:
    exchange = Exchange(2, bytes_max=4000)
    other = next(key for key in range(100) if exchange.owner(key) == 1)
    sizes = []
    for _ in range(40):
        exchange.router.route(batch_of([(other, "x" * 400, None)]))
        sizes += [frame.rows for frame in exchange.router.take()]
    exchange.router.flush()
    exchange.router.take()
    for _ in range(40):
        exchange.router.route(batch_of([(other, "x" * 400, None)]))
        sizes += [frame.rows for frame in exchange.router.take()]
    assert sizes
    assert max(sizes) <= 20


def test_f3_with_one_worker_nothing_is_hashed_and_nothing_encoded() -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("hashed or encoded")

    router = Router("by-key", 0, [0], [0] * SLOTS, slots_of=refuse, encode=refuse, rows_max=1, bytes_max=1)
    batch = batch_of([("a", object(), None), ("b", object(), None)])
    router.route(batch)
    router.epoch(Epoch(5))
    router.control(Barrier("1"))
    router.flush()
    assert router.take() == []
    assert router.loopback.take() is batch
    assert [router.loopback.take() for _ in range(2)] == [Epoch(5), Barrier("1")]


def test_f2_a_router_is_backlogged_while_any_channel_waits_for_credit() -> None:
    exchange = Exchange(2, rows_max=1)
    other = next(key for key in range(100) if exchange.owner(key) == 1)
    assert not exchange.router.backlogged
    exchange.router.route(batch_of([(other, 0, None)] * (Credit().rows + 1)))
    exchange.router.route(batch_of([(other, 0, None)]))
    assert len(exchange.router.take()) == 1
    assert exchange.router.backlogged


def test_f2_a_router_is_backlogged_while_its_loopback_is_full() -> None:
    exchange = Exchange(1)
    exchange.router.route(batch_of([("a", 0, None)] * Credit().rows))
    assert exchange.router.backlogged
    exchange.router.loopback.take()
    assert not exchange.router.backlogged
