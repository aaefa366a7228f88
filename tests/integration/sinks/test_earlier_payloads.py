"""Rows that an earlier version has staged are committed, recovered and aborted by this one, with its payloads."""

from __future__ import annotations

import base64
import json
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyiceberg.catalog import load_catalog

from malstrom_py.data.batch import Batch
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.worker_context import WorkerId, WorkerInfo
from tests.vectors.staged_rows import CONTEXT, FOLDERS, KINDS, ROWS, SNAPSHOT, catalog_in, table_of

LATER = SnapshotId("20261128T133355000000Z-00000000")
EARLIER = sorted(FOLDERS.glob("staged-*"))
CASES = [(folder, kind) for folder in EARLIER for kind in KINDS]


def restored(folder: Path, kind: str, target: Path) -> tuple[Any, list[bytes]]:
    """Return the sink on ``target``, which has what is staged in ``folder``, and the payloads of it."""
    sink = table_of(kind, target)
    shutil.copytree(folder / kind, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("payloads.json"))
    payloads = json.loads((folder / kind / "payloads.json").read_text())
    return sink, [base64.b64decode(payload) for payload in payloads]


def visible(kind: str, folder: Path) -> list[tuple[float, str | None]]:
    """Return the visible rows, but for the one of an earlier snapshot."""
    if kind == "delta":
        rows = pl.read_delta(str(folder)).to_dicts()
    elif kind == "iceberg":
        with closing(load_catalog("default", **catalog_in(folder))) as catalog:
            rows = catalog.load_table("earlier.rows").scan().to_arrow().to_pylist()
    else:
        files = [path for path in folder.rglob("*.*") if not any(part.startswith("_") for part in path.parts)]
        form = "parquet" if kind == "spark" else kind
        hive = ds.partitioning(pa.schema([("t", pa.string())]), flavor="hive") if kind == "csv" else None
        read = [ds.dataset(path, format=form, partitioning=hive).to_table() for path in files]
        assert len({table.schema.field("n").type for table in read}) <= (2 if form in {"csv", "json"} else 1)
        rows = [row for table in read for row in table.to_pylist()]
    return sorted(((float(row["n"]), row["t"]) for row in rows if row["t"] != "old"), key=repr)


WRITTEN = sorted(((float(row["n"]), row["t"]) for rows in ROWS for row in rows), key=repr)


@pytest.mark.parametrize(("folder", "kind"), CASES, ids=lambda one: getattr(one, "name", one))
def test_s7_rows_that_an_earlier_version_has_staged_are_committed(folder: Path, kind: str, tmp_path: Path) -> None:
    sink, payloads = restored(folder, kind, tmp_path / "out")
    sink.recover(CONTEXT, [SNAPSHOT])
    release = sink.hold(CONTEXT, payloads)
    for order in (payloads, payloads[::-1]):
        sink.commit(CONTEXT, order)
        assert visible(kind, tmp_path / "out") == WRITTEN
    release()
    # Later rows are added to those of the earlier version.
    later = replace(CONTEXT, snapshot=LATER, incarnation=2)
    writer = sink.open(WorkerInfo("earlier", "out", WorkerId(0)))
    writer.write(Batch([{"n": 3.0, "t": "z"}]))
    sink.commit(later, [writer.pre_commit(later)])
    writer.close()
    assert visible(kind, tmp_path / "out") == sorted([*WRITTEN, (3.0, "z")], key=repr)


@pytest.mark.parametrize(("folder", "kind"), CASES, ids=lambda one: getattr(one, "name", one))
def test_s7_rows_that_an_earlier_version_has_staged_are_discarded(folder: Path, kind: str, tmp_path: Path) -> None:
    for number, way in enumerate(("abort", "recover")):
        sink, payloads = restored(folder, kind, tmp_path / str(number))
        if way == "abort":
            sink.abort(CONTEXT, payloads)
        else:
            sink.recover(replace(CONTEXT, snapshot=LATER, incarnation=2), [])
        assert not list((tmp_path / str(number)).rglob("*-24b85589-*"))
        assert visible(kind, tmp_path / str(number)) == []
