"""CSV: types inferred once, malformed records isolated, no value of a record in any error."""

from __future__ import annotations

import re
from datetime import date, datetime, time, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from malstrom_py.errors import MalformedRecord, SourceError
from malstrom_py.sources.base import Part
from malstrom_py.sources.files import Files, frames
from tests.unit.sources.reading import Bad, file_with, poll_once, read_source


def rows(folder: Path, content: str | bytes, **options: Any) -> list[Any]:
    return read_source(Files(file_with(folder, "a.csv", content), **options))


def test_types_are_found(tmp_path: Path) -> None:
    content = (
        "whole,float,flag,day,at,zoned,clock,text,none\n"
        "1,1.5,true,2013-01-31,2013-01-31 05:00:00,2013-01-31T05:00:00Z,05:30:00,a,\n"
        "-2,2,false,2013-02-01,2013-01-31T05:00:00.25,2013-01-31T05:00:00.123456Z,05:30:01,,\n"
        ",,,,,,,é,\n"
    )
    first, second, third = rows(tmp_path, content)
    assert first == {
        "whole": 1,
        "float": 1.5,
        "flag": True,
        "day": date(2013, 1, 31),
        "at": datetime(2013, 1, 31, 5),  # noqa: DTZ001
        "zoned": datetime(2013, 1, 31, 5, tzinfo=timezone.utc),  # noqa: UP017
        "clock": time(5, 30),
        "text": "a",
        "none": None,
    }
    assert type(first["at"]) is datetime
    assert second["zoned"].microsecond == 123456
    assert second["text"] is None
    assert set(third.values()) == {None, "é"}


def test_a_time_finer_than_a_microsecond_is_malformed(tmp_path: Path) -> None:
    content = "at\n2013-01-01T05:00:00.123456\n2013-01-01T05:00:00.123456789\n"
    assert rows(tmp_path, content, types={"at": "timestamp"})[1] == Bad("2013-01-01T05:00:00.123456789")


def test_null_values_mean_none_quoted_or_not(tmp_path: Path) -> None:
    assert rows(tmp_path, 'n,t\nNA,NA\n1,"NA"\n2,-\n', null_values=["NA", "-"]) == [
        {"n": None, "t": None},
        {"n": 1, "t": None},
        {"n": 2, "t": None},
    ]


def test_without_null_values_only_an_empty_field_is_none(tmp_path: Path) -> None:
    assert rows(tmp_path, 't,u\nNA,\nnull,""\n') == [{"t": "NA", "u": None}, {"t": "null", "u": ""}]
    assert rows(tmp_path, 't,n\na,1\n"b, c",') == [{"t": "a", "n": 1}, {"t": "b, c", "n": None}]


def test_quotes_line_ends_and_escapes(tmp_path: Path) -> None:
    content = 'a,b\r\n"x, ""y""\r\nz",5" pipe\r\n\r\n"",end'
    assert rows(tmp_path, content) == [{"a": 'x, "y"\r\nz', "b": '5" pipe'}, {"a": "", "b": "end"}]


def test_every_kind_of_malformed_record_stands_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "FRAME_BYTES", 32)
    content = b"n,t\n" + b"".join(b"%d,good\n" % n for n in range(10))
    content += b"10,too,many\nfew\nx,no number\n11,\xff\n12,good\n13,5,6,7\r\n14,good"
    found = rows(tmp_path, content)
    assert found[:10] == [{"n": n, "t": "good"} for n in range(10)]
    assert found[10:] == [
        Bad("10,too,many"),
        Bad("few"),
        Bad("x,no number"),
        Bad(b"11,\xff"),
        {"n": 12, "t": "good"},
        Bad("13,5,6,7"),
        {"n": 14, "t": "good"},
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("1,2,secret", "3 fields, where the header has 2"),
        ("secret", "1 field, where the header has 2"),
        ("1,secret", "column 'm' does not read as int64.*types={'m': 'float64'}"),
        ("secret,1", "column 'n' does not read as int64"),
        (b"1,\xffsecret", "column 'm'"),
        ('1,"secret', "a quoted field is never closed"),
    ],
)
def test_a_message_names_file_record_and_column_but_no_value(
    line: str | bytes, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "FRAME_BYTES", 16)
    line = line.encode() if isinstance(line, str) else line
    # The first file has the columns in another order: columns are matched by name.
    file_with(tmp_path, "a.csv", "m,n\n2,1\n")
    path = file_with(tmp_path, "b.csv", b"n,m\n1,2\n3,4\n5,6\n7,8\n" + line + b"\n")
    source = Files(tmp_path / "*.csv")
    part = source.build_part(source.list_parts()[1], None)
    for _ in range(2):
        assert part.poll(2) is not None
    with pytest.raises(MalformedRecord) as raised:
        part.poll(2)
    part.close()
    assert re.match(re.escape(f"{path}, record 5: ") + why, str(raised.value))
    assert "secret" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_column_empty_at_first_takes_its_type_from_what_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "FRAME_BYTES", 8)
    assert rows(tmp_path, "n,m\n1,\n2,\n3,\n4,\n5,6\n")[-1] == {"n": 5, "m": 6}


def test_a_column_empty_in_the_first_file_takes_its_type_from_the_next(tmp_path: Path) -> None:
    for name, content in (
        ("a.csv", "n,m,never\n1,,\n"),
        ("b.csv", "m,n,never\n2.5,x,\n"),
        ("c.csv", "n,m,never\n3,4,\n"),
    ):
        file_with(tmp_path, name, content)
    assert read_source(Files(tmp_path / "*.csv")) == [
        {"n": 1, "m": None, "never": None},
        Bad("2.5,x,"),
        {"n": 3, "m": 4.0, "never": None},
    ]


def test_a_header_alone_gives_no_rows_and_leaves_the_types_to_the_next_file(tmp_path: Path) -> None:
    file_with(tmp_path, "a.csv", "n,m")
    file_with(tmp_path, "b.csv", "m,n\n1,x\n")
    assert read_source(Files(tmp_path / "*.csv")) == [{"n": "x", "m": 1}]


@pytest.mark.parametrize("content", ["", "\n\n\r\n", b"\xef\xbb\xbf"])
def test_an_empty_file_gives_no_rows(content: str | bytes, tmp_path: Path) -> None:
    file_with(tmp_path, "a.csv", content)
    file_with(tmp_path, "b.csv", "n\n1\n")
    file_with(tmp_path, "c.csv", content)
    assert read_source(Files(tmp_path / "*.csv")) == [{"n": 1}]
    assert rows(tmp_path, content) == []


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    assert rows(tmp_path, b"\xef\xbb\xbfn,m\n1,2\n") == [{"n": 1, "m": 2}]


def test_a_header_that_names_a_column_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="more than one column named 'n'"):
        rows(tmp_path, "n,m,n\n1,2,3\n")


@pytest.mark.parametrize("content", [b"n,\xff\n1,2\n", b'"n,m\n1,2\n'])
def test_an_unreadable_header_is_told_with_the_file(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"a\.csv cannot be read.*header"):
        rows(tmp_path, content)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_an_empty_line_is_a_record_where_there_is_one_column(end: str, tmp_path: Path) -> None:
    lines = ["n", "1", "", "3", ""]
    assert rows(tmp_path, end.join([*lines, ""])) == [{"n": 1}, {"n": None}, {"n": 3}, {"n": None}]
    assert rows(tmp_path, end.join([*lines, "a,b", "", "4", ""])) == [
        {"n": 1},
        {"n": None},
        {"n": 3},
        {"n": None},
        Bad("a,b"),
        {"n": None},
        {"n": 4},
    ]


@pytest.mark.parametrize(
    "values",
    [
        ["12345678901234567891", "12345678901234567892"],
        ["1", "-9223372036854775809"],
        ["9" * 5000, "1"],
        ["00501", "2134"],
        ["2134", "00"],
    ],
)
def test_whole_numbers_that_would_change_as_numbers_are_text(values: list[str], tmp_path: Path) -> None:
    content = "id,n\n" + "".join(f"{value},1\n" for value in values) + ",2\n"
    assert [row["id"] for row in rows(tmp_path, content)] == [*values, None]
    assert rows(tmp_path, content)[0]["n"] == 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [("9223372036854775807", 2**63 - 1), ("-9223372036854775808", -(2**63)), ("0", 0), ("0.5", 0.5), ("1e30", 1e30)],
)
def test_other_numbers_are_numbers(value: str, expected: float, tmp_path: Path) -> None:
    assert rows(tmp_path, f"n,t\n{value},x\n") == [{"n": expected, "t": "x"}]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("bool", "1", True),
        ("date", "2013-01-31", date(2013, 1, 31)),
        ("float64", "1", 1.0),
        ("int64", "00501", 501),
        ("str", "1", "1"),
        ("time", "05:30:00", time(5, 30)),
        ("timestamp", "2013-01-31", datetime(2013, 1, 31)),  # noqa: DTZ001
        ("timestamp_utc", "2013-01-31T05:00:00Z", datetime(2013, 1, 31, 5, tzinfo=timezone.utc)),  # noqa: UP017
    ],
)
def test_the_type_of_a_column_can_be_given(name: str, text: str, expected: Any, tmp_path: Path) -> None:
    for content in (f"n,m\n{text},1\n", f"n,m\n,1\n{text},1\n"):
        row = rows(tmp_path, content, types={"n": name})[-1]
        assert row == {"n": expected, "m": 1}
        assert type(row["n"]) is type(expected)


@pytest.mark.parametrize("kind", ["int64", "float64", "date", "timestamp_utc", "decimal"])
def test_it_says_the_type_in_the_word_of_types(kind: Any, tmp_path: Path) -> None:
    source = Files(file_with(tmp_path, "a.csv", "n\nx\n"), types={"n": kind})
    part = source.build_part(source.list_parts()[0], None)
    with pytest.raises(MalformedRecord, match=f"column 'n' does not read as {kind}, the type given for it in types="):
        part.poll(1)
    part.close()


def test_a_type_for_a_column_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"a\.csv has no column 'm', which types= names"):
        rows(tmp_path, "n\n1\n", types={"m": "str"})


def test_a_type_given_later_goes_before_the_one_in_a_position(tmp_path: Path) -> None:
    path = file_with(tmp_path, "a.csv", "n\n1\n2.5\n")
    part = Files(path, types={"n": "int64"}).build_part(Part(str(path)), None)
    assert poll_once(part, 1) == [{"n": 1}]
    resumed = Files(path, types={"n": "float64"}).build_part(Part(str(path)), part.snapshot())
    assert poll_once(resumed, 1) == [{"n": 2.5}]
    part.close()
    resumed.close()


def test_a_header_with_an_endless_name_is_told_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"a\.csv cannot be read: a column name in its CSV header is longer than"):
        rows(tmp_path, "n" * 200_000 + "\n1\n")


@pytest.mark.parametrize("value", ["+4915112345678", "0x1F", "0X1f", "-0", "+1", "007"])
def test_numbers_that_are_written_otherwise_than_numbers_are_text(value: str, tmp_path: Path) -> None:
    assert rows(tmp_path, f"n,m\n1,1\n{value},2\n") == [{"n": "1", "m": 1}, {"n": value, "m": 2}]


def test_times_of_nine_digits_are_times_if_microseconds_hold_them_and_text_otherwise(tmp_path: Path) -> None:
    content = "at,n\n2024-01-31 12:00:00.123456000,1\n2024-01-31 12:00:00.5,2\n"
    assert [row["at"].microsecond for row in rows(tmp_path, content)] == [123456, 500000]
    later = "at,n\n2024-01-31 12:00:00,1\n2024-01-31 12:00:00.000001000,2\n2024-01-31 12:00:00.000000001,3\n"
    assert [type(row["at"]) for row in rows(tmp_path / "l", later)] == [str] * 3
    given = {"types": {"at": "timestamp"}}
    found = rows(tmp_path / "g", later, **given)
    assert found[1]["at"] == datetime(2024, 1, 31, 12, 0, 0, 1)  # noqa: DTZ001
    assert found[2] == Bad("2024-01-31 12:00:00.000000001,3")
    clock = "t,n\n12:00:00.123456000,1\n12:00:00.123456789,2\n"
    assert [row["t"] for row in rows(tmp_path / "c", clock)] == ["12:00:00.123456000", "12:00:00.123456789"]
    assert rows(tmp_path / "t", clock, types={"t": "time"}) == [
        {"t": time(12, 0, 0, 123456), "n": 1},
        Bad("12:00:00.123456789,2"),
    ]


def test_a_time_of_day_with_a_zone_keeps_it_as_text_or_is_refused(tmp_path: Path) -> None:
    assert rows(tmp_path, "t,n\n12:00:00+02:00,1\n") == [{"t": "12:00:00+02:00", "n": 1}]
    assert rows(tmp_path / "t", "t,n\n12:00:00+02:00,1\n", types={"t": "time"}) == [Bad("12:00:00+02:00,1")]


def test_decimals_are_exact(tmp_path: Path) -> None:
    content = "price,n\n0.1,1\n12345678901234567890.123456789,2\n0.0000000001,3\n,4\nx,5\n"
    found = rows(tmp_path, content, types={"price": "decimal"})
    assert found == [
        {"price": Decimal("0.1"), "n": 1},
        {"price": Decimal("12345678901234567890.123456789"), "n": 2},
        Bad("0.0000000001,3"),
        {"price": None, "n": 4},
        Bad("x,5"),
    ]


@pytest.mark.parametrize("value", ["0000-01-01", "0000-01-01 00:00:00"])
@pytest.mark.parametrize("more", ["", ",b,c,d"])
def test_a_value_that_python_cannot_hold_is_a_malformed_record(value: str, more: str, tmp_path: Path) -> None:
    end = ",1,1,1" if more else ""
    content = f"day,a{more}\n2024-01-01,x{end}\n{value},x{end}\n"
    kind: Any = "timestamp" if ":" in value else "date"
    found = rows(tmp_path, content, types={"day": kind}, columns=["day"])
    assert found[1] == Bad(f"{value},x{end}")
    part = Files(tmp_path / "a.csv", types={"day": kind}).build_part(Part(str(tmp_path / "a.csv")), None)
    assert part.poll(1) is not None
    with pytest.raises(MalformedRecord, match=r"a\.csv, record 2: column 'day' has a date or time that is not within"):
        part.poll(1)
    part.close()
