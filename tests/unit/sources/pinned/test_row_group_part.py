"""A row group of a pinned file: its rows with all columns, from any position; no other data is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from malstrom_py.data.batch import ColumnBatch
from malstrom_py.errors import SourceError
from malstrom_py.sources.files import parquet as parquet_part
from malstrom_py.testing.contracts import check_source
from tests.unit.sources.pinned.pinned_files import PinnedFiles, copy_of, parquet
from tests.unit.sources.reading import poll_once, read_part, read_source

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
ROWS = [{"n": n, "text": f"row {n}"} for n in range(100)]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_part, "_BATCH_ROWS_MIN", 4)


def numbers(folder: Path, name: str = "a.parquet") -> Path:
    columns = {"n": range(100), "text": [row["text"] for row in ROWS], "unread": ["x"] * 100}
    return parquet(folder / name, columns, row_group_size=30)


def over(folder: Path, **given: Any) -> PinnedFiles:
    return copied([numbers(folder)], SCHEMA, **given)


def copied(paths: list[Path], schema: pa.Schema, **given: Any) -> PinnedFiles:
    copy: PinnedFiles = copy_of(PinnedFiles(paths, schema, **given))
    return copy


def test_it_keeps_the_contract_of_sources(tmp_path: Path) -> None:
    check_source(over(tmp_path))
    check_source(over(tmp_path, keep=pc.field("n") > 12))


def test_a_position_holds_file_row_group_and_row(tmp_path: Path) -> None:
    source = over(tmp_path)
    part = source.build_part(source.list_parts()[2], None)
    poll_once(part, 3)
    path = str(tmp_path / "a.parquet")
    assert part.snapshot() == {"file": path, "row_group": 2, "records": 3, "rows": 3, "finished": False}
    part.close()
    with pytest.raises(SourceError, match="cannot resume at row group"):
        source.build_part(source.list_parts()[0], part.snapshot())


def test_a_position_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    source = over(tmp_path)
    former = {"file": str(tmp_path / "a.parquet"), "row_group": 2, "row": 27, "finished": False}
    part = source.build_part(source.list_parts()[2], former)
    assert poll_once(part, 9) == ROWS[87:90]
    part.close()
    assert source.build_part(source.list_parts()[2], {**former, "finished": True}).is_finished()


def test_a_filter_of_the_workers_keeps_rows_and_positions_count_all(tmp_path: Path) -> None:
    source = over(tmp_path, keep=pc.field("n") == 77, names=["text"])
    (part,) = source.list_parts()
    opened = source.build_part(part, None)
    assert poll_once(opened, 10) == [{"text": "row 77"}]
    assert opened.snapshot()["rows"] >= 18
    opened.close()
    assert read_part(source, part) == [{"text": "row 77"}]


def test_columns_that_are_not_asked_for_are_not_read(tmp_path: Path) -> None:
    path = numbers(tmp_path)
    source = copied([path], pa.schema([("n", pa.int64())]))
    damage(path, "text", "unread")
    assert [row["n"] for row in read_source(source)] == list(range(100))
    with pytest.raises(SourceError, match="The file is damaged"):
        read_source(copied([path], SCHEMA))


def test_row_groups_that_are_left_out_are_not_read(tmp_path: Path) -> None:
    path = numbers(tmp_path)
    keep = pc.field("n") >= 90
    source = copied([path], SCHEMA, keep=keep)
    damage(path, "n", "text", groups=range(3))
    assert read_source(source) == ROWS[90:]


def damage(path: Path, *columns: str, groups: Any = range(4)) -> None:
    """Overwrite the stored ``columns`` of ``groups``, and keep size and time of change."""
    metadata, status = pq.read_metadata(path), path.stat()
    with path.open("r+b") as file:
        for group in groups:
            for index in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(index)
                if chunk.path_in_schema in columns:
                    file.seek(min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset))
                    file.write(b"\xff" * chunk.total_compressed_size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_folders_and_missing_columns_are_filled_in(tmp_path: Path) -> None:
    paths = [
        parquet(tmp_path / "year=2013" / "who=a%2Fb" / "1.parquet", {"n": [1, 2]}),
        parquet(tmp_path / "year=__HIVE_DEFAULT_PARTITION__" / "who=c" / "2.parquet", {"n": [3], "new": [0.5]}),
    ]
    schema = pa.schema([("who", pa.string()), ("new", pa.float64()), ("n", pa.int64()), ("year", pa.int32())])
    source = copied(paths, schema, root=tmp_path)
    assert read_source(source) == [
        {"who": "a/b", "new": None, "n": 1, "year": 2013},
        {"who": "a/b", "new": None, "n": 2, "year": 2013},
        {"who": "c", "new": 0.5, "n": 3, "year": None},
    ]
    part: Any = source.build_part(source.list_parts()[0], None)
    assert part.poll(10).schema == schema
    part.close()


def test_rows_of_nothing_but_what_folders_tell_are_as_many_as_are_in_the_file(tmp_path: Path) -> None:
    path = parquet(tmp_path / "year=2013" / "1.parquet", {"text": ["a", "b"], "n": [1, 2]})
    schema = pa.schema([("year", pa.int32()), ("nothing", pa.null())])
    source = copied([path], schema, root=tmp_path)
    assert read_source(source) == [{"year": 2013, "nothing": None}] * 2


def test_columns_for_steps_that_take_these_are_the_same(tmp_path: Path) -> None:
    size = 40_000
    path = parquet(tmp_path / "year=2013" / "1.parquet", {"n": range(size), "text": ["x"] * size}, use_dictionary=False)
    for schema in (SCHEMA, pa.schema([("year", pa.int32()), *SCHEMA])):
        source = copied([path], schema, root=tmp_path)
        part: Any = source.build_part(source.list_parts()[0], None)
        polled = [part.poll(10)]
        part.set_polls(frames=True, bad_rows=False)
        while not part.is_finished():
            polled.append(part.poll(1 << 15))
        part.close()
        batches = [ColumnBatch(rows) if isinstance(rows, pa.RecordBatch) else rows for rows in polled if rows]
        table = pa.Table.from_batches([batch.columns for batch in batches])
        assert (table.schema, table["n"].to_pylist()) == (schema, list(range(size)))


def test_a_copy_reads_the_same(tmp_path: Path) -> None:
    source = over(tmp_path, keep=pc.field("n") < 10)
    assert read_source(cloudpickle.loads(cloudpickle.dumps(source))) == ROWS[:10]


def test_a_file_that_was_written_to_replaced_or_removed_is_an_error(tmp_path: Path) -> None:
    source = over(tmp_path)
    path = tmp_path / "a.parquet"
    opened = source.build_part(source.list_parts()[0], None)
    poll_once(opened, 1)
    path.rename(tmp_path / "moved")
    with pytest.raises(SourceError, match=r"a\.parquet was replaced, written to or removed while it was read"):
        poll_once(opened, 1)
    opened.close()
    with pytest.raises(SourceError, match=r"a\.parquet was pinned when the job started, and is not there"):
        read_source(source)
    numbers(tmp_path)
    with pytest.raises(SourceError, match=r"a\.parquet is no longer the file that was pinned"):
        read_source(source)


def test_what_was_never_pinned_has_no_parts() -> None:
    with pytest.raises(SourceError, match=r"PinnedFiles\(\) is not pinned: a runtime pins it when a job starts"):
        PinnedFiles([], SCHEMA).list_parts()
