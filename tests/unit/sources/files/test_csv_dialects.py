"""Csv with another delimiter, header, encoding, comments or decimal comma. Python's csv is the oracle."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.errors import PlanError, SourceError
from malstrom_py.sources.files import Files
from malstrom_py.testing.contracts import check_source
from tests.unit.sources.reading import Bad, file_with, poll_once, read_source

VALUES = st.text(st.sampled_from("ab,;\t|\"'#\n\r é"), max_size=6)
TABLES = st.lists(st.lists(VALUES, min_size=3, max_size=3), min_size=1, max_size=12)


@given(
    table=TABLES, separator=st.sampled_from(",;\t|"), encoding=st.sampled_from(["utf-8", "latin-1", "utf-16"]), one=...
)
def test_values_are_those_that_python_writes(
    table: list[list[str]], separator: str, encoding: str, one: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if one:
        table = [[value.replace("\n", "").replace("\r", "") for value in row] for row in table]
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=separator, quoting=csv.QUOTE_ALL).writerows(table)
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes(text.getvalue().encode(encoding))
    names = ["x", "y", "z"]
    read = Files(
        path,
        delimiter=separator,
        encoding=encoding,
        header=False,
        names=names,
        types=dict.fromkeys(names, "str"),
        newlines_in_values=not one,
        split_bytes=16,
        comment="#",
    )
    assert read_source(read) == [dict(zip(names, row, strict=True)) for row in table]


def test_a_file_of_a_spreadsheet_in_german(tmp_path: Path) -> None:
    content = '# Umsätze\nfür;preis;datum\nBär;1,50;2024-01-01\n# Pause; "\nA#1;-1.000;2024-01-02\n"x;\n#y";;\n'
    path = file_with(tmp_path, "a.csv", content.encode("cp1252"))
    options: dict[str, Any] = {"delimiter": ";", "decimal": ",", "encoding": "cp1252", "comment": "#"}
    rows = read_source(Files(path, **options))
    assert [row["für"] for row in rows] == ["Bär", "A#1", "x;\n#y"]
    assert [row["preis"] for row in rows] == ["1,50", "-1.000", None]
    some = file_with(tmp_path, "b.csv", content.replace("1.000", "1,25").encode("cp1252"))
    assert [row["preis"] for row in read_source(Files(some, **options))] == [1.5, -1.25, None]
    exact = read_source(Files(some, **options, types={"preis": "decimal"}, columns=["preis"]))
    assert [str(row["preis"]) for row in exact] == ["1.500000000", "-1.250000000", "None"]


def test_positions_are_exact_in_every_dialect(tmp_path: Path) -> None:
    content = "".join(f"# note {number}\n{number};é{number}\n" for number in range(30))
    path = file_with(tmp_path, "a.csv", content.encode("utf-16"))
    source = Files(path, delimiter=";", header=False, names=["n", "t"], encoding="utf-16", comment="#", split_bytes=50)
    assert read_source(source) == [{"n": number, "t": f"é{number}"} for number in range(30)]
    check_source(source)
    parts = Files(path, delimiter=";", names=["n", "t"], comment="#", newlines_in_values=False, split_bytes=50)
    path.write_text("n;t\n" + content)
    assert len(parts.list_parts()) > 5
    assert read_source(parts) == [{"n": number, "t": f"é{number}"} for number in range(30)]
    check_source(parts)


def test_a_followed_folder_takes_the_same_options(tmp_path: Path) -> None:
    source = Files(tmp_path / "*.csv", follow=True, delimiter="\t", names=["n", "t"], comment="%", decimal=",")
    (part,) = source.list_parts()
    opened = source.build_part(part, None)
    file_with(tmp_path, "a.csv", "% written by hand\na\tb\n1,5\tx\n")
    file_with(tmp_path, "b.csv", "A\tB\n% more\n2\ty\n")
    assert [*poll_once(opened, 10), *poll_once(opened, 10)] == [{"n": 1.5, "t": "x"}, {"n": 2.0, "t": "y"}]
    opened.close()


def test_bytes_that_are_no_text_are_malformed(tmp_path: Path) -> None:
    path = file_with(tmp_path, "a.csv", b"n,t\n1,\x80\n2,\x81\n3,x\n")
    found = read_source(Files(path, encoding="cp1252"))
    assert found == [{"n": 1, "t": "€"}, Bad(b"2,\xff"), {"n": 3, "t": "x"}]
    lines = file_with(tmp_path, "a.txt", "ä\r\nö\n".encode("utf-16-le"))
    assert read_source(Files(lines, encoding="utf-16-le")) == ["ä", "ö"]


@pytest.mark.parametrize("sign", [";", "\t", "|"])
def test_a_column_that_seems_to_be_several_is_asked_about(sign: str, tmp_path: Path) -> None:
    path = file_with(tmp_path, "a.csv", f"a{sign}b\n1{sign}2\n")
    part = Files(path).list_parts()[0]
    with pytest.raises(SourceError, match=r"its only column is called.*give delimiter="):
        Files(path).build_part(part, None).poll(1)
    assert read_source(Files(path, delimiter=sign)) == [{"a": 1, "b": 2}]
    assert read_source(Files(path, delimiter=",")) == [{f"a{sign}b": f"1{sign}2"}]


def test_names_replace_those_of_the_header(tmp_path: Path) -> None:
    path = file_with(tmp_path, "a.csv", "a,b\n1,2\n3\n")
    assert read_source(Files(path, names=["x", "y"])) == [{"x": 1, "y": 2}, Bad("3")]
    with pytest.raises(SourceError, match="header has 2 names, and names= has 1"):
        Files(path, names=["x"]).build_part(Files(path).list_parts()[0], None).poll(1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"delimiter": ";;"}, "delimiter must be one ASCII character"),
        ({"delimiter": '"'}, "delimiter must be one ASCII character"),
        ({"delimiter": 1}, "delimiter must be one ASCII character"),
        ({"decimal": ";"}, "decimal must be"),
        ({"decimal": ","}, "decimal and delimiter are both"),
        ({"comment": ""}, "comment must be"),
        ({"comment": ",x"}, "begins with the delimiter"),
        ({"header": None}, "header must be True or False"),
        ({"header": False}, "header=False needs the names"),
        ({"names": ["a", "a"]}, "names must be a list of different names"),
        ({"names": "ab"}, "names must be a list"),
        ({"encoding": "klingon"}, "encoding must be the name"),
        ({"encoding": "base64"}, "encoding must be the name"),
        ({"encoding": 8}, "encoding must be the name"),
        ({"format": "json", "delimiter": ";"}, "delimiter is for csv files"),
        ({"format": "json", "decimal": ",", "delimiter": ";"}, "is for csv files"),
        ({"format": "parquet", "encoding": "latin-1"}, "encoding is for csv, json and text"),
    ],
)
def test_a_wrong_option_is_refused_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        Files("x" if "format" in options else "x.csv", **options)
