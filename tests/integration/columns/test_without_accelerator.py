"""Without the accelerator steps with state make rows of columns: the same results, from snapshots of either way too."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import polars as pl
import pyarrow as pa
import pytest

import malstrom_py as mp
from malstrom_py import agg, sinks, windows
from malstrom_py.data.batch import ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, Epoch
from malstrom_py.sources import Part
from malstrom_py.testing import check_operator
from tests.laws.test_forms import CASES, KEYS, LAW, TUMBLING, VALUES
from tests.unit.operators.test_windows_columns import combined, stepped
from tests.unit.state.accelerators import running

COLUMNS = pa.RecordBatch.from_pydict(
    {"s": [f"k{n * 7 % 5}" for n in range(400)], "n": [n * 11 % 17 for n in range(400)], "at": list(range(400))}
)
PER_BATCH, FIRST = 20, 200


class Halves:
    """A source of columns by batches. At row ``until`` it sets ``waits`` and waits."""

    def __init__(self, until: int) -> None:
        self.until = until
        self.waits = Event()

    def list_parts(self) -> list[Part]:
        return [Part("all")]

    def build_part(self, part: Part, state: int | None) -> _Part:
        return _Part(self, state or 0)


class _Part:
    def __init__(self, source: Halves, at: int) -> None:
        self._source, self._at = source, at

    def poll(self, rows_max: int) -> pa.RecordBatch | None:
        if self._at >= self._source.until:
            self._source.waits.set()
            return None
        self._at += PER_BATCH
        return COLUMNS.slice(self._at - PER_BATCH, PER_BATCH)

    def is_finished(self) -> bool:
        return self._at == len(COLUMNS)

    def snapshot(self) -> int:
        return self._at

    def close(self) -> None:
        """Do nothing."""


def job_of(source: Halves) -> tuple[mp.Job, list[sinks.Memory]]:
    """Return a job with every kind of state that columns have, and its results."""
    job = mp.Job("both_ways")
    read = job.source("in", source).assign_timestamps("time", "at")
    on_time, _ = read.generate_epochs("epochs", mp.limit_out_of_orderness(10))
    keyed = on_time.key_by("key", "s")
    some, first = keyed.filter("some", pl.col("n") > 8), keyed.filter("first", pl.col("at") < 5)
    streams = [
        keyed.aggregate("figures", rows=agg.count(), total=agg.sum("n"), least=agg.min("n"), last=agg.last("at")),
        keyed.distinct("distinct", by="n"),
        keyed.top_n("best", 3, by="n"),
        keyed.sum("sum", by="n").final("final"),
        keyed.window("windows", windows.sliding(40, 20)).aggregate(n=agg.count(), mean=agg.mean("n")),
        keyed.join("join", some, window=TUMBLING),
        keyed.join_table("table", first, wait=True),
    ]
    found = [sinks.Memory() for _ in streams]
    for number, (stream, sink) in enumerate(zip(streams, found, strict=True)):
        stream.sink(f"out{number}", sink)
    return job, found


def rows_of(found: list[sinks.Memory]) -> list[list[str]]:
    return [sorted(map(repr, sink.items)) for sink in found]


def test_whole_jobs_give_the_same(tmp_path: Path) -> None:
    """Also where one way continues from what the other has stored, on two workers and then on one."""
    job, found = job_of(Halves(len(COLUMNS)))
    with running("C"):
        mp.run(job)
    expected = rows_of(found)
    assert all(expected)
    for first, second in (("C", "Python"), ("Python", "C"), ("Python", "Python")):
        snapshots = mp.Snapshots(str(tmp_path / f"{first} {second}"), interval_s=60)
        with running(first):
            half = Halves(FIRST)
            job, sent = job_of(half)
            handle = mp.InProcess(2, snapshots=snapshots).start(job, control=False)
            assert half.waits.wait(60)
            handle.stop()
        with running(second):
            job, rest = job_of(Halves(len(COLUMNS)))
            mp.InProcess(1, snapshots=snapshots).run(job)
        assert rest[0].items
        together = [sorted([*one, *other]) for one, other in zip(rows_of(sent), rows_of(rest), strict=True)]
        assert together == expected, (first, second)


CASES_OF = ("aggregate in arrays", "distinct by text", "top_n", "final", f"mean of {windows.sliding(6, 4)}")


@pytest.mark.parametrize("name", [*CASES_OF, "join_table inner, wait=True, timed"])
def test_columns_give_what_rows_give(name: str) -> None:
    step, options = CASES[name]
    with running("Python"):
        assert check_operator(step, values=VALUES, keys=KEYS[0], laws=[LAW], max_examples=5, **options).cases[LAW]


def test_partial_states_of_a_worker_with_the_accelerator_are_merged_in_rows() -> None:
    """Each worker of a job may have been installed in another way."""
    keys, times = pa.array(["a", "b"] * 50), pa.array(list(range(100)))
    batch = ColumnBatch(pa.RecordBatch.from_pydict({"v": list(range(100))}), key_column=keys, time_column=times)
    with running("C"):
        expected = stepped("sum", "tumbling").push(batch, Epoch(MAX_EPOCH)).rows()
        partials = combined("sum", "tumbling", batch)
    assert len(partials) < len(batch)
    with running("Python"):
        step = stepped("sum", "tumbling").push(partials, Epoch(MAX_EPOCH))
    assert sorted(map(repr, step.rows())) == sorted(map(repr, expected))
