"""A pin is plain data, and a file is the pinned one while its size and time of change are the same."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from malstrom_py.errors import SourceError
from malstrom_py.sources.base import Part
from malstrom_py.sources.pinned.row_groups import PinnedFile, RowGroups, new_pin, row_groups_of
from malstrom_py.sources.spark import Spark
from tests.unit.sources.pinned.pinned_files import PinnedFiles, parquet
from tests.unit.sources.reading import read_source

SCHEMA = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
FILES = [
    PinnedFile("/data/b.parquet", 10, 5, (0,), {"year": None}),
    PinnedFile("/data/a#b.parquet", 20, 6, (1, 3), {"year": "2013"}),
]


def pin() -> RowGroups:
    return new_pin("files", SCHEMA, ["n"], FILES, None)


def test_a_pin_comes_back_from_its_record() -> None:
    assert row_groups_of(json.loads(json.dumps(pin().record()))) == pin()
    assert json.loads(json.dumps(pin().record())) == pin().record()


def test_a_damaged_record_is_an_error() -> None:
    source = PinnedFiles([], SCHEMA)
    whole = {**pin().record(), "source": repr(source)}
    wrong: list[Any] = [{"source": repr(source)}, {**whole, "files": [{}]}, {**whole, "schema": "?"}]
    for damaged in wrong:
        with pytest.raises(SourceError, match="is damaged"):
            source.pin("job", damaged)


def test_each_row_group_is_a_part_and_is_found_by_its_name() -> None:
    parts = pin().parts
    assert parts == [
        "/data/a#b.parquet#rowgroups=1-2",
        "/data/a#b.parquet#rowgroups=3-4",
        "/data/b.parquet#rowgroups=0-1",
    ]
    assert [(file.path, group) for file, group in map(pin().find, parts)] == [
        ("/data/a#b.parquet", 1),
        ("/data/a#b.parquet", 3),
        ("/data/b.parquet", 0),
    ]


@pytest.mark.parametrize("part", ["/data/b.parquet", "/data/b.parquet#rowgroups=1-2", "/data/c.parquet#rowgroups=0-1"])
def test_a_part_of_another_pin_is_an_error(part: str) -> None:
    with pytest.raises(SourceError, match="is not one of the partitions that were pinned"):
        pin().find(Part(part))


def test_a_file_is_the_pinned_one_until_it_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("12")
    status = path.stat()
    file = PinnedFile(str(path), status.st_size, status.st_mtime_ns, (0,), {})
    file.check(path.stat())
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(SourceError, match="is no longer the file that was pinned when the job started"):
        file.check(path.stat())
    path.write_text("123")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(SourceError, match="is no longer the file"):
        file.check(path.stat())


def test_of_a_file_of_a_table_the_size_alone_counts(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("12")
    file = PinnedFile(str(path), 2, 0, (0,), {})
    os.utime(path, ns=(1, 1))
    file.check(path.stat())
    path.write_text("1")
    with pytest.raises(SourceError, match="is damaged: it has 1 bytes, and had 2"):
        file.check(path.stat())


def test_a_record_of_files_that_were_not_staged_is_resumed_while_they_are_the_same(tmp_path: Path) -> None:
    """As `sources.Spark` of 0.1 pinned Parquet files by their path."""
    path = parquet(tmp_path / "own.parquet", {"n": [1, 2]})
    numbers = pa.schema([("n", pa.int64())])
    pinned = PinnedFiles([path], numbers)
    pinned.pin("job")
    record = {**pinned.pin_record(), "source": "Spark(table='t')"}
    again = Spark(table="t")
    again.pin("job", record)
    assert read_source(again) == [{"n": 1}, {"n": 2}]
    again.unpin()
    parquet(path, {"n": [1, 2, 3]})
    with pytest.raises(SourceError, match="is no longer the file that was pinned"):
        again.pin("job", record)
