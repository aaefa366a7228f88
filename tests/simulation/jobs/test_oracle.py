"""The oracle finds no error in correct runs, and an error in each damaged run."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from malstrom_py.data.batch import Batch
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.sources.base import Part
from malstrom_py.testing import VirtualClock
from malstrom_py.worker_context import WorkerId, WorkerInfo
from tests.simulation.jobs.damages import DAMAGES, damaged
from tests.simulation.jobs.inputs import Entry, Input
from tests.simulation.jobs.jobs import SHAPES
from tests.simulation.jobs.lateness import check_late, late_by_itself
from tests.simulation.jobs.layouts import Head, Timing
from tests.simulation.jobs.records import FUTURE, Passed, Record, made
from tests.simulation.jobs.runs import in_process, run
from tests.simulation.jobs.seen import Committed, Parts, Seen, Written
from tests.simulation.jobs.verdicts import Violation

ROUNDS = 1
"""How often each damage is done to each shape."""

CASES_MAX = 80
"""How many cases may be drawn until each damage has found something to damage."""


def objects_to(seed: int, shape: str, done: Counter[str]) -> list[str]:
    """The damages to one run that the oracle did not see."""
    case, ran = run(seed, shape=shape, runtime=in_process, growing=0.0)
    missed = []
    for damage in DAMAGES:
        if done[damage.__name__] >= ROUNDS:
            continue
        broken = damaged(damage, case.layout, ran.outcome, random.Random(seed))
        if broken is None:
            continue
        done[damage.__name__] += 1
        try:
            case.check(broken)
        except Violation:
            continue
        missed.append(f"{damage.__name__} (seed {seed})")
    return missed


@pytest.mark.long(but=("late", "several-sources"))
@pytest.mark.parametrize("shape", SHAPES)
def test_each_damage_to_each_shape_is_seen(shape: str) -> None:
    done: Counter[str] = Counter()
    for seed in range(CASES_MAX):
        assert objects_to(seed, shape, done) == []
    assert [damage.__name__ for damage in DAMAGES if done[damage.__name__] < ROUNDS] == []


# Lateness.


HEAD = Head("s", ("s",), Timing(2, "ms", idle_s=1.0, ahead=True))
NEVER_IDLE = Head("s", ("s",), Timing(2, "ms", ahead=True))


def rows(*times: int) -> list[Record]:
    return [made("s", "0", number, "a", time) for number, time in enumerate(times)]


def judge(entries: list[Entry], late: set[Record], *, head: Head = HEAD, furthest_any: int = 50) -> None:
    check_late(head, {("s", "0"): entries}, late, furthest_any=furthest_any)


def test_t1_a_record_is_late_by_its_own_part_one_by_one() -> None:
    records = rows(10, 8, 7, 20, 17, 18)
    assert HEAD.timing is not None
    assert late_by_itself(records, HEAD.timing) == {records[2], records[4]}


def test_t4_what_is_far_ahead_is_late_and_moves_nothing() -> None:
    records = rows(10, FUTURE, 9)
    judge([*records], {records[1]}, head=NEVER_IDLE)


def test_t1_a_late_record_that_was_not_found_late_is_a_violation() -> None:
    with pytest.raises(Violation, match="was not found so"):
        judge([*rows(10, 5)], set(), head=NEVER_IDLE)


def test_t1_a_record_that_is_late_for_no_reason_is_a_violation() -> None:
    records = rows(10, 11)
    with pytest.raises(Violation, match=r"falsely late \(T1\)"):
        judge([*records], {records[1]}, head=NEVER_IDLE)


def test_t2_a_part_that_was_silent_may_be_late_behind_the_silence() -> None:
    first, second, third = rows(10, 30, 41)
    judge([first, 2, second, third], {second})


def test_t2_nobody_is_late_before_the_first_silence_or_behind_one_that_was_too_short() -> None:
    first, second = rows(10, 30)
    with pytest.raises(Violation, match="before the part can have been idle"):
        judge([first, second, 2], {second})
    with pytest.raises(Violation, match="before the part can have been idle"):
        judge([first, 1, second], {second})


def test_t2_behind_a_silence_all_are_judged_by_one_epoch() -> None:
    first, second, third = rows(10, 30, 29)
    with pytest.raises(Violation, match="after the same silence"):
        judge([first, 2, second, third], {second})


def test_t2_no_part_is_raised_beyond_what_any_part_has_reached() -> None:
    first, second = rows(10, 30)
    with pytest.raises(Violation, match="no epoch was ever beyond 20"):
        judge([first, 2, second], {second}, furthest_any=20)


# What a run has shown.


CONTEXT = CommitContext("job", "out", SnapshotId("0"), 1)
ROW = Passed(made("s", "0", 0, "a", 1))


def worker(number: int) -> WorkerInfo:
    return WorkerInfo("job", "out", WorkerId(number))


def test_rows_count_when_they_are_committed_in_the_order_in_which_they_were_written() -> None:
    sink = Committed(Seen(), "out")
    one, two = sink.open(worker(0)), sink.open(worker(1))
    for number in range(4):
        (one, two)[number % 2].write(Batch([number]))
    payloads = [one.pre_commit(CONTEXT), two.pre_commit(CONTEXT)]
    assert sink.seen.outcome().rows == {}
    sink.commit(CONTEXT, payloads)
    assert [row.value for row in sink.seen.outcome().rows["out"]] == [0, 1, 2, 3]


def test_what_an_earlier_incarnation_has_written_is_neither_seen_nor_committed_unnoticed() -> None:
    seen = Seen()
    sink, plain = Committed(seen, "out"), Written(seen, "plain")
    zombie, plain_zombie = sink.open(worker(0)), plain.build(worker(0))
    zombie.write(Batch([1]))
    stale = zombie.pre_commit(CONTEXT)
    sink.recover(CONTEXT, [])
    plain_zombie.write(Batch([2]))
    assert seen.outcome().rows == {}
    assert seen.outcome().broken == []
    sink.commit(CONTEXT, [stale, zombie.pre_commit(CONTEXT)])
    assert len(seen.outcome().broken) == 2


def test_a_worker_whose_writer_is_closed_before_the_commit_has_left() -> None:
    sink = Committed(Seen(), "out")
    leaver, member = sink.open(worker(0)), sink.open(worker(1))
    leaver.close()
    sink.commit(CONTEXT, [member.pre_commit(CONTEXT)])
    member.close()
    assert sink.seen.outcome().left == {0}
    assert sink.seen.outcome().rescaled


def test_a_part_of_a_sink_is_open_once_and_at_its_position() -> None:
    sink = Parts(Seen(), "out")
    sink.build_part("part-0", None).write(Batch([ROW]))
    sink.build_part("part-0", 0)
    assert [what.partition(" of ")[0] for what in sink.seen.broken] == ["part part-0", "part part-0"]
    sink.seen.broken.clear()
    sink.seen.open_parts.clear()
    part = sink.build_part("part-0", 1)
    assert part.snapshot() == 1
    assert sink.seen.broken == []


def test_a_part_of_a_source_is_read_in_one_place_with_its_silences() -> None:
    seen = Seen(clock=VirtualClock())
    given = Input("s", "script", {"0": (ROW.record, 2, ROW.record)})
    part = given.source(seen).build_part(Part("0"), None)
    assert part.poll(10) == [ROW.record]
    assert part.poll(10) is None
    position = part.snapshot()
    given.source(seen).build_part(Part("0"), None)
    assert len(seen.broken) == 1
    moved = given.source(seen).build_part(Part("0"), position)
    assert (moved.poll(10), moved.is_finished()) == (None, False)
    assert (moved.poll(10), moved.is_finished()) == ([ROW.record], True)
