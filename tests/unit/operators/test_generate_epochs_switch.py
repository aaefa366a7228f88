"""`generate_epochs` at a switch: idle parts are raised, then a part that lags takes the promise back (T2)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch
from malstrom_py.data.epochs import limit_out_of_orderness
from malstrom_py.data.messages import (
    MAX_EPOCH,
    MIN_EPOCH,
    Control,
    Epoch,
    PartFinished,
    PartOpened,
    PartQuiet,
    PartReleased,
)
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.event_time import LATE, ON_TIME, GenerateEpochs
from malstrom_py.workers.engine.executor import Executor, NodeSpec
from tests.unit.operators.stepping import Recorder

IDLE_AFTER_S = 10.0


class Reader(Operator):
    """Replaces a source: passes its input on, and promises nothing before its end."""

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        out.send(batch)

    def rewind(self, epoch: Epoch) -> Epoch:
        return Epoch(MIN_EPOCH)


class Generating:
    """A source region whose parts are played by hand; the epoch of a part is its largest time but one."""

    def __init__(self, *parts: str) -> None:
        self.operator = GenerateEpochs(
            StepContext("test", "epochs", timed=True),
            generator=limit_out_of_orderness(0),
            unit="ms",
            idle_after_s=IDLE_AFTER_S,
        )
        self.on_time, self.late = Recorder(), Recorder()
        specs = [
            NodeSpec("in", Reader(StepContext("test", "in"))),
            NodeSpec("epochs", self.operator, ((0, 0),), (True, False)),
            NodeSpec("on-time", self.on_time, ((1, ON_TIME),), ()),
            NodeSpec("late", self.late, ((1, LATE),), ()),
        ]
        self.executor = Executor(specs)
        self.push(*map(PartOpened, parts))

    def push(self, *messages: Batch | Control) -> Generating:
        for message in messages:
            self.executor.push(0, message)
            self.executor.run()
        return self

    def end(self, part: str) -> Generating:
        """The last part is at its end: so is the source."""
        self.push(PartFinished(part))
        self.executor.call(0, lambda out: out.forward(Epoch(MAX_EPOCH)))
        self.executor.run()
        return self

    def call(self, function: Callable[[Outlet], None]) -> None:
        self.executor.call(1, function)
        self.executor.run()

    def data(self, part: str, *times: int) -> Generating:
        return self.push(Batch(list(times), timestamps=list(times), part=part))

    def quiet(self, *parts: str) -> Generating:
        return self.push(*(PartQuiet(part, IDLE_AFTER_S) for part in parts))

    def gain(self, part: str, epoch: int) -> Generating:
        return self.push(PartOpened(part, {"epochs": epoch}))

    def switch(self, **gained: int) -> Epoch:
        """Keep, gain, rewind, advance, as a switch does: what is promised by then."""
        self.call(self.operator.keep)
        for part, epoch in gained.items():
            self.gain(part, epoch)
        if gained:
            self.executor.rewind(0)
        self.call(self.operator.advance)
        return Epoch(self.operator.sent, self.operator.idle)

    @property
    def said(self) -> list[Epoch]:
        return [message for message in self.on_time.messages if isinstance(message, Epoch)]

    def epoch_of(self, part: str) -> int:
        released = PartReleased(part)
        self.push(released)
        epoch = released.state["epochs"]
        assert isinstance(epoch, int)
        return epoch


def test_r2_a_part_that_is_behind_takes_the_promise_back() -> None:
    generating = Generating("a").data("a", 100)
    assert generating.said == [Epoch(99)]
    assert generating.switch(b=19) == Epoch(19)
    # Epochs below the old promise are news again.
    generating.data("b", 41)
    assert generating.said[-1] == Epoch(40)


def test_r2_a_part_that_is_ahead_takes_nothing_back_and_raises_nothing() -> None:
    generating = Generating("a").data("a", 100)
    assert generating.switch(b=500) == Epoch(99)
    assert generating.data("a", 300).said[-1] == Epoch(299)


def test_r2_without_a_gained_part_a_switch_takes_nothing_back() -> None:
    generating = Generating("a", "b").data("a", 100).data("b", 50).quiet("b")
    assert generating.said[-1] == Epoch(99)
    assert generating.switch() == Epoch(99)
    assert generating.said[-1] == Epoch(99)


def test_t2_an_idle_part_that_is_kept_is_raised_before_the_promise_goes_back() -> None:
    generating = Generating("a", "b").data("a", 100).data("b", 50).quiet("b")
    assert generating.switch(c=30) == Epoch(30)
    # What "b" has now is judged by 99, as it would have been without the switch.
    generating.data("b", 60, 99, 100)
    assert (generating.operator.counters.late, generating.epoch_of("b")) == (2, 99)


def test_t2_a_gained_part_keeps_the_epoch_that_it_came_with() -> None:
    generating = Generating("a").data("a", 100)
    generating.switch(b=30)
    generating.data("b", 31)
    assert (generating.operator.counters.late, generating.epoch_of("b")) == (0, 30)


def test_t2_an_idle_worker_that_follows_is_taken_back_by_what_it_gains_and_is_awake() -> None:
    generating = Generating("a").data("a", 100).quiet("a")
    generating.call(partial(generating.operator.follow, time=700))
    assert generating.said[-1] == Epoch(700, idle=True)
    assert generating.switch(b=30) == Epoch(30)
    generating.data("a", 650, 701)
    assert generating.operator.counters.late == 1


def test_t2_an_idle_worker_that_loses_its_active_parts_says_that_it_is_idle() -> None:
    generating = Generating("a", "b").data("a", 100).data("b", 50).quiet("b")
    generating.push(PartReleased("a"))
    assert generating.switch() == Epoch(99, idle=True)


def test_t2_never_to_the_maximum() -> None:
    generating = Generating("a").data("a", 100).quiet("a")
    assert generating.switch().time < MAX_EPOCH
    assert generating.switch(b=MIN_EPOCH).time == MIN_EPOCH


def test_t5_at_the_end_of_the_stream_a_switch_changes_nothing() -> None:
    generating = Generating("a").data("a", 100)
    generating.end("a")
    assert generating.switch() == Epoch(MAX_EPOCH)
    assert generating.operator.rewind(Epoch(MAX_EPOCH)) == Epoch(MAX_EPOCH)


def test_t5_an_end_that_is_taken_back_comes_again() -> None:
    generating = Generating("a").data("a", 100)
    generating.end("a")
    assert generating.switch(b=30) == Epoch(30)
    generating.data("b", 41)
    generating.end("b")
    assert generating.said[-2:] == [Epoch(40), Epoch(MAX_EPOCH)]


def test_t2_a_worker_without_parts_has_nothing_to_advance_to() -> None:
    generating = Generating()
    assert generating.switch() == Epoch(MIN_EPOCH)
    assert generating.said == []


PARTS = ("a", "b", "c")


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(PARTS), st.integers(-20, 20)) | st.sampled_from([("quiet", part) for part in PARTS]),
        max_size=15,
    ),
    gained=st.dictionaries(st.sampled_from(["x", "y"]), st.integers(-30, 30), max_size=2),
    after=st.lists(st.tuples(st.sampled_from([*PARTS, "x", "y"]), st.integers(-20, 40)), max_size=15),
)
def test_t1_after_a_switch_each_part_is_judged_by_its_own_epoch_and_no_promise_is_broken(
    steps: list[tuple[str, object]], gained: dict[str, int], after: list[tuple[str, int]]
) -> None:
    """What was promised before is kept by the parts that stay, and what is promised from then on by all."""
    generating = Generating(*PARTS)
    for name, what in steps:
        if name == "quiet":
            generating.quiet(str(what))
        elif isinstance(what, int):
            generating.data(name, what)
    before = generating.operator.sent
    promised = generating.switch(**gained).time
    assert promised <= max(before, *(part.tracker.epoch for part in generating.operator._parts.values()))
    for part, time in after:
        if part not in PARTS and part not in gained:
            continue
        judge = generating.operator._parts[part]
        epoch, idle = judge.tracker.epoch, judge.idle
        late = generating.operator.counters.late
        generating.data(part, time)
        on_time = generating.operator.counters.late == late
        assert not on_time or time > promised, "a promise was broken"
        assert idle or on_time == (time > epoch)
        promised = max(promised, generating.operator.sent)


@pytest.mark.parametrize("gained", [{}, {"b": 30}])
def test_r2_a_switch_tells_lateness_apart_from_promises(gained: dict[str, int]) -> None:
    generating = Generating("a").data("a", 100)
    generating.switch(**gained)
    generating.data("a", 50, 99, 100, 101)
    assert generating.operator.counters.late == 2
