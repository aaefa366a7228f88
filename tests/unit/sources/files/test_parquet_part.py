"""Parquet: the types of the first file, Python's own values, and errors that name the place of the damage."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from malstrom_py.data.batch import ColumnBatch
from malstrom_py.errors import MalformedRecord, SourceError
from malstrom_py.sources.files import Files
from malstrom_py.sources.files import parquet as parquet_part
from tests.unit.sources.reading import Bad, file_with, read_source


def parquet(folder: Path, name: str, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), folder / name, **options)
    return folder / name


def test_rows_are_dicts_of_python_values(tmp_path: Path) -> None:
    columns = {
        "n": [1, None],
        "text": pa.array(["a", "b"]).dictionary_encode(),
        "list": [[1, 2], None],
        "struct": [{"x": 1.5}, {"x": None}],
        "at": pa.array([1_000, 2_000], pa.timestamp("ns", "UTC")),
        "took": pa.array([1_000, None], pa.duration("ns")),
    }
    first, second = read_source(Files(parquet(tmp_path, "a.parquet", columns)))
    assert first == {
        "n": 1,
        "text": "a",
        "list": [1, 2],
        "struct": {"x": 1.5},
        "at": dt.datetime(1970, 1, 1, microsecond=1, tzinfo=dt.UTC),
        "took": dt.timedelta(microseconds=1),
    }
    assert type(first["at"]) is dt.datetime
    assert type(first["took"]) is dt.timedelta
    assert second["list"] is None


def test_a_time_that_python_cannot_hold_is_malformed(tmp_path: Path) -> None:
    columns = {"n": list(range(100)), "at": pa.array([1000 * n + (n == 42) for n in range(100)], pa.timestamp("ns"))}
    rows = read_source(Files(parquet(tmp_path, "a.parquet", columns)))
    assert [index for index, row in enumerate(rows) if isinstance(row, Bad)] == [42]
    assert rows[43]["n"] == 43


def test_smaller_types_are_widened_to_those_of_the_first_file(tmp_path: Path) -> None:
    parquet(tmp_path, "a.parquet", {"n": pa.array([1], pa.int64()), "x": [0.5], "t": ["a"]})
    parquet(tmp_path, "b.parquet", {"t": pa.nulls(1), "x": [2], "n": pa.array([3], pa.int16())})
    assert read_source(Files(tmp_path / "*.parquet")) == [
        {"n": 1, "x": 0.5, "t": "a"},
        {"n": 3, "x": 2.0, "t": None},
    ]


def test_other_types_are_told_with_both_files(tmp_path: Path) -> None:
    parquet(tmp_path, "a.parquet", {"n": [1]})
    parquet(tmp_path, "b.parquet", {"n": ["x"]})
    with pytest.raises(SourceError, match=r"column 'n' is string in .*b\.parquet and int64 in .*a\.parquet"):
        read_source(Files(tmp_path / "*.parquet"))


@pytest.mark.parametrize("content", [b"", b"no parquet", b"PAR1" + b"x" * 100])
def test_what_is_no_parquet_file_is_told(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"a\.parquet cannot be read: it is not a whole Parquet file"):
        read_source(Files(file_with(tmp_path, "a.parquet", content)))


def test_damage_inside_is_told_with_the_row_group_and_the_rows_read(tmp_path: Path) -> None:
    path = parquet(tmp_path, "a.parquet", {"t": [str(n) for n in range(10_000)]}, row_group_size=5_000)
    start = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    content = path.read_bytes()
    path.write_bytes(content[:start] + b"\xff" * 50 + content[start + 50 :])
    with pytest.raises(SourceError, match=r"a\.parquet failed in row group 1 after 5000 rows"):
        read_source(Files(path))


def polled(path: Path, sizes: list[int], state: Any = None) -> tuple[list[int], Any]:
    """Return the rows of each poll, and the last position."""
    source = Files(path)
    (name,) = source.list_parts()
    part = source.build_part(name, state)
    try:
        batches: list[Any] = [part.poll(size) for size in sizes]
        return [0 if batch is None else len(batch) for batch in batches], part.snapshot()
    finally:
        part.close()


def test_a_batch_has_as_many_rows_as_are_asked_for(tmp_path: Path) -> None:
    path = parquet(tmp_path, "a.parquet", {"n": list(range(200_000))}, row_group_size=150_000)
    assert polled(path, [65_536] * 4)[0] == [65_536, 65_536, 150_000 - 2 * 65_536, 50_000]
    assert polled(path, [4, 8, 65_536])[0] == [4, 8, 16_372]
    assert polled(path, [1024, 2048, 65_536, 100_000, 10])[0] == [1024, 2048, 13_312, 100_000, 10]


def test_a_batch_of_large_rows_has_fewer_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_part, "_BATCH_BYTES_MAX", 1 << 20)
    # Stored once and repeated: the file is far smaller than its rows in memory.
    large = parquet(tmp_path, "large.parquet", {"t": ["x" * 10_000] * 3000})
    lengths, _ = polled(large, [2000] * 5)
    assert all(length <= 110 for length in lengths[1:])
    plain = parquet(tmp_path, "plain.parquet", {"t": [f"{n}" * 2000 for n in range(1000)]}, use_dictionary=False)
    assert max(polled(plain, [2000] * 5)[0]) < 400
    assert len(read_source(Files(large))) == 3000


def test_a_file_that_has_fewer_rows_than_the_saved_position_is_told(tmp_path: Path) -> None:
    for rows in (5, 0):
        path = parquet(tmp_path, "a.parquet", {"n": list(range(100))})
        _, position = polled(path, [10])
        parquet(tmp_path, "a.parquet", {"n": pa.array(list(range(rows)), pa.int64())})
        with pytest.raises(SourceError, match=r"a\.parquet ends before the saved position .row group 0.*file changed"):
            polled(path, [10], {**position, "file": None})  # as positions of the first versions


def by_columns(path: Path, sizes: list[int]) -> list[Any]:
    """Return the batches of polling a part by columns."""
    source = Files(path)
    part: Any = source.build_part(source.list_parts()[0], None)
    part.set_polls(frames=True, bad_rows=False)
    try:
        return [part.poll(size) for size in sizes]
    finally:
        part.close()


LAYOUTS: list[list[tuple[pa.DataType, Any]]] = [
    [(pa.string(), "é"), (pa.large_string(), "b"), (pa.string_view(), "c" * 20)],
    [(pa.binary(), b"a"), (pa.large_binary(), b"b"), (pa.binary_view(), b"c" * 20)],
    [
        (pa.list_(pa.int64()), [1]),
        (pa.large_list(pa.int32()), [2, 3]),
        (pa.list_(pa.int64(), 2), [4, 5]),
        (pa.list_view(pa.int64()), [6]),
    ],
    [
        (pa.struct([("t", pa.string()), ("l", pa.list_(pa.string()))]), {"t": "a", "l": ["b", None]}),
        (pa.struct([("t", pa.large_string()), ("l", pa.large_list(pa.large_string()))]), {"t": "c", "l": []}),
    ],
]


@pytest.mark.parametrize("layouts", LAYOUTS, ids=lambda layouts: str(layouts[0][0]))
def test_layouts_of_one_type_may_differ_between_files(layouts: list[tuple[pa.DataType, Any]], tmp_path: Path) -> None:
    for first in range(len(layouts)):
        if not (order := [layouts[first], *layouts[:first], *layouts[first + 1 :]]):
            continue
        if "int32" in str(order[0][0]) or "[2]" in str(order[0][0]):
            continue  # narrower numbers, or a length that is part of the type
        (folder := tmp_path / str(first)).mkdir()
        for number, (kind, value) in enumerate(order):
            parquet(folder, f"{number}.parquet", {"v": pa.array([None, value, None], kind)})
        found = read_source(Files(folder / "*.parquet"))
        assert [row["v"] for row in found] == [value for _, one in order for value in (None, one, None)]


def test_times_of_old_files_are_the_same_by_rows_and_by_columns(tmp_path: Path) -> None:
    times = pa.array([1, None] * 20_000, pa.timestamp("us"))
    options: dict[str, Any] = {"use_deprecated_int96_timestamps": True, "store_schema": False}
    path = parquet(tmp_path, "a.parquet", {"at": times}, row_group_size=20_000, **options)
    batches = by_columns(path, [10, 1 << 15, 1 << 15])
    frames = [batch.frame if isinstance(batch, ColumnBatch) else pl.DataFrame(batch) for batch in batches]
    assert [frame.schema for frame in frames] == [{"at": pl.Datetime("us")}] * 3


def test_the_first_batch_is_small_where_texts_may_be_far_larger_than_the_file(tmp_path: Path) -> None:
    path = parquet(tmp_path, "a.parquet", {"t": ["x" * 100_000] * 3_000})
    assert path.stat().st_size < 50_000
    first, second = by_columns(path, [1 << 17, 1 << 17])
    assert len(first) == 1024
    assert isinstance(second, pa.RecordBatch)  # not a whole group
    assert len(second) * 100_000 <= 1 << 24


def test_a_file_that_is_replaced_while_its_row_groups_are_read_whole_is_told(tmp_path: Path) -> None:
    path = parquet(tmp_path, "a.parquet", {"n": list(range(60_000))}, row_group_size=20_000)
    source = Files(path)
    part: Any = source.build_part(source.list_parts()[0], None)
    part.set_polls(frames=True, bad_rows=False)
    part.poll(1 << 15)
    parquet(tmp_path, "a.parquet", {"n": list(range(60_000, 120_000))}, row_group_size=20_000)
    with pytest.raises(SourceError, match=r"a\.parquet was replaced.*the file changed"):
        part.poll(1 << 15)
    part.close()


def test_a_name_that_is_no_utf8_is_read_by_columns_too(tmp_path: Path) -> None:
    path = parquet(tmp_path, "a.parquet", {"n": list(range(20_000))})
    path = path.rename(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.parquet"))
    assert [len(batch) for batch in by_columns(path, [10, 1 << 15, 1 << 15])] == [10, 16_374, 20_000 - 16_384]


YEAR_0 = pa.array([0, -720_000, 1], pa.date32())
NO_UTF8 = pa.StringArray.from_buffers(3, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xffb"))
BEYOND = pa.array([0, 253_402_300_800_000, 1], pa.timestamp("ms", "UTC"))


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    ("column", "why", "record"),
    [
        (YEAR_0, "date or time that is not within the years 1 to 9999", "-0002-09-16"),
        (BEYOND, "date or time that is not within the years 1 to 9999", None),
        (NO_UTF8, "column 'x' is not valid UTF-8 text", b"\xff"),
        (pa.StructArray.from_arrays([YEAR_0], ["day"]), "not within the years", {"day": "-0002-09-16"}),
        (pa.ListArray.from_arrays([0, 1, 2, 3], NO_UTF8), "UTF-8", [b"\xff"]),
    ],
)
def test_a_value_that_python_cannot_hold_is_a_malformed_record(
    column: pa.Array, why: str, record: Any, many: bool, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"n": [0, 1, 2], "x": column}), tmp_path / "a.parquet")
    source = Files(tmp_path / "a.parquet")
    (part,) = source.list_parts()
    opened: Any = source.build_part(part, None)
    opened.set_polls(frames=many, bad_rows=False)
    assert len(opened.poll(1 << 15)) == 1
    with pytest.raises(MalformedRecord, match=rf"a\.parquet, record 2: .*{why}") as caught:
        opened.poll(1 << 15)
    found: Any = caught.value.record
    assert found["n"] == "1"
    assert record is None or found["x"] == record
    assert len(opened.poll(1 << 15)) == 1
    opened.close()
