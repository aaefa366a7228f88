"""``columns=`` and ``rows=`` of `sources.Files`: projections and typed rows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.data.batch import ColumnBatch
from malstrom_py.data.row_form import class_fields
from malstrom_py.errors import PlanError, SourceError
from malstrom_py.sources import Files
from malstrom_py.sources.files.options import unpack_schema
from malstrom_py.sources.files.typed_rows import csv_types, hints_of
from malstrom_py.testing.contracts import check_source
from tests.unit.sources.reading import Bad, file_with, polls, read_source

ROWS = [
    {"carrier": "UA", "flight": 1545, "delay": 2.5, "day": date(2013, 1, 1)},
    {"carrier": "B6", "flight": 725, "delay": None, "day": date(2013, 1, 2)},
    {"carrier": "UA", "flight": 461, "delay": -6.0, "day": None},
]


class Flight(msgspec.Struct, frozen=True, gc=False):
    flight: int
    carrier: str
    delay: float | None


@dataclass(frozen=True)
class FlightData:
    carrier: str
    day: date | None


class FlightTuple(NamedTuple):
    delay: float | None
    flight: int


@pytest.fixture(params=["csv", "parquet"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Two files with the same rows."""
    table = pa.Table.from_pylist(ROWS)
    for name in ("a", "b"):
        path = tmp_path / f"{name}.{request.param}"
        if request.param == "csv":
            from pyarrow import csv

            csv.write_csv(table, path)
        else:
            pq.write_table(table, path, row_group_size=2)
    return str(tmp_path / f"*.{request.param}")


def test_columns_are_read_in_the_given_order(files: str) -> None:
    names = ["delay", "carrier"]
    rows = read_source(Files(files, columns=names))
    assert rows == [{name: row[name] for name in names} for row in ROWS] * 2
    assert [list(row) for row in rows] == [names] * 6
    assert read_source(Files(files, columns=names, rows=tuple)) == [(row["delay"], row["carrier"]) for row in ROWS] * 2
    assert read_source(Files(files, rows=tuple)) == [tuple(row.values()) for row in ROWS] * 2


@pytest.mark.parametrize("kind", [Flight, FlightData, FlightTuple])
def test_rows_of_a_class_are_made_of_the_columns_that_its_fields_name(files: str, kind: type) -> None:
    expected = [kind(**{name: row[name] for name in class_fields(kind)}) for row in ROWS]
    rows = read_source(Files(files, rows=kind))
    assert rows == expected * 2
    assert {type(row) for row in rows} == {kind}
    check_source(Files(files, rows=kind))


def test_a_position_of_one_projection_is_continued_by_another(files: str) -> None:
    source = Files(files)
    part = source.build_part(source.list_parts()[0], None)
    next(polls(part, [2]))
    position = part.snapshot()
    part.close()
    again = Files(files, rows=Flight)
    resumed = again.build_part(again.list_parts()[0], position)
    read = position["rows"]
    assert [row for rows in polls(resumed) for row in rows] == read_source(Files(files, rows=Flight))[read:3]
    resumed.close()


def test_only_the_columns_of_a_projection_are_parsed_and_must_be_in_every_file(tmp_path: Path) -> None:
    file_with(tmp_path, "a.csv", "n,other\n1,x\n2,y\n")
    file_with(tmp_path, "b.csv", "more,n\n7,3\n")
    assert read_source(Files(tmp_path / "*.csv", columns=["n"])) == [{"n": 1}, {"n": 2}, {"n": 3}]
    with pytest.raises(SourceError, match=r"b.csv has other columns than .*a.csv: it lacks 'other'. Read files"):
        read_source(Files(tmp_path / "*.csv", columns=["n", "other"]))
    with pytest.raises(SourceError, match=r"a.csv has no column 'm', which columns= names, only 'n', 'other'. Name"):
        read_source(Files(tmp_path / "*.csv", columns=["n", "m"]))
    bad = "n,other\n" + "1,2\n" * 300_000 + "2,not a number\n"
    file_with(tmp_path / "bad", "a.csv", bad)
    assert read_source(Files(tmp_path / "bad/*.csv"))[-1] == Bad("2,not a number")
    assert read_source(Files(tmp_path / "bad/*.csv", columns=["n"]))[-1] == {"n": 2}


def test_parquet_files_may_differ_in_other_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1], "x": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"y": ["a"], "n": [2]}), tmp_path / "b.parquet")
    assert read_source(Files(tmp_path / "*.parquet", columns=["n"])) == [{"n": 1}, {"n": 2}]
    assert read_source(Files(tmp_path / "*.parquet")) == [{"n": 1, "x": 1, "y": None}, {"n": 2, "x": None, "y": "a"}]
    assert read_source(Files(tmp_path / "*.parquet", columns=["x"])) == [{"x": 1}, {"x": None}]


def test_none_in_a_field_that_takes_none_of_it_is_malformed(files: str) -> None:
    class Strict(NamedTuple):
        carrier: str
        delay: float

    rows = read_source(Files(files, rows=Strict))
    bad = Bad({"carrier": "B6", "delay": None})
    assert rows == [Strict("UA", 2.5), bad, Strict("UA", -6.0)] * 2
    job, out = mp.Job("flights"), sinks.Memory()
    job.source("flights", Files(files, rows=Strict), on_error="skip").sink("out", out)
    result = mp.run(job)
    assert (len(out.items), result.skipped) == (4, 2)
    job = mp.Job("flights")
    job.source("flights", Files(files, rows=Strict)).sink("out", sinks.Memory())
    with pytest.raises(
        SourceError, match=r"record 2: column 'delay' is None, and field 'delay' of .*Strict takes no None"
    ):
        mp.run(job)
    check_source(Files(files, rows=Strict))


def test_csv_columns_have_the_types_of_the_fields(tmp_path: Path) -> None:
    class Typed(NamedTuple):
        zip: str
        share: float
        n: int | None

    file_with(tmp_path, "a.csv", "zip,share,n\n501,1,\n502,0.5,7\n")
    rows = read_source(Files(tmp_path / "a.csv", rows=Typed))
    assert rows == [Typed("501", 1.0, None), Typed("502", 0.5, 7)]
    assert type(rows[0].share) is float
    with pytest.raises(
        SourceError, match=r"column 'zip' is int64, but field 'zip' of .*Typed is str: correct the class"
    ):
        read_source(Files(tmp_path / "a.csv", rows=Typed, types={"zip": "int64"}))


Name = NewType("Name", str)


def test_types_of_fields_are_checked_against_the_columns(tmp_path: Path) -> None:
    table = pa.table({"x": [1], "day": [datetime(2013, 1, 1)], "name": ["a"], "l": [[1]], "s": [{"a": 1}]})  # noqa: DTZ001
    pq.write_table(table, tmp_path / "a.parquet")
    path = tmp_path / "a.parquet"

    class Good(NamedTuple):
        x: Annotated[float, "an int is a float"]
        day: datetime
        name: Name
        l: list[int]  # noqa: E741
        s: dict[str, Any] | None

    assert read_source(Files(path, rows=Good)) == [Good(1, datetime(2013, 1, 1), Name("a"), [1], {"a": 1})]  # noqa: DTZ001

    class Loose(NamedTuple):
        x: Any
        name: Literal["a"] | None

    assert read_source(Files(path, rows=Loose)) == [Loose(1, "a")]

    class Wrong(NamedTuple):
        name: int | None

    with pytest.raises(
        SourceError, match=r"a.parquet: column 'name' is string, but field 'name' of .*Wrong is int \| None"
    ):
        read_source(Files(path, rows=Wrong))

    class Missing(msgspec.Struct):
        nam: str

    with pytest.raises(
        SourceError, match=r"a.parquet has no column 'nam', which rows=.*Missing names, did you mean 'name'"
    ):
        read_source(Files(path, rows=Missing))


def test_a_class_whose_types_are_unknown_is_not_checked() -> None:
    Unknown = NamedTuple("Unknown", [("x", "NoSuchName")])  # type: ignore[name-defined]  # noqa: F821, UP014
    assert hints_of(Unknown) == {}
    assert csv_types(Unknown, {}) == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": "n"}, "columns must be a list of different names"),
        ({"columns": []}, "columns must be a list of different names"),
        ({"columns": ["n", "n"]}, "columns must be a list of different names"),
        ({"columns": ["n"], "rows": Flight}, "rows=Flight names the columns already: leave out columns"),
        ({"rows": int}, "rows=int cannot be used: int has no fields"),
        ({"rows": "tuple"}, "rows must be a class, such as tuple or a msgspec.Struct, got 'tuple'"),
        ({"columns": ["n"], "format": "json"}, "columns is for csv and parquet files, these are json: leave it out"),
        ({"rows": tuple, "format": "text"}, "rows is for csv and parquet files, these are text: leave it out"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Files("a.parquet" if "format" not in options else "a", **options)


def test_the_plan_shows_what_is_read() -> None:
    assert repr(Files("a.csv", rows=tuple, columns=["n"])) == "Files('a.csv', rows=tuple, columns=['n'])"
    assert repr(Files("a.csv", rows=Flight)) == "Files('a.csv', rows=Flight)"


def test_names_read_columns_of_typed_rows(files: str) -> None:
    """A job that only names fields makes no rows, and gives the same as with dicts."""
    results = []
    for rows in (dict, Flight):
        job, out = mp.Job("flights"), sinks.Memory()
        job.source("flights", Files(files, rows=rows)).key_by("carrier", "carrier").sum("sum", by="flight").sink(
            "out", out
        )
        mp.run(job, workers=2)  # which read the two files in any order
        results.append({key: max(sums) for key, sums in out.by_key.items()})
    assert results[0] == results[1] == {"UA": 4012, "B6": 1450}


def test_polls_of_typed_rows_are_columns(files: str) -> None:
    source = Files(files, rows=Flight)
    part = source.build_part(source.list_parts()[0], None)
    polled = part.poll(10)
    assert isinstance(polled, ColumnBatch)
    part.close()


class Price(NamedTuple):
    price: float


class Zip(NamedTuple):
    price: float
    zip: Any


class Day(NamedTuple):
    day: Any


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    """Two csv files in a folder that names a column; alone, the second one would have other types."""
    (tmp_path / "day=2013-01-01").mkdir()
    (tmp_path / "day=2013-01-01" / "a.csv").write_text("zip,price\n0123,1\n456,2\n")
    (tmp_path / "day=2013-01-01" / "b.csv").write_text("zip,price\n789,3\n")
    return tmp_path / "*" / "*.csv"


def types_of(source: Files[Any]) -> dict[str, str]:
    """The types that the source knows of the columns of its files, by the position of a partition."""
    part: Any = source.build_part(source.list_parts()[0], None)
    part.poll(1)
    packed = part.snapshot()["schema"]
    part.close()
    return {field.name: str(field.type) for field in unpack_schema(packed)}


def test_types_are_inferred_of_columns_that_are_read_and_have_none(prices: Path) -> None:
    assert types_of(Files(prices, rows=Price)) == {"zip": "null", "price": "double", "day": "date32[day]"}
    assert types_of(Files(prices, rows=Zip)) == {"zip": "string", "price": "double", "day": "date32[day]"}
    assert types_of(Files(prices, columns=["price"]))["price"] == "int64"
    assert read_source(Files(prices, rows=Day)) == [Day(date(2013, 1, 1))] * 3


def test_another_class_finds_the_types_of_its_columns_where_the_others_were_found(prices: Path) -> None:
    before, after = Files(prices, rows=Price), Files(prices, rows=Zip)
    known: dict[Any, Any] = {}
    for name in before.list_parts():
        part: Any = before.build_part(name, None)
        known[name] = part.snapshot()  # its file is not open yet, or at its first row
        part.close()
    found: list[Zip] = []
    for name in after.list_parts_after(known):
        part = after.build_part(name, known[name])
        found += part.poll(10).values
        part.close()
    assert found == [Zip(1.0, "0123"), Zip(2.0, "456"), Zip(3.0, "789")]


def test_a_column_whose_type_cannot_be_found_any_more_is_refused(prices: Path) -> None:
    before = Files(prices, rows=Price)
    first, second = before.list_parts()
    known: Any = before.build_part(second, None).snapshot()
    Path(first).unlink()
    with pytest.raises(SourceError, match=r"did not read column 'zip' before, .*is gone or empty: give the type"):
        Files(prices, rows=Zip).build_part(second, known).poll(10)
    given: Any = Files(prices, rows=Zip, types={"zip": "str"}).build_part(second, known)
    assert given.poll(10).values == [Zip(3.0, "789")]
    given.close()
