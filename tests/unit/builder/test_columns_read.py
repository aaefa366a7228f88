"""The columns that a plan reads, derived from its steps; and that a narrowed source changes no result."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import malstrom_py as mp
from malstrom_py import agg, sinks, sources, windows
from malstrom_py.builder import job as job_module
from malstrom_py.builder.columns_read import columns_of
from malstrom_py.data.batch import ColumnBatch
from malstrom_py.errors import OperatorError, SourceError
from malstrom_py.sources import Files, Memory
from malstrom_py.testing import VirtualClock
from malstrom_py.workers.runtime.hot_reload import HotReload

Stream = mp.StreamBuilder[Any, Any]
ROWS = [{"key": f"k{n % 3}", "value": n, "at": n * 1000, "other": "x" * n, "more": n / 2} for n in range(50)]


@pytest.fixture
def files(tmp_path: Path) -> str:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet", row_group_size=20)
    return str(tmp_path / "*.parquet")


def timed(rows: Stream) -> Stream:
    on_time, _ = rows.assign_timestamps("at", "at", unit="ms").generate_epochs(
        "epochs", mp.limit_out_of_orderness(timedelta(seconds=1))
    )
    return on_time


NARROW: dict[str, tuple[Callable[[Stream], Stream], list[str]]] = {
    "sum": (lambda rows: rows.key_by("k", "key").sum("s", by="value"), ["key", "value"]),
    "count": (lambda rows: rows.key_by("k", "key").count("n"), ["key"]),
    "mean, finally": (lambda rows: rows.key_by("k", "key").mean("m", by="value").final(), ["key", "value"]),
    "aggregate": (
        lambda rows: rows.key_by("k", "key").aggregate(
            "a", n=agg.count(), most=agg.max("value"), last=agg.last("more")
        ),
        ["key", "more", "value"],
    ),
    "select": (lambda rows: rows.select("few", "key", pl.col("value") * 2), ["key", "value"]),
    "filter and select": (lambda rows: rows.filter("f", pl.col("more") > 3).select("few", "key"), ["key", "more"]),
    "made columns": (
        lambda rows: rows.with_columns("w", double=pl.col("value") * 2).key_by("k", "key").sum("s", by="double"),
        ["key", "value"],
    ),
    "a made constant": (
        lambda rows: rows.with_columns("w", all=pl.lit("all")).key_by("k", "all").sum("s", by="value"),
        ["value"],
    ),
    "windows": (
        lambda rows: timed(rows).key_by("k", "key").window("w", windows.tumbling(timedelta(seconds=5))).sum("value"),
        ["at", "key", "value"],
    ),
    "union of branches": (
        lambda rows: (
            rows.filter("a", pl.col("value") > 9).union("u", rows.filter("b", pl.col("more") < 2)).select("s", "key")
        ),
        ["key", "more", "value"],
    ),
    "functions": (
        lambda rows: (
            rows.filter("f", lambda row: row["value"] > 3)
            .key_by("k", lambda row: row["key"])
            .sum("s", by=lambda row: row.get("more", 0))
        ),
        ["key", "more", "value"],
    ),
    "a map": (lambda rows: rows.map("m", lambda row: {"key": row["key"], "twice": row["value"] * 2}), ["key", "value"]),
    "a function of key and row": (
        lambda rows: rows.key_by("k", "key").map_with_key("m", lambda key, row: (key, row["more"])),
        ["key", "more"],
    ),
    "branches, items and effects": (
        lambda rows: (
            rows.branch("b", lambda row: row["more"] < 9)[0]
            .inspect("i", lambda row: row["at"])
            .flat_map("m", lambda row: [row["value"]] * 2)
        ),
        ["at", "more", "value"],
    ),
    "an aggregate with functions": (
        lambda rows: rows.key_by("k", "key").aggregate("a", last=agg.last(lambda row: row["more"])),
        ["key", "more"],
    ),
    "times by a function": (
        lambda rows: rows.assign_timestamps("t", lambda row: row["at"], unit="ms").map("m", lambda row: row["key"]),
        ["at", "key"],
    ),
    "clones": (
        lambda rows: rows.cloned("c", 2)[0].inspect_frontier("i", lambda _: None).select("s", "value"),
        ["value"],
    ),
}
WHOLE: dict[str, Callable[[Stream], Stream]] = {
    "the rows themselves": lambda rows: rows,
    "a function of the row": lambda rows: rows.key_by("k", lambda row: str(row.items())).sum("s", by="value"),
    "an aggregate of rows": lambda rows: rows.key_by("k", "key").aggregate("a", last=agg.last(lambda row: row)),
    "a fold of rows": lambda rows: rows.key_by("k", "key").reduce("r", lambda a, b: {"value": a["value"] + b["value"]}),
    "values that stay": lambda rows: rows.key_by("k", "key").distinct("d", by="value"),
    "the last row": lambda rows: rows.key_by("k", "key").final(),
    "a map before": lambda rows: rows.map("m", dict).key_by("k", "key").sum("s", by="value"),
    "all columns": lambda rows: rows.select("all", pl.all()),
    "batches": lambda rows: rows.map_batches("b", lambda batch: batch),
    "dead letters": lambda rows: rows.key_by("k", "key", on_error="dead-letter").sum("s", by="value"),
    "windows of rows": lambda rows: (
        timed(rows).key_by("k", "key").window("w", windows.tumbling(timedelta(seconds=5))).collect()
    ),
}


def read_by(build: Callable[[Stream], Stream], source: Any) -> list[str] | None:
    """The columns that the plan says it reads."""
    job = mp.Job("columns")
    build(job.source("rows", source)).sink("out", sinks.Memory())
    return columns_of(job.plan().steps[0])


@pytest.mark.parametrize("name", NARROW)
def test_a_plan_that_names_all_its_columns_reads_only_these(
    name: str, files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, names = NARROW[name]
    assert read_by(build, Files(files)) == names
    narrowed = mp.collect(build(mp.Job("narrow").source("rows", Files(files))))
    monkeypatch.setattr(job_module, "narrow_sources", lambda steps: steps)
    assert narrowed == mp.collect(build(mp.Job("whole").source("rows", Files(files))))
    assert narrowed


@pytest.mark.parametrize("name", NARROW)
def test_columns_that_are_not_read_are_not_sent_to_other_workers_and_change_no_result(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in range(2):
        pq.write_table(pa.Table.from_pylist(ROWS[part::2]), tmp_path / f"{part}.parquet")

    def run(workers: int) -> tuple[list[str], int]:
        job, seen = mp.Job("sent"), sinks.Memory()
        NARROW[name][0](job.source("rows", sources.Files(str(tmp_path / "*.parquet")))).sink("out", seen)
        # Frames are cut by the clock, and each has its own bytes.
        steps = mp.InProcess(workers=workers, clock=VirtualClock()).run(job).steps.values()
        return sorted(map(str, seen.items)), sum(step.sent_bytes for step in steps)

    monkeypatch.setattr(job_module, "narrow_sources", lambda steps: steps)
    alone, _ = run(1)
    narrow, sent = run(2)
    monkeypatch.setattr(ColumnBatch, "narrowed", lambda batch, names: batch)
    _, whole = run(2)
    assert len(narrow) == len(alone)
    if "finally" in name or "windows" in name:  # others depend on the order of a key's rows of two parts
        assert narrow == alone
    assert sent <= whole
    if name in ("sum", "mean, finally", "aggregate", "made columns"):
        assert sent < whole


@pytest.mark.parametrize("name", WHOLE)
def test_a_plan_that_needs_whole_values_reads_all_columns(name: str, files: str) -> None:
    assert read_by(WHOLE[name], Files(files)) is None


class Decoding(Memory[Any]):
    """A source that makes columns only if the next steps take them."""

    is_narrowing = is_decoding = True


DECODED: dict[str, tuple[Callable[[Stream], Stream], list[str] | None]] = {
    "a map": (lambda rows: rows.map("m", lambda row: {"twice": row["value"] * 2}), None),
    "a map and a key": (
        lambda rows: (
            rows.map("m", lambda row: {"key": row["key"], "twice": row["value"] * 2})
            .key_by("k", lambda row: row["key"])
            .sum("s", by="twice")
        ),
        ["key", "value"],
    ),
    "a key": (lambda rows: rows.key_by("k", "key").count("n"), ["key"]),
    "a key that is called": (lambda rows: rows.key_by("k", lambda row: "".join(list(row["key"]))).count("n"), None),
    "a function with a state": (
        lambda rows: rows.key_by("k", "key").stateful_map("s", lambda key, row, n: (n, row["value"]), default=int),
        None,
    ),
    "windows": (NARROW["windows"][0], ["at", "key", "value"]),
    "expressions": (lambda rows: rows.select("s", "key").key_by("k", "key").count("n"), ["key"]),
    "a map that is called": (lambda rows: rows.map("m", lambda row: [row["value"]]), None),
    "a map that is called on request": (
        lambda rows: rows.map("m", lambda row: {"twice": row["value"] * 2}, compile=False),
        None,
    ),
    "one of two": (
        lambda rows: (
            rows.filter("f", lambda row: row["value"] > 2)
            .union("u", rows.flat_map("m", lambda row: [row["value"]]))
            .map("n", lambda row: {"a": row["key"]})
        ),
        None,
    ),
    "whole rows": (lambda rows: rows.filter("f", lambda row: row["value"] > 2), None),
}


@pytest.mark.parametrize("name", DECODED)
def test_records_are_decoded_into_columns_if_these_are_gathered(name: str) -> None:
    build, names = DECODED[name]
    assert read_by(build, Decoding(ROWS)) == names


@pytest.mark.parametrize(
    ("format", "names"), [("parquet", ["key", "value"]), ("csv", ["key", "value"]), ("json", None)]
)
def test_rows_become_columns_before_a_sink_that_writes_columns(
    format: Any, names: list[str] | None, tmp_path: Path
) -> None:
    job = mp.Job("columns")
    for name, source in {"a": Decoding(ROWS), "b": Memory(ROWS)}.items():
        made = job.source(name, source).map(f"{name}m", lambda row: {"of": row["key"], "twice": row["value"] * 2})
        made.sink(f"{name}out", sinks.Files(tmp_path / name, format=format))
    factories: list[Any] = [step.factory for step in job.plan().steps if step.kind == "source"]
    found = [factories[0].keywords.get("columns"), factories[1].keywords.get("dict_columns")]
    assert [None if one is None else sorted(one) for one in found] == [names, names]


MADE: dict[str, tuple[Callable[[Stream], Stream], list[str] | None]] = {
    "a key": (DECODED["a key"][0], None),
    "two functions": (DECODED["a map and a key"][0], None),
    "three functions": (
        lambda rows: DECODED["a map and a key"][0](rows.filter("f", lambda row: row["value"] > 1)),
        ["key", "value"],
    ),
    "one result per key": (NARROW["mean, finally"][0], ["key", "value"]),
    "windows": DECODED["windows"],
    "a function with a state": DECODED["a function with a state"],
    "whole rows": DECODED["whole rows"],
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_dicts_become_columns_if_that_saves_more_than_it_costs(name: str, on_error: Any) -> None:
    build, names = MADE[name]
    job = mp.Job("columns")
    build(job.source("rows", Memory(ROWS), on_error=on_error)).sink("out", sinks.Memory())
    factory: Any = job.plan().steps[0].factory
    found = factory.keywords.get("dict_columns")
    assert (None if found is None else sorted(found)) == (names if on_error == "fail" else None)


def test_a_source_that_reports_malformed_rows_reads_all_columns(files: str) -> None:
    job = mp.Job("columns")
    rows = job.source("rows", Files(files), on_error="skip")
    rows.map("m", lambda row: row["key"]).sink("out", sinks.Memory())
    assert columns_of(job.plan().steps[0]) is None


@pytest.mark.parametrize("folder", ["", "day=2013-01-01"])
def test_csv_is_checked_in_columns_that_are_not_read(tmp_path: Path, folder: str) -> None:
    path = tmp_path / folder / "rows.csv"
    path.parent.mkdir(exist_ok=True)
    path.write_text("key,value,more\na,1,2\nb,3,4\n")
    job = mp.Job("csv")
    source = Files(tmp_path / "*" / "*.csv" if folder else path, types={"more": "int64"})
    read = job.source("rows", source).map("m", lambda row: (row["key"], row["value"]))
    assert columns_of(job.plan_to(read, sinks.Memory()).steps[0]) == ["key", "value"]
    assert mp.collect(read) == [("a", 1), ("b", 3)]
    path.write_text("key,value,more\na,1,2\nb,3,much\n")
    with pytest.raises(SourceError, match="'more' does not read as int64"):
        mp.collect(read)


def test_a_reloaded_function_reads_its_own_columns(files: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "steps_reloaded.py"
    module.write_text("def taken(row):\n    return row['key']\n")
    monkeypatch.syspath_prepend(tmp_path)
    job = mp.Job("reloaded")
    job.source("rows", Files(files)).map("m", import_module("steps_reloaded").taken).sink("out", sinks.Memory())
    plan = job.plan()
    assert columns_of(plan.steps[0]) == ["key"]
    changed = {str(module): "def taken(row):\n    return row['more'] + row['value']\n"}
    assert columns_of(HotReload(plan).prepare("m", changed).plan.steps[0]) == ["more", "value"]
    changed = {str(module): "def taken(row):\n    return str(row)\n"}
    assert columns_of(HotReload(plan).prepare("m", changed).plan.steps[0]) is None
    sys.modules.pop("steps_reloaded")


def test_branches_add_up(files: str) -> None:
    job = mp.Job("branches")
    rows = job.source("rows", Files(files))
    rows.key_by("k", "key").sum("s", by="value").sink("sums", sinks.Memory())
    rows.select("few", "more").sink("few-out", sinks.Memory())
    assert columns_of(job.plan().steps[0]) == ["key", "more", "value"]
    assert "reads the columns key, more, value" in job.explain()
    rows.sink("all", sinks.Memory())
    assert columns_of(job.plan().steps[0]) is None
    assert "reads the columns" not in job.explain()


def test_only_dicts_of_columns_are_narrowed(files: str, tmp_path: Path) -> None:
    build = NARROW["sum"][0]
    assert read_by(build, Memory(ROWS)) is None
    assert read_by(build, Files(tmp_path / "x.csv")) == ["key", "value"]
    assert read_by(build, Files(tmp_path / "x.json")) is None
    assert read_by(build, Files(files, columns=["key", "value", "more"])) == ["key", "value"]
    named = mp.collect(build(mp.Job("named").source("rows", Files(files, columns=["key", "value", "more"]))))
    assert named == mp.collect(build(mp.Job("memory").source("rows", Memory(ROWS))))


def test_columns_that_are_not_read_are_not_in_the_batches(files: str) -> None:
    source = Files(files)
    (name,) = source.list_parts()
    part = source.build_narrow_part(name, None, ["value", "key"])
    polled: Any = part.poll(4)
    assert polled.schema.names == ["key", "value"]
    position = part.snapshot()
    part.close()
    again = source.build_narrow_part(name, position, ["more"])
    polled = again.poll(1)
    assert polled.to_pylist() == [{"more": 2.0}]
    again.close()


def test_an_error_about_a_missing_column_lists_those_of_the_file(files: str) -> None:
    job = mp.Job("missing")
    job.source("rows", Files(files)).key_by("k", "key").sum("s", by="price").sink("out", sinks.Memory())
    assert columns_of(job.plan().steps[0]) == ["key", "price"]
    with pytest.raises(OperatorError, match="no column 'price', only 'key', 'value', 'at', 'other', 'more'"):
        mp.run(job)
