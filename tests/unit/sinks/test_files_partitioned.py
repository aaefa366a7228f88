"""Output partitioned by column: each row in the folder of its values, read back whole by the programs that know Hive's
layout, however many partitions and writers there are."""

from __future__ import annotations

import csv
import datetime as dt
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.errors import PlanError, SinkError
from malstrom_py.sinks.files import Files
from malstrom_py.sinks.files.partitions import NULL_NAME
from malstrom_py.sinks.staged import writing as rolling
from malstrom_py.worker_context import WorkerId, WorkerInfo
from tests.unit.sinks.writing import WORKER, Format, context, everything, visible, write

FORMATS: list[Format] = ["csv", "json", "parquet"]
DAY = dt.date(2013, 1, 1)


def read(folder: Path, **partitions: pa.DataType) -> list[dict[str, Any]]:
    """The rows as ``pyarrow.dataset`` reads them, in the order of the column ``n``."""
    kinds = pa_dataset.partitioning(pa.schema(list(partitions.items())), flavor="hive")
    dataset = pa_dataset.dataset(str(folder), format="parquet", partitioning=kinds)
    return sorted(dataset.to_table().to_pylist(), key=lambda row: row["n"])


def read_by_polars(folder: Path, **partitions: Any) -> list[dict[str, Any]]:
    """The same by Polars."""
    frame = pl.read_parquet(folder, hive_partitioning=True, hive_schema=partitions)
    return sorted(frame.to_dicts(), key=lambda row: row["n"])


def read_plain(file: Path) -> list[dict[str, Any]]:
    """The rows of one file, as text unless it is parquet."""
    if file.suffix == ".parquet":
        rows = pq.ParquetFile(file).read().to_pylist()
        return [{name: str(value) for name, value in row.items()} for row in rows]
    with file.open() as lines:
        if file.suffix == ".csv":
            return list(csv.DictReader(lines))
        return [{name: str(value) for name, value in json.loads(line).items()} for line in lines]


@pytest.mark.parametrize("format", FORMATS)
def test_rows_are_in_the_folders_of_their_values_and_partition_columns_are_not_in_the_files(
    format: Format, tmp_path: Path
) -> None:
    rows = [{"a": n % 2, "n": n, "b": ["x", None, "y/z"][n % 3]} for n in range(6)]
    write(tmp_path, rows[:4], rows[4:], format=format, partition_by=["a", "b"])
    found = {str(path.parent): read_plain(tmp_path / path) for path in visible(tmp_path)}
    assert found == {
        "a=0/b=x": [{"n": "0"}],
        f"a=1/b={NULL_NAME}": [{"n": "1"}],
        "a=0/b=y%2Fz": [{"n": "2"}],
        "a=1/b=x": [{"n": "3"}],
        f"a=0/b={NULL_NAME}": [{"n": "4"}],
        "a=1/b=y%2Fz": [{"n": "5"}],
    }
    numbers = sorted(path.name for path in visible(tmp_path))
    assert numbers == [f"out-s1-0000{number}.{format}" for number in range(6)]
    assert not (tmp_path / "_staging").exists()


PARTITION_VALUES = st.tuples(
    st.none() | st.text(min_size=1, max_size=8).filter(lambda text: text != NULL_NAME),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.dates(),
    st.none() | st.booleans(),
)


@settings(max_examples=40)
@given(st.lists(PARTITION_VALUES, min_size=1, max_size=8), st.integers(0, 8), st.booleans())
def test_other_programs_read_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, values: list[tuple[Any, ...]], cut: int, as_columns: bool
) -> None:
    folder = tmp_path_factory.mktemp("out")
    kinds = {"t": pa.string(), "i": pa.int64(), "d": pa.date32(), "b": pa.bool_()}
    rows = [{"n": n, **dict(zip(kinds, row, strict=True))} for n, row in enumerate(values)]
    schema = pa.schema([("n", pa.int64()), *kinds.items()])
    batches = [
        ColumnBatch(pa.RecordBatch.from_pylist(part, schema=schema)) if as_columns else Batch(part)
        for part in (rows[:cut], rows[cut:])
        if part
    ]
    write(folder, *batches, partition_by=list(kinds))
    assert read(folder, **kinds) == rows
    assert read_by_polars(folder, t=pl.String, i=pl.Int64, d=pl.Date, b=pl.Boolean) == rows


HOSTILE = [
    "..", ".", "a/b", "/", "../../etc", "\0", "a\0b", "%2F", "%", "~", "x" * 250, "日" * 80, "A", "a", "\u00e9",
    "e\u0301",
]  # fmt: skip


@pytest.mark.parametrize("format", FORMATS)
def test_no_value_leads_out_of_the_folder(format: Format, tmp_path: Path) -> None:
    write(tmp_path / "out", [{"a": value, "n": n} for n, value in enumerate(HOSTILE)], format=format, partition_by="a")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert len(visible(tmp_path / "out")) == len(HOSTILE)
    assert {len(path.parts) for path in visible(tmp_path / "out")} == {2}
    if format == "parquet":
        assert [row["a"] for row in read(tmp_path / "out", a=pa.string())] == HOSTILE


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("values", "match"),
    [
        ([{"n": 1}], "some values lack the partition column 'a'"),
        ([{"a": 1, "n": 1}, {"n": 2}], "some values lack the partition column 'a'"),
        ([5], "some values lack the partition column 'a'"),
        ([{"a": 1.5, "n": 1}], "column 'a' holds double, and output is partitioned by"),
        ([{"a": dt.datetime(2013, 1, 1), "n": 1}], "column 'a' holds timestamp"),  # noqa: DTZ001
        ([{"a": [1], "n": 1}], "column 'a' holds list"),
        ([{"a": {"b": 1}, "n": 1}], "column 'a' holds struct"),
        ([{"a": b"x", "n": 1}], "column 'a' holds binary"),
        ([{"a": object(), "n": 1}], "column 'a' holds values of type 'object'"),
        ([{"a": 1, "n": 1}, {"a": "1", "n": 2}], "column 'a' holds int and str"),
        ([{"a": True, "n": 1}, {"a": 1, "n": 2}], "column 'a' holds bool and int"),
        ([{"a": 1, "n": 1}, {"a": 1.5, "n": 2}], "column 'a' holds double"),
        ([{"a": 2**64, "n": 1}], "column 'a' holds an int beyond 64 bits"),
        ([{"a": "", "n": 1}], "column 'a' has an empty string"),
        ([{"a": NULL_NAME, "n": 1}], "whose partition would be that of None"),
        ([{"a": "x" * 254, "n": 1}], "column 'a' has a value too long"),
        ([{"a": 1}], "so the files would have none"),
    ],
)
def test_what_has_no_folder_is_told_and_leaves_nothing(
    values: list[Any], match: str, format: Format, tmp_path: Path
) -> None:
    for batches in ([values], [[value] for value in values]):
        with pytest.raises(SinkError, match=match):
            write(tmp_path, *batches, format=format, partition_by="a")
    assert everything(tmp_path) == []


def test_a_column_batch_without_the_partition_column_is_told(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="some values lack the partition column 'a'"):
        write(tmp_path, ColumnBatch(pa.RecordBatch.from_pydict({"n": [1]})), partition_by="a")


@pytest.mark.parametrize("format", FORMATS)
def test_the_key_of_a_stream_may_be_a_partition_or_stays_in_the_files(format: Format, tmp_path: Path) -> None:
    for batch, by, expected in (
        (Batch([1, 2], keys=["x", "y"]), "key", {"key=x": [{"value": "1"}], "key=y": [{"value": "2"}]}),
        (Batch([{"key": 5, "n": 1}], keys=["x"]), "key", {"key=5": [{"n": "1"}]}),
        (Batch([{"a": 1, "n": 2}], keys=["x"]), "a", {"a=1": [{"key": "x", "n": "2"}]}),
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        write(folder, batch, format=format, partition_by=by)
        assert {str(path.parent): read_plain(folder / path) for path in visible(folder)} == expected


def test_numbers_and_bools_of_numpy_are_partitions(tmp_path: Path) -> None:
    write(tmp_path, [{"a": np.int32(7), "b": np.str_("x"), "n": 1}], partition_by=["a", "b"])
    assert [str(path.parent) for path in visible(tmp_path)] == ["a=7/b=x"]


@pytest.mark.parametrize("format", FORMATS)
def test_far_more_partitions_than_open_files(format: Format, tmp_path: Path) -> None:
    count = 3 * rolling.OPEN_MAX
    rows = [{"a": n % count, "n": n} for n in range(4 * count)]
    # So small a size makes each piece a separate write: the files of all but the last partitions are finished early.
    write(tmp_path, rows[:count], rows[count:], format=format, partition_by="a", file_bytes_max=4000)
    found = [int(row["n"]) for path in visible(tmp_path) for row in read_plain(tmp_path / path)]
    assert sorted(found) == list(range(4 * count))
    assert {path.parts[0] for path in visible(tmp_path)} == {f"a={n}" for n in range(count)}


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("format", FORMATS)
def test_no_more_files_are_open_than_allowed(format: Format, tmp_path: Path) -> None:
    writer = Files(tmp_path, format=format, partition_by="a", file_bytes_max=1000).open(WORKER)
    before = open_files()
    for a in range(2 * rolling.OPEN_MAX):
        # In memory they take more than 1000 bytes, so they are written; in the file less, so it stays open.
        writer.write(Batch([{"a": a, "n": n} for n in range(100)]))
        assert open_files() - before <= rolling.OPEN_MAX + 1  # and the folder that is locked
    assert open_files() - before >= rolling.OPEN_MAX
    writer.close()
    assert open_files() <= before
    assert everything(tmp_path) == []


@pytest.mark.parametrize("format", FORMATS)
def test_each_partition_rolls_at_its_own_size_and_keeps_its_order(format: Format, tmp_path: Path) -> None:
    rows = [{"a": int(n % 10 == 0), "n": n} for n in range(3000)]
    parts = [rows[start : start + 100] for start in range(0, 3000, 100)]
    write(tmp_path, *parts, format=format, partition_by="a", file_bytes_max=1000)
    for a in (0, 1):
        paths = [path for path in visible(tmp_path) if path.parts[0] == f"a={a}"]
        assert len(paths) > 1
        sizes = [(tmp_path / path).stat().st_size for path in paths]
        assert min(sizes[:-1]) >= 1000
        numbers = [int(row["n"]) for path in paths for row in read_plain(tmp_path / path)]
        assert numbers == [row["n"] for row in rows if row["a"] == a]
    assert sum(path.parts[0] == "a=0" for path in visible(tmp_path)) > len(paths)


def test_two_jobs_write_into_one_partition_and_one_of_them_fails(tmp_path: Path) -> None:
    sinks = [Files(tmp_path, format="json", partition_by="a") for _ in range(2)]
    writers = [sink.open(WorkerInfo(f"job{n}", "out", WorkerId(0))) for n, sink in enumerate(sinks)]
    for n, writer in enumerate(writers):
        writer.write(Batch([{"a": "x", "n": n}]))
    contexts = [context(f"s{n}", job=f"job{n}") for n in range(2)]
    payloads = [writer.pre_commit(one) for writer, one in zip(writers, contexts, strict=True)]
    sinks[0].commit(contexts[0], [payloads[0]])
    sinks[1].abort(contexts[1], [payloads[1]])
    for writer in writers:
        writer.close()
    assert everything(tmp_path) == ["a=x", "a=x/out-s0-00000.json"]


@pytest.mark.parametrize("partition_by", [[], "", "_a", 5, ["a", "a"]])
def test_partitions_that_cannot_be_are_refused_at_once(partition_by: Any) -> None:
    with pytest.raises(PlanError, match=r"sinks\.Files: "):
        Files("out", partition_by=partition_by)


def test_the_sink_says_what_it_is(tmp_path: Path) -> None:
    assert repr(Files(tmp_path, partition_by="a")) == f"Files({str(tmp_path)!r}, format='parquet', partition_by=['a'])"
