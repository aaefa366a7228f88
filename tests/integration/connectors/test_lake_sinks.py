"""`sinks.Delta` and `sinks.Iceberg`: each row once, also through crashes, late committers and races."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType

from malstrom_py.connectors.lake import delta_table as delta_log
from malstrom_py.connectors.lake import table as lake_table
from malstrom_py.connectors.lake.iceberg_table import IcebergTable
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.errors import PlanError, SinkError
from malstrom_py.sinks.staged.folder import FolderPlace
from malstrom_py.sinks.staged.payloads import unpack
from malstrom_py.testing.contracts import check_sink
from tests.integration.connectors.lake_crashes import crash_at
from tests.integration.connectors.lakes import TABLE, Lake, context_of, read_all, staged, worker_of

IN_S3 = pytest.mark.long("delta-s3", "iceberg-s3")


@IN_S3
def test_s7_a_table_keeps_the_contract_of_sinks(lake_anywhere: Lake) -> None:
    lakes: list[Lake] = []

    def made() -> Any:
        lakes.append(replace(lake_anywhere, folder=lake_anywhere.folder / str(len(lakes))))
        return lakes[-1].sink()

    check_sink(made, lambda _: lakes[-1].values())  # a table has no order


def check_crashes(lake: Lake, monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    for at in itertools.count(0, every):
        if not crash_at(replace(lake, folder=lake.folder / str(at)), monkeypatch, at):
            assert at > 19
            return


def test_s7_a_crash_between_two_calls_leaves_each_row_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    check_crashes(lake, monkeypatch, 3 if lake.form == "delta" else 8)  # a run of Iceberg takes a third of a second


@pytest.mark.long
def test_s7_a_crash_between_any_two_calls_leaves_each_row_once(
    lake_anywhere: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_crashes(lake_anywhere, monkeypatch, 1)


def test_s7_a_commit_that_comes_after_that_of_a_later_snapshot_changes_nothing(lake: Lake) -> None:
    there = lake.sink()
    first, second = staged(there, [{"value": 1}], 1), staged(there, [{"value": 2}], 2)
    of_no_run = staged(there, [{"value": 3}], 1)
    there.commit(context_of(1), [first])
    there.commit(context_of(2), [second])
    # A zombie that has not heard of the commits: its rows were written again under other snapshots.
    lake.sink().commit(context_of(1), [first])
    assert lake.values() == [1, 2]
    # Rows that no run has added are not dropped without a word.
    with pytest.raises(SinkError, match="another start of the job has taken over"):
        lake.sink().commit(context_of(1), [of_no_run])
    assert lake.values() == [1, 2]


def test_files_of_a_writer_that_has_left_are_held_until_their_commit(lake: Lake) -> None:
    there = lake.sink()
    payload = staged(there, [{"value": 1}], 1)
    release = there.hold(context_of(1), [payload])
    lake.sink().recover(context_of(5), [])
    there.commit(context_of(1), [payload])
    release()
    assert lake.values() == [1]


def test_s7_a_late_committer_changes_nothing(lake_anywhere: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop after the number of the last snapshot was read, while another process commits; then come back later."""
    lake = lake_anywhere
    lake.write([{"value": 0}], 1)
    payload, of_no_run = staged(lake.sink(), [{"value": 1}], 2), staged(lake.sink(), [{"value": 3}], 2)
    owner: Any = delta_log if lake.form == "delta" else IcebergTable
    name = "_action" if lake.form == "delta" else "_data_file"
    inner = getattr(owner, name)
    others: list[bytes] = []

    def overtaken(*args: Any) -> Any:
        if not others:
            others.append(payload)
            lake.sink().commit(context_of(2), [payload])
            lake.write([{"value": 2}], 3)
        return inner(*args)

    monkeypatch.setattr(owner, name, overtaken)
    lake.sink().commit(context_of(2), [payload])
    assert others
    assert lake.values() == [0, 1, 2]
    lake.sink().commit(context_of(2), [payload])
    # Rows that no run has added are not dropped without a word.
    with pytest.raises(SinkError, match="another start of the job has taken over"):
        lake.sink().commit(context_of(2), [of_no_run])
    assert lake.values() == [0, 1, 2]


def test_rows_that_a_later_snapshot_of_another_run_overtakes_are_not_lost_without_a_word(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs of one job without snapshots: the commit of one comes between reading and writing of the other."""
    lake.write([{"value": 0}], 1)
    payload = staged(lake.sink(), [{"value": 1}], 2)
    inner = FolderPlace.publish

    def overtaken(*args: Any, **options: Any) -> None:
        monkeypatch.setattr(FolderPlace, "publish", inner)
        lake.write([{"value": 2}], 3)
        inner(*args, **options)

    monkeypatch.setattr(FolderPlace, "publish", overtaken)
    with pytest.raises(SinkError, match="another start of the job has taken over"):
        lake.sink().commit(context_of(2), [payload])
    assert lake.values() == [0, 2]


def in_threads(*calls: Callable[[], Any]) -> list[Any]:
    """Make the calls at the same time, and return their results."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [done.result(60) for done in [pool.submit(call) for call in calls]]


@IN_S3
def test_s7_committers_of_one_snapshot_race_and_rows_show_once(lake_anywhere: Lake) -> None:
    lake = lake_anywhere
    lake.write([{"value": 0}], 1)
    payloads = [staged(lake.sink(), [{"value": 10 + worker}], 2, worker=worker) for worker in range(2)]
    in_threads(*[lambda: lake.sink().commit(context_of(2), payloads)] * 3)
    assert lake.values() == [0, 10, 11]
    assert lake.commits() == 2 if lake.form == "iceberg" else lake.commits() > 0
    assert lake.staged() == []


def test_two_steps_and_other_programs_write_one_table(lake: Lake) -> None:
    lake.write([{"value": 0}], 5)
    there = lake.sink()
    with closing(there.open(worker_of(step="other"))) as writer:
        writer.write(Batch([{"value": 1}]))
        payload = writer.pre_commit(context_of(4, step="other"))
    there.commit(context_of(4, step="other"), [payload])
    lake.write([{"value": 2}], 6)
    assert lake.values() == [0, 1, 2]


def test_a_snapshot_without_rows_commits_nothing(lake: Lake) -> None:
    lake.write([{"value": 0}], 1)
    before = lake.commits()
    there = lake.sink()
    there.commit(context_of(2), [staged(there, [], 2)])
    there.commit(context_of(3), [])
    assert lake.commits() == before


def test_recover_deletes_what_earlier_starts_left_and_nothing_else(lake_anywhere: Lake) -> None:
    lake = lake_anywhere
    there = lake.sink(partition_by="part")
    rows = [{"value": 0, "part": "a"}]
    kept, lost, later = (staged(there, rows, number) for number in (2, 3, 8))
    lake.write([{"value": 9, "part": "a"}], 1)
    assert len(lake.staged()) == 3
    there.recover(context_of(7), [context_of(1).snapshot, context_of(2).snapshot])
    left = sorted((path.name if lake.bucket is None else path.parent.name)[:22] for path in lake.staged())
    assert left == ["20200101T000000000002Z", "20200101T000000000008Z"]
    assert lake.values() == [9]
    with pytest.raises(SinkError, match="was removed before its commit"):
        there.commit(context_of(3), [lost])
    there.commit(context_of(2), [kept])
    there.commit(context_of(8), [later])
    assert lake.values() == [0, 0, 9]
    there.abort(context_of(3), [lost])
    assert lake.staged() == []


def test_an_earlier_start_cannot_pre_commit_after_a_later_snapshot(lake: Lake) -> None:
    lake.write([{"value": 0}], 5)
    with pytest.raises(SinkError, match="another start of the job has taken over, or the clock was set back"):
        staged(lake.sink(), [{"value": 1}], 4)


STRANGE = ["a/b", "a b", "50%", "ü€", "x=y", "#1?", "'q'", "..", None, "a%2Fb", "x\ny"]


def test_partitions_have_any_value(lake: Lake) -> None:
    rows: list[dict[str, Any]] = [
        {"value": number, "part": part, "n": number % 2} for number, part in enumerate(STRANGE)
    ]
    lake.write(rows, 1, partition_by=["part", "n"])
    lake.write([{**row, "value": 100 + row["value"]} for row in rows], 2)
    found = {row["value"]: (row["part"], row["n"]) for row in lake.frame().to_dicts()}
    assert found == {row["value"] + more: (row["part"], row["n"]) for row in rows for more in (0, 100)}
    read = read_all(lake.source())
    assert {row["value"]: (row["part"], row["n"]) for row in read} == found
    assert len(read) == len(found)


def test_a_table_knows_its_files_by_any_name(lake: Lake) -> None:
    strange = Lake(lake.form, lake.folder / "a ü table")
    sink = strange.sink(partition_by="part")
    payload = staged(sink, [{"part": part, "value": 1} for part in ("a b", "ü", "50%", "x/y", "plain")], 1)
    sink.commit(context_of(1), [payload])
    paths = [path for _, path in sink.committer(context_of(1)).moves(unpack(context_of(1), [payload]))]
    assert [sink._table.contains(path) for path in paths] == [True] * 5
    assert not sink._table.contains(f"elsewhere/{paths[0].rpartition('/')[2]}")
    assert len(read_all(strange.source())) == 5


@pytest.mark.parametrize("kind", [True, 7, date(2013, 1, 1)])
def test_partitions_have_plain_types(lake: Lake, kind: Any) -> None:
    lake.write([{"value": 1, "part": kind}, {"value": 2, "part": None}], 1, partition_by="part")
    assert sorted(lake.frame().select("value", "part").rows()) == [(1, kind), (2, None)]


def test_a_type_that_no_partition_has_makes_no_table(lake: Lake) -> None:
    with pytest.raises(SinkError, match="column 'p' holds double, and output is partitioned by"):
        lake.write([{"p": 1.5, "value": 1}], partition_by="p")
    lake.write([{"p": "1.5", "value": 1}], partition_by="p")
    assert lake.values() == [1]


def test_a_job_that_starts_over_is_warned_of_the_rows_that_stay(lake: Lake) -> None:
    lake.write([{"value": 1}])
    assert lake.sink().target.may_show_rows()  # the question of a start with resume="none"


def test_a_catalog_that_cannot_be_written_is_named_as_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake("iceberg", tmp_path)
    lake.write([{"value": 1}])
    payload = staged(lake.sink(), [{"value": 2}], 2)

    class OperationalError(Exception):
        """As of SQLAlchemy."""

    def fail(*_: object) -> None:
        raise OperationalError("attempt to write a readonly database")

    monkeypatch.setattr(IcebergTable, "_data_file", fail)
    monkeypatch.setattr(lake_table, "DEADLINE_S", -1.0)
    with pytest.raises(SinkError, match=r"readonly database.*check that it can be written"):
        lake.sink().commit(context_of(2), [payload])


def test_a_change_that_does_not_show_is_not_repeated_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_table, "DEADLINE_S", -1.0)
    with pytest.raises(SinkError, match="the table could not be changed"):
        lake_table.repeat(lambda: None, lambda _: None, "the table")


def test_an_empty_text_is_refused_as_a_partition(lake: Lake) -> None:
    with pytest.raises(SinkError, match="empty string"):
        staged(lake.sink(partition_by="part"), [{"value": 1, "part": ""}], 1)


MIXED = {
    "number": 2**40,
    "text": "ü",
    "float": 0.1,
    "flag": True,
    "day": date(2013, 1, 1),
    "at": datetime(2013, 1, 1, 12, 30, 1, 123456, tzinfo=UTC),
    "naive": datetime(2013, 1, 1, 12, 30, 1, 123456),  # noqa: DTZ001
    "money": Decimal("1.25"),
    "raw": b"\x00\xff",
    "list": [1, 2],
    "struct": {"x": 1, "y": "a"},
}


def test_values_of_all_types_come_back(lake: Lake) -> None:
    nothing = dict.fromkeys(MIXED)
    lake.write([MIXED, nothing], 1)
    assert sorted(lake.frame().to_dicts(), key=lambda row: row["number"] is None) == [MIXED, nothing]


def test_columns_are_written_as_they_come_and_in_the_order_of_the_table(lake: Lake) -> None:
    lake.write([{"value": 1, "name": "a"}], 1)
    columns = pa.record_batch({"name": pa.array(["b", None]).dictionary_encode(), "value": pa.array([2, 3], pa.int8())})
    lake.write(ColumnBatch(columns), 2)
    assert sorted(lake.frame().select("value", "name").rows()) == [(1, "a"), (2, "b"), (3, None)]
    assert lake.frame().columns == ["value", "name"]


def test_new_columns_are_added_or_refused(lake: Lake) -> None:
    lake.write([{"value": 1}], 1)
    lake.write([{"value": 2, "more": None}], 2)
    with pytest.raises(SinkError, match=r"has no column 'more'.*new_columns='add'"):
        staged(lake.sink(), [{"value": 3, "more": "x"}], 3)
    adding = lake.sink(new_columns="add")
    batches = [[{"value": 3}], [{"more": "x", "value": 4}, {"value": 5}], [{"value": 6, "third": 1.5}]]
    adding.commit(context_of(3), [staged(adding, batches, 3)])
    assert lake.values() == [1, 2, 3, 4, 5, 6]
    found = {row["value"]: (row["more"], row["third"]) for row in lake.frame().to_dicts()}
    assert found == {**dict.fromkeys((1, 2, 3, 5), (None, None)), 4: ("x", None), 6: (None, 1.5)}
    with pytest.raises(SinkError, match="'Value' would be one"):
        staged(adding, [{"Value": 3}], 4)


def test_writers_that_add_one_column_or_create_one_table_race(lake: Lake) -> None:
    there = lake.sink(new_columns="add")
    lake.folder.mkdir(exist_ok=True)
    there.recover(context_of(1), [])  # makes the tables of the catalog
    for number, more in ((2, {}), (3, {"more": 1.5})):
        rows = [[{"value": worker, **more}] for worker in range(3)]
        writes = (partial(staged, there, row, number, worker=worker) for worker, row in enumerate(rows))
        payloads = in_threads(*writes)
        there.commit(context_of(number), payloads)
    assert lake.values() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("row", "reported"),
    [
        ({"value": "text"}, r"'value' holds string, which is not the type in .*int64"),
        ({"value": 1.5}, r"'value' holds double, which is not the type in .*int64"),
        ({"value": datetime(2013, 1, 1, tzinfo=UTC)}, r"'value' holds timestamp"),
        ({"value": 1, "name": 5}, "'name' holds int64"),
    ],
)
def test_types_that_do_not_match_are_refused_before_the_snapshot(lake: Lake, row: Any, reported: str) -> None:
    lake.write([{"value": 1, "name": "a"}], 1)
    with pytest.raises(SinkError, match=reported):
        staged(lake.sink(), [row], 2)
    assert lake.staged() == []


def test_a_type_that_tables_lack_is_refused(lake: Lake) -> None:
    with pytest.raises(SinkError, match=r"'span' holds .* that .* tables lack"):
        staged(lake.sink(), [{"span": datetime(2013, 1, 2) - datetime(2013, 1, 1)}], 1)  # noqa: DTZ001
    with pytest.raises(SinkError, match="the type of column 'list' is not known"):
        staged(lake.sink(), [{"value": 1, "list": []}], 1)
    with pytest.raises(SinkError, match="has a value yet"):
        staged(lake.sink(), [{"value": None}], 1)


def test_nan_is_found_by_those_who_filter(lake: Lake) -> None:
    """Statistics of Parquet leave NaN out: with them, readers would skip the file."""
    import polars as pl

    lake.write([{"value": 1, "x": 1.0}, {"value": 2, "x": math.nan}], 1)
    if lake.form == "delta":
        stats = pa.table(DeltaTable(lake.root).get_add_actions(flatten=True))
        assert "max.x" not in stats.column_names or stats.column("max.x").null_count
        assert stats.column("max.value").to_pylist() == [2]
        found = pl.scan_delta(str(lake.root)).filter(pl.col("x") > 100.0).collect()
    else:
        with lake.opened() as catalog:
            bounds = [task.file.upper_bounds for task in catalog.load_table(TABLE).scan().plan_files()]
            assert [sorted(one) for one in bounds] == [[1]]
            found = pl.scan_iceberg(catalog.load_table(TABLE)).filter(pl.col("x") > 100.0).collect()
    assert found["value"].to_list() == [2]


def test_a_table_that_changes_while_the_job_runs_is_noticed_before_the_snapshot(lake: Lake) -> None:
    lake.write([{"value": 1, "name": "a"}], 1)
    there = lake.sink()
    writer = there.open(worker_of())
    writer.write(Batch([{"value": 2}]))
    if lake.form == "delta":
        schema = pa.schema([("value", pa.int32())])
        DeltaTable.create(lake.root, Schema.from_arrow(schema), mode="overwrite")
    else:
        with lake.opened() as catalog, catalog.load_table(TABLE).update_schema() as update:
            update.delete_column("name")
    with pytest.raises(SinkError, match=r"was changed while the job ran \(column '(value|name)'\)"):
        writer.pre_commit(context_of(2))
    writer.close()


def delta_table(folder: Path, **options: Any) -> None:
    DeltaTable.create(folder, Schema.from_arrow(pa.schema([("value", pa.int64())])), **options)


def test_delta_tables_that_need_more_of_a_writer_are_refused(tmp_path: Path) -> None:
    def constrained(folder: Path) -> None:
        delta_table(folder)
        DeltaTable(folder).alter.add_constraint({"positive": "value > 0"})

    def ruled(rule: str, value: str) -> Any:
        fields = Schema([Field("value", PrimitiveType("long"), metadata={rule: value})])
        return lambda folder: DeltaTable.create(folder, fields)

    makers = {
        "column mapping": lambda folder: delta_table(folder, configuration={"delta.columnMapping.mode": "name"}),
        "deletionVectors": lambda folder: delta_table(folder, configuration={"delta.enableDeletionVectors": "true"}),
        "the constraint 'positive'": constrained,
        "a generated value": ruled("delta.generationExpression", "1"),
        "an identity": ruled("delta.identity.start", "1"),
        "an invariant": ruled("delta.invariants", '{"expression": {"expression": "value > 0"}}'),
    }
    for number, (reported, make) in enumerate(makers.items()):
        lake = Lake("delta", tmp_path / str(number))
        lake.folder.mkdir()
        make(lake.root)
        there = lake.sink()
        with pytest.raises(SinkError, match=reported):
            there.recover(context_of(1), [])
        with pytest.raises(SinkError, match=reported):
            staged(there, [{"value": 1}], 1)


def test_iceberg_tables_that_need_more_of_a_writer_are_refused(tmp_path: Path) -> None:
    lake = Lake("iceberg", tmp_path)
    lake.write([{"value": 1}], 1)
    with lake.opened() as catalog, catalog.load_table(TABLE).update_spec() as update:
        update.add_field("value", "truncate[10]", "tens")
    with pytest.raises(SinkError, match=r"partitioned by truncate\[10\]"):
        lake.sink().recover(context_of(2), [])


def test_required_columns_take_no_none(tmp_path: Path) -> None:
    lake = Lake("delta", tmp_path)
    DeltaTable.create(
        lake.root,
        Schema([Field("value", PrimitiveType("long"), nullable=False), Field("name", PrimitiveType("string"))]),
    )
    for row in ({"value": None, "name": "a"}, {"name": "a"}):
        with pytest.raises(SinkError, match="'value' may not be None"):
            staged(lake.sink(), [row], 1)


def test_a_checkpoint_of_the_log_keeps_the_number_of_the_snapshot(tmp_path: Path) -> None:
    lake = Lake("delta", tmp_path)
    payload = staged(lake.sink(), [{"value": 1}], 1)
    lake.sink().commit(context_of(1), [payload])
    table = DeltaTable(lake.root)
    table.create_checkpoint()
    for old in sorted((lake.root / "_delta_log").glob("*.json")):
        old.unlink()
    lake.sink().commit(context_of(1), [payload])
    assert lake.values() == [1]


def test_partition_columns_are_those_of_the_table(lake: Lake) -> None:
    lake.write([{"value": 1, "part": "a"}], 1, partition_by="part")
    lake.write([{"value": 2, "part": "b"}], 2)
    with pytest.raises(SinkError, match=r"is partitioned by \['part'\], and partition_by is \['value'\]"):
        lake.sink(partition_by="value").recover(context_of(3), [])
    with pytest.raises(SinkError, match="lack the partition column 'part'"):
        staged(lake.sink(), [{"value": 1}], 3)


def test_arguments_are_checked(lake: Lake) -> None:
    for options, reported in (
        ({"new_columns": "ignore"}, "new_columns must be 'add' or 'error'"),
        ({"file_bytes_max": 0}, "file_bytes_max"),
        ({"partition_by": ["a", "a"]}, "names a column twice"),
    ):
        with pytest.raises(PlanError, match=reported):
            lake.sink(**options)


def test_files_have_limited_sizes(lake: Lake) -> None:
    rows = [{"value": number, "text": f"{number * 7919:x}" * 20} for number in range(2_000)]
    lake.write([rows[start : start + 100] for start in range(0, len(rows), 100)], 1, file_bytes_max=1 << 14)
    assert len(list(lake.root.glob("*.parquet"))) > 1
    assert lake.values() == list(range(2_000))
