"""The router in a move: one marker on every channel, the old table before and the new one after it, Bye at the end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, Epoch
from malstrom_py.errors import InternalError
from malstrom_py.rescale.channels.channel import Barrier, Credit, Frame, Grant
from malstrom_py.rescale.channels.router import Router
from malstrom_py.rescale.moves.placement import rebalanced
from malstrom_py.rescale.moves.protocol import Bye, Marker, RescaleMove, Shipped

SLOTS = 6
CODEC = Codec()


def slots_of(keys: Sequence[Any]) -> list[int]:
    return [key % SLOTS for key in keys]


def router_of(
    *members: int,
    worker: int = 0,
    table: Sequence[int] | None = None,
    rows_max: int = 100,
    credit: Credit | None = None,
) -> Router:
    return Router(
        "x",
        worker,
        members,
        rebalanced((members[0],) * SLOTS, members) if table is None else table,
        slots_of=slots_of,
        encode=partial(CODEC.encode_batch, step="x"),
        rows_max=rows_max,
        bytes_max=1 << 20,
        incarnation=1,
        credit=credit,
    )


def move_of(old: tuple[int, ...], new: tuple[int, ...], *, version: int = 1, owner: int | None = None) -> RescaleMove:
    """From ``old`` to ``new`` members, all slots to ``owner``, or dealt."""
    table = tuple(new[slot % len(new)] for slot in range(SLOTS)) if owner is None else (owner,) * SLOTS
    return RescaleMove(version, old, new, table)


def route(router: Router, *keys: int) -> None:
    router.route(Batch(list(keys), keys=list(keys)))


Item = tuple[str, Any, int]
"""What came over a channel, and the version that it bore: rows by their keys, epochs by their time."""


class Ends:
    """The far ends of a router's channels, its own among them: worker -> all that it has been sent."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.frames: dict[int, list[Frame]] = {}

    def seen(self) -> dict[int, list[Item]]:
        self._router.flush()
        for frame in self._router.take():
            self.frames.setdefault(frame.channel.receiver, []).append(frame)
        found = {member: [item for frame in frames for item in _items(frame)] for member, frames in self.frames.items()}
        mine: list[Item] = []
        while (item := self._router.loopback.take()) is not None:
            kind = "rows" if isinstance(item, Batch) else "epoch" if isinstance(item, Epoch) else "control"
            version = self._router.loopback.version
            mine += [("rows", key, version) for key in item.keys or []] if isinstance(item, Batch) else []
            mine += [] if isinstance(item, Batch) else [(kind, getattr(item, "time", item), version)]
        return found | {self._router._worker: mine}


def _items(frame: Frame) -> list[Item]:
    if frame.control is not None:
        return [("control", frame.control, frame.version)]
    keys = CODEC.decode_batch(frame.payload).keys or [] if frame.payload is not None else []
    items: list[Item] = []
    start = 0
    for row, time, _ in frame.epochs:
        items += [("rows", key, frame.version) for key in keys[start:row]]
        items.append(("epoch", time, frame.version))
        start = row
    return items + [("rows", key, frame.version) for key in keys[start:]]


def markers(items: Sequence[Item]) -> list[Marker]:
    return [item for kind, item, _ in items if kind == "control" and isinstance(item, Marker)]


def test_r2_one_marker_on_every_channel_its_own_included_and_on_those_of_joiners_and_leavers() -> None:
    router = router_of(0, 1, 2)
    router.connect(3)
    move = move_of((0, 1, 2), (0, 1, 3))
    router.switch(move, before=7, after=9, idle=True)
    seen = Ends(router).seen()
    assert seen.keys() == {0, 1, 2, 3}
    assert all(markers(items) == [Marker(move, 7, 9, idle=True)] for items in seen.values())
    assert router.version == 1


def test_r2_what_was_gathered_leaves_under_the_old_version_and_before_the_marker() -> None:
    router = router_of(0, 1, table=[0, 1] * 3)
    route(router, 0, 1, 2, 3)
    router.epoch(Epoch(5))
    move = move_of((0, 1), (0, 1), owner=1)
    router.switch(move, before=5, after=5, idle=False)
    route(router, 4, 5)
    router.epoch(Epoch(6))
    seen = Ends(router).seen()
    marker = ("control", Marker(move, 5, 5))
    assert [item[:2] for item in seen[1]] == [
        *[("rows", 1), ("rows", 3), ("epoch", 5)],
        marker,
        *[("rows", 4), ("rows", 5), ("epoch", 6)],
    ]
    assert [version for kind, _, version in seen[1] if kind != "control"] == [0, 0, 0, 1, 1, 1]
    assert [item[:2] for item in seen[0]] == [("rows", 0), ("rows", 2), ("epoch", 5), marker, ("epoch", 6)]
    assert [version for kind, _, version in seen[0] if kind != "control"] == [0, 0, 0, 1]


def test_r1_who_joins_gets_nothing_before_the_marker() -> None:
    router = router_of(0)
    router.connect(1)
    route(router, 0, 1, 2)
    router.epoch(Epoch(3))
    router.control(Barrier("1"))
    ends = Ends(router)
    assert ends.seen().keys() == {0}
    router.switch(move_of((0,), (0, 1)), before=3, after=3, idle=False)
    route(router, 1)
    router.epoch(Epoch(MAX_EPOCH))
    kinds = [(kind, type(item)) for kind, item, _ in ends.seen()[1]]
    assert kinds == [("control", Marker), ("rows", int), ("epoch", int)]


def test_r2_the_marker_is_the_first_that_a_joiner_sends() -> None:
    router = router_of(0, worker=1, table=[0] * SLOTS)
    assert Ends(router).seen() == {1: []}
    router.switch(move_of((0,), (0, 1)), before=-9, after=5, idle=False)
    route(router, 0, 1)
    seen = Ends(router).seen()
    assert [type(item) for _, item, _ in seen[0]] == [Marker, int]
    assert [type(item) for _, item, _ in seen[1]] == [Marker, int]


def test_r8_who_leaves_gets_no_rows_and_no_epochs_behind_the_marker_but_what_is_for_everyone() -> None:
    router = router_of(0, 1)
    move = move_of((0, 1), (0,))
    router.switch(move, before=1, after=1, idle=False)
    route(router, *range(SLOTS))
    router.epoch(Epoch(4))
    router.control(Shipped(1), move.everyone)
    assert [type(item) for _, item, _ in Ends(router).seen()[1]] == [Marker, Shipped]


def test_r8_a_leaver_sends_what_its_regions_reach_until_its_bye_and_nothing_behind_it() -> None:
    router = router_of(0, 1, 2, worker=2)
    router.switch(move_of((0, 1, 2), (0, 1)), before=1, after=1, idle=False)
    router.epoch(Epoch(4))
    router.leave()
    router.epoch(Epoch(9))
    router.epoch(Epoch(MAX_EPOCH))
    seen = Ends(router).seen()
    for member in (0, 1):
        assert [item for _, item, _ in seen[member]][1:] == [4, Bye()]
    # The channel to itself has no receiver.
    assert [type(item) for _, item, _ in seen[2]] == [Marker]


def test_r2_while_it_is_silent_epochs_are_kept_back_and_rows_are_not() -> None:
    router = router_of(0, 1, table=[0, 1] * 3)
    router.silent = True
    router.epoch(Epoch(5))
    router.epoch(Epoch(MAX_EPOCH))
    route(router, 0, 1)
    seen = Ends(router).seen()
    assert [[kind for kind, _, _ in seen[worker]] for worker in (0, 1)] == [["rows"], ["rows"]]
    router.switch(move_of((0, 1), (0, 1)), before=5, after=5, idle=False)
    router.epoch(Epoch(6))
    assert [kind for kind, _, _ in Ends(router).seen()[0]] == ["control", "epoch"]


def test_f2_markers_and_what_moves_slots_need_no_credit_but_stand_behind_what_waits_for_it() -> None:
    router = router_of(0, 1, table=[1] * SLOTS, rows_max=1, credit=Credit(rows=1))
    route(router, 0)
    assert len(router.take()) == 1
    route(router, 1)
    move = move_of((0, 1), (0, 1))
    router.switch(move, before=1, after=1, idle=False)
    router.control(Shipped(1))
    assert router.take() == []
    router.channels[1].grant(Grant(router.channels[1].channel, 1, 1, 1_000))
    assert [frame.control for frame in router.take()] == [None, Marker(move, 1, 1), Shipped(1)]


def test_r8_a_channel_is_dropped_at_its_end_and_not_before() -> None:
    router = router_of(0, 1, table=[1] * SLOTS)
    route(router, 0)
    with pytest.raises(InternalError, match="exchange 'x': the channel to worker 1 is dropped before its end"):
        router.disconnect(1)
    other = router_of(0, 1, table=[1] * SLOTS, rows_max=1)
    route(other, 0)
    with pytest.raises(InternalError, match="before its end"):
        other.disconnect(1)
    last = router_of(0, 1)
    last.epoch(Epoch(3))
    with pytest.raises(InternalError, match="before its end"):
        last.disconnect(1)


def test_f3_with_one_worker_left_nothing_is_hashed() -> None:
    def refuse(keys: Sequence[Any]) -> list[int]:
        raise AssertionError("hashed")

    router = router_of(0, 1)
    router.switch(move_of((0, 1), (0,)), before=1, after=1, idle=False)
    router.take()
    router.disconnect(1)
    router.slots_of = refuse
    route(router, 1, 2, 3)
    assert not router.channels
    assert [kind for kind, _, _ in Ends(router).seen()[0]] == ["control", "rows", "rows", "rows"]


def test_a_number_that_was_used_on_a_channel_is_not_used_again_when_others_join() -> None:
    """F1: the frames of each channel are numbered from 1 on, even if other workers join and leave."""
    router = router_of(0, 1, table=[1] * SLOTS, rows_max=1)
    route(router, 0)
    router.connect(2)
    route(router, 1)
    numbers = [(frame.channel.receiver, frame.sequence, frame.incarnation) for frame in router.take()]
    assert numbers == [(1, 1, 1), (1, 2, 1)]


@st.composite
def traffic(draw: st.DrawFn) -> list[Any]:
    """Keys, epochs, and one to three moves among workers 0, 1 and 2."""
    steps: list[Any] = draw(
        st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=5) | st.integers(0, 50), max_size=20)
    )
    for _ in range(draw(st.integers(1, 3))):
        table = draw(st.tuples(*[st.sampled_from([0, 1, 2])] * SLOTS))
        steps.insert(draw(st.integers(0, len(steps))), table)
    return steps


@given(steps=traffic(), rows_max=st.integers(1, 7))
def test_r2_whatever_is_sent_goes_by_the_table_of_the_version_that_it_bears(steps: list[Any], rows_max: int) -> None:
    tables = [(0, 1, 2) * 2]
    router = router_of(0, 1, 2, table=tables[0], rows_max=rows_max)
    expected: dict[int, list[Item]] = {0: [], 1: [], 2: []}
    for step in steps:
        if isinstance(step, int):
            router.epoch(Epoch(step))
            for items in expected.values():
                items.append(("epoch", step, len(tables) - 1))
        elif isinstance(step, list):
            route(router, *step)
            for key in step:
                expected[tables[-1][key % SLOTS]].append(("rows", key, len(tables) - 1))
        else:
            tables.append(step)
            marker = Marker(RescaleMove(len(tables) - 1, (0, 1, 2), (0, 1, 2), step), 1, 2)
            router.switch(marker.move, before=1, after=2, idle=False)
            for items in expected.values():
                items.append(("control", marker, 0))
    seen = Ends(router).seen()
    assert {worker: [(kind, item) for kind, item, _ in seen.get(worker, [])] for worker in expected} == {
        worker: [(kind, item) for kind, item, _ in items] for worker, items in expected.items()
    }
    for worker, items in expected.items():
        versions = [version for kind, _, version in seen.get(worker, []) if kind != "control"]
        assert versions == [version for kind, _, version in items if kind != "control"]
