"""All Parquet files of a sink have one schema, for any values of workers and commits; or there is an error."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.errors import PlanError, SinkError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.sinks.files import Files
from malstrom_py.worker_context import WorkerId, WorkerInfo
from tests.unit.sinks.writing import context, visible


class Run:
    """A run of a job whose workers write into one folder; `commit` makes a snapshot of what each has written."""

    def __init__(self, folder: Path, *, workers: int = 2, committed: list[str] | None = None, **options: Any) -> None:
        self.folder = folder
        self.sink = Files(folder, **options)
        start = context("s0")
        if committed is not None:
            start = context("s9")
            self.sink.recover(start, list(map(SnapshotId, committed)))
        self.writers = [self.sink.open(WorkerInfo("job", "out", WorkerId(worker))) for worker in range(workers)]

    def commit(self, snapshot: str, *rows: list[Any] | pa.RecordBatch) -> None:
        for writer, each in zip(self.writers, rows, strict=False):
            writer.write(ColumnBatch(each) if isinstance(each, pa.RecordBatch) else Batch(each))
        at = context(snapshot, final=False)
        self.sink.commit(at, [writer.pre_commit(at) for writer in self.writers])

    def schema(self) -> pa.Schema:
        """The schema of all files, which is one."""
        schemas = [pq.read_schema(self.folder / path) for path in visible(self.folder)]
        assert all(schema.equals(schemas[0]) for schema in schemas), schemas
        return schemas[0]

    def rows(self) -> list[Any]:
        return [row for path in visible(self.folder) for row in pq.ParquetFile(self.folder / path).read().to_pylist()]


def columns(**types: pa.DataType) -> pa.Schema:
    return pa.schema(list(types.items()))


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        ([1, 2], [0.5], pa.float64()),
        ([None], [3], pa.int64()),
        ([None], [None], pa.string()),
        ([[None]], [[3]], pa.list_(pa.int64())),
        ([[[None]], None], [[[3]]], pa.list_(pa.list_(pa.int64()))),
        (
            [{"x": None, "y": None}, None],
            [{"x": 0.5, "y": [3]}],
            pa.struct([("x", pa.float64()), ("y", pa.list_(pa.int64()))]),
        ),
        ([[{"x": None}], None], [[{"x": [3]}]], pa.list_(pa.struct([("x", pa.list_(pa.int64()))]))),
        ([Decimal("1.5")], [Decimal("123.25")], pa.decimal128(38, 2)),
        ([{"x": 1}], [{"x": 0.5, "y": "a"}], pa.struct([("x", pa.float64()), ("y", pa.string())])),
    ],
    ids=str,
)
@pytest.mark.parametrize("swapped", [False, True])
def test_the_files_of_several_workers_get_one_schema(
    tmp_path: Path, one: list[Any], other: list[Any], kind: pa.DataType, swapped: bool
) -> None:
    run = Run(tmp_path / "out")
    pair = [[{"n": value} for value in values] for values in (one, other)]
    run.commit("s1", *(reversed(pair) if swapped else pair))
    assert run.schema() == columns(n=kind)
    found = [row["n"] for row in run.rows()]
    assert sorted(map(str, found)) == sorted(
        str({"x": 1.0, "y": None} if value == {"x": 1} else pa.scalar(value, kind).as_py()) for value in one + other
    )


def test_a_field_that_one_worker_lacks_is_none(tmp_path: Path) -> None:
    run = Run(tmp_path / "out")
    run.commit("s1", [{"a": 1}], [{"a": 2, "b": "x"}])
    run.commit("s2", [{"b": "y"}], [])
    assert run.schema() == columns(a=pa.int64(), b=pa.string())
    assert sorted(map(str, run.rows())) == sorted(
        map(str, [{"a": 1, "b": None}, {"a": 2, "b": "x"}, {"a": None, "b": "y"}])
    )


@pytest.mark.parametrize("workers", [1, 3])
def test_later_commits_and_runs_of_other_scale_keep_the_schema(tmp_path: Path, workers: int) -> None:
    folder = tmp_path / "out"
    run = Run(folder)
    run.commit("s1", [{"n": 0.5, "d": Decimal("1.25")}], [{"n": 1, "d": None}])
    run.commit("s2", [{"n": 2, "d": Decimal(12345)}], [{"n": None, "d": None}])
    run.commit("s3", [{"n": 3, "d": Decimal("0.5")}])
    later = Run(folder, workers=workers, committed=["s1", "s2", "s3"])
    later.commit("s4", *([{"n": worker, "d": Decimal(worker)}] for worker in range(workers)))
    later.commit("s5", [{"d": None}])
    assert later.schema() == columns(n=pa.float64(), d=pa.decimal128(38, 2))
    assert sum(row["n"] or 0 for row in later.rows()) == 0.5 + 1 + 2 + 3 + sum(range(workers))


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        ({"n": 1}, {"n": 0.5}, "column 'n' holds double, and 'out-s1-00000.parquet' has int64"),
        ({"n": None}, {"n": 1}, "column 'n' holds int64, and 'out-s1-00000.parquet' has string"),
        ({"n": 1}, {"n": 1, "m": 2}, "column 'm' is not among the columns 'n'"),
        ({"n": 1}, {"n": Decimal(1)}, "column 'n' holds decimal128"),
    ],
    ids=str,
)
def test_what_does_not_fit_the_visible_files_is_refused_before_the_snapshot(
    tmp_path: Path, first: dict[str, Any], then: dict[str, Any], said: str
) -> None:
    run = Run(tmp_path / "out")
    slow, at = run.writers[1], context("s1", final=False)
    run.writers[0].write(Batch([first]))
    payloads = [writer.pre_commit(at) for writer in run.writers]
    slow.write(Batch([then]))  # before the commit, so it cannot know the columns
    run.sink.commit(at, payloads)
    with pytest.raises(SinkError, match=r"schema=") as caught:
        slow.pre_commit(context("s2", final=False))
    assert said in str(caught.value)
    later = Run(tmp_path / "out", committed=["s1"])
    with pytest.raises(SinkError, match=r"(?s)column.*'out-s1-00000.parquet'.*schema="):
        later.writers[0].write(Batch([then]))
    assert run.rows() == [first]


def test_types_that_exclude_each_other_are_refused_at_the_commit(tmp_path: Path) -> None:
    for values in ((1, "a"), (1, Decimal(1)), (2**53 + 1, 0.5)):
        run = Run(tmp_path / "out")
        with pytest.raises(SinkError, match=r"column 'n'.*schema="):
            run.commit("s1", *([{"n": value}] for value in values))
        assert visible(tmp_path / "out") == []


def test_a_given_schema_holds_for_all_files(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.float64()), ("d", pa.decimal128(10, 2)), pa.field("k", pa.string(), nullable=False)])
    run = Run(tmp_path / "out", schema=schema)
    run.commit("s1", [{"n": 1, "d": 1, "k": "a"}], [{"k": "b"}])
    run.commit("s2", [{"n": 0.5, "d": Decimal("1.25"), "k": "c"}], [])
    assert run.schema() == columns(n=pa.float64(), d=pa.decimal128(10, 2), k=pa.string())
    assert sorted(row["n"] or 0.0 for row in run.rows()) == [0.0, 0.5, 1.0]
    for wrong, said in (
        ({"n": "x", "k": "a"}, "'n'"),
        ({"n": 1, "k": None}, "'k' is None"),
        ({"k": "a", "z": 1}, "'z' are not in"),
    ):
        with pytest.raises(SinkError, match=said):
            run.writers[0].write(Batch([wrong]))


def test_a_given_schema_other_than_that_of_the_visible_files_is_refused_at_the_start(tmp_path: Path) -> None:
    Run(tmp_path / "out").commit("s1", [{"n": 1}])
    with pytest.raises(SinkError, match=r"schema= says double for column 'n'.*another folder"):
        Run(tmp_path / "out", committed=["s1"], schema=columns(n=pa.float64()))
    Run(tmp_path / "out", committed=["s1"], schema=columns(n=pa.int64())).commit("s2", [{"n": 2}])


def test_rows_staged_without_a_schema_are_brought_to_the_one_that_is_given_later(tmp_path: Path) -> None:
    run, at = Run(tmp_path / "out"), context("s1", final=False)
    for writer, value in zip(run.writers, (1, Decimal("0.5")), strict=True):
        writer.write(Batch([{"n": value}]))
    payloads = [writer.pre_commit(at) for writer in run.writers]
    with pytest.raises(SinkError, match=r"column 'n' holds .*schema="):
        run.sink.commit(at, payloads)
    later = Run(tmp_path / "out", schema=columns(n=pa.decimal128(10, 1)))
    later.sink.commit(at, payloads)
    later.sink.commit(at, payloads)
    assert later.schema() == columns(n=pa.decimal128(10, 1))
    assert sorted(row["n"] for row in later.rows()) == [Decimal("0.5"), Decimal(1)]


def test_files_that_are_gone_hold_no_schema(tmp_path: Path) -> None:
    Run(tmp_path / "out").commit("s1", [{"n": 1}])
    for path in visible(tmp_path / "out"):
        (tmp_path / "out" / path).unlink()
    run = Run(tmp_path / "out", committed=[])
    run.commit("s2", [{"n": "a"}])
    assert run.schema() == columns(n=pa.string())


def test_partitions_are_free_of_the_schema(tmp_path: Path) -> None:
    run = Run(tmp_path / "out", partition_by="p")
    run.commit("s1", [{"p": 1, "n": 1}], [{"p": 2, "n": 0.5}])
    run.commit("s2", [{"p": 3, "n": 1}], [{"p": 4, "n": 1}])
    run.commit("s3", [{"n": 1, "p": 5}])
    assert run.schema() == columns(n=pa.float64())


def test_columns_keep_their_widths_where_all_workers_have_the_same(tmp_path: Path) -> None:
    run = Run(tmp_path / "out")
    narrow = pa.record_batch({"n": pa.array([1], pa.int16()), "d": pa.array([Decimal("1.5")], pa.decimal128(5, 2))})
    run.commit("s1", narrow, narrow)
    assert run.schema() == narrow.schema
    single = pa.record_batch({"n": pa.array([1.5], pa.float32())})
    other = Run(tmp_path / "single")
    other.commit("s1", single)
    other.commit("s2", single)
    with pytest.raises(SinkError, match="'n' holds double"):
        other.writers[0].write(ColumnBatch(pa.record_batch({"n": pa.array([0.1])})))


def test_a_schema_that_cannot_be_given_is_refused() -> None:
    for options, said in (
        ({"schema": {"n": "int"}}, "must be a pyarrow.Schema"),
        ({"schema": pa.schema([])}, "at least one column"),
        ({"schema": columns(n=pa.int64()), "partition_by": "p"}, "lacks the partition columns 'p'"),
        ({"schema": columns(n=pa.int64()), "format": "json"}, "leave out schema="),
    ):
        with pytest.raises(PlanError, match=said):
            Files("out", **options)
