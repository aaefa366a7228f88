"""Parquet footers: read once for all parts of a file, again after a change, and never sent to another worker."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from malstrom_py.errors import SourceError
from malstrom_py.sources.files.footers import Footers


def written(path: Path, rows: int) -> Path:
    pq.write_table(pa.table({"n": [1] * rows}), path, row_group_size=10)
    return path


def footer(footers: Footers, path: Path) -> pq.FileMetaData:
    opened, _ = footers.open(path)
    try:
        return opened.metadata
    finally:
        opened.close(force=True)


def test_a_footer_is_shared_by_those_who_open_the_file(tmp_path: Path) -> None:
    footers, path = Footers(), written(tmp_path / "a.parquet", 30)
    footer(footers, path)
    with path.open("r+b") as file:
        status = path.stat()
        file.seek(-8, 2)
        file.write(b"\0" * 4)
    # The footer is not read again while size and time of change are the same.
    os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))
    assert footer(footers, path).num_row_groups == 3
    with pytest.raises(SourceError, match="not a whole Parquet file"):
        footer(Footers(), path)


def test_few_footers_are_kept_and_none_is_sent_along(tmp_path: Path) -> None:
    footers = Footers()
    for number in range(20):
        footer(footers, written(tmp_path / f"{number}.parquet", 10))
    assert len(footers._kept) < 10
    assert pickle.loads(pickle.dumps(footers))._kept == {}
