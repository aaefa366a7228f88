"""`collect`: a key's values as lists, by number, by time, and before an epoch that would make them late."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, Acquire, Epoch, Interrogate
from malstrom_py.data.messages import Collect as Taken
from malstrom_py.operators.collect import CollectStep
from malstrom_py.testing import VirtualClock
from tests.unit.operators.stepping import Stepped, cut


def stepped(
    size: int | None = None, every_s: float | None = None, timed: bool = False, clock: VirtualClock | None = None
) -> Stepped:
    return Stepped(
        partial(CollectStep, size=size, every_s=every_s), timed=timed, keyed=True, clock=clock or VirtualClock()
    )


def schedule(step: Stepped, clock: VirtualClock) -> None:
    step.call(partial(step.operator.on_schedule, clock=clock))


@given(
    records=st.lists(st.sampled_from("abc"), max_size=30),
    size=st.integers(1, 4),
    sizes=st.lists(st.integers(1, 6), max_size=20),
)
def test_lists_have_the_size_and_the_end_brings_the_rest(records: list[str], size: int, sizes: list[int]) -> None:
    batch = Batch(list(range(len(records))), keys=list(records))
    step = stepped(size).push(*cut(batch, sizes), Epoch(MAX_EPOCH))
    by_key: dict[str, list[list[int]]] = {}
    for key, values, _ in step.rows():
        by_key.setdefault(key, []).append(values)
    for key in set(records):
        mine = [row for row, other in enumerate(records) if other == key]
        assert by_key[key] == [mine[start : start + size] for start in range(0, len(mine), size)]
    assert step.operator.keys == 0
    assert step.epochs() == [MAX_EPOCH]


MOVES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("ab"), st.integers(0, 6)), st.integers(1, 5), st.floats(0.1, 3), st.just("move")
    ),
    max_size=30,
)


@given(moves=MOVES, size=st.integers(1, 4))
def test_nothing_is_lost_twice_or_sent_at_or_below_an_epoch_that_has_passed(moves: list[object], size: int) -> None:
    """Records, epochs, passing time and moves to another worker and back, in any order."""
    clock, frontier, sent = VirtualClock(), 0, 0
    step = stepped(size, 2.0, timed=True, clock=clock)
    for move in moves:
        if isinstance(move, tuple):
            sent += 1
            step.push(Batch([sent], keys=[move[0]], timestamps=[frontier + 1 + move[1]]))
        elif isinstance(move, int):
            frontier += move
            step.push(Epoch(frontier))
        elif isinstance(move, float):
            clock.advance(move)
            schedule(step, clock)
        else:
            asked = Interrogate(lambda key: True)
            step.push(asked)
            taken = Taken(frozenset(asked.keys))
            step.push(taken, Acquire(taken.states))
    step.push(Epoch(MAX_EPOCH))
    passed = MIN_EPOCH
    for message in step.messages():
        if isinstance(message, Epoch):
            passed = message.time
        elif isinstance(message, Batch):
            assert message.timestamps is not None
            assert min(message.timestamps) > passed
            assert all(1 <= len(values) <= size for values in message.values)
    assert sorted(number for values in step.values() for number in values) == list(range(1, sent + 1))


def test_on_an_untimed_stream_only_the_end_is_an_epoch_to_send_before() -> None:
    step = stepped(9).push(Batch([1], keys=["a"]), Epoch(5))
    assert step.batches() == []
    assert step.push(Epoch(MAX_EPOCH)).rows() == [("a", [1], None)]


def test_every_counts_from_the_first_record_of_a_key_and_each_key_for_itself() -> None:
    clock = VirtualClock()
    step = stepped(every_s=3.0, clock=clock)
    step.push(Batch([1], keys=["a"]))
    schedule(step, clock)
    clock.advance(2.0)
    step.push(Batch([2, 3], keys=["a", "b"]))
    schedule(step, clock)
    assert step.batches() == []
    clock.advance(1.0)
    schedule(step, clock)
    assert step.rows() == [("a", [1, 2], None)]
    clock.advance(2.0)
    schedule(step, clock)
    assert step.rows()[1:] == [("b", [3], None)]


def test_a_list_that_was_sent_full_starts_the_wait_of_the_next_one_anew() -> None:
    clock = VirtualClock()
    step = stepped(2, every_s=3.0, clock=clock)
    step.push(Batch([1], keys=["a"]))
    schedule(step, clock)
    clock.advance(2.0)
    step.push(Batch([2, 3], keys=["a"] * 2))  # full, and a new one begun
    schedule(step, clock)
    clock.advance(2.0)
    schedule(step, clock)
    assert step.values() == [[1, 2]]
    clock.advance(1.0)
    schedule(step, clock)
    assert step.values() == [[1, 2], [3]]
