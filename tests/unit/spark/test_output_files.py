"""What a job has left is read by its record: the files, their columns and partitions, and nothing that lies beside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import SourceError
from malstrom_py.spark.output_files import OutputFiles, batches_of, batches_of_all, check_readable, output_of, step_of

Format = Literal["csv", "json", "parquet"]

FLIGHTS: list[dict[str, Any]] = [
    {"carrier": "UA", "delay": 2.5, "n": 1, "day": date(2013, 1, 1), "late": True},
    {"carrier": "B6", "delay": None, "n": 2, "day": date(2013, 1, 1), "late": None},
    {"carrier": "a/b %", "delay": 0.0, "n": 3, "day": date(2013, 1, 2), "late": False},
]


def write(
    folder: Path,
    rows: Sequence[Any],
    *,
    job: str = "flights",
    step: str = "out",
    format: Format = "parquet",
    partition_by: Sequence[str] = (),
) -> None:
    wrote = mp.Job(job)
    sink = sinks.Files(folder, format=format, partition_by=list(partition_by) or None)
    wrote.source("in", sources.Memory(rows)).sink(step, sink)
    mp.run(wrote)


def opened(folder: Path, *, job: str | None = None, step: str | None = None) -> OutputFiles:
    root, output = output_of(str(folder), job)
    return OutputFiles(root, step_of(output, step))


def read(files: OutputFiles, schema: pa.Schema | None = None) -> list[dict[str, Any]]:
    schema = files.schema() if schema is None else schema
    rows = [row for task in files.tasks() for batch in batches_of_all(task, schema) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: str(row.get("n")))


@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
@pytest.mark.parametrize("partition_by", [(), ("day", "carrier")])
def test_rows_come_back_with_the_types_of_their_columns(
    format: Format, partition_by: Sequence[str], tmp_path: Path
) -> None:
    write(tmp_path, FLIGHTS, format=format, partition_by=partition_by)
    files = opened(tmp_path)
    is_text = format == "json" and not partition_by
    assert {field.name: str(field.type) for field in files.schema()} == {
        "carrier": "string",
        "delay": "double",
        "n": "int64",
        "day": "string" if is_text else "date32[day]",
        "late": "bool",
    }
    assert read(files) == [{**row, "day": str(row["day"])} for row in FLIGHTS] if is_text else FLIGHTS


def test_exactly_the_files_that_the_record_names_are_read(tmp_path: Path) -> None:
    write(tmp_path, [{"n": 1}])
    write(tmp_path, [{"n": 2}])
    (tmp_path / "stray.parquet").write_bytes(next(tmp_path.glob("out-*.parquet")).read_bytes())
    assert read(opened(tmp_path)) == [{"n": 2}]


def test_one_of_several_jobs_and_steps_is_chosen(tmp_path: Path) -> None:
    write(tmp_path, [{"n": 1}], job="one", step="a")
    two = mp.Job("two")
    odd, even = two.source("in", sources.Memory([{"n": 2}, {"n": 3}])).branch("odd", lambda row: row["n"] % 2)
    odd.sink("odds", sinks.Files(tmp_path))
    even.sink("evens", sinks.Files(tmp_path, format="csv"))
    mp.run(two)
    assert read(opened(tmp_path, job="one")) == [{"n": 1}]
    assert read(opened(tmp_path, job="two", step="evens")) == [{"n": 2}]
    with pytest.raises(SourceError, match=r"several jobs have written to .*: choose one with option job: one, two"):
        opened(tmp_path)
    with pytest.raises(SourceError, match="choose one with option step: 'evens', 'odds'"):
        opened(tmp_path, job="two")
    with pytest.raises(SourceError, match="no step 'x' of job 'two' has written here"):
        opened(tmp_path, job="two", step="x")
    with pytest.raises(SourceError, match="no output of a job 'x' is recorded in"):
        opened(tmp_path, job="x")


def test_without_a_record_there_is_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no job has written a record in"):
        opened(tmp_path)
    write(tmp_path, [])
    assert opened(tmp_path).splits() == []
    with pytest.raises(SourceError, match="has written no rows, so its columns are unknown: give a schema"):
        opened(tmp_path).schema()


def test_values_go_into_a_schema_that_is_given_or_are_refused(tmp_path: Path) -> None:
    write(tmp_path, FLIGHTS, format="csv", partition_by=["day"])
    files = opened(tmp_path)
    given = pa.schema([("n", pa.decimal128(5, 1)), ("day", pa.timestamp("us")), ("carrier", pa.string())])
    day = datetime(2013, 1, 2)  # noqa: DTZ001
    assert read(files, given)[2] == {"n": Decimal("3.0"), "day": day, "carrier": "a/b %"}
    with pytest.raises(SourceError, match="column 'carrier' does not read as int64"):
        read(files, pa.schema([("carrier", pa.int32())]))
    with pytest.raises(SourceError, match="column 'delay' holds values that do not go into decimal128") as caught:
        read(files, pa.schema([("delay", pa.decimal128(3, 0))]))
    assert "2.5" not in str(caught.value)


def test_a_column_that_is_not_there_or_can_never_be_what_is_asked_for_is_refused() -> None:
    there = {"n": pa.int64(), "day": pa.date32()}
    check_readable(there, pa.schema([("n", pa.int8()), ("day", pa.string())]))
    with pytest.raises(SourceError, match="no column 'm', only 'n', 'day'"):
        check_readable(there, pa.schema([("m", pa.int64())]))
    with pytest.raises(SourceError, match="column 'n' is int64, and cannot be read as list"):
        check_readable(there, pa.schema([("n", pa.list_(pa.int64()))]))


def test_lines_of_json_may_differ_in_fields_and_hold_moments_as_text(tmp_path: Path) -> None:
    noon = datetime(2013, 1, 1, 12, tzinfo=UTC)
    write(tmp_path, [{"at": noon, "n": 1}, {"n": 2.5, "more": {"x": 1}}], format="json")
    files = opened(tmp_path)
    assert [str(field.type) for field in files.schema()] == ["string", "double", "struct<x: int64>"]
    given = pa.schema([("at", pa.timestamp("us", "UTC")), ("n", pa.float32()), ("more", pa.struct([("x", pa.int8())]))])
    assert read(files, given) == [{"at": noon, "n": 1.0, "more": None}, {"at": None, "n": 2.5, "more": {"x": 1}}]
    write(tmp_path, [{"n": 1}, {"n": "secret"}], format="json")
    with pytest.raises(SourceError, match="'n' do not fit into one column") as caught:
        opened(tmp_path).schema()
    assert "secret" not in str(caught.value)


def test_files_may_differ_in_how_wide_their_types_are(tmp_path: Path) -> None:
    write(tmp_path, FLIGHTS, partition_by=["day"])
    first = min(tmp_path.rglob("out-*.parquet"))
    pq.write_table(pa.table({"carrier": ["UA", "B6"], "n": pa.array([1, 2], pa.int16())}), first)
    files = opened(tmp_path)
    assert files.schema().field("n").type == pa.int64()
    assert [(row["n"], row["late"]) for row in read(files)] == [(1, None), (2, None), (3, False)]


def test_a_file_is_read_in_splits_of_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, [{"n": 0}])
    [file] = tmp_path.glob("out-*.parquet")
    pq.write_table(pa.table({"n": range(9)}), file, row_group_size=3)
    monkeypatch.setattr("malstrom_py.spark.output_files._SPLIT_BYTES", 1)
    files = opened(tmp_path)
    assert [split.part.rpartition("=")[2] for split in files.splits()] == ["0-1", "1-2", "2-3"]
    assert [row["n"] for row in read(files)] == list(range(9))


def test_a_task_reads_many_small_files_in_their_order_or_a_large_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, [{"n": n, "at": n} for n in range(150)], partition_by=["at"])
    files = opened(tmp_path)
    assert [len(task) for task in files.tasks()] == [63, 63, 24]
    assert [split for task in files.tasks() for split in task] == files.splits()
    assert [row["at"] for row in read(files)] == sorted(range(150), key=str)
    monkeypatch.setattr("malstrom_py.spark.output_files._TASK_COST", 1)
    assert [len(task) for task in files.tasks()] == [1] * 150


def test_a_file_that_is_missing_cut_off_or_changed_is_refused(tmp_path: Path) -> None:
    write(tmp_path, [{"n": 1}])
    [file] = tmp_path.glob("out-*.parquet")
    files = opened(tmp_path)
    schema, [[split]] = files.schema(), files.tasks()
    content = file.read_bytes()
    file.write_bytes(content[:-8])
    with pytest.raises(SourceError, match="has changed while it was read"):
        list(batches_of(split, schema))
    with pytest.raises(SourceError, match="is not a whole Parquet file"):
        opened(tmp_path).schema()
    file.unlink()
    with pytest.raises(SourceError, match=r"which the job has written, cannot be read .No such file or directory"):
        opened(tmp_path)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "d=1/../../x.parquet", "folder/x.parquet", "a\0b", ""])
def test_a_record_that_leads_out_of_its_folder_is_refused(name: str, tmp_path: Path) -> None:
    write(tmp_path, [{"n": 1}])
    record = tmp_path / "_malstrom" / "flights.json"
    hostile = json.loads(record.read_text())
    hostile["outputs"]["out"]["files"] = [name]
    record.write_text(json.dumps(hostile))
    with pytest.raises(SourceError, match=r"outside of its folder|not in a partition folder"):
        opened(tmp_path)


def test_links_are_not_followed(tmp_path: Path) -> None:
    write(tmp_path, [{"n": 1}])
    [file] = tmp_path.glob("out-*.parquet")
    other = file.rename(tmp_path / "elsewhere.parquet")
    file.symlink_to(other)
    with pytest.raises(SourceError, match="is reached through a symbolic link"):
        opened(tmp_path)


def test_output_in_another_format_is_left_to_spark(tmp_path: Path) -> None:
    write(tmp_path, [{"n": 1}])
    record = tmp_path / "_malstrom" / "flights.json"
    record.write_text(record.read_text().replace('"format": "parquet"', '"format": "orc"'))
    with pytest.raises(SourceError, match=r"the output is orc, .* read it with spark.read.format"):
        opened(tmp_path)
