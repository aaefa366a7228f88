"""The sink for Ray Data, as far as it needs no Ray: which files are committed, and when they are removed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.connectors.ray_data.sink import _schema_of, rows_of
from malstrom_py.errors import SinkError
from malstrom_py.testing.contracts import check_sink

PROGRAM = """
import malstrom_py as mp
from malstrom_py import sinks, sources
job, out = mp.Job("gone"), sinks.RayDataset()
job.source("in", sources.Memory([{"n": 1}])).sink("out", out)
mp.run(job, progress=False)
print(out.target.place)
assert len(out.files()) == 1 and (out.target.place / out.files()[0]).exists()
"""


def committed(sink: sinks.RayDataset) -> Iterator[Any]:
    try:
        files = sink.files()
    except SinkError:
        return
    assert sink.target is not None
    for file in files:
        yield from pq.read_table(Path(sink.target.place, file))["value"].to_pylist()


def test_s7_it_keeps_the_contract_of_sinks() -> None:
    check_sink(sinks.RayDataset, committed)


def test_a_temporary_folder_is_removed_when_the_program_ends() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert not Path(done.stdout.strip()).exists()


def test_rows_get_the_types_of_a_given_schema(tmp_path: Path) -> None:
    scored = sinks.RayDataset(tmp_path / "out", schema=pa.schema([("n", pa.float64())]))
    job = mp.Job("scored")
    job.source("in", sources.Memory([{"n": 1}, {"n": None}])).sink("out", scored)
    mp.run(job, progress=False)
    assert _schema_of([str(tmp_path / "out" / name) for name in scored.files()]) == pa.schema([("n", pa.float64())])


def test_files_are_read_in_the_types_that_all_of_them_fit(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1, 2], "none": pa.nulls(2)}), tmp_path / "a.parquet")
    schema = pa.schema([("n", pa.float64()), ("none", pa.string()), ("more", pa.int64())])
    [read] = rows_of(pa.table({"file": [str(tmp_path / "a.parquet")]}), schema)
    assert read.to_pylist() == [{"n": float(n), "none": None, "more": None} for n in (1, 2)]


def test_a_column_of_none_alone_has_the_type_that_it_has_in_other_files(tmp_path: Path) -> None:
    """`sinks.Files` writes a column that never held a value as text."""
    nothing, inside = pa.array([None, None], pa.string()), pa.array([{"c": "x"}, None])
    pq.write_table(pa.table({"a": nothing, "b": nothing, "s": nothing, "s.c": nothing, "t": inside}), tmp_path / "1")
    pq.write_table(pa.table({"a": [1], "b": nothing[:1], "s": [{"c": "x"}], "s.c": [2], "t": [None]}), tmp_path / "2")
    files = [str(tmp_path / name) for name in "12"]
    schema = _schema_of(files)
    assert schema.types == [pa.int64(), pa.string(), pa.struct([("c", pa.string())]), pa.int64(), inside.type]
    read = [row for table in rows_of(pa.table({"file": files}), schema) for row in table.to_pylist()]
    assert [row["a"] for row in read] == [None, None, 1]
    assert [row["s"] for row in read] == [None, None, {"c": "x"}]
    assert [row["t"] for row in read] == [{"c": "x"}, None, None]


def test_values_that_do_not_fit_the_type_of_others_name_their_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [2**60 + 1]}), tmp_path / "a.parquet")
    with pytest.raises(SinkError, match="column 'n' holds int64 in a committed file and double in another"):
        list(rows_of(pa.table({"file": [str(tmp_path / "a.parquet")]}), pa.schema([("n", pa.float64())])))


def test_damaged_files_and_records_are_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").touch()
    with pytest.raises(SinkError, match="a committed file cannot be read"):
        _schema_of([str(tmp_path / "a.parquet")])
    (tmp_path / "_malstrom").mkdir()
    (tmp_path / "_malstrom" / "docs.json").write_text("{")
    with pytest.raises(SinkError, match="not a valid output record"):
        sinks.RayDataset(tmp_path).files()
