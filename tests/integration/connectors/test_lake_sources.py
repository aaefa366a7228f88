"""`sources.Delta` and `sources.Iceberg`: one version of a table, exact positions, columns and filters."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.types import StringType

from malstrom_py.connectors.lake.delta_source import Delta
from malstrom_py.errors import PlanError, SourceError
from malstrom_py.testing.contracts import check_source
from tests.integration.connectors.lakes import TABLE, Lake, read_all

ROWS = [{"value": number, "name": f"n{number % 3}", "part": "ab"[number % 2]} for number in range(60)]


@pytest.fixture
def lake(lake: Lake) -> Lake:
    """Return a table of two snapshots, partitioned by a text."""
    lake.write(ROWS[:40], 1, partition_by="part")
    lake.write(ROWS[40:], 2)
    return lake


def sorted_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["value"])


def test_a_table_keeps_the_contract_of_sources(lake: Lake) -> None:
    for options in ({}, {"columns": ["part", "value"], "filter": pc.field("name") != "n1"}):
        source = lake.source(**options)
        source.pin("read")
        assert len(source.list_parts()) == 4
        check_source(source, cuts_max=4)
        check_source(pickle.loads(pickle.dumps(source)), cuts_max=2)
        source.unpin()
        assert len(read_all(source)) == (40 if options else 60)


def test_columns_are_read_in_the_order_that_is_asked_for(lake: Lake) -> None:
    rows = read_all(lake.source(columns=["part", "value"]))
    assert [list(row) for row in rows] == [["part", "value"]] * 60
    assert sorted_rows(rows) == [{"part": row["part"], "value": row["value"]} for row in ROWS]
    with pytest.raises(SourceError, match="has no column 'other'"):
        read_all(lake.source(columns=["other"]))


def test_a_plan_that_reads_few_columns_reads_only_these(lake: Lake) -> None:
    source = lake.source(filter=pc.field("name") == "n1")
    source.pin("read")
    rows: list[dict[str, Any]] = []
    for part in source.list_parts():
        narrow = source.build_narrow_part(part, None, {"value"})
        while not narrow.is_finished():
            polled = narrow.poll(7)
            rows += [] if polled is None else polled.to_pylist()
        narrow.close()
    assert sorted_rows(rows) == [{"value": row["value"]} for row in ROWS if row["name"] == "n1"]


@pytest.mark.parametrize(
    ("filter", "parts"),
    [
        (pc.field("value") >= 40, 2),
        (pc.field("part") == "a", 2),
        ((pc.field("part") == "a") & (pc.field("value") < 10), 1),
        (pc.field("name") == "n2", 4),
        (pc.field("value") > 1_000, 0),
    ],
)
def test_a_filter_leaves_out_files_and_rows(lake: Lake, filter: Any, parts: int) -> None:
    source = lake.source(filter=filter, columns=["value"])
    source.pin("read")
    assert len(source.list_parts()) == parts
    expected = pa.Table.from_pylist(ROWS).filter(filter).column("value").to_pylist()
    assert sorted(row["value"] for row in read_all(source)) == expected


def test_rows_are_those_of_the_version(lake: Lake) -> None:
    if lake.form == "delta":
        first = 1
    else:
        with lake.opened() as catalog:
            first = catalog.load_table(TABLE).metadata.snapshots[0].snapshot_id
    options = {"version": first} if lake.form == "delta" else {"snapshot": first}
    assert sorted_rows(read_all(lake.source(**options))) == ROWS[:40]
    missing = dict.fromkeys(options, 99)
    with pytest.raises(SourceError, match=r"at version 99|has no snapshot 99"):
        read_all(lake.source(**missing))


def test_a_resumed_job_reads_the_same_version(lake: Lake) -> None:
    source = lake.source()
    source.pin("job")
    record = copy.deepcopy(source.pin_record())
    source.unpin(keep=True)
    lake.write([{"value": 1_000, "name": "later", "part": "a"}], 3)
    again = lake.source()
    again.pin("job", record)
    assert sorted_rows(read_all(again)) == ROWS
    assert again.pin_record() == record
    assert len(read_all(lake.source())) == 61
    with pytest.raises(SourceError, match="give the job its former source"):
        lake.source(columns=["value"]).pin("job", record)


def test_a_version_that_was_vacuumed_is_an_error(lake: Lake) -> None:
    source = lake.source()
    source.pin("job")
    part = source.list_parts()[0]
    Path(part.partition("#")[0]).unlink()
    with pytest.raises(SourceError, match="the version was vacuumed or expired"):
        source.build_part(part, None).poll(1)
    with pytest.raises(SourceError, match=r"vacuumed or expired.*start this job from the beginning"):
        lake.source().pin("job", source.pin_record())
    with pytest.raises(SourceError, match=r"vacuumed or expired\. Read a later version"):
        lake.source().pin("job")


def test_columns_that_came_later_are_none_in_older_files(lake: Lake) -> None:
    lake.write([{"value": 60, "name": "x", "part": "a", "more": 1.5}], 3, new_columns="add")
    rows = sorted_rows(read_all(lake.source()))
    assert [row["more"] for row in rows] == [None] * 60 + [1.5]
    assert [row["value"] for row in read_all(lake.source(filter=pc.field("more") > 1))] == [60]


def test_a_source_must_be_pinned_and_a_table_be_there(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is not pinned"):
        lake.source().list_parts()
    other = Lake(lake.form, tmp_path / "other")
    other.folder.mkdir()
    with pytest.raises(SourceError, match=r"there is no (Delta|Iceberg) table"):
        other.source().pin("job")


def test_an_empty_table_has_no_parts(tmp_path: Path) -> None:
    DeltaTable.create(tmp_path, pa.schema([("value", pa.int64())]))
    assert read_all(Delta(tmp_path)) == []


def test_arguments_are_checked(lake: Lake) -> None:
    for options, reported in (
        ({"columns": "value"}, "columns must be a list"),
        ({"columns": ["a", "a"]}, "columns must be a list"),
        ({"filter": "value > 1"}, "filter must be an expression of pyarrow"),
    ):
        with pytest.raises(PlanError, match=reported):
            lake.source(**options)
    with pytest.raises(SourceError, match="cannot be evaluated"):
        read_all(lake.source(filter=pc.field("nothing") > 1))


def test_tables_of_other_programs_are_read(tmp_path: Path) -> None:
    frame = pl.DataFrame({"a/b": ["x", None, "ü /%"], "value": [1, 2, 3], "x": [1.5, None, float("inf")]})
    write_deltalake(tmp_path, frame, partition_by=["a/b"])
    write_deltalake(tmp_path, frame.with_columns(value=pl.col("value") + 3), mode="append")
    rows = sorted_rows(read_all(Delta(tmp_path)))
    assert [(row["a/b"], row["value"], row["x"]) for row in rows] == [
        (text, value + more, x) for more in (0, 3) for text, value, x in frame.rows()
    ]


def test_deleted_rows_and_mapped_columns_are_refused(tmp_path: Path) -> None:
    DeltaTable.create(tmp_path, pa.schema([("value", pa.int64())]), configuration={"delta.columnMapping.mode": "name"})
    with pytest.raises(SourceError, match="column mapping"):
        Delta(tmp_path).pin("job")


def test_a_renamed_column_of_iceberg_is_refused(tmp_path: Path) -> None:
    lake = Lake("iceberg", tmp_path)
    lake.write([{"value": 1, "name": "a"}], 1)
    with lake.opened() as catalog, catalog.load_table(TABLE).update_schema() as update:
        update.rename_column("name", "title")
    with pytest.raises(SourceError, match=r"'title' of .* was renamed"):
        read_all(lake.source())
    assert read_all(lake.source(columns=["value"])) == [{"value": 1}]
    with lake.opened() as catalog, catalog.load_table(TABLE).update_schema() as update:
        update.add_column("name", StringType())
    with pytest.raises(SourceError, match=r"'name' of .* was renamed"):
        read_all(lake.source(columns=["name"]))
