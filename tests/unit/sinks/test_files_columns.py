"""Columns and rows of the same values give the same files; batches of both may take turns."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malstrom_py import sources
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.row_form import python_values
from malstrom_py.errors import SinkError
from malstrom_py.sinks.files import tables
from tests.unit.sinks.writing import READERS, Format, visible, write
from tests.unit.sources.reading import read_source

FORMATS: list[Format] = ["csv", "json", "parquet"]

INTEGERS = {
    kind: st.integers(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
}
DAYS = st.dates(dt.date(1, 1, 2), dt.date(9999, 12, 30))
TIMES = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))  # noqa: DTZ001
PLAIN: dict[pa.DataType, st.SearchStrategy[Any]] = {
    **INTEGERS,
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.float64(): st.floats(),
    pa.float32(): st.floats(width=32),
    pa.float16(): st.floats(width=16),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=4),
    pa.large_string(): st.text(max_size=4),
    pa.string_view(): st.text(max_size=4),
    pa.dictionary(pa.int32(), pa.string()): st.sampled_from(["", "é", "a\n"]),
    pa.date32(): DAYS,
    pa.date64(): DAYS,
    pa.timestamp("us"): TIMES,
    pa.timestamp("ms"): TIMES.map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)),
    pa.timestamp("us", "Asia/Tokyo"): TIMES.map(lambda at: at.replace(tzinfo=dt.UTC)),
    pa.time32("s"): st.times().map(lambda at: at.replace(microsecond=0)),
    pa.time64("us"): st.times(),
    pa.duration("us"): st.timedeltas(dt.timedelta(-99), dt.timedelta(99)),
    pa.decimal128(20, 4): st.decimals(-(10**9), 10**9, places=4),
    pa.decimal256(50, 0): st.integers(-(10**40), 10**40).map(Decimal),
    pa.int16(): st.none(),
}
NESTED: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.binary(): st.binary(max_size=3),
    pa.list_(pa.int16()): st.lists(st.none() | st.integers(-9, 9), max_size=3),
    pa.large_list(pa.string()): st.lists(st.none() | st.text(max_size=2), max_size=2),
    pa.struct([("x", pa.float32()), ("y", pa.list_(pa.string()))]): st.fixed_dictionaries(
        {"x": st.none() | st.floats(width=32), "y": st.none() | st.lists(st.text(max_size=2), max_size=2)}
    ),
}


@st.composite
def record_batches(draw: st.DrawFn, plain_only: bool) -> list[pa.RecordBatch]:
    """Some record batches of one schema, with None in any place, some of them empty."""
    types = PLAIN if plain_only else PLAIN | NESTED
    kinds = draw(st.lists(st.sampled_from(list(types)), min_size=1, max_size=4))
    names = [f"c{number}" for number in range(len(kinds))]
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    row = st.tuples(*(st.none() | types[kind] for kind in kinds))
    tables = draw(st.lists(st.lists(row, max_size=4), min_size=1, max_size=3))
    return [
        pa.RecordBatch.from_arrays(
            [pa.array([row[index] for row in rows], kind) for index, kind in enumerate(kinds)], schema=schema
        )
        for rows in tables
    ]


def as_rows(columns: pa.RecordBatch) -> Batch:
    return Batch(ColumnBatch(columns).values)


def told(value: Any) -> str:
    """``value`` as text, equal only for what is the same value: NaN, -0.0 and the same time in another zone too."""
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return repr(value.astimezone(dt.UTC))
    if isinstance(value, Decimal):
        return f"Decimal {value:f}".rstrip("0") if value.as_tuple().exponent else f"Decimal {value:f}."
    if isinstance(value, dict):
        return str({name: told(inner) for name, inner in value.items()})
    return str([told(inner) for inner in value]) if isinstance(value, list) else repr(value)


def read(folder: Path) -> list[list[str]]:
    """Each row of the parquet files as text."""
    tables = [pq.ParquetFile(folder / path).read() for path in visible(folder)]
    columns = [[python_values(column, "") for column in table.columns] for table in tables]
    return [[told(value) for value in row] for table in columns for row in zip(*table, strict=True)]


@settings(max_examples=60)
@given(record_batches(plain_only=False), st.lists(st.booleans(), min_size=3, max_size=3), st.sampled_from([1, 1 << 20]))
def test_rows_and_columns_give_the_same_parquet_values_and_may_take_turns(
    tmp_path_factory: pytest.TempPathFactory, batches: list[pa.RecordBatch], layouts: list[bool], size: int
) -> None:
    folder = tmp_path_factory.mktemp("out")
    write(folder / "rows", *map(as_rows, batches), file_bytes_max=size)
    write(folder / "columns", *map(ColumnBatch, batches), file_bytes_max=size)
    mixed = [as_rows(batch) if rows else ColumnBatch(batch) for batch, rows in zip(batches, layouts, strict=False)]
    write(folder / "mixed", *mixed, file_bytes_max=size)
    expected = [
        [told(value) for value in row]
        for batch in batches
        for row in zip(*(python_values(column, "") for column in batch.columns), strict=True)
    ]
    assert read(folder / "rows") == read(folder / "columns") == read(folder / "mixed") == expected


@settings(max_examples=60)
@given(record_batches(plain_only=True), st.sampled_from(["csv", "json"]))
def test_rows_and_columns_give_the_same_bytes_of_csv_and_json(
    tmp_path_factory: pytest.TempPathFactory, batches: list[pa.RecordBatch], format: Format
) -> None:
    folder = tmp_path_factory.mktemp("out")
    if format == "json":  # which knows no durations
        batches = [
            batch.select([field.name for field in batch.schema if not pa.types.is_duration(field.type)])
            for batch in batches
        ]
    if not batches[0].num_columns:
        return
    write(folder / "rows", *map(as_rows, batches), format=format)
    write(folder / "columns", *map(ColumnBatch, batches), format=format)
    contents = [
        [(folder / layout / path).read_bytes() for path in visible(folder / layout)] for layout in ("rows", "columns")
    ]
    assert contents[0] == contents[1]


def test_parquet_and_csv_make_no_rows_of_columns(tmp_path: Path) -> None:
    columns = pa.record_batch({"a": ["x", "y"], "n": [1, 2]})
    for format in ("parquet", "csv"):
        for partition_by in (None, "a", "key"):
            batch = ColumnBatch(columns, key_column=pa.array(["k", None]))
            write(tmp_path / format / str(partition_by), batch, format=format, partition_by=partition_by)
            assert not batch.rows_made
            assert batch._keys is None


@pytest.mark.parametrize("format", FORMATS)
def test_the_key_comes_first_in_whatever_layout(format: Format, tmp_path: Path) -> None:
    values = pa.record_batch({"n": [1]})
    batches = [
        ColumnBatch(values, key_column=pa.array(["x"])),
        ColumnBatch(values, keys=["y"]),
        Batch([{"n": 1}], keys=["z"]),
        ColumnBatch(values, key_column=pa.array(["x"]).dictionary_encode()),
    ]
    write(tmp_path, *batches, format=format)
    (path,) = visible(tmp_path)
    frame = READERS[format](tmp_path / path)
    assert frame.columns == ["key", "n"]
    assert frame["key"].to_list() == ["x", "y", "z", "x"]


@pytest.mark.parametrize("format", FORMATS)
def test_the_key_rule_holds_across_layouts(format: Format, tmp_path: Path) -> None:
    with_field = ColumnBatch(pa.record_batch({"key": [1], "n": [1]}), keys=["x"])
    write(tmp_path / "own", with_field, Batch([{"key": 2, "n": 2}], keys=["y"]), format=format)
    for batches in ([with_field, Batch([{"n": 1}], keys=["x"])], [Batch([{"n": 1}], keys=["x"]), with_field]):
        with pytest.raises(SinkError, match="column 'key' would hold"):
            write(tmp_path / "both", *batches, format=format)


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_columns_that_the_first_batch_has_not_are_told_and_lacking_ones_are_none(
    format: Format, tmp_path: Path
) -> None:
    first = ColumnBatch(pa.record_batch({"n": [1], "m": ["x"]}))
    with pytest.raises(SinkError, match="columns 'more' are not among those of the first batch"):
        write(tmp_path / "more", first, ColumnBatch(pa.record_batch({"n": [1], "more": [1]})), format=format)
    write(tmp_path / "less", first, ColumnBatch(pa.record_batch({"m": ["y"]})), format=format)
    found = READERS[format](tmp_path / "less" / visible(tmp_path / "less")[0]).to_dicts()
    assert found == [{"n": 1, "m": "x"}, {"n": None, "m": "y"}]


def test_types_widen_across_layouts_and_files(tmp_path: Path) -> None:
    batches = [
        ColumnBatch(pa.record_batch({"n": pa.array([1], pa.int8())})),
        Batch([{"n": None}]),
        Batch([{"n": 2**40}]),
        ColumnBatch(pa.record_batch({"n": pa.array([0.5], pa.float32())})),
        Batch([{"n": -0.0}, {"n": math.nan}]),
    ]
    for size in (1, 1 << 20):
        write(tmp_path / str(size), *batches, file_bytes_max=size)
        assert read(tmp_path / str(size)) == [["1.0"], ["None"], [f"{2.0**40}"], ["0.5"], ["-0.0"], ["nan"]]
        schemas = {str(pq.read_schema(tmp_path / str(size) / path)) for path in visible(tmp_path / str(size))}
        assert len(schemas) == 1


def test_columns_are_written_in_the_types_they_have(tmp_path: Path) -> None:
    columns = pa.record_batch(
        {
            "small": pa.array([1], pa.int8()),
            "single": pa.array([1.5], pa.float32()),
            "word": pa.array(["x"]).dictionary_encode(),
            "at": pa.array([1], pa.timestamp("ms", "Asia/Tokyo")),
            "none": pa.array([None]),
        }
    )
    write(tmp_path, ColumnBatch(columns))
    assert pq.read_schema(tmp_path / visible(tmp_path)[0]).types == [
        pa.int8(),
        pa.float32(),
        pa.string(),
        pa.timestamp("ms", "UTC"),
        pa.string(),
    ]


def test_nanoseconds_stay_in_parquet_and_are_refused_in_csv(tmp_path: Path) -> None:
    columns = pa.record_batch({"at": pa.array([1_001], pa.timestamp("ns"))})
    write(tmp_path / "parquet", ColumnBatch(columns))
    table = pq.ParquetFile(tmp_path / "parquet" / visible(tmp_path / "parquet")[0]).read()
    assert table["at"].cast(pa.int64()).to_pylist() == [1_001]
    with pytest.raises(SinkError, match=r"column 'at' holds timestamp\[ns\] that cannot be written as timestamp\[us\]"):
        write(tmp_path / "csv", ColumnBatch(columns), format="csv")


@pytest.mark.parametrize("format", FORMATS)
def test_batches_without_rows_change_nothing(format: Format, tmp_path: Path) -> None:
    empty = ColumnBatch(pa.record_batch({"other": pa.array([], pa.int8())}))
    write(tmp_path / "none", empty, empty, format=format)
    assert visible(tmp_path / "none") == []
    write(tmp_path / "some", empty, Batch([{"n": "x"}]), empty, format=format)
    assert len(visible(tmp_path / "some")) == 1


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_columns_that_no_file_can_hold_are_told(format: Format, tmp_path: Path) -> None:
    for batch in (Batch([{"n": {}}]), ColumnBatch(pa.record_batch({"n": pa.array([{}], pa.struct([]))}))):
        with pytest.raises(SinkError, match=r"'n'.* use (json|parquet or json)"):
            write(tmp_path, batch, format=format)
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["n", "n"])
    with pytest.raises(SinkError, match="two columns have the same name"):
        write(tmp_path, ColumnBatch(twice), format=format)


WIDE: dict[str, tuple[pa.DataType, pa.DataType, Any]] = {
    "text": (pa.large_string(), pa.string(), "é"),
    "view": (pa.string_view(), pa.string(), "x" * 20),
    "bytes": (pa.large_binary(), pa.binary(), b"x"),
    "list": (pa.large_list(pa.large_string()), pa.list_(pa.string()), ["a", None]),
    "array": (pa.list_(pa.int64(), 2), pa.list_(pa.int64()), [1, 2]),
    "list_view": (pa.list_view(pa.int64()), pa.list_(pa.int64()), [1, 2]),
    "struct": (pa.struct([("t", pa.large_string())]), pa.struct([("t", pa.string())]), {"t": "a"}),
    "seconds": (pa.time32("s"), pa.time64("us"), dt.time(1, 2, 3)),
    "nanoseconds": (pa.time64("ns"), pa.time64("us"), dt.time(1, 2, 3, 4)),
}


def test_parquet_has_one_form_whatever_the_layout_was_so_that_runs_can_be_read_together(tmp_path: Path) -> None:
    values = {name: value for name, (_, _, value) in WIDE.items()}
    columns = pa.record_batch({name: pa.array([value, None], kind) for name, (kind, _, value) in WIDE.items()})
    rows = [values, dict.fromkeys(values)]
    expected = pa.schema([(name, stored) for name, (_, stored, _) in WIDE.items()])
    layouts: dict[str, list[Batch]] = {
        "columns": [ColumnBatch(columns)],
        "rows": [Batch(rows)],
        "both": [Batch(rows[1:]), ColumnBatch(columns), Batch(rows[:1])],
    }
    for layout, batches in layouts.items():
        write(tmp_path / layout, *batches, file_bytes_max=1)
        for path in visible(tmp_path / layout):
            assert pq.ParquetFile(tmp_path / layout / path).schema_arrow == expected
    assert read_source(sources.Files([tmp_path / "columns/*", tmp_path / "rows/*"])) == rows * 2


def test_batches_beyond_the_offsets_of_plain_strings_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_CAST_BYTES_MAX", 100)
    texts = ["x" * number for number in range(99)]
    write(tmp_path, ColumnBatch(pa.record_batch({"t": pa.array(texts, pa.large_string())})))
    assert pq.ParquetFile(tmp_path / visible(tmp_path)[0]).read()["t"].to_pylist() == texts


def test_the_column_that_cannot_be_written_is_named_alone(tmp_path: Path) -> None:
    columns = {"ok": pa.array([1]), "at": pa.array([2**60], pa.timestamp("s"))}
    with pytest.raises(SinkError, match=r"^parquet cannot hold column 'at': timestamp\[s\]: cast it"):
        write(tmp_path, ColumnBatch(pa.record_batch(columns)))
    ids = {"ok": pa.array([1]), "id": pa.array([b"x" * 16], pa.uuid())}
    with pytest.raises(SinkError, match=r"^csv cannot hold column 'id': extension<arrow.uuid>: cast it"):
        write(tmp_path, ColumnBatch(pa.record_batch(ids)), format="csv")
