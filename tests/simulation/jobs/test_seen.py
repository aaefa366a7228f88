"""The record of a run: restarts of the job, and the errors that only a sink or a source can find."""

from __future__ import annotations

from malstrom_py.data.batch import Batch
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.sources.base import Part
from malstrom_py.testing import VirtualClock
from malstrom_py.worker_context import WorkerId, WorkerInfo
from tests.simulation.jobs.inputs import Input
from tests.simulation.jobs.records import Passed, made
from tests.simulation.jobs.seen import Committed, Parts, Seen, Written

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
