"""One channel, remote or a loopback: bounded by credit, first in first out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import Epoch
from malstrom_py.errors import InternalError
from malstrom_py.rescale.channels.channel import (
    OPEN,
    Barrier,
    ChannelId,
    Credit,
    Frame,
    Grant,
    InboundChannel,
    Loopback,
    OutboundChannel,
    PlacedEpoch,
    RemoteInbound,
    RemoteOutbound,
    Share,
)

CHANNEL = ChannelId("by-key", 1, 2)


def sender(rows: int = 1000, size: int = 1000, incarnation: int = 3, trust: int = OPEN) -> RemoteOutbound:
    """A sender whose rows say how many bytes their frame has."""
    return RemoteOutbound(CHANNEL, lambda batch: bytes(batch.values[0]), incarnation, Credit(rows, size), trust=trust)


def receiver() -> RemoteInbound:
    """A receiver that makes of a frame of n bytes n rows."""
    return RemoteInbound(CHANNEL, lambda data: Batch([1] * len(data)), 3)


def put(channel: RemoteOutbound, *rows: int, size: int = 1) -> None:
    for count in rows:
        channel.put(Batch([size] * count, keys=[0] * count))
        channel.flush()


def put_epochs(channel: RemoteOutbound, *times: int) -> None:
    for time in times:
        channel.put_epoch(Epoch(time))
    channel.flush()


def rows_of(frames: list[Frame]) -> list[int]:
    return [frame.rows for frame in frames]


def pair() -> tuple[RemoteOutbound, RemoteInbound]:
    encoded: list[Batch] = []

    def encode(batch: Batch) -> bytes:
        encoded.append(batch)
        return b"%d" % (len(encoded) - 1)

    return RemoteOutbound(CHANNEL, encode, 3), RemoteInbound(CHANNEL, lambda data: encoded[int(data)], 3)


@pytest.mark.parametrize("loops", [False, True], ids=["remote", "loopback"])
def test_f1_rows_epochs_and_control_are_taken_in_the_order_in_which_they_were_put(loops: bool) -> None:
    """The contract of both implementations of the two protocols."""
    ends: tuple[OutboundChannel, InboundChannel] = (loopback := Loopback(Credit()), loopback) if loops else pair()
    out, into = ends
    out.put(Batch([1, 3], keys=["a", "c"], timestamps=[1, 3]))
    out.put_epoch(Epoch(3))
    out.put_epoch(Epoch(4, idle=True))
    out.put(Batch([4], keys=["d"], timestamps=[5]))
    out.put_control(Barrier("1"))
    out.put_epoch(Epoch(9))
    out.flush()
    if isinstance(out, RemoteOutbound) and isinstance(into, RemoteInbound):
        for frame in out.take():
            assert (frame.channel, frame.incarnation) == (CHANNEL, 3)
            into.receive(frame)
    into.blocked = True
    assert into.take() is None
    into.blocked = False
    items = []
    while (item := into.take(1)) is not None:
        items.append((item.values, item.keys, item.timestamps) if isinstance(item, Batch) else item)
        into.freed()
    assert items == [
        ([1], ["a"], [1]),
        ([3], ["c"], [3]),
        Epoch(3),
        Epoch(4, idle=True),
        ([4], ["d"], [5]),
        Barrier("1"),
        Epoch(9),
    ]
    assert (len(into), out.backlogged) == (0, False)


def test_f1_an_old_incarnation_is_dropped_and_counted() -> None:
    into = receiver()
    put(old := sender(incarnation=2), 1, 2)
    for frame in old.take():
        into.receive(frame)
    assert (len(into), into.stale_frames) == (0, 2)
    put(now := sender(), 5)
    into.receive(now.take()[0])
    assert len(into) == 1


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
    channel.put_control(Barrier("1"))
    put(channel, 1, 1)
    channel.put_control(Barrier("2"))
    put_epochs(channel, 7)
    assert [(frame.rows, frame.control) for frame in channel.take()] == [(0, Barrier("1")), (1, None)]
    assert channel.backlogged
    channel.grant(Grant(CHANNEL, 3, 1, 1))
    assert [(frame.rows, frame.control) for frame in channel.take()] == [(1, None), (0, Barrier("2"))]
    channel.grant(Grant(CHANNEL, 3, 1, 1))
    assert [frame.epochs for frame in channel.take()] == [(PlacedEpoch(0, 7),)]


def test_f2_an_epoch_is_credited_like_a_row_wherever_it_stands() -> None:
    channel = sender(rows=4)
    put(channel, 2)
    put_epochs(channel, 7, 8)
    put_epochs(channel, 9)
    assert [len(frame.epochs) for frame in channel.take()] == [0, 2]
    channel.put_control(Barrier("1"))
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
    out, into = sender(), receiver()
    put(out, 4, 4, size=9)
    for frame in out.take():
        into.receive(frame)
    assert into.freed() is None
    into.take()
    assert into.freed() == Grant(CHANNEL, 3, 4, 9, OPEN)
    assert into.freed() is None
    into.take()
    share = into.withhold(1)
    assert (share, into.freed(100)) == ((1, 2), Grant(CHANNEL, 3, 3, 7, 100))
    assert into.give_back(share, 50) == Grant(CHANNEL, 3, 1, 2, 50)


def test_r8_an_end_with_something_left_is_not_closed() -> None:
    out, into = sender(), receiver()
    put(out, 1)
    for end in (out, into):
        for frame in out.take() if end is into else ():
            into.receive(frame)
        with pytest.raises(InternalError, match=r"exchange 'by-key': the channel .* worker [12] is dropped before"):
            end.close()
    out.close()
    into.take()
    into.close()


def test_f2_below_the_credit_the_window_limits_what_is_on_its_way() -> None:
    channel = sender(rows=100, size=1 << 20)
    put(channel, 2, 2)
    assert rows_of(channel.take()) == [2, 2]
    channel.grant(Grant(CHANNEL, 3, 2, 0, window=6))
    put(channel, *[2] * 5)
    assert rows_of(channel.take()) == [2, 2]
    assert channel.backlogged
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
    channel = sender(rows=2, size=1 << 20)
    put(channel, *[1] * 4)
    assert rows_of(channel.take()) == [1, 1]
    assert not channel.waits_for_time
    channel.grant(Grant(CHANNEL, 3, 1, 0, window=1000))
    assert rows_of(channel.take()) == [1]


def test_f2_at_first_no_more_is_let_out_than_twice_what_has_been_worked_off() -> None:
    channel = sender(rows=100, size=1 << 20, trust=4)
    put(channel, *[1] * 40)
    assert sum(rows_of(channel.take())) == 4
    channel.grant(Grant(CHANNEL, 3, 4, 0))
    assert sum(rows_of(channel.take())) == 12
    channel.grant(Grant(CHANNEL, 3, 12, 0))
    assert sum(rows_of(channel.take())) == 24
    loopback = Loopback(Credit(rows=100), trust=4)
    loopback.put(Batch(["a"] * 4))
    assert loopback.backlogged
    loopback.take()
    loopback.put(Batch(["a"] * 11))
    assert not loopback.backlogged


def test_f2_a_worker_s_channel_to_itself_is_full_by_its_window_too() -> None:
    loopback = Loopback(Credit(rows=100))
    loopback.freed(4)
    loopback.put(Batch(["a", "b", "c"]))
    assert not loopback.backlogged
    loopback.put(Batch(["d", "e"]))
    assert loopback.backlogged
    assert loopback.waits_for_time
    loopback.freed(6)
    assert not loopback.backlogged
    loopback.freed(1000)
    loopback.put(Batch(["x"] * 95))
    assert loopback.backlogged
    assert not loopback.waits_for_time


def test_of_a_batch_in_a_worker_s_channel_to_itself_a_part_can_be_taken() -> None:
    loopback = Loopback(Credit(rows=5))
    loopback.put(Batch([1, 2, 3, 4, 5], keys=list("abcde"), timestamps=[6, 7, 8, 9, 10]))
    loopback.put_epoch(Epoch(10))
    taken = [loopback.take(2) for _ in range(3)]
    assert [(batch.values, batch.keys, batch.timestamps) for batch in taken if isinstance(batch, Batch)] == [
        ([1, 2], ["a", "b"], [6, 7]),
        ([3, 4], ["c", "d"], [8, 9]),
        ([5], ["e"], [10]),
    ]
    assert not loopback.backlogged
    assert loopback.take(2) == Epoch(10)


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=40), st.integers(1, 6))
def test_f2_no_more_than_the_credit_and_one_batch_is_ever_under_way(
    steps: list[tuple[int, bool]], rows_max: int
) -> None:
    out, into = sender(rows=rows_max, size=1 << 20), receiver()
    sent, taken, released = list[int](), list[int](), 0

    def carry(*, take: bool) -> None:
        nonlocal released
        for frame in out.take():
            released += frame.rows
            into.receive(frame)
        if take and isinstance(batch := into.take(), Batch):
            taken.append(len(batch))
            grant = into.freed()
            assert grant is not None
            out.grant(grant)

    for rows, take in steps:
        sent.append(rows)
        put(out, rows, size=rows)
        carry(take=take)
        assert released - sum(taken) < rows_max + 10
    while len(into) or out.backlogged:
        carry(take=True)
    assert taken == sent


@pytest.mark.parametrize("last", [Batch([3]), Epoch(7)], ids=repr)
def test_f2_the_loopback_is_full_at_its_credit_of_rows_and_epochs(last: Batch | Epoch) -> None:
    loopback = Loopback(Credit(rows=3))
    loopback.put(Batch([1, 2]))
    loopback.put_control(Barrier("1"))
    assert not loopback.backlogged
    loopback.put_epoch(last) if isinstance(last, Epoch) else loopback.put(last)
    assert loopback.backlogged
    loopback.take()
    assert not loopback.backlogged


@pytest.mark.parametrize(
    ("credit", "trust", "window", "returned"),
    [
        (Credit(), OPEN, OPEN, [0, 0, 0, 8, 0]),
        (Credit(), OPEN, 240, [0, 4, 0, 4, 0]),
        (Credit(), 12, OPEN, [0, 4, 0, 4, 0]),
        (Credit(rows=4), OPEN, OPEN, [2, 2, 2, 2, 2]),
        (Credit(size=12), OPEN, OPEN, [0, 4, 0, 4, 0]),
    ],
    ids=["little", "window", "trust", "credit", "bytes"],
)
def test_f2_a_little_credit_is_returned_with_that_of_later_frames(
    credit: Credit, trust: int, window: int, returned: list[int]
) -> None:
    into = RemoteInbound(CHANNEL, lambda data: Batch([1] * len(data)), 3, credit, trust=trust)
    granted = []
    for _ in returned:
        into.receive(Frame(CHANNEL, b"xx", 2, 2, incarnation=3))
        into.take()
        grant = into.freed(window)
        granted.append(0 if grant is None else grant.rows)
    assert granted == returned


def test_f2_credit_is_returned_before_the_window_that_the_sender_knows_is_used_up() -> None:
    """The window was small and has become large: the sender knows only of the small one."""
    into = RemoteInbound(CHANNEL, lambda data: Batch([1] * len(data)), 3, Credit())
    granted = []
    for window in (4, OPEN, OPEN):
        into.receive(Frame(CHANNEL, b"x", 1, 1, incarnation=3))
        into.take()
        granted.append(into.freed(window))
    assert granted[:2] == [Grant(CHANNEL, 3, 1, 1, 4), Grant(CHANNEL, 3, 1, 1, OPEN)]
    assert granted[2] is None


def test_f2_all_credit_that_is_due_goes_back_with_a_window_for_held_rows() -> None:
    """A sender with a smaller window waits for rows that the receiver has kept, and nothing else frees them."""
    into = RemoteInbound(CHANNEL, lambda data: Batch([1] * len(data)), 3, Credit())
    out = RemoteOutbound(CHANNEL, lambda batch: bytes(len(batch)), 3, Credit())

    def pass_on(rows: int, *, held: int = 0) -> Share | None:
        out.put(Batch([1] * rows, keys=[1] * rows))
        out.flush()
        (frame,) = out.take()
        into.receive(frame)
        into.take()
        share = into.withhold(held) if held else None
        grant = into.freed(6000)
        if grant is not None and (grant.rows or grant.size):
            out.grant(grant)
        return share

    share = pass_on(4, held=3)
    for _ in range(5):
        pass_on(1)
    assert into.gathered.rows == 6
    assert share is not None
    out.grant(into.give_back(share, 5))
    assert into.gathered.rows == 0
    for _ in range(9):
        pass_on(1)  # each is sent
