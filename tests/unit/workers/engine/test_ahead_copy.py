"""State goes ahead of a move chunk by chunk, while its region works (R12)."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import Collect, StateMessage
from malstrom_py.errors import InternalError
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.keyed import StatefulOperator
from malstrom_py.rescale.moves.protocol import StateChunk
from malstrom_py.rescale.moves.receiving_machine import Ship
from malstrom_py.state.many_values import Values
from malstrom_py.testing import VirtualClock
from malstrom_py.testing.single_step import Recorder
from malstrom_py.workers.engine import ahead_copy
from malstrom_py.workers.engine.executor import Executor, NodeSpec
from malstrom_py.workers.engine.region_input import COPY_RESTS
from malstrom_py.workers.engine.state_transfer import KeyedSteps, StateTransfer
from tests.unit.workers.engine.test_graph import graph_of

SLOTS = 4
ALL = tuple((slot, 1) for slot in range(SLOTS))


def slots_of(keys: Sequence[Any]) -> list[int]:
    return [key % SLOTS for key in keys]


class Kept(StatefulOperator):
    """Keeps the last value of each key, and drops a key whose value is None."""

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        keys = batch.keys or []
        self.state.note(keys)
        for key, value in zip(keys, batch.values, strict=True):
            if value is None:
                self.state.values.pop(key, None)
            else:
                self.state.values[key] = value
        out.send(batch)


class Counting(Kept):
    """Does more at a move than take its state out."""

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        super().on_control(message, out)


class Region:
    """Steps with keys on a worker, whose changes are tracked."""

    def __init__(self, *kinds: Callable[[StepContext], Operator], **options: Any) -> None:
        self.steps = [kind(StepContext("test", f"step-{rank}", keyed=True)) for rank, kind in enumerate(kinds)]
        for step in self.steps:
            assert isinstance(step, StatefulOperator)
            step.state.track(slots_of)
        recorder = Recorder(StepContext("test", "recorder"))
        specs = [
            NodeSpec(operator.context.step, operator, ((rank - 1, 0),) if rank else ())
            for rank, operator in enumerate([*self.steps, recorder])
        ]
        self.executor = Executor(specs)
        keyed = [KeyedSteps(range(len(kinds)), slots_of, ("in",))]
        self.transfer = StateTransfer("R", 0, self.executor, keyed, **options)

    def push(self, values: dict[int, Any]) -> Region:
        batch = Batch(list(values.values()), keys=list(values))
        if self.transfer.watching:
            self.transfer.saw("in", batch)
        self.executor.push(0, batch)
        self.executor.run()
        return self

    def begin(self, *, least: int = 0) -> Region:
        """Begin to send everything ahead to worker 1."""
        self.transfer.send_ahead(1, ALL, least=least)
        while self.transfer.indexing:
            self.transfer.index()
        return self

    def copies(self) -> list[StateChunk]:
        """All that goes ahead from now on, if nothing changes."""
        chunks = []
        while self.transfer.copying:
            chunks += [chunk for _, chunk in self.transfer.copy()]
        return chunks

    def cut(self) -> list[StateChunk]:
        """What is sent at the cut."""
        self.transfer.start(Ship(1, ALL))
        chunks = []
        while self.transfer.under_way:
            chunks.append(self.transfer.next()[1])
        self.transfer.move_over()
        return chunks

    def take(self, ahead: Sequence[StateChunk], chunks: Sequence[StateChunk]) -> Region:
        """Gain what another one has sent."""
        for chunk in ahead:
            self.transfer.keep_aside(chunk)
        for chunk in chunks:
            self.transfer.install(chunk)
        self.transfer.move_over()
        return self

    @property
    def values(self) -> list[Values]:
        return [step.state.values for step in self.steps if isinstance(step, StatefulOperator)]


def large(number: int) -> str:
    return f"{number} " + "x" * 1000


def size(chunks: Sequence[StateChunk]) -> int:
    return sum(map(len, (data for chunk in chunks for data in (*chunk.states.values(), *chunk.confirmed.values()))))


def test_r12_next_to_nothing_is_sent_at_the_cut_of_what_has_not_changed() -> None:
    values = {key: large(key) for key in range(100)}
    giver, taker = Region(Kept).push(values).begin(), Region(Kept)
    ahead = giver.copies()
    chunks = giver.cut()
    assert size(ahead) > 100_000
    assert size(chunks) < 2_000
    assert {slot for chunk in chunks for slot in chunk.slots} == set(range(SLOTS))
    assert taker.take(ahead, chunks).values == [values]
    assert giver.values == [{}]
    assert (giver.transfer.keys_moved, giver.transfer.bytes_ahead) == (100, size(ahead))


def test_r12_what_changes_all_the_time_goes_ahead_twice_and_then_at_the_cut() -> None:
    giver = Region(Kept, keys_first=2).push({key: large(key) for key in range(8)}).begin()
    sent = []
    while giver.transfer.copying:
        sent += [chunk for _, chunk in giver.transfer.copy()]
        giver.push({0: large(len(sent)), 4: large(len(sent))})
    assert len(sent) == SLOTS + 1
    assert size(sent) == pytest.approx(10_000, rel=0.1)
    assert size(giver.cut()) == pytest.approx(2_000, rel=0.3)


def test_r12_with_less_state_than_is_worth_it_nothing_goes_ahead() -> None:
    giver = Region(Kept).push({1: "a", 2: "b"}).begin(least=10_000)
    assert giver.copies() == []
    assert size(giver.cut()) > 0


def test_r12_keys_that_are_sent_as_fast_as_they_are_confirmed_stay() -> None:
    values = {key: "x" * 20 + str(key) for key in range(2_000)}
    assert Region(Kept).push(values).begin(least=40_000).copies() == []
    assert Region(Kept).push({key: large(key) for key in range(50)}).begin(least=40_000).copies() != []


def test_r12_copies_are_about_a_chunk_large() -> None:
    giver = Region(Kept, chunk_bytes=5_000, keys_first=1000).push({4 * key: large(key) for key in range(50)}).begin()
    chunks = giver.copies()
    assert max(size([chunk]) for chunk in chunks) < 6_000
    assert len(chunks) >= 10


def test_r12_between_two_steps_a_bounded_number_of_keys_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead_copy, "KEYS_LOOKED_AT", 5)
    giver = Region(Kept).push({4 * key: large(key) for key in range(20)}).begin()
    first = giver.copies()
    assert len(first) == 5
    assert size(giver.cut()) < 1_000


def test_r12_a_step_that_does_more_at_a_move_sends_its_state_at_the_cut() -> None:
    giver, taker = Region(Kept, Counting).push({1: large(1)}).begin(), Region(Kept, Counting)
    ahead = giver.copies()
    assert [chunk.states.keys() for chunk in ahead] == [{"step-0"}]
    chunks = giver.cut()
    assert [chunk.confirmed.keys() for chunk in chunks] == [{"step-0"}]
    assert [chunk.states.keys() for chunk in chunks] == [{"step-1"}]
    assert taker.take(ahead, chunks).values == [{1: large(1)}, {1: large(1)}]


def test_r12_a_step_whose_changes_are_not_tracked_sends_its_state_at_the_cut() -> None:
    giver = Untracked().push({1: large(1)}).begin()
    assert giver.copies() == []
    assert [chunk.states.keys() for chunk in giver.cut()] == [{"step-0"}]


class Untracked(Region):
    """A region of a job without snapshots."""

    def __init__(self) -> None:
        super().__init__(Kept)
        for step in self.steps:
            assert isinstance(step, StatefulOperator)
            step.state._changes = None


def test_r12_every_step_with_the_key_confirms_for_itself() -> None:
    giver, taker = Region(Kept, Kept).push({1: large(1), 2: large(2)}).begin(), Region(Kept, Kept)
    ahead = giver.copies()
    last = giver.steps[1]
    assert isinstance(last, StatefulOperator)
    last.state.note([1])
    last.state.values[1] = "only here"
    chunks = giver.cut()
    assert {step for chunk in chunks for step in chunk.states} == {"step-1"}
    assert taker.take(ahead, chunks).values == [{1: large(1), 2: large(2)}, {1: "only here", 2: large(2)}]


def test_r12_a_chunk_of_the_cut_that_confirms_what_never_came_is_an_error() -> None:
    giver = Region(Kept).push({1: large(1)}).begin()
    giver.copies()
    with pytest.raises(InternalError, match="has not come"):
        Region(Kept).take([], giver.cut())


def test_r12_a_message_that_collects_keeps_what_is_confirmed_when_it_is_pickled() -> None:
    message = Collect({1: None}.keys(), {}, {"a": b"b"})
    assert pickle.loads(pickle.dumps(message)).confirmed == {"a": b"b"}


def test_r12_a_copy_rests_so_that_its_new_owner_keeps_up(monkeypatch: pytest.MonkeyPatch) -> None:
    job = mp.Job("rests")
    keyed = job.source("in", sources.Memory([1])).key_by("key", int)
    keyed.stateful_map("count", lambda key, value, state: (value, state), default=int).sink("out", sinks.Memory())
    region_input = graph_of(job).inputs[0]
    clock = region_input._clock
    assert isinstance(clock, VirtualClock)
    copied: list[float] = []

    def copy(transfer: StateTransfer) -> list[Any]:
        copied.append(clock.monotonic_s())
        clock.advance(0.25)
        return []

    monkeypatch.setattr(StateTransfer, "copying", True)
    monkeypatch.setattr(StateTransfer, "copy", copy)
    for _ in range(20):
        has_work = region_input.has_own_work
        assert (region_input.ship() > 0) is has_work
        clock.advance(0.125)
    assert len(copied) > 2
    assert {later - earlier for earlier, later in pairwise(copied)} == {0.25 + COPY_RESTS * 0.25}
