"""A source part moves to another worker: its position and its epoch move with it, and nothing else does (R2, T2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py import sources
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, AbsBarrier, Epoch, PartFinished, PartOpened
from malstrom_py.errors import InternalError, SourceError
from malstrom_py.operators.part_reader import ROWS_FIRST
from malstrom_py.operators.read_source import ReadSource
from malstrom_py.sources.base import Part
from malstrom_py.testing import CapturingPersistenceBackend, VirtualClock
from tests.unit.operators.one_worker import BOUND, OneWorker, positions, values_of
from tests.unit.operators.scripted import Scripted
from tests.unit.operators.stepping import Stepped


@dataclass
class Judged:
    """One part judged record by record, by the words of T1."""

    epoch: int = MIN_EPOCH
    on_time: list[int] = field(default_factory=list)
    late: list[int] = field(default_factory=list)

    def take(self, times: list[int]) -> Judged:
        for time in times:
            (self.late if time <= self.epoch else self.on_time).append(time)
            self.epoch = max(self.epoch, time - BOUND - 1)
        return self


@given(
    times=st.lists(st.integers(-20, 20), max_size=30),
    polls=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), min_size=1, max_size=6),
)
def test_r2_nothing_is_lost_or_read_twice_and_no_record_is_judged_otherwise_for_any_cut(
    times: list[int], polls: list[tuple[int, int]]
) -> None:
    """The part goes from worker to worker, each of which polls it a few times and has no other part."""
    source = sources.Memory(times)
    workers = [OneWorker(source) for _ in range(len(polls) + 1)]
    here = workers[0].open("0")
    for (count, rows_max), there in zip(polls, workers[1:], strict=True):
        for _ in range(count):
            here.poll(rows_max)
        if here.source.finished:
            break
        here.give("0", there)
        here = there
    here.finish()
    judged = Judged().take(times)
    assert values_of(*(worker.on_time for worker in workers)) == judged.on_time
    assert values_of(*(worker.late for worker in workers)) == judged.late


def test_t2_the_epoch_of_the_giver_waits_for_the_parts_it_keeps_only() -> None:
    source = Scripted({"a": [[100], [200]], "b": [[10], [20]]})
    giver, taker = OneWorker(source).open("a", "b"), OneWorker(source)
    giver.poll()
    giver.poll()
    assert giver.epoch() == 10 - BOUND - 1
    giver.give("b", taker)
    giver.poll()
    assert giver.epoch() == MAX_EPOCH  # its last part is finished
    assert 200 - BOUND - 1 in [m.time for m in giver.on_time.messages if isinstance(m, Epoch)]


def test_t2_a_part_that_was_gained_holds_the_epoch_of_the_taker_back() -> None:
    source = sources.Memory([100, 10, 200, 20, 300, 30], parts=2)
    giver, taker = OneWorker(source).open("1"), OneWorker(source).open("0")
    giver.poll()
    giver.give("1", taker)
    for _ in range(2):
        taker.poll()
    assert taker.epoch() == 20 - BOUND - 1


def test_r2_a_part_that_waits_to_be_opened_moves_at_its_start_and_is_opened_once() -> None:
    parts = {f"p{number:03}": [[number]] for number in range(258)}
    source = Scripted(parts)
    giver, taker = OneWorker(source).open(*parts), OneWorker(source)
    assert "p257" not in source.parts
    assert giver.give("p257", taker).state == {"epochs": MIN_EPOCH}
    assert source.open_at_once_max == 257
    giver.finish()
    taker.finish()
    assert sorted(values_of(giver.on_time, giver.late, taker.on_time, taker.late)) == list(range(258))
    assert values_of(taker.on_time) == [257]


def test_a_gained_part_is_asked_for_as_many_rows_as_its_former_worker_would_have_polled() -> None:
    workers = [OneWorker(sources.Memory(range(10_000))).open(*parts) for parts in (["0"], [], [])]
    giver, read = workers[0].source, 0
    for _ in range(5):
        read = workers[0].poll(10_000)
        giver.made(read, read, took_s=0.0, limit_s=1.0, load=0.0)
    workers[0].give("0", workers[1], polled=False)
    workers[1].give("0", workers[2])  # before it was opened
    assert workers[2].poll(10_000) == 2 * read > 2 * ROWS_FIRST


def test_r2_releasing_a_part_that_is_not_read_here_is_our_bug() -> None:
    worker = OneWorker(Scripted({"a": [[1]], "b": [[2], [3]]})).open("a", "b")
    for _ in range(2):
        with pytest.raises(InternalError, match="source 'in': part 'unknown' is not read on this worker"):
            worker.call(partial(worker.source.release, part=Part("unknown")))
    worker.call(partial(worker.source.release, part=Part("b")))
    with pytest.raises(InternalError, match="part 'b' is not read on this worker"):
        worker.call(partial(worker.source.release, part=Part("b")))


def test_r2_the_part_is_announced_before_its_records_and_finished_where_it_ends() -> None:
    source = sources.Memory([1, 2])
    giver, taker = Stepped(partial(ReadSource, source=source)), Stepped(partial(ReadSource, source=source))
    assert isinstance(giver.operator, ReadSource)
    assert isinstance(taker.operator, ReadSource)
    poll: dict[str, Any] = {"rows_max": 1, "linger_s": 0.0, "clock": VirtualClock()}
    giver.call(partial(giver.operator.open, parts=[Part("0")]))
    giver.call(partial(giver.operator.poll, **poll))
    position, released = giver.call(partial(giver.operator.release, part=Part("0")))
    released.state["epochs"] = 7
    taker.call(partial(taker.operator.take, part=Part("0"), position=position, state=released.state))
    taker.operator.poll_gained()
    taker.call(partial(taker.operator.poll, **poll))
    name = "under-test/0"
    assert [getattr(m, "values", m) for m in giver.messages()[:3]] == [PartOpened(name), [1], released]
    assert [getattr(m, "values", m) for m in taker.messages()] == [
        PartOpened(name, released.state),
        [2],
        PartFinished(name),
        Epoch(MAX_EPOCH),
    ]


def test_r2_giving_the_last_part_away_sends_no_epoch_until_the_worker_is_told_to_settle() -> None:
    giver, taker = OneWorker(sources.Memory([1, 50])).open("0"), OneWorker(sources.Memory([1, 50])).open()
    giver.poll(1)
    before = giver.epoch()
    giver.give("0", taker)
    assert (giver.epoch(), giver.source.finished) == (before, False)
    giver.call(giver.source.settle)
    assert (giver.epoch(), giver.source.finished) == (MAX_EPOCH, True)


def test_s1_a_barrier_persists_positions_of_open_waiting_and_finished_parts_and_their_epochs() -> None:
    names = [str(number) for number in range(258)]
    worker = OneWorker(sources.Memory(list(range(258 * 6)), parts=258)).open(*names)
    for _ in range(300):
        worker.poll()
    backend = CapturingPersistenceBackend()
    worker.executor.push(0, AbsBarrier("s", backend))
    worker.executor.run()
    codec = worker.source.context.codec
    positions = codec.decode_at_rest(backend.states["in"])
    assert set(positions) == set(names)
    assert sum(position or 0 for position, _ in positions.values()) == len(values_of(worker.on_time, worker.late))
    epochs = codec.decode_at_rest(backend.states["epochs"])
    assert all(epochs[f"in/{part}"] > MIN_EPOCH for part in ("60", "141"))


class Mute:
    """A part that does not give its position."""

    def __init__(self) -> None:
        self.left = 2

    def poll(self, rows_max: int) -> list[int]:
        self.left -= 1
        return [1]

    def is_finished(self) -> bool:
        return not self.left

    def snapshot(self) -> Any:
        raise ValueError("secret")

    def close(self) -> None:
        """Nothing is open."""


class MuteParts:
    def list_parts(self) -> list[Part]:
        return [Part("0")]

    def build_part(self, part: Part, state: Any) -> Mute:
        return Mute()


class MuteWhole:
    def build(self, worker: Any) -> Mute:
        return Mute()


@pytest.mark.parametrize("moment", ["release", "barrier", "end"])
def test_a_position_that_cannot_be_told_names_source_and_part(moment: str) -> None:
    worker = OneWorker(MuteParts()).open("0")

    def act() -> None:
        if moment == "release":
            worker.call(partial(worker.source.release, part=Part("0")))
        elif moment == "barrier":
            worker.executor.push(0, AbsBarrier("s", CapturingPersistenceBackend()))
            worker.executor.run()
        else:
            worker.finish()

    with pytest.raises(
        SourceError,
        match=r"'in' could not return its offset in partition '0': ValueError in snapshot at \S+: secret. Correct it$",
    ):
        act()


def test_a_source_without_positions_is_never_asked_for_one() -> None:
    worker = OneWorker(MuteWhole()).open("worker-0")
    backend = CapturingPersistenceBackend()
    worker.poll()
    worker.executor.push(0, AbsBarrier("s", backend))
    worker.finish()
    assert values_of(worker.on_time) == [1, 1]
    assert "in" not in backend.states


# Gained parts


def test_r2_a_finished_part_is_handed_over_by_its_position_and_kept_for_snapshots() -> None:
    source = sources.Memory([1, 2, 3, 4], parts=2)
    giver, taker = OneWorker(source).open("0", "1"), OneWorker(source).open()
    giver.poll(10)  # part "0" is finished
    said = len(giver.on_time.messages)
    assert giver.call(partial(giver.source.release, part=Part("0"))) == (2, None)
    assert len(giver.on_time.messages) == said, "operators keep no state of it, so they get no message"
    taker.source.take_finished(part=Part("0"), position=2)
    assert (taker.source.finished, taker.source.parts_left) == (True, [])
    assert (positions(giver), positions(taker)) == ({"1": [0, False]}, {"0": [2, True]})
    # And on to a third worker.
    assert taker.call(partial(taker.source.release, part=Part("0"))) == (2, None)
    with pytest.raises(InternalError, match="part '0' is not read on this worker"):
        taker.call(partial(taker.source.release, part=Part("0")))


def test_r6_a_gained_part_counts_but_is_not_polled_before_it_may_be() -> None:
    source = sources.Memory([100, 10, 200, 20], parts=2)
    giver, taker = OneWorker(source).open("1"), OneWorker(source).open("0")
    giver.poll()
    giver.give("1", taker, polled=False)
    assert taker.source.parts_left == ["0", "1"]
    assert [taker.poll() for _ in range(4)] == [1, 1, 0, 0]  # part "0", to its end
    assert (values_of(taker.on_time), taker.epoch()) == ([100, 200], 10 - BOUND - 1)
    assert not taker.source.finished
    assert taker.source.next_poll_s() is None, "nothing is due that may be polled"
    assert positions(taker) == {"0": [2, True], "1": [1, False]}, "one that waits keeps its position"
    taker.source.poll_gained()
    taker.finish()
    assert values_of(taker.on_time) == [100, 200, 20]


def test_r6_a_gained_part_that_was_not_polled_yet_moves_on_from_where_it_stood() -> None:
    source = sources.Memory([1, 2, 3])
    giver, middle, taker = OneWorker(source).open("0"), OneWorker(source).open(), OneWorker(source).open()
    giver.poll()
    giver.give("0", middle, polled=False)
    assert middle.call(partial(middle.source.release, part=Part("0")))[0] == 1
    assert middle.source.parts_left == []
    taker.call(partial(taker.source.take, part=Part("0"), position=1, state={"epochs": -3}))
    taker.source.poll_gained()
    taker.finish()
    assert values_of(taker.on_time) == [2, 3]


def test_r6_only_what_was_gained_so_far_may_be_polled() -> None:
    source = Scripted({"a": [[1]], "b": [[2]]})
    giver, taker = OneWorker(source).open("a", "b"), OneWorker(source).open()
    giver.give("a", taker, polled=True)
    giver.give("b", taker, polled=False)
    assert [taker.poll(), taker.poll()] == [1, 0]
    assert not taker.source.finished


def test_r2_stopping_ends_every_part_where_it_stands_gained_and_waiting_ones_too() -> None:
    source = Scripted({f"p{number:03}": [[number], [number]] for number in range(258)})
    names = [f"p{number:03}" for number in range(258)]
    giver, taker = OneWorker(source).open(names[257]), OneWorker(source).open(*names[:257])
    giver.give(names[257], taker, polled=False)
    taker.poll()
    taker.call(taker.source.stop)
    assert (taker.source.finished, taker.source.parts_left, taker.epoch()) == (True, [], MAX_EPOCH)
    assert values_of(taker.on_time) == [0]
    assert set(source.closed.values()) == {1}
    assert set(positions(taker)) == set(names)
    taker.call(taker.source.stop)
    assert [message for message in taker.on_time.messages if message == Epoch(MAX_EPOCH)] == [Epoch(MAX_EPOCH)]


def test_t5_a_source_that_gains_a_part_takes_its_end_back() -> None:
    source = sources.Memory([1])
    giver, taker = OneWorker(source).open("0"), OneWorker(source).open()
    assert taker.source.rewind(Epoch(MIN_EPOCH)) == Epoch(MAX_EPOCH)
    giver.give("0", taker, polled=False)
    assert taker.source.rewind(Epoch(MIN_EPOCH)) == Epoch(MIN_EPOCH)


# New parts


class ListedAgain(sources.Memory[int]):
    lists_again_every_s = 1.0


def add(worker: OneWorker, part: str) -> None:
    worker.call(partial(worker.source.add, parts=[(Part(part), None)]))


@pytest.mark.parametrize("parts", [(), ("0",)], ids=["joined and has nothing", "still reads"])
def test_r13_a_new_part_after_a_planned_stop_is_not_opened(parts: tuple[str, ...]) -> None:
    worker = OneWorker(ListedAgain([1, 2], parts=2))
    worker.source.will_stop()
    worker.open(*parts)
    has_finished = worker.source.finished
    assert has_finished is (not parts)
    add(worker, "1")
    assert worker.source.finished is has_finished, "nothing is open after the maximum epoch"
    assert worker.source.parts_left == list(parts)
    assert positions(worker)["1"] == [None, True]
    worker.call(worker.source.stop)
    assert (values_of(worker.on_time), worker.epoch()) == ([], MAX_EPOCH)
