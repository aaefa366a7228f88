"""`generate_epochs`: lateness per record and part, epochs as the minimum over the parts that are open."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch
from malstrom_py.data.epochs import limit_out_of_orderness
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, Epoch, PartFinished, PartOpened
from malstrom_py.errors import InternalError, OperatorError
from malstrom_py.operators.event_time import LATE, ON_TIME, GenerateEpochs
from tests.unit.operators.stepping import Stepped

BOUND = 5


def stepped(bound: int = BOUND) -> Stepped:
    factory = partial(GenerateEpochs, generator=limit_out_of_orderness(bound), unit="ms")
    return Stepped(factory, ports=2, silent=[LATE], timed=True)


def batch_of(times: list[int], part: str = "p") -> Batch:
    return Batch([f"v{time}" for time in times], timestamps=times, part=part)


@dataclass
class Oracle:
    """One part, judged record by record by the words of the rule."""

    epoch: int = MIN_EPOCH
    largest: int = MIN_EPOCH
    on_time: list[int] = field(default_factory=list)
    late: list[int] = field(default_factory=list)

    def take(self, time: int) -> None:
        (self.late if time <= self.epoch else self.on_time).append(time)
        self.largest = max(self.largest, time)
        self.epoch = max(self.epoch, self.largest - BOUND - 1)


@st.composite
def interleavings(draw: st.DrawFn) -> list[tuple[str, list[int]]]:
    """Batches of up to four parts in any order, each part's times wandering upwards with jumps back."""
    parts = draw(st.integers(1, 4))
    batches = draw(
        st.lists(
            st.tuples(st.integers(0, parts - 1), st.lists(st.integers(-12, 12), min_size=1, max_size=6)), max_size=15
        )
    )
    base = dict.fromkeys(range(parts), 0)
    result = []
    for part, steps in batches:
        times = []
        for step in steps:
            base[part] += 2
            times.append(base[part] + step)
        result.append((f"p{part}", times))
    return result


@given(batches=interleavings())
def test_t1_lateness_is_judged_per_record_whatever_the_parts_and_cuts(batches: list[tuple[str, list[int]]]) -> None:
    parts = [f"p{n}" for n in range(4)]
    step = stepped().push(*(PartOpened(part) for part in parts))
    oracles = {part: Oracle() for part in parts}
    for part, times in batches:
        step.push(batch_of(times, part))
        for time in times:
            oracles[part].take(time)
    for port, expected in ((ON_TIME, "on_time"), (LATE, "late")):
        for part, oracle in oracles.items():
            got = [time for batch in step.batches(port) if batch.part == part for time in batch.timestamps or ()]
            assert got == getattr(oracle, expected)
    late = sum(len(oracle.late) for oracle in oracles.values())
    assert (step.counters.late, len(step.rows(LATE))) == (late, late)


@given(batches=interleavings(), finish_after=st.lists(st.integers(0, 15), min_size=4, max_size=4))
def test_t1_downstream_never_sees_a_record_at_or_below_its_frontier(
    batches: list[tuple[str, list[int]]], finish_after: list[int]
) -> None:
    step = stepped().push(*(PartOpened(f"p{n}") for n in range(4)))
    for turn, (part, times) in enumerate(batches):
        if turn < finish_after[int(part[1:])]:
            step.push(batch_of(times, part))
        for n in range(4):
            if turn == finish_after[n]:
                step.push(PartFinished(f"p{n}"))
    frontier = MIN_EPOCH
    for message in step.messages(ON_TIME):
        if isinstance(message, Epoch):
            assert message.time > frontier
            frontier = message.time
        elif isinstance(message, Batch):
            assert message.timestamps is not None
            assert min(message.timestamps) > frontier
    assert step.epochs(LATE) == []


@given(batches=interleavings())
def test_t2_the_epoch_is_the_minimum_over_the_open_parts(batches: list[tuple[str, list[int]]]) -> None:
    step = stepped().push(*(PartOpened(f"p{n}") for n in range(4)))
    oracles = {f"p{n}": Oracle() for n in range(4)}
    for part, times in batches:
        step.push(batch_of(times, part))
        for time in times:
            oracles[part].take(time)
        lowest = min(oracle.epoch for oracle in oracles.values())
        assert (step.epochs(ON_TIME) or [MIN_EPOCH])[-1] == lowest


def test_t2_a_part_without_data_holds_the_epoch_back() -> None:
    step = stepped().push(PartOpened("p"), PartOpened("q"), batch_of([100]))
    assert step.epochs(ON_TIME) == []
    assert step.push(batch_of([50], "q")).epochs(ON_TIME) == [44]


def test_t2_a_finished_part_holds_nothing_back() -> None:
    step = stepped().push(PartOpened("p"), PartOpened("q"), batch_of([100]), batch_of([50], "q"))
    assert step.push(PartFinished("q")).epochs(ON_TIME) == [44, 94]


def test_t2_the_last_part_to_finish_sends_no_epoch_of_its_own() -> None:
    step = stepped().push(PartOpened("p"), batch_of([100]), PartFinished("p"))
    assert step.epochs(ON_TIME) == [94]


def test_t2_a_part_opened_later_is_judged_by_the_epoch_already_sent() -> None:
    step = stepped().push(PartOpened("p"), batch_of([100]), PartOpened("q"), batch_of([94, 95, 60], "q"))
    assert step.rows(LATE) == [(None, "v94", 94), (None, "v60", 60)]
    assert step.rows(ON_TIME)[-1] == (None, "v95", 95)


def test_t5_the_maximum_epoch_goes_to_both_streams() -> None:
    step = stepped().push(PartOpened("p"), batch_of([100]), PartFinished("p"), Epoch(MAX_EPOCH))
    assert step.epochs(ON_TIME) == [94, MAX_EPOCH]
    assert step.epochs(LATE) == [MAX_EPOCH]


def test_a_batch_of_a_part_that_is_not_open_is_our_bug() -> None:
    with pytest.raises(InternalError, match="'under-test'"):
        stepped().push(PartOpened("p"), Batch([1], timestamps=[1], part="unknown"))


def test_records_that_come_from_no_part_are_an_error_of_the_step_that_made_them() -> None:
    with pytest.raises(OperatorError, match="'under-test' received records that come from no part"):
        stepped().push(PartOpened("p"), Batch([1], timestamps=[1]))


class Broken:
    """A generator of a user's, whose trackers fail."""

    epoch = MIN_EPOCH

    def tracker(self, unit: str) -> Any:
        return self

    def observe(self, timestamps: list[int]) -> list[int]:
        raise ValueError("secret")

    def raise_to(self, epoch: int) -> None:
        """Takes no notice."""


def test_an_error_of_a_users_generator_names_step_and_place() -> None:
    step = Stepped(partial(GenerateEpochs, generator=Broken(), unit="ms"), ports=2, silent=[LATE])
    with pytest.raises(OperatorError, match=r"'under-test'.*Broken\.observe at .*test_generate_epochs\.py") as caught:
        step.push(PartOpened("p"), batch_of([1]))
    assert isinstance(caught.value.__cause__, ValueError)
    assert "secret" in str(caught.value)


def test_a_generator_that_makes_no_tracker_is_named() -> None:
    class Useless:
        def tracker(self, unit: str) -> Any:
            raise LookupError

    step = Stepped(partial(GenerateEpochs, generator=Useless(), unit="ms"), ports=2, silent=[LATE])
    with pytest.raises(OperatorError, match=r"'under-test'.*Useless\.tracker at "):
        step.push(PartOpened("p"))
