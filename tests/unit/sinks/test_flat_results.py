"""Results of windows in sinks of tables: flat columns, but where the target has the columns of the results."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import malstrom_py as mp
from malstrom_py import agg, sinks, sources, windows
from malstrom_py.errors import SinkError
from tests.unit.sinks.writing import visible

SALES = [{"article": "tea", "at": 5}, {"article": "tea", "at": 9}, {"article": "jam", "at": 61}]
FLAT = ["article", "window_start", "window_end", "n"]
NESTED = ["key", "start", "end", "value", "update"]
AT = [datetime(1970, 1, 1, 0, minute, tzinfo=UTC) for minute in range(3)]


def job(sink: Any, *, columns: bool = False, emit: Any = "close", source: Any = None) -> mp.Job:
    made = mp.Job("sales")
    stream: Any = made.source("sales", source or sources.Memory(SALES))
    stream = stream.select("columns", "article", "at") if columns else stream
    on_time, _ = stream.assign_timestamps("time", "at", unit="s").generate_epochs(
        "epochs", mp.limit_out_of_orderness(100)
    )
    minutes = on_time.key_by("by", "article").window("minutes", windows.tumbling(60), emit=emit)
    minutes.aggregate(n=agg.count()).sink("out", sink)
    return made


def table(folder: Path) -> pa.Table:
    return ds.dataset(folder, format="parquet").to_table()


@pytest.mark.parametrize("columns", [False, True])
def test_parquet_has_flat_columns_of_plain_types(columns: bool, tmp_path: Path) -> None:
    mp.run(job(sinks.Files(tmp_path), columns=columns))
    found = table(tmp_path)
    at = pa.timestamp("us", "UTC")
    assert found.schema == pa.schema(
        [("article", pa.string()), ("window_start", at), ("window_end", at), ("n", pa.int64())]
    )
    rows = sorted(found.to_pylist(), key=lambda row: row["window_start"])
    assert [tuple(row.values()) for row in rows] == [("tea", AT[0], AT[1], 2), ("jam", AT[1], AT[2], 1)]


@pytest.mark.parametrize("columns", [False, True])
def test_csv_and_json_have_them_too(columns: bool, tmp_path: Path) -> None:
    mp.run(job(sinks.Files(tmp_path / "csv", format="csv"), columns=columns))
    mp.run(job(sinks.Files(tmp_path / "json", format="json"), columns=columns))
    texts = {name: (tmp_path / name / str(visible(tmp_path / name)[0])).read_text() for name in ("csv", "json")}
    assert sorted(texts["csv"].splitlines()) == [
        '"article","window_start","window_end","n"',
        '"jam",1970-01-01 00:01:00.000000Z,1970-01-01 00:02:00.000000Z,1',
        '"tea",1970-01-01 00:00:00.000000Z,1970-01-01 00:01:00.000000Z,2',
    ]
    first = json.loads(min(texts["json"].splitlines()))
    assert first == {
        "article": "jam",
        "window_start": "1970-01-01T00:01:00+00:00",
        "window_end": "1970-01-01T00:02:00+00:00",
        "n": 1,
    }


def test_files_can_be_partitioned_by_the_name_of_the_key(tmp_path: Path) -> None:
    mp.run(job(sinks.Files(tmp_path, partition_by="article")))
    assert {path.parts[0] for path in visible(tmp_path)} == {"article=tea", "article=jam"}


def test_early_results_are_marked(tmp_path: Path) -> None:
    mp.run(job(sinks.Files(tmp_path), emit=1))
    assert table(tmp_path).schema.names == [*FLAT, "update"]


def test_a_given_schema_says_which_columns_there_are(tmp_path: Path) -> None:
    at, value = pa.timestamp("ms", "UTC"), pa.struct([("n", pa.int64())])
    flat = pa.schema([("article", pa.string()), ("window_start", at), ("window_end", at), ("n", pa.int32())])
    mp.run(job(sinks.Files(tmp_path / "flat", schema=flat)))
    assert table(tmp_path / "flat").schema == flat
    nested = pa.schema(
        [("key", pa.string()), ("start", pa.int64()), ("end", pa.int64()), ("value", value), ("update", pa.bool_())]
    )
    mp.run(job(sinks.Files(tmp_path / "nested", schema=nested)))
    assert table(tmp_path / "nested").schema == nested
    with pytest.raises(SinkError, match=r"'window_end'.* not in the schema"):
        mp.run(job(sinks.Files(tmp_path / "neither", schema=pa.schema([("article", pa.string())]))))


@pytest.mark.parametrize(
    "make", [sinks.Files, sinks.Delta, sinks.Spark, sinks.RayDataset], ids=lambda make: make.__name__
)
def test_a_target_that_an_earlier_version_has_filled_keeps_its_columns(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(make, "takes_flat", lambda sink, worker: False)
        mp.run(job(make(tmp_path)))
    assert names_in(tmp_path, make) == NESTED
    mp.run(job(make(tmp_path)))
    assert names_in(tmp_path, make) == NESTED
    mp.run(job(make(tmp_path / "new")))
    assert names_in(tmp_path / "new", make) == FLAT


def names_in(folder: Path, make: Any) -> list[str]:
    return pl.read_delta(str(folder)).columns if make is sinks.Delta else table(folder).schema.names


def test_a_job_that_an_earlier_version_has_begun_goes_on_with_its_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, out = mp.Snapshots(tmp_path / "snapshots"), sinks.Files(tmp_path / "out")
    (tmp_path / "1.csv").write_text("article,at\ntea,5\ntea,9\n")
    with monkeypatch.context() as earlier:
        earlier.setattr(sinks.Files, "takes_flat", lambda sink, worker: False)
        mp.run(job(out, source=sources.Files(str(tmp_path / "*.csv"), format="csv", new_files=True)), snapshots=kept)
    (tmp_path / "2.csv").write_text("article,at\njam,999\n")
    mp.run(job(out, source=sources.Files(str(tmp_path / "*.csv"), format="csv", new_files=True)), snapshots=kept)
    found = table(tmp_path / "out")
    assert found.schema.names == NESTED
    assert sorted((row["key"], row["value"]["n"]) for row in found.to_pylist()) == [("jam", 1), ("tea", 2)]


def test_other_sinks_get_the_results_themselves() -> None:
    out = sinks.Memory()
    mp.run(job(out))
    assert {type(item) for item in out.items} == {windows.WindowResult}


def test_values_that_are_no_results_are_written_as_ever(tmp_path: Path) -> None:
    made = mp.Job("sales")
    on_time, _ = (
        made.source("sales", sources.Memory(SALES))
        .assign_timestamps("time", "at", unit="s")
        .generate_epochs("epochs", mp.limit_out_of_orderness(100))
    )
    counts = on_time.key_by("by", "article").window("minutes", windows.tumbling(60)).count()
    counts.map("n", lambda result: {"n": result.value}).sink("out", sinks.Files(tmp_path))
    mp.run(made)
    assert table(tmp_path).schema.names == ["key", "n"]
