"""A gained part: it counts immediately, and is read when none of its rows is in flight elsewhere (R2, R6, T5)."""

from __future__ import annotations

from functools import partial

import pytest

from malstrom_py import sources
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, Epoch
from malstrom_py.errors import InternalError
from malstrom_py.sources.base import Part
from tests.unit.operators.one_worker import BOUND, OneWorker, positions, values_of
from tests.unit.operators.scripted import Scripted


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
