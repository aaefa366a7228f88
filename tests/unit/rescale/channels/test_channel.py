"""One channel: numbered, bounded by credit, first in first out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import Epoch
from malstrom_py.errors import InternalError, PeerError
from malstrom_py.rescale.channels.channel import (
    OPEN,
    Barrier,
    ChannelId,
    ChannelIn,
    ChannelOut,
    Credit,
    Frame,
    Grant,
    Loopback,
    PlacedEpoch,
    Suspend,
)

CHANNEL = ChannelId("by-key", 1, 2)


def sender(rows: int = 1000, size: int = 1000, incarnation: int = 3) -> ChannelOut:
    return ChannelOut(CHANNEL, incarnation, Credit(rows, size))


def put(channel: ChannelOut, *rows: int, size: int = 1) -> None:
    for count in rows:
        channel.put(b"rows", rows=count, size=size)


def rows_of(frames: list[Frame]) -> list[int]:
    return [frame.rows for frame in frames]


def test_f1_frames_are_numbered_from_one_and_carry_the_incarnation() -> None:
    channel = sender()
    put(channel, 1, 2)
    channel.put(control=Suspend())
    assert [(frame.sequence, frame.incarnation) for frame in channel.take()] == [(1, 3), (2, 3), (3, 3)]


def test_f1_what_comes_in_order_is_taken_in_order() -> None:
    out, into = sender(), ChannelIn(CHANNEL, 3)
    put(out, 1, 2, 3)
    for frame in out.take():
        into.receive(frame)
    assert len(into) == 3
    assert [into.take().rows for _ in range(3)] == [1, 2, 3]


def test_f1_a_gap_is_refused_and_named() -> None:
    out, into = sender(), ChannelIn(CHANNEL, 3)
    put(out, 1, 2, 3)
    first, _, third = out.take()
    into.receive(first)
    with pytest.raises(PeerError, match=r"'by-key': a gap .* worker 1 to worker 2: expected number 2 .*, got 3"):
        into.receive(third)
    assert len(into) == 1


def test_f1_a_repeat_is_refused_and_named() -> None:
    out, into = sender(), ChannelIn(CHANNEL, 3)
    put(out, 1)
    (frame,) = out.take()
    into.receive(frame)
    with pytest.raises(PeerError, match="a repeat"):
        into.receive(frame)
    assert len(into) == 1


def test_f1_a_repeat_after_it_was_taken_is_refused_too() -> None:
    out, into = sender(), ChannelIn(CHANNEL, 3)
    put(out, 1)
    (frame,) = out.take()
    into.receive(frame)
    into.take()
    with pytest.raises(PeerError):
        into.receive(frame)


def test_f1_an_old_incarnation_is_dropped_and_counted() -> None:
    into = ChannelIn(CHANNEL, 3)
    put(old := sender(incarnation=2), 1, 2)
    for frame in old.take():
        into.receive(frame)
    assert (len(into), into.stale_frames) == (0, 2)
    put(now := sender(), 5)
    into.receive(now.take()[0])
    assert len(into) == 1


def test_f1_an_incarnation_to_come_is_refused() -> None:
    put(next_one := sender(incarnation=4), 1)
    with pytest.raises(PeerError, match="incarnation 3, got 1 of 4"):
        ChannelIn(CHANNEL, 3).receive(next_one.take()[0])


def test_f1_a_frame_of_another_channel_is_our_fault() -> None:
    put(out := sender(), 1)
    frame = replace(out.take()[0], channel=ChannelId("by-key", 2, 1))
    with pytest.raises(InternalError):
        ChannelIn(CHANNEL, 3).receive(frame)


def test_f2_rows_need_credit_in_rows() -> None:
    channel = sender(rows=5)
    put(channel, 3, 2, 1, 1)
    assert rows_of(channel.take()) == [3, 2]
    assert channel.backlog == 2
    assert channel.take() == []
    channel.grant(Grant(CHANNEL, 3, 1, 0))
    assert rows_of(channel.take()) == [1]


def test_f2_rows_need_credit_in_bytes() -> None:
    channel = sender(size=10)
    put(channel, 1, 1, 1, size=6)
    assert rows_of(channel.take()) == [1, 1]
    channel.grant(Grant(CHANNEL, 3, 5, 0))
    assert channel.take() == []
    channel.grant(Grant(CHANNEL, 3, 0, 3))
    assert rows_of(channel.take()) == [1]


def test_f2_a_batch_larger_than_the_credit_passes_alone() -> None:
    channel = sender(rows=5)
    put(channel, 1, 500, 1)
    assert rows_of(channel.take()) == [1, 500]
    channel.grant(Grant(CHANNEL, 3, 1, 1))
    assert channel.take() == []
    channel.grant(Grant(CHANNEL, 3, 500, 1))
    assert rows_of(channel.take()) == [1]


def test_f2_control_stands_behind_the_backlog_and_needs_no_credit_of_its_own() -> None:
    channel = sender(rows=1)
    channel.put(control=Barrier("1"))
    put(channel, 1, 1)
    channel.put(control=Barrier("2"))
    channel.put(epochs=(PlacedEpoch(0, 7),))
    assert [(frame.rows, frame.control) for frame in channel.take()] == [(0, Barrier("1")), (1, None)]
    assert channel.backlog == 3
    channel.grant(Grant(CHANNEL, 3, 1, 1))
    assert [(frame.rows, frame.control) for frame in channel.take()] == [(1, None), (0, Barrier("2"))]
    channel.grant(Grant(CHANNEL, 3, 1, 1))
    assert [frame.epochs for frame in channel.take()] == [(PlacedEpoch(0, 7),)]


def test_f2_an_epoch_is_credited_like_a_row_wherever_it_stands() -> None:
    channel = sender(rows=4)
    put(channel, 2)
    channel.put(epochs=(PlacedEpoch(0, 7), PlacedEpoch(0, 8)))
    channel.put(epochs=(PlacedEpoch(0, 9),))
    assert [len(frame.epochs) for frame in channel.take()] == [0, 2]
    channel.put(control=Barrier("1"))
    assert channel.take() == []
    channel.grant(Grant(CHANNEL, 3, 2, 0))
    assert [(len(frame.epochs), frame.control) for frame in channel.take()] == [(1, None), (0, Barrier("1"))]


def test_f2_grants_of_an_old_incarnation_are_ignored() -> None:
    channel = sender(rows=1)
    put(channel, 1, 1)
    channel.take()
    channel.grant(Grant(CHANNEL, 2, 100, 100))
    assert channel.take() == []


def test_f2_what_is_put_without_credit_counts_as_spilled() -> None:
    channel = sender(rows=2)
    put(channel, 2)
    channel.take()
    put(channel, 7)
    assert channel.spilled_rows == 7


def test_f2_credit_goes_back_with_the_window_that_the_sender_has_from_then_on() -> None:
    channel = ChannelIn(CHANNEL, 3)
    assert channel.grant(4, 9) == Grant(CHANNEL, 3, 4, 9, OPEN)
    assert channel.grant(4, 9, 100) == Grant(CHANNEL, 3, 4, 9, 100)


def test_f2_below_the_credit_the_window_limits_what_is_on_its_way() -> None:
    channel = ChannelOut(CHANNEL, 3, Credit(rows=100))
    put(channel, 2, 2)
    assert rows_of(channel.take()) == [2, 2]
    channel.grant(Grant(CHANNEL, 3, 2, 0, window=6))
    put(channel, *[2] * 5)
    assert rows_of(channel.take()) == [2, 2]
    assert channel.backlog == 3
    assert channel.waits_for_time
    assert channel.excess == 2.0  # twelve rows are queued, six may be, and a share is three
    channel.grant(Grant(CHANNEL, 3, 2, 0, window=1))
    assert rows_of(channel.take()) == []
    channel.grant(Grant(CHANNEL, 3, 4, 0, window=1))
    assert rows_of(channel.take()) == [2]
    channel.grant(Grant(CHANNEL, 3, 2, 0))
    assert rows_of(channel.take()) == [2, 2]
    assert not channel.waits_for_time
    assert channel.excess == 0.0


def test_f2_no_window_lets_more_out_than_the_credit() -> None:
    channel = ChannelOut(CHANNEL, 3, Credit(rows=2))
    put(channel, *[1] * 4)
    assert rows_of(channel.take()) == [1, 1]
    assert not channel.waits_for_time
    channel.grant(Grant(CHANNEL, 3, 1, 0, window=1000))
    assert rows_of(channel.take()) == [1]


def test_f2_at_first_no_more_is_let_out_than_twice_what_has_been_worked_off() -> None:
    channel = ChannelOut(CHANNEL, 3, Credit(rows=100), trust=4)
    put(channel, *[1] * 40)
    assert sum(rows_of(channel.take())) == 4
    channel.grant(Grant(CHANNEL, 3, 4, 0))
    assert sum(rows_of(channel.take())) == 12
    channel.grant(Grant(CHANNEL, 3, 12, 0))
    assert sum(rows_of(channel.take())) == 24
    loopback = Loopback(Credit(rows=100), trust=4)
    loopback.put(Batch(["a"] * 4))
    assert loopback.full
    loopback.take()
    loopback.put(Batch(["a"] * 11))
    assert not loopback.full


def test_f2_a_worker_s_channel_to_itself_is_full_by_its_window_too() -> None:
    loopback = Loopback(Credit(rows=100))
    loopback.freed(4)
    loopback.put(Batch(["a", "b", "c"]))
    assert not loopback.full
    loopback.put(Batch(["d", "e"]))
    assert loopback.full
    assert loopback.waits_for_time
    loopback.freed(6)
    assert not loopback.full
    loopback.freed(1000)
    loopback.put(Batch(["x"] * 95))
    assert loopback.full
    assert not loopback.waits_for_time


def test_of_a_batch_in_a_worker_s_channel_to_itself_a_part_can_be_taken() -> None:
    loopback = Loopback(Credit(rows=5))
    loopback.put(Batch([1, 2, 3, 4, 5], keys=list("abcde"), timestamps=[6, 7, 8, 9, 10]))
    loopback.put(Epoch(10))
    taken = [loopback.take(2) for _ in range(3)]
    assert [(batch.values, batch.keys, batch.timestamps) for batch in taken if isinstance(batch, Batch)] == [
        ([1, 2], ["a", "b"], [6, 7]),
        ([3, 4], ["c", "d"], [8, 9]),
        ([5], ["e"], [10]),
    ]
    assert not loopback.full
    assert loopback.take(2) == Epoch(10)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=40), st.integers(1, 6))
def test_f2_no_more_than_the_credit_and_one_batch_is_ever_under_way(
    steps: list[tuple[int, bool]], rows_max: int
) -> None:
    out, into = sender(rows=rows_max), ChannelIn(CHANNEL, 3)
    sent: list[int] = []
    taken: list[int] = []
    for rows, take in steps:
        sent.append(rows)
        put(out, rows)
        for frame in out.take():
            into.receive(frame)
        if take and len(into):
            frame = into.take()
            grant = into.grant(frame.cost, frame.size) if frame.cost else None
            taken.append(frame.rows)
            if grant is not None:
                out.grant(grant)
        under_way = sum(sent) - sum(taken) - sum(rows for rows in sent[len(taken) + len(into) :])
        assert under_way < rows_max + 10
    while len(into) or out.backlog:
        for frame in out.take():
            into.receive(frame)
        frame = into.take()
        grant = into.grant(frame.cost, frame.size) if frame.cost else None
        taken.append(frame.rows)
        if grant is not None:
            out.grant(grant)
    assert taken == sent


def test_the_loopback_gives_what_it_was_given_unchanged_and_waits_at_a_barrier() -> None:
    loopback = Loopback(Credit(rows=4))
    batch = Batch([1, 2], keys=["a", "b"])
    loopback.put(batch)
    loopback.put(Epoch(5))
    assert (len(loopback), loopback.full) == (2, False)
    loopback.blocked = True
    assert loopback.take() is None
    loopback.blocked = False
    assert loopback.take() is batch
    assert loopback.take() == Epoch(5)
    assert loopback.take() is None


@pytest.mark.parametrize("last", [Batch([3]), Epoch(7)], ids=repr)
def test_f2_the_loopback_is_full_at_its_credit_of_rows_and_epochs(last: Batch | Epoch) -> None:
    loopback = Loopback(Credit(rows=3))
    loopback.put(Batch([1, 2]))
    loopback.put(Barrier("1"))
    assert not loopback.full
    loopback.put(last)
    assert loopback.full
    loopback.take()
    assert not loopback.full
