"""`sinks.Memory`: shows what was committed, and only that, of the last run."""

from __future__ import annotations

import datetime as dt
import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.capture import frames
from malstrom_py.codec import Codec, TypeTable
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.errors import MalstromError, OperatorError, SinkError
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.worker_context import WorkerId, WorkerInfo
from tests.unit.workers.harness import Journal, JournalSink

CONTEXT = CommitContext("job", "out", SnapshotId("s1"), 1)


def numbers(job: mp.Job, values: list[Any]) -> mp.StreamBuilder[None, Any]:
    return job.source("in", sources.Memory(values))


def test_items_stand_as_they_arrived_and_by_key_in_order() -> None:
    job, out = mp.Job("a"), sinks.Memory()
    numbers(job, [3, 1, 2, 5]).key_by("parity", lambda n: n % 2).sink("out", out)
    mp.run(job, batch=mp.Batching(rows_max=1))
    assert out.items == [3, 1, 2, 5]
    assert out.by_key == {1: [3, 1, 5], 0: [2]}


def test_a_job_that_fails_leaves_nothing_of_itself_and_nothing_of_an_earlier_run() -> None:
    out = sinks.Memory()
    for values in ([1, 2], [1, 0]):
        job = mp.Job("a")
        numbers(job, values).map("inverse", lambda n: 1 // n).sink("out", out)
        if 0 in values:
            with pytest.raises(OperatorError):
                mp.run(job, batch=mp.Batching(rows_max=1))
        else:
            mp.run(job)
            assert out.items == [1, 0]
    assert (out.items, out.by_key) == ([], {})


def test_a_job_that_is_run_again_starts_empty() -> None:
    job, out = mp.Job("a"), sinks.Memory()
    numbers(job, [1, 2]).key_by("key", lambda n: n).sink("out", out)
    mp.run(job)
    first = out.items
    mp.run(job)
    assert (out.items, out.by_key) == ([1, 2], {1: [1], 2: [2]})
    assert first == [1, 2]


def test_one_sink_may_take_two_streams() -> None:
    job, out = mp.Job("a"), sinks.Memory()
    stream = numbers(job, [1])
    stream.sink("left", out)
    stream.map("ten", lambda n: n * 10).sink("right", out)
    mp.run(job)
    assert sorted(out.items) == [1, 10]


def test_a_sink_that_fails_beside_it_leaves_nothing_here() -> None:
    job, out = mp.Job("a"), sinks.Memory()
    stream = numbers(job, [1])
    stream.sink("bad", JournalSink("bad", Journal(), "pre_commit"))
    stream.sink("out", out)
    with pytest.raises(SinkError):
        mp.run(job)
    assert out.items == []


def test_keys_that_cannot_be_keys_fail_and_leave_nothing() -> None:
    job, out = mp.Job("a"), sinks.Memory()
    numbers(job, [1, [2]]).key_by("key", lambda n: n).sink("out", out)
    with pytest.raises(MalstromError, match="list"):
        mp.run(job)
    assert (out.items, out.by_key) == ([], {})


def test_columns_are_kept_as_rows() -> None:
    sink = sinks.Memory()
    writer = sink.open(WorkerInfo("job", "out", WorkerId(0)))
    writer.write(ColumnBatch(pa.record_batch({"n": [1, 2]}), key_column=pa.array(["a", None])))
    sink.commit(CONTEXT, [writer.pre_commit(CONTEXT)])
    assert sink.items == [{"n": 1}, {"n": 2}]
    assert sink.by_key == {"a": [{"n": 1}], None: [{"n": 2}]}


def test_what_two_workers_wrote_stands_in_the_order_of_arrival_whoever_commits_first() -> None:
    """A key that has moved from worker 1 to worker 0 keeps its order, and so does one that moved back."""
    out = sinks.Memory()
    writers = [out.open(WorkerInfo("job", "out", WorkerId(worker))) for worker in (0, 1)]
    for number, worker in enumerate([1, 1, 0, 1, 0, 0, 1]):
        writers[worker].write(Batch([number, number + 100], keys=["moved", f"of-{worker}"]))
    out.commit(CONTEXT, [writer.pre_commit(CONTEXT) for writer in writers])
    assert out.by_key["moved"] == [0, 1, 2, 3, 4, 5, 6]
    assert (out.by_key["of-0"], out.by_key["of-1"]) == ([102, 104, 105], [100, 101, 103, 106])
    assert out.items == [value for number in range(7) for value in (number, number + 100)]


def test_a_worker_that_has_left_is_behind_nobody() -> None:
    """Rows that were pre-committed long ago stay in their place, also among those that a later worker has written."""
    out = sinks.Memory()
    leaver, stayer = (out.open(WorkerInfo("job", "out", WorkerId(worker))) for worker in (5, 0))
    stayer.write(Batch(["first"], keys=["a"]))
    leaver.write(Batch(["second"], keys=["a"]))
    left = leaver.pre_commit(CONTEXT)
    leaver.close()
    stayer.write(Batch(["third"], keys=["a"]))
    out.commit(CONTEXT, [left, stayer.pre_commit(CONTEXT)])
    assert out.by_key == {"a": ["first", "second", "third"]}


def test_copies_in_other_processes_pre_commit_their_rows_and_keep_a_moved_key_in_order() -> None:
    """Each copy counts for itself, so that only the version of the table orders them."""
    original = sinks.Memory()
    original.items.append("of an earlier run")
    copies = [cloudpickle.loads(cloudpickle.dumps(original)) for _ in range(3)]
    assert [copy.items for copy in copies] == [[], [], []]
    writers = [copy.open(WorkerInfo("job", "out", WorkerId(worker))) for worker, copy in enumerate(copies)]
    for number in range(5):
        writers[2].write(Batch([number], keys=["moving"]))
    for version, worker in ((1, 0), (2, 1), (3, 2)):
        writers[worker].moved(version)
        writers[worker].write(Batch([version * 10], keys=["moving"]))
        writers[worker].write(Batch([version * 10 + 1], keys=["moving"]))
    payloads = [writer.pre_commit(CONTEXT) for writer in writers]
    original.recover(CONTEXT, [])
    original.commit(CONTEXT, payloads)
    assert original.by_key == {"moving": [0, 1, 2, 3, 4, 10, 11, 20, 21, 30, 31]}


def test_rows_appear_snapshot_by_snapshot_and_stay_when_the_job_goes_back_to_one() -> None:
    out = sinks.Memory()
    contexts = [CommitContext("job", "out", SnapshotId(f"s{number}"), 1, final=False) for number in range(4)]
    writer = out.open(WorkerInfo("job", "out", WorkerId(0)))
    payloads = []
    for number, context in enumerate(contexts):
        writer.write(Batch([number], keys=["a"]))
        payloads.append(writer.pre_commit(context))
    out.commit(contexts[0], payloads[:1])
    out.recover(contexts[3], [contexts[0].snapshot, contexts[1].snapshot])
    for number in (0, 1, 1, 0):
        out.commit(contexts[number], payloads[number : number + 1])
    assert (out.items, out.by_key) == ([0, 1], {"a": [0, 1]})
    out.commit(contexts[2], payloads[2:3])
    assert out.items == [0, 1]
    out.recover(contexts[3], [])
    assert (out.items, out.by_key) == ([], {})


@dataclass
class Order:
    item: str
    pieces: int


def elsewhere(original: sinks.Memory) -> Any:
    """A writer of a copy of ``original`` in another process."""
    return cloudpickle.loads(cloudpickle.dumps(original)).open(WorkerInfo("job", "out", WorkerId(0)))


def test_s8_rows_that_pass_through_a_store_are_in_the_form_at_rest() -> None:
    original, types = sinks.Memory(), TypeTable()
    types.register(Order)
    original.use_types(types)
    writer = elsewhere(original)
    columns = pa.RecordBatch.from_pylist([{"item": "lamp", "at": dt.date(2026, 1, 2)}])
    writer.write(Batch([Order("bed", 2), {"a", 1}, (b"x", None)], keys=["k", 2, None], timestamps=[3, 2, 1]))
    writer.write(ColumnBatch(columns))
    payload = writer.pre_commit(CONTEXT)
    assert payload.startswith(b"stored:")
    original.commit(CONTEXT, [payload])
    assert original.items == [Order("bed", 2), {"a", 1}, (b"x", None), {"item": "lamp", "at": dt.date(2026, 1, 2)}]
    assert original.by_key == {"k": [Order("bed", 2)], 2: [{"a", 1}], None: [(b"x", None)]}


def test_a_row_that_no_store_can_hold_is_refused_before_the_snapshot_and_passes_without_a_store() -> None:
    original, context = sinks.Memory(), replace(CONTEXT, stored=False)
    writer = elsewhere(original)
    writer.write(Batch([1, Order("bed", 2)], keys=["a", "b"]))
    with pytest.raises(
        SinkError, match=r"step 'out' for key 'b': .*Order cannot be stored: .*register_type\(Order\)"
    ) as refused:
        writer.pre_commit(CONTEXT)
    assert refused.value.lasting
    writer.write(Batch([Order("bed", 2)]))
    original.commit(context, [writer.pre_commit(context)])
    assert original.items == [Order("bed", 2)]


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_s8_pickled_rows_of_a_store_are_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = sinks.Memory()
    trap = pickle.dumps([(0, 0, Trap(tmp_path / "sprung"))])
    out.commit(CONTEXT, [b"rows:" + trap])
    assert not (tmp_path / "sprung").exists()
    assert out.items == []
    assert "sinks.Memory leaves these rows out" in caplog.text
    stored = Codec().encode_at_rest([(0, 0, frames.encode(Batch([1]), Codec(), "out")[:-9] + trap)], step="out")
    for payload in (b"stored:" + trap, b"stored:" + stored):
        with pytest.raises(MalstromError):
            out.commit(replace(CONTEXT, snapshot=SnapshotId("s2")), [payload])
        out.recover(CONTEXT, [])
    assert not (tmp_path / "sprung").exists()
