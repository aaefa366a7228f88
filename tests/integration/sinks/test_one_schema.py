"""The folder of a job whose workers see different types, as DuckDB, pyarrow and Polars read it; also after a resume
at another scale, with new input.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.dataset
import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import SinkError

INTS: list[float] = [1, 2, 3, 4]
FLOATS = [0.5, 0.25]


def write_input(folder: Path, name: str, *rows: dict[str, Any]) -> None:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def job(folder: Path) -> mp.Job:
    """A job whose worker of ``side`` 0 writes ints, and that of 1 floats."""
    job = mp.Job("sums")
    read = job.source("in", sources.Files(folder / "in" / "*.json", format="json", new_files=True))
    keyed = read.key_by("side", lambda row: row["side"], partitioner=mp.partitioners.index)
    keyed.map("value", lambda row: {"n": row["n"] if row["side"] else int(row["n"])}).sink(
        "out", sinks.Files(folder / "out")
    )
    return job


def sums(folder: Path) -> set[float]:
    """The sum of column ``n`` as each reader sees it, with the files in both orders."""
    files = sorted((folder / "out").glob("*.parquet"))
    found = set()
    for order in (files, files[::-1]):
        paths = [str(path) for path in order]
        found.add(duckdb.connect().execute(f"select sum(n) from read_parquet({paths})").fetchall()[0][0])
        found.add(sum(pyarrow.dataset.dataset(paths).to_table()["n"].to_pylist()))
        found.add(pl.scan_parquet(paths).select(pl.col("n").sum()).collect().item())
    return found


@pytest.mark.parametrize("workers", [1, 3])
def test_ints_of_one_worker_and_floats_of_another_have_one_sum_for_every_reader(tmp_path: Path, workers: int) -> None:
    write_input(tmp_path, "a.json", *({"side": 0, "n": n} for n in INTS), *({"side": 1, "n": n} for n in FLOATS))
    kept = mp.Snapshots(tmp_path / "kept")
    mp.run(job(tmp_path), workers=2, snapshots=kept, progress=False)
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 2
    assert sums(tmp_path) == {sum(INTS + FLOATS)}

    write_input(tmp_path, "b.json", *({"side": 0, "n": n} for n in INTS))
    mp.run(job(tmp_path), workers=workers, snapshots=kept, progress=False)
    assert len(list((tmp_path / "out").glob("*.parquet"))) > 2
    assert sums(tmp_path) == {sum(INTS + FLOATS + INTS)}


def test_a_later_run_with_floats_after_ints_is_refused_and_the_folder_stays_readable(tmp_path: Path) -> None:
    write_input(tmp_path, "a.json", *({"side": 0, "n": n} for n in INTS))
    kept = mp.Snapshots(tmp_path / "kept")
    mp.run(job(tmp_path), workers=2, snapshots=kept, progress=False)
    write_input(tmp_path, "b.json", *({"side": 1, "n": n} for n in FLOATS))
    with pytest.raises(SinkError, match=r"column 'n' holds .*out-.*parquet.*schema="):
        mp.run(job(tmp_path), workers=2, snapshots=kept, progress=False)
    assert sums(tmp_path) == {sum(INTS)}
