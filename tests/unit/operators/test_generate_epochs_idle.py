"""`generate_epochs` and idle parts: which part holds the epoch back, how a waking part is judged, and switches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch
from malstrom_py.data.epochs import limit_out_of_orderness
from malstrom_py.data.messages import (
    MAX_EPOCH,
    MIN_EPOCH,
    AbsBarrier,
    Control,
    Epoch,
    PartFinished,
    PartOpened,
    PartQuiet,
    PartReleased,
)
from malstrom_py.errors import OperatorError
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.branching import Union
from malstrom_py.operators.event_time import LATE, ON_TIME, GenerateEpochs
from malstrom_py.testing import CapturingPersistenceBackend
from malstrom_py.workers.engine.executor import Executor, NodeSpec
from tests.unit.operators.stepping import Recorder, Stepped

BOUND = 5
IDLE_AFTER_S = 10.0


def stepped(*parts: str, idle_after_s: float | None = IDLE_AFTER_S) -> Stepped:
    """A step with ``parts`` open."""
    generator = limit_out_of_orderness(BOUND)
    factory = partial(GenerateEpochs, generator=generator, unit="ms", idle_after_s=idle_after_s)
    return Stepped(factory, ports=2, silent=[LATE], timed=True).push(*map(PartOpened, parts))


def batch_of(part: str, *times: int) -> Batch:
    return Batch([f"v{time}" for time in times], timestamps=list(times), part=part)


def quiet(part: str, quiet_s: float = IDLE_AFTER_S) -> PartQuiet:
    return PartQuiet(part, quiet_s)


def epochs(step: Stepped) -> list[Epoch]:
    return [message for message in step.messages(ON_TIME) if isinstance(message, Epoch)]


def times(step: Stepped, port: int) -> list[int | None]:
    return [time for _, _, time in step.rows(port)]


def test_t2_a_part_is_idle_from_idle_after_on_and_not_before() -> None:
    step = stepped("p", "q").push(batch_of("p", 100), batch_of("q", 50), quiet("q", 9.999))
    assert epochs(step) == [Epoch(44)]
    assert epochs(step.push(quiet("q", 10.0))) == [Epoch(44), Epoch(94)]


def test_t2_without_idle_after_a_quiet_part_holds_back_for_ever() -> None:
    step = stepped("p", "q", idle_after_s=None).push(batch_of("p", 100), quiet("q", 1e9), quiet("p", 1e9))
    assert epochs(step) == []


def test_t2_when_all_parts_are_idle_the_epoch_is_sent_again_with_the_flag_once() -> None:
    step = stepped("p", "q").push(batch_of("p", 100), batch_of("q", 90))
    step.push(quiet("q"), quiet("p"), quiet("q", 20.0), quiet("p", 20.0))
    assert epochs(step) == [Epoch(84), Epoch(94), Epoch(94, idle=True)]


def test_t2_a_worker_whose_parts_never_had_anything_says_that_it_is_idle() -> None:
    assert epochs(stepped("p").push(quiet("p"))) == [Epoch(MIN_EPOCH, idle=True)]


def test_t2_a_worker_without_parts_is_not_idle_but_at_the_end() -> None:
    assert epochs(stepped().push(Epoch(MAX_EPOCH))) == [Epoch(MAX_EPOCH)]


def test_t2_idle_and_finished_parts_make_an_idle_worker_that_keeps_to_what_its_own_have_reached() -> None:
    step = stepped("p", "q", "r").push(batch_of("p", 100), batch_of("q", 90), batch_of("r", 50))
    step.push(quiet("p"), quiet("q"))
    assert epochs(step) == [Epoch(44)]
    # r no longer holds them back, and of the two that are left both are idle.
    assert epochs(step.push(PartFinished("r"))) == [Epoch(44), Epoch(84, idle=True)]
    assert epochs(step.push(PartFinished("q")))[2:] == [Epoch(94, idle=True)]
    assert epochs(step.push(PartFinished("p"), Epoch(MAX_EPOCH)))[-1] == Epoch(MAX_EPOCH)


def test_t2_a_part_that_wakes_is_judged_by_what_was_sent_without_it() -> None:
    step = stepped("p", "q").push(batch_of("p", 100), batch_of("q", 50), quiet("q"))
    step.push(batch_of("q", 60, 94, 95, 80))
    assert (times(step, LATE), times(step, ON_TIME)) == ([60, 94, 80], [100, 50, 95])
    assert step.counters.late == 3
    # From here on it holds the epoch back again, at no less than what was sent.
    assert epochs(step.push(batch_of("p", 300), batch_of("q", 120)))[2:] == [Epoch(114)]


def test_t2_its_own_epoch_may_be_the_higher_one_when_a_part_wakes() -> None:
    step = stepped("p", "q").push(batch_of("p", 100), batch_of("q", 500), quiet("q"), batch_of("q", 100, 495))
    assert (times(step, LATE), times(step, ON_TIME)) == ([100], [100, 500, 495])


def test_t2_a_worker_that_wakes_says_so_even_if_its_epoch_does_not_move() -> None:
    step = stepped("p").push(batch_of("p", 100), quiet("p"), batch_of("p", 1))
    assert epochs(step) == [Epoch(94), Epoch(94, idle=True), Epoch(94)]
    step.push(quiet("p"), batch_of("p", 110))
    assert epochs(step)[3:] == [Epoch(94, idle=True), Epoch(104)]


def test_t2_a_part_that_is_opened_ends_idleness() -> None:
    step = stepped("p").push(batch_of("p", 100), quiet("p"), PartOpened("q"))
    assert epochs(step) == [Epoch(94), Epoch(94, idle=True), Epoch(94)]
    assert times(step.push(batch_of("q", 94, 95)), LATE) == [94]


def follow(step: Stepped, time: int) -> None:
    operator = step.operator
    assert isinstance(operator, GenerateEpochs)
    step.call(partial(operator.follow, time=time))


def test_t2_an_idle_worker_follows_and_wakes_at_what_it_has_said() -> None:
    step = stepped("p").push(batch_of("p", 100), quiet("p"))
    follow(step, 300)
    follow(step, 300)
    follow(step, 200)
    assert epochs(step)[2:] == [Epoch(300, idle=True)]
    step.push(batch_of("p", 300, 301))
    assert (times(step, LATE), times(step, ON_TIME)) == ([300], [100, 301])
    assert epochs(step)[3:] == [Epoch(300)]


def test_t2_a_worker_that_is_not_idle_follows_nobody() -> None:
    step = stepped("p").push(batch_of("p", 100))
    follow(step, 300)
    assert epochs(step) == [Epoch(94)]


def test_t2_a_part_that_is_idle_by_one_way_and_comes_by_two_is_idle_once() -> None:
    step = stepped("p", "p").push(batch_of("p", 100), quiet("p"), quiet("p"))
    assert epochs(step) == [Epoch(94), Epoch(94, idle=True)]
    assert epochs(step.push(PartFinished("p"))) == [Epoch(94), Epoch(94, idle=True)]


def test_quiet_parts_that_are_not_open_here_are_ignored() -> None:
    assert epochs(stepped("p").push(quiet("q"))) == []


def test_t2_an_idle_part_is_handed_over_with_what_was_sent_without_it() -> None:
    step = stepped("p", "q", "r").push(batch_of("p", 100), batch_of("q", 50), batch_of("r", 98), quiet("q"))
    idle, active = PartReleased("q"), PartReleased("r")
    step.push(idle, active)
    assert (idle.state, active.state) == ({"under-test": 92}, {"under-test": 92})
    assert epochs(step) == [Epoch(44), Epoch(92)]  # R2: no epoch goes out because parts are handed over
    assert epochs(step.push(batch_of("p", 100)))[2:] == [Epoch(94)]


def test_t2_a_gained_part_keeps_the_frontier_it_came_with_and_holds_back_again() -> None:
    step = stepped("p").push(batch_of("p", 100), quiet("p"), PartOpened("q", {"under-test": 40}))
    assert epochs(step)[2:] == [Epoch(94)]
    step.push(batch_of("q", 41), batch_of("p", 300))
    assert times(step, LATE) == []
    assert epochs(step)[3:] == []


def test_t2_a_barrier_persists_what_an_idle_part_will_be_judged_by() -> None:
    step = stepped("p", "q").push(batch_of("p", 100), batch_of("q", 50), quiet("q"))
    backend = CapturingPersistenceBackend()
    step.push(AbsBarrier("1", backend))
    state = Codec().decode_at_rest(backend.states["under-test"], step="under-test")
    assert state == {"p": 94, "q": 94}
    restored = stepped().push(*(PartOpened(name, {"under-test": epoch}) for name, epoch in state.items()))
    # What is restored is not idle: q holds back until it has been quiet here.
    assert epochs(restored.push(batch_of("p", 200))) == [Epoch(94)]
    assert times(restored.push(batch_of("q", 94, 95)), LATE) == [94]


class Joined:
    """Two generators on separate parts, joined: the output of the union."""

    def __init__(self, *, first_ways: int = 1) -> None:
        generator = limit_out_of_orderness(BOUND)
        self.first, self.second = (
            GenerateEpochs(StepContext("test", name), generator=generator, unit="ms", idle_after_s=IDLE_AFTER_S)
            for name in ("first", "second")
        )
        self.out = Recorder()
        ports = (True, False)
        self.executor = Executor(
            [
                NodeSpec("first", self.first, (), ports),
                NodeSpec("second", self.second, (), ports),
                NodeSpec("union", Union(StepContext("test", "union")), ((0, ON_TIME), (1, ON_TIME))),
                NodeSpec("out", self.out, ((2, 0),), ()),
            ]
        )

    def push(self, node: int, *messages: Batch | Control) -> Joined:
        for message in messages:
            self.executor.push(node, message)
            self.executor.run()
        return self

    @property
    def epochs(self) -> list[Epoch]:
        return [message for message in self.out.messages if isinstance(message, Epoch)]

    @property
    def times(self) -> list[int]:
        return [time for m in self.out.messages if isinstance(m, Batch) for time in m.timestamps or ()]


def test_t2_a_union_waits_only_for_the_inputs_that_are_active() -> None:
    both = Joined().push(0, PartOpened("p"), batch_of("p", 50)).push(1, PartOpened("q"), batch_of("q", 500))
    assert both.epochs == [Epoch(44)]
    both.push(0, quiet("p"))
    assert both.epochs == [Epoch(44), Epoch(494)]
    both.push(1, quiet("q"))
    assert both.epochs[2:] == [Epoch(494, idle=True)]


def test_t2_who_wakes_before_a_union_is_judged_by_what_the_union_has_passed() -> None:
    both = Joined().push(0, PartOpened("p"), batch_of("p", 50)).push(1, PartOpened("q"), batch_of("q", 500))
    both.push(0, quiet("p"), batch_of("p", 60, 494, 495))
    assert both.times == [50, 500, 495]
    assert both.first.counters.late == 2
    both.push(1, batch_of("q", 900))
    assert both.epochs[-1] == Epoch(494)  # p holds back again


def test_t2_of_an_idle_and_a_finished_input_a_union_makes_an_idle_stream_never_the_end() -> None:
    both = Joined().push(0, PartOpened("p"), batch_of("p", 50)).push(1, PartOpened("q"), batch_of("q", 500))
    both.push(1, PartFinished("q"), Epoch(MAX_EPOCH)).push(0, quiet("p"))
    assert both.epochs == [Epoch(44), Epoch(44, idle=True)]
    both.push(0, PartFinished("p"), Epoch(MAX_EPOCH))
    assert both.epochs[-1] == Epoch(MAX_EPOCH)


def test_t2_what_another_branch_has_sent_but_the_union_not_taken_yet_counts_when_a_part_wakes() -> None:
    # One part, judged twice: the first judge has woken, and its epoch is in flight when the second one wakes.
    both = Joined()
    for node in (0, 1):
        both.push(node, PartOpened("p"), batch_of("p", 50))
    both.push(1, quiet("p"))
    for node, batch in ((0, batch_of("p", 500)), (1, batch_of("p", 100))):
        both.executor.push(node, batch)
    both.executor.run()
    assert both.times == [50, 50, 500]
    assert both.second.counters.late == 1


def test_t2_an_error_of_a_users_tracker_at_waking_names_the_step() -> None:
    class Stubborn:
        epoch = 0

        def __init__(self) -> None:
            self.raised = 0

        def tracker(self, unit: str) -> Any:
            return self

        def observe(self, timestamps: list[int]) -> list[int]:
            return []

        def raise_to(self, epoch: int) -> None:
            self.raised += 1
            if self.raised > 1:
                raise ValueError("secret")

    factory = partial(GenerateEpochs, generator=Stubborn(), unit="ms", idle_after_s=1.0)
    step = Stepped(factory, ports=2, silent=[LATE]).push(PartOpened("p"), batch_of("p", 1), quiet("p"))
    with pytest.raises(OperatorError, match=r"'under-test'.*Stubborn\.raise_to at .*\.py") as caught:
        step.push(batch_of("p", 2))
    assert "secret" in str(caught.value)


# At a switch


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
