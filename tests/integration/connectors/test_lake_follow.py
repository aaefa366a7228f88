"""Tables that are followed: each row that a later version adds, once and in order; what changes rows is refused."""

from __future__ import annotations

import json
import pickle
import shutil
from contextlib import closing
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from unittest import mock

import msgpack
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.types import LongType

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.connectors.lake.delta_log import FEED
from malstrom_py.errors import JobEnded, PlanError, SourceError
from malstrom_py.sources.pinned.later import GrowingRowGroups
from tests.integration.connectors.buckets import TestBucket
from tests.integration.connectors.lakes import TABLE, Lake


@pytest.fixture
def lake(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Return a table whose first version has the rows 0 to 9."""
    monkeypatch.setattr(GrowingRowGroups, "looks_every_s", 0.01)
    lake.write(numbers(0, 10), 1, partition_by="part")
    return lake


def numbers(start: int, stop: int) -> list[dict[str, Any]]:
    return [{"value": number, "part": "ab"[number % 2]} for number in range(start, stop)]


def pinned(lake: Lake, **options: Any) -> Any:
    """Return a worker's copy of a source that follows."""
    source = lake.source(follow=True, **options)
    source.pin("job")
    return pickle.loads(pickle.dumps(source))


def read(part: Any, count: int, rows_max: int = 3, *, column: str = "value") -> list[Any]:
    """Return the next ``count`` values."""
    values: list[Any] = []
    until_s = monotonic() + 60
    while len(values) < count:
        polled = part.poll(min(rows_max, count - len(values)))
        values += [] if polled is None else polled.column(column).to_pylist()
        assert monotonic() < until_s
        sleep(0 if polled else 0.01)
    return values


def compact(lake: Lake) -> None:
    """Rewrite the files of the table with the same rows."""
    if lake.form == "delta":
        DeltaTable(lake.table).optimize.compact()
        return
    as_replaced = mock.patch.object(_OverwriteFiles, "_summary", return_value=Summary(Operation.REPLACE))
    with lake.opened() as catalog, as_replaced:  # pyiceberg has no compaction
        table = catalog.load_table(TABLE)
        with table.transaction() as transaction, transaction.update_snapshot().overwrite() as update:
            for task in table.scan().plan_files():
                update.delete_data_file(task.file)
            for file in _dataframe_to_data_files(transaction.table_metadata, table.scan().to_arrow(), table.io):
                update.append_data_file(file)


def test_later_versions_are_read_in_order_and_a_position_is_exact_at_each_row(lake: Lake) -> None:
    source = pinned(lake)
    *pinned_parts, name = source.list_parts()
    assert len(pinned_parts) == 2
    part = source.build_part(name, None)
    assert (part.poll(3), part.is_finished()) == (None, False)
    for number in range(1, 4):
        lake.write(numbers(10 * number, 10 * number + 10), number + 1)
    compact(lake)
    lake.write(numbers(40, 42), 9)
    seen = read(part, 32)
    assert [value // 10 for value in seen] == sorted(value // 10 for value in seen)
    assert sorted(seen) == list(range(10, 42))
    part.close()
    for count in range(0, 33, 1 if lake.form == "delta" else 4):  # a catalog is slow to open
        here = source.build_part(name, None)
        assert read(here, count) == seen[:count]
        position = msgpack.unpackb(msgpack.packb(here.snapshot()))
        here.close()
        there = pickle.loads(pickle.dumps(source)).build_part(name, position)
        assert there.snapshot() == position
        assert read(there, 32 - count) == seen[count:]
        there.close()


def test_columns_and_filters_are_those_of_the_first_version(lake: Lake) -> None:
    source = pinned(lake, columns=["value"], filter=pc.field("part") == "b")
    lake.write(numbers(10, 20), 2)
    lake.write([{"value": 21, "part": "b", "more": 1.5}], 3, new_columns="add")
    part = source.build_part(source.list_parts()[-1], None)
    assert read(part, 6) == [11, 13, 15, 17, 19, 21]
    part.close()
    narrow = lake.source(follow=True)
    narrow.pin("job")
    lake.write(numbers(22, 23), 4)
    part = narrow.build_narrow_part(narrow.list_parts()[-1], None, {"value"})
    assert read(part, 1) == [22]
    part.close()


def test_a_job_that_follows_is_stopped_and_resumed_without_a_row_lost_or_read_twice(lake: Lake, tmp_path: Path) -> None:
    kept = mp.Snapshots(tmp_path / "kept", interval_s=0.1)

    def started() -> Any:
        job = mp.Job("copy")
        job.source("in", lake.source(follow=True)).sink("out", sinks.Files(tmp_path / "out", format="json"))
        return mp.InProcess(2, snapshots=kept).start(job, control=False)

    def written() -> list[int]:
        files = [path for path in (tmp_path / "out").glob("*.json*") if not path.name.startswith(("_", "."))]
        return sorted(json.loads(line)["value"] for path in files for line in path.read_text().splitlines())

    for run in range(3):
        handle = started()
        lake.write(numbers(10 + 20 * run, 20 + 20 * run), 2 + 2 * run)
        until_s = monotonic() + 60
        while len(written()) < 20 + 20 * run:
            assert monotonic() < until_s, handle.status()
            sleep(0.05)
        handle.stop(drain=False)
        with pytest.raises(JobEnded, match="can resume from snapshot"):
            handle.wait()
        assert written() == list(range(20 + 20 * run))
        lake.write(numbers(20 + 20 * run, 30 + 20 * run), 3 + 2 * run)  # while no job runs


def test_what_was_read_may_be_vacuumed_before_a_job_is_resumed(lake: Lake) -> None:
    source = lake.source(follow=True)
    source.pin("job")
    record = source.pin_record()
    ended = source.list_parts()[0]
    path = Path(ended.partition("#")[0])
    group = {"file": str(path), "row_group": 0, "records": 5, "rows": 5, "finished": True}
    path.unlink()
    again = lake.source(follow=True)
    again.pin("job", record)
    assert again.build_part(ended, group).is_finished()
    with pytest.raises(SourceError, match="vacuumed or expired"):
        again.build_part(ended, None).poll(1)


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_a_table_in_a_store_is_followed(form: str, bucket: TestBucket, tmp_path: Path) -> None:
    lake = Lake(form, tmp_path / "stored", bucket)
    lake.write(numbers(0, 4), 1)
    source = pinned(lake)
    lake.write(numbers(4, 9), 2)
    part = source.build_part(source.list_parts()[-1], None)
    assert read(part, 2) == [4, 5]
    position = part.snapshot()
    part.close()
    part = source.build_part(source.list_parts()[-1], position)
    assert read(part, 3) == [6, 7, 8]
    part.close()


def change(lake: Lake, how: str) -> None:
    """Let another program change the row 3, or all rows."""
    later = pa.Table.from_pylist(numbers(50, 60))
    if lake.form == "delta":
        table = DeltaTable(lake.table)
        if how == "deleted":
            table.delete("value = 3")
        elif how == "updated":
            table.update({"value": "99"}, predicate="value = 3")
        else:
            write_deltalake(table, later, mode="overwrite")
        return
    with lake.opened() as catalog:
        rows = catalog.load_table(TABLE)
        if how == "deleted":
            rows.delete("value == 3")
        else:
            rows.overwrite(later, overwrite_filter="value == 3" if how == "updated" else AlwaysTrue())


@pytest.mark.parametrize("how", ["deleted", "updated", "overwritten"])
def test_a_version_that_changes_rows_is_an_error_with_a_remedy(lake: Lake, how: str) -> None:
    source = pinned(lake)
    lake.write(numbers(10, 12), 2)
    change(lake, how)
    part = source.build_part(source.list_parts()[-1], None)
    assert sorted(read(part, 2)) == [10, 11]
    with pytest.raises(SourceError, match=r"(version|snapshot) \d+ of .* changes or deletes rows.*append only, or"):
        read(part, 1)
    part.close()


def test_an_upsert_that_only_adds_is_read_and_one_that_replaces_is_an_error(lake: Lake) -> None:
    source = pinned(lake)
    lake.write(numbers(10, 12), 2, mode="upsert", keys="value")
    lake.write(numbers(5, 6), 3, mode="upsert", keys="value")
    part = source.build_part(source.list_parts()[-1], None)
    assert sorted(read(part, 2)) == [10, 11]
    with pytest.raises(SourceError, match="changes or deletes rows"):
        read(part, 1)
    part.close()


def test_a_table_that_has_no_rows_yet_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GrowingRowGroups, "looks_every_s", 0.01)
    lake = Lake("iceberg", tmp_path)
    with lake.opened() as catalog:
        catalog.create_namespace("tests")
        catalog.create_table(TABLE, pa.schema([("value", pa.int64()), ("part", pa.string())]))
    source = pinned(lake)
    (name,) = source.list_parts()
    part = source.build_part(name, None)
    assert part.poll(3) is None
    lake.write(numbers(0, 3), 2)
    assert read(part, 3) == [0, 1, 2]
    part.close()


def test_snapshots_that_were_rolled_back_or_have_expired_are_an_error_with_a_remedy(tmp_path: Path) -> None:
    lake = Lake("iceberg", tmp_path)
    for number in range(1, 4):
        lake.write(numbers(number, number + 1), number)
    with lake.opened() as catalog:
        first, _, last = [one.snapshot_id for one in catalog.load_table(TABLE).metadata.snapshots]
    rolled, expired = pinned(lake), pinned(lake, snapshot=first)
    lake.write(numbers(4, 5), 4)
    with lake.opened() as catalog:
        table = catalog.load_table(TABLE)
        table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in table.metadata.snapshots[:2]]).commit()
    part = expired.build_part(expired.list_parts()[-1], None)
    with pytest.raises(SourceError, match=r"what follows on snapshot \d+ .* rolled back, or snapshots have expired"):
        read(part, 1)
    part.close()
    part = rolled.build_part(rolled.list_parts()[-1], None)
    assert read(part, 1) == [4]
    with lake.opened() as catalog:
        catalog.load_table(TABLE).manage_snapshots().set_current_snapshot(last).commit()
    with pytest.raises(SourceError, match="rolled back"):
        read(part, 1)
    part.close()


def test_a_column_that_is_renamed_or_widened_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    lake = Lake("iceberg", tmp_path)
    with lake.opened() as catalog:
        catalog.create_namespace("tests")
        catalog.create_table(TABLE, pa.schema([("value", pa.int32()), ("part", pa.string())]))
    source, narrow = pinned(lake), pinned(lake, columns=["part"])
    with lake.opened() as catalog, catalog.load_table(TABLE).update_schema() as update:
        update.update_column("value", LongType())
    lake.write([{"value": 2**40, "part": "a"}], 2)
    part = source.build_part(source.list_parts()[-1], None)
    with pytest.raises(SourceError, match=r"column 'value' of .* is int32, and int64 in"):
        read(part, 1)
    part.close()
    with lake.opened() as catalog, catalog.load_table(TABLE).update_schema() as update:
        update.rename_column("value", "number")
    lake.write([{"number": 5, "part": "b"}], 3)
    part = narrow.build_part(narrow.list_parts()[-1], None)
    assert read(part, 2, column="part") == ["a", "b"]
    part.close()
    part = source.build_part(source.list_parts()[-1], None)
    with pytest.raises(SourceError, match=r"column 'value' of .* was renamed"):
        read(part, 1)
    part.close()


def test_a_version_that_the_log_has_no_more_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    lake = Lake("delta", tmp_path)
    lake.write(numbers(0, 10), 1)
    source = pinned(lake)
    for number in range(3):
        lake.write(numbers(10 + number, 11 + number), 2 + number)
    DeltaTable(lake.table).create_checkpoint()
    for version in range(4):
        (lake.root / "_delta_log" / f"{version:020}.json").unlink()
    part = source.build_part(source.list_parts()[-1], None)
    with pytest.raises(SourceError, match=r"does not have version 2 any more: keep it for longer"):
        read(part, 1)
    part.close()


@pytest.mark.parametrize("kind", [pa.binary(), pa.timestamp("us", "UTC"), pa.decimal128(9, 2), pa.float64()])
def test_partitions_of_a_type_that_is_not_read_are_refused_before_there_are_any(
    kind: pa.DataType, tmp_path: Path
) -> None:
    schema = Schema.from_arrow(pa.schema([("value", pa.int64()), ("part", kind)]))
    DeltaTable.create(tmp_path / "table", schema, partition_by=["part"])
    with pytest.raises(SourceError, match="is partitioned by 'part', whose type is not read here"):
        sources.Delta(tmp_path / "table", follow=True).pin("job")


@pytest.mark.parametrize("content", ["", "\n", '{"add": {"path', "[1]"])
def test_a_version_that_is_not_whole_is_not_passed_over(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GrowingRowGroups, "looks_every_s", 0.01)
    lake = Lake("delta", tmp_path)
    lake.write(numbers(0, 2), 1)
    source = pinned(lake)
    name = source.list_parts()[-1]
    first = source.build_part(name, None)
    assert first.poll(1) is None
    position = first.snapshot()
    first.close()
    lake.write(numbers(2, 4), 2)
    path = max((lake.root / "_delta_log").glob("*.json"))
    whole = path.read_text()
    path.write_text(content)
    log = source._log(["value"], "")
    with pytest.raises(SourceError, match="is damaged, or another program still writes it: try again"):
        log.read(position["version"])
    path.write_text("".join(f'{{"txn": null, {line[1:]}\n' for line in whole.splitlines()))
    with closing(source.build_part(name, position)) as part:
        assert read(part, 2) == [2, 3]


def test_another_delta_table_in_the_place_of_the_first_one_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GrowingRowGroups, "looks_every_s", 0.01)
    lake = Lake("delta", tmp_path / "lake")
    lake.folder.mkdir()

    def make() -> None:
        shutil.rmtree(lake.table, ignore_errors=True)
        for number in range(4):
            write_deltalake(lake.table, pa.table({"value": [number]}), mode="append")

    make()
    source = pinned(lake)
    name = source.list_parts()[-1]
    part, record = source.build_part(name, None), source.pin_record()
    assert part.poll(1) is None
    sleep(0.2)
    make()
    write_deltalake(lake.table, pa.table({"value": [4]}), mode="append")
    with closing(part), pytest.raises(SourceError, match="was removed, or made again, since"):
        read(part, 1)
    again = lake.source(follow=True)
    again.pin("job", record)
    with closing(again.build_part(name, part.snapshot())) as part, pytest.raises(SourceError, match="made again"):
        read(part, 1)
    again.unpin()
    again.pin("job", {**record, "id": "3"})  # of a version that noted no id
    with closing(again.build_part(name, None)) as part:
        assert read(part, 1) == [4]
    again.unpin()
    shutil.rmtree(lake.table)
    again.pin("job", record)
    with closing(again.build_part(name, None)) as part, pytest.raises(SourceError, match="was removed"):
        read(part, 1)


def all_rows(part: Any, count: int) -> list[dict[str, Any]]:
    """Return the next ``count`` rows."""
    rows: list[dict[str, Any]] = []
    until_s = monotonic() + 60
    while len(rows) < count:
        polled = part.poll(count - len(rows))
        rows += [] if polled is None else polled.to_pylist()
        assert monotonic() < until_s
        sleep(0 if polled else 0.01)
    return rows


def fed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Return a table with a change feed, whose first version has the rows 0 to 3."""
    monkeypatch.setattr(GrowingRowGroups, "looks_every_s", 0.01)
    lake = Lake("delta", tmp_path / "lake")
    lake.folder.mkdir()
    rows = pa.Table.from_pylist(numbers(0, 4))
    write_deltalake(lake.table, rows, partition_by=["part"], configuration={FEED: "true"})
    return lake


def test_the_change_feed_of_a_table_gives_each_change_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = fed(tmp_path, monkeypatch)
    source = pinned(lake, changes=True)
    (later,) = source.list_parts()
    lake.write(numbers(4, 6), 2)
    lake.write([{"value": 4, "part": "b"}, {"value": 7, "part": "b"}], 3, mode="upsert", keys="value")
    DeltaTable(lake.table).delete("value = 1")
    DeltaTable(lake.table).delete("part = 'a'")
    DeltaTable(lake.table).optimize.compact()
    write_deltalake(lake.table, pa.Table.from_pylist(numbers(8, 9)), mode="overwrite")
    part = source.build_part(later, None)
    # A row that is deleted has been there: the rows of the first version come before its changes.
    first = all_rows(part, 3)
    position = part.snapshot()
    part.close()
    part = source.build_part(later, msgpack.unpackb(msgpack.packb(position)))
    first += all_rows(part, 1)
    assert sorted((row["_change_type"], row["value"]) for row in first) == [("insert", value) for value in range(4)]
    found = [(row["_change_type"], row["value"], row["part"]) for row in all_rows(part, 12)]
    assert sorted(found[:2]) == [("insert", 4, "a"), ("insert", 5, "b")]
    assert sorted(found[2:5]) == [
        ("insert", 7, "b"),
        ("update_postimage", 4, "b"),
        ("update_preimage", 4, "a"),
    ]
    assert found[5] == ("delete", 1, "b")
    assert sorted(found[6:8]) == [("delete", 0, "a"), ("delete", 2, "a")]
    assert sorted(found[8:]) == [("delete", 3, "b"), ("delete", 4, "b"), ("delete", 5, "b"), ("delete", 7, "b")]
    assert all_rows(part, 1) == [{"value": 8, "part": "a", "_change_type": "insert"}]
    part.close()
    DeltaTable(lake.table).alter.set_table_properties({FEED: "false"})
    part = source.build_part(later, part.snapshot())
    with pytest.raises(SourceError, match="its change feed is off"):
        all_rows(part, 1)
    part.close()


def test_changes_have_the_columns_and_the_filter_that_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = fed(tmp_path, monkeypatch)
    source = pinned(lake, changes=True, columns=["value"], filter=pc.field("_change_type") == "delete")
    (later,) = source.list_parts()
    DeltaTable(lake.table).delete("value = 1")
    part = source.build_part(later, None)
    assert all_rows(part, 1) == [{"value": 1, "_change_type": "delete"}]
    part.close()
    with pytest.raises(PlanError, match="needs follow=True"):
        lake.source(changes=True)
    plain = Lake("delta", tmp_path / "plain")
    plain.write(numbers(0, 1), 1)
    with pytest.raises(SourceError, match="has no change feed"):
        pinned(plain, changes=True)
    assert repr(source).endswith(", follow=True, changes=True)")


def test_rows_that_a_merge_adds_are_read_without_the_change_feed_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = fed(tmp_path, monkeypatch)
    source = pinned(lake)
    lake.write(numbers(4, 6), 2, mode="upsert", keys="value")
    lake.write(numbers(5, 6), 3, mode="upsert", keys="value")
    part = source.build_part(source.list_parts()[-1], None)
    assert sorted(read(part, 2)) == [4, 5]
    with pytest.raises(SourceError, match="changes or deletes rows"):
        read(part, 1)
    part.close()


def test_follow_is_true_or_false(lake: Lake) -> None:
    with pytest.raises(PlanError, match="follow must be True or False"):
        lake.source(follow="yes")
    assert repr(lake.source(follow=True)).endswith(", follow=True)")
