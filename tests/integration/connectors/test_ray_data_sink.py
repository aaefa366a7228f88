"""The sink for Ray Data, as far as it needs no Ray: which files are committed, and when they are removed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from malstrom_py import sinks
from malstrom_py.connectors.ray_data.sink import rows_of
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
    for file in files:
        yield from pq.read_table(Path(sink.target.place, file))["value"].to_pylist()


def test_s7_it_keeps_the_contract_of_sinks() -> None:
    check_sink(sinks.RayDataset, committed)


def test_a_temporary_folder_is_removed_when_the_program_ends() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert not Path(done.stdout.strip()).exists()


def test_files_are_read_in_the_types_that_all_of_them_fit(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1, 2], "none": pa.nulls(2)}), tmp_path / "a.parquet")
    schema = pa.schema([("n", pa.float64()), ("none", pa.string()), ("more", pa.int64())])
    [read] = rows_of(pa.table({"file": [str(tmp_path / "a.parquet")]}), schema)
    assert read.to_pylist() == [{"n": float(n), "none": None, "more": None} for n in (1, 2)]
