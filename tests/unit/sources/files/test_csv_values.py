"""CSV: the bad records of a frame are those that Python's rules, and Arrow for each record alone, call bad."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malstrom_py import Job, collect
from malstrom_py.data.batch import ColumnBatch
from malstrom_py.sources.files import Files
from malstrom_py.sources.files.csv import ColumnType, CsvDecoder, arrow_type
from malstrom_py.sources.files.csv_records import Dialect
from malstrom_py.sources.files.frames import BadRecord, Run
from tests.unit.sources.reading import file_with, runs_of

TEXTS: dict[ColumnType, Sequence[str]] = {
    "int64": [
        "1", "-0", "+1", "0x1F", "-0x1F", "0x", " 7\t", "1.0", "x", "9223372036854775808", "-9223372036854775808",
        "9223372036854775807", "0" * 30 + "1", "9" * 19, "9" * 20, "0x" + "F" * 16, "0x1" + "F" * 16, "1 2", "-",
    ],
    "float64": [
        "1", "+1", "1e", "1e5", ".5", "5.", ".", "-inf", "Infinity", "nan(1)", "nan(1", "0x1p3", " 1 ", "1_0", "1e400",
        "NaN", "1,5", "infinit", "1e+5", "e5",
    ],
    "decimal": ["0.1", "0.0000000001", "1e3", "nan", "9" * 40, "+.5", "x"],
    "bool": ["true", "tRue", "1", " 1", "TRUE", "yes", "0", "False"],
    "date": ["2024-02-29", "2023-02-29", "2024-13-01", " 2024-01-01", "20240101", "0000-01-01", "31.01.2024"],
    "time": ["00:00", "23:59:59.999999", "24:00", "000000", " 12:00:00", "12:00:00.123456000", "12:00:00.123456789"],
    "timestamp": [
        "2024-01-01", "2024-01-01 00", "2024-01-01T00:00", "2024-01-01 00:00:00.123456000", "0000-01-01",
        "2024-01-01 00:00:00Z", "2024-01-01 00:00:00.123456789", "2024-01-01 24:00:00", " 2024-01-01", "2024-02-30",
    ],
    "timestamp_utc": [
        "2024-01-01 00:00:00Z", "2024-01-01 00:00:00", "2024-01-01 00:00:00+01:00", "2024-01-01Z", "2024-01-01 00Z",
        "2024-01-01 00:00:00+0100", "2024-01-01 00:00:00+24:00", "2024-01-01 00:00:00 Z",
    ],
    "str": ["", "a", "é", "\udcff", "\udcc3", "\udced\udca0\udc80", "𝄞", "\udcc0\udc80"],
}  # fmt: skip


def decoder(names: Sequence[str], kinds: Sequence[ColumnType], **options: Any) -> CsvDecoder:
    schema = pa.schema([(name, arrow_type(kind)) for name, kind in zip(names, kinds, strict=True)])
    return CsvDecoder(names, schema, names, **options)


def rows_of(runs: Sequence[Run]) -> list[Any]:
    found: list[Any] = []
    for run in runs_of(runs):
        found += [run] if isinstance(run, BadRecord) else run.to_pylist()
    return found


def encoded(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


VALUES = st.sampled_from(sorted(TEXTS)).flatmap(
    lambda kind: st.tuples(
        st.just(kind),
        st.lists(
            st.sampled_from(TEXTS[kind]) | st.text(alphabet="019-+.:eE xZTnaif\t", max_size=12), min_size=1, max_size=8
        ),
    )
)


@settings(max_examples=30, deadline=None)
@given(VALUES)
def test_bad_values_are_those_that_are_bad_alone(case: tuple[ColumnType, list[str]]) -> None:
    kind, texts = case
    lines = [b'%d,"%s"\n' % (row, encoded(text)) for row, text in enumerate(texts)]
    # Of a file with bad records the decoder does not ask Arrow first, so each line has its own.
    alone = [row for line in lines for row in rows_of(decoder(["n", "v"], ["int64", kind]).runs(line))]
    decode = decoder(["n", "v"], ["int64", kind])
    for _ in range(2):
        assert str(rows_of(decode.runs(b"".join(lines)))) == str(alone)  # NaN is not equal to itself


def as_number(read: Callable[[str], Any], text: str) -> Any:
    """Return the number, None for an empty field; ValueError: it is none by Python's rules, or an int of 64 bits."""
    if not text:
        return None
    if "_" in text or text.strip(" \t") != text.strip():
        raise ValueError(text)
    value = read(text)
    if isinstance(value, int) and (text.strip().startswith("+") or not -(1 << 63) <= value < 1 << 63):
        raise ValueError(text)
    return value


FIELDS = st.sampled_from(
    ["", "1", "-2", "x", "1.5", "a b", '"q""q"', '"3"', "99999999999999999999", " 4", "1\x0b", "é"]
)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(FIELDS, min_size=2, max_size=4), min_size=1, max_size=12))
def test_bad_records_are_those_of_pythons_rules(records: list[list[str]]) -> None:
    expected: list[Any] = []
    lines = [",".join(fields) for fields in records]
    for line in lines:
        fields = next(csv.reader(io.StringIO(line)))
        try:
            whole, number, text = fields
            expected.append((as_number(int, whole), as_number(float, number), text or None))
        except ValueError:
            expected.append(line)
    found = rows_of(decoder(["a", "b", "c"], ["int64", "float64", "str"]).runs("\n".join(lines).encode()))
    assert [row.record if isinstance(row, BadRecord) else tuple(row.values()) for row in found] == expected


SEMICOLON = Dialect(delimiter=";", decimal=",")
NUMBERS: dict[str, Any] = {"kinds": ["int64", "float64", "str"], "dialect": SEMICOLON}
TIMES: dict[str, Any] = {"kinds": ["date", "timestamp", "decimal"], "timezone": "Europe/Berlin"}


@pytest.mark.parametrize(
    ("good", "bad", "options"),
    [
        ("1;1,5;t", ["x;1;t", "1;1.5;t", "1;2;\udcff", "1;2", "1;2;3;4", "18446744073709551615;1;t"], NUMBERS),
        (
            "2024-01-31,2024-02-29 00:00:00,1.500000000",
            [
                "2023-02-29,2024-01-01 00:00:00,1",
                "0000-01-01,2024-01-01 00:00:00,1",
                "2024-01-01,2024-10-27 02:30:00,1",
                "2024-01-01,2024-03-31 02:30:00,1",
                "2024-01-01,0000-12-31 00:00:00,1",
                "2024-01-01,2024-01-01 00:00:00,0.0000000001",
            ],
            TIMES,
        ),
        (
            '1;1,5;"t"',
            ['1;1,5;"t', '"1;1,5;t', '1;"1,5"x;t'],
            {**NUMBERS, "dialect": replace(NUMBERS["dialect"], one_line=True)},
        ),
    ],
)
def test_a_frame_with_bad_values_is_not_taken_apart(
    good: str, bad: list[str], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = decoder(["a", "b", "c"], **options)
    frame = b"".join(encoded(f"{line}\n{good}\n") for line in bad * 50)
    times: list[int] = []
    parse = CsvDecoder._parse

    def counted(self: CsvDecoder, part: Any) -> Any:
        times.append(len(part))
        return parse(self, part)

    monkeypatch.setattr(CsvDecoder, "_parse", counted)
    found = rows_of(decode.runs(frame))
    assert [isinstance(row, BadRecord) for row in found] == [True, False] * (50 * len(bad))
    assert len(times) <= 6
    again = rows_of(decode.runs(frame))
    assert again == found
    alone = [row for line in bad for row in rows_of(decoder(["a", "b", "c"], **options).runs(encoded(line)))]
    assert found[::2] == alone * 50


@pytest.mark.parametrize("on_error", ["skip", "dead-letter"])
def test_rows_among_bad_records_stay_in_one_batch(on_error: Any, tmp_path: Path) -> None:
    lines = [f"{n},{'x' if n % 2 else n}\n" for n in range(1000)]
    path = file_with(tmp_path, "a.csv", "n,m\n" + "".join(lines))
    job = Job("sift")
    rows = job.source("in", Files(path, types={"n": "int64", "m": "int64"}), on_error=on_error)
    letters = job.dead_letters("in") if on_error == "dead-letter" else None
    assert collect(rows) == [{"n": n, "m": n} for n in range(0, 1000, 2)]
    if letters is not None:
        found = collect(letters)
        assert [letter.value for letter in found] == [f"{n},x" for n in range(1, 1000, 2)]
        assert [re.search(r"record (\d+): column 'm'", letter.error)[1] for letter in found[:2]] == ["2", "4"]  # type: ignore[index]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_part_resumes_among_bad_records(size: int, tmp_path: Path) -> None:
    good = [bool(n % 3 % 2 or n % 5 == 0) for n in range(40)]
    lines = [f"{n},{n if one else 'x'}\n" for n, one in enumerate(good)]
    path = file_with(tmp_path, "a.csv", "n,m\n" + "".join(lines))
    source = Files(path, types={"n": "int64", "m": "int64"})
    name, position, bad = source.list_parts()[0], None, 0
    found: list[int] = []
    for _ in range(len(good)):
        part: Any = source.build_part(name, position)
        part.set_polls(frames=False, bad_rows=True)
        polled = part.poll(size)
        if polled is not None:
            rows, count, errors = polled
            assert len(list(errors)) == count
            bad += count
            columns = getattr(rows, "columns", None) if isinstance(rows, ColumnBatch) else rows
            found += [] if columns is None else [row["n"] for row in columns.to_pylist()]
        position = part.snapshot()
        part.close()
    assert found == [n for n, one in enumerate(good) if one]
    assert bad == good.count(False)


class Pair(NamedTuple):
    n: int
    m: int


def test_rows_with_none_among_bad_records_keep_their_places(tmp_path: Path) -> None:
    lines = [f"{n},{'x' if n % 5 == 1 else '' if n % 3 == 1 else n}\n" for n in range(60)]
    path = file_with(tmp_path, "a.csv", "n,m\n" + "".join(lines))
    job = Job("sift")
    rows = job.source("in", Files(path, rows=Pair), on_error="dead-letter")
    letters = job.dead_letters("in")
    assert collect(rows) == [Pair(n, n) for n in range(60) if n % 5 != 1 and n % 3 != 1]
    bad = [n for n in range(60) if n % 5 == 1 or n % 3 == 1]
    found = collect(letters)
    assert [int(re.search(r"record (\d+):", letter.error)[1]) - 1 for letter in found] == bad  # type: ignore[index]
    assert [letter.value for letter in found] == [f"{n},x" if n % 5 == 1 else {"n": n, "m": None} for n in bad]


def texts_of_numbers(path: Path, caplog: pytest.LogCaptureFixture, on_error: Any, **options: Any) -> list[str]:
    caplog.clear()
    job = Job("warned")
    with caplog.at_level("WARNING", "malstrom_py.sources"):
        collect(job.source("in", Files(path, **options), on_error=on_error))
    return [record.getMessage() for record in caplog.records if "read as numbers" in record.getMessage()]


def test_a_column_of_numbers_that_one_value_made_text_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [f"{'1,5' if n == 70 else n};{n:05};{'a' if n % 5 else n};{n}\n" for n in range(100)]
    path = file_with(tmp_path, "a.csv", "amount;zip;text;n\n" + "".join(lines))
    for on_error in ("skip", "dead-letter"):
        (text,) = texts_of_numbers(path, caplog, on_error, delimiter=";")
        assert "column 'amount' is text, though 99.0 % of its first values" in text
        assert "types={'amount': 'float64'}" in text
    assert not texts_of_numbers(path, caplog, "fail", delimiter=";")
    assert not texts_of_numbers(path, caplog, "skip", delimiter=";", types={"amount": "str"})
