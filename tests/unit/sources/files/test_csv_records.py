"""CSV: the bounds of records, checked against a reader that goes character by character, and records that are lines."""

from __future__ import annotations

import csv
import io

import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malstrom_py.sources.files.csv_records import cut_csv_lines, cut_records, split_lines, split_records

TRICKY = st.text(alphabet='a",\n\r', max_size=40).map(str.encode)


def read_by_character(text: bytes) -> tuple[list[tuple[int, int]], int, bool]:
    """Return the spans of complete records, the start of the rest, and whether it is inside quotes."""
    spans, position, start, at_field, quoted = [], 0, 0, True, False
    while position < len(text):
        here, behind = text[position : position + 1], text[position + 1 : position + 2]
        position += 1
        if quoted:
            position += here == behind == b'"'
            quoted = here != b'"' or behind == b'"'
        elif here == b'"' and at_field:
            quoted, at_field = True, False
        elif here in {b"\n", b"\r"}:
            position += here + behind == b"\r\n"
            spans.append((start, position))
            start, at_field = position, True
        else:
            at_field = here == b","
    return spans, start, quoted


@settings(max_examples=100, deadline=None)
@given(TRICKY)
def test_records_end_where_a_reading_by_character_says(text: bytes) -> None:
    spans, rest, quoted = read_by_character(text)
    # A final \r may be half of a line end.
    sure = [end for _, end in spans if not (end == len(text) and text.endswith(b"\r"))]
    assert cut_records(text, ended=False) == (sure[-1] if sure else 0)
    assert cut_records(text, ended=True) == (rest if quoted else len(text))
    if not quoted:
        spans += [(rest, len(text))] if rest < len(text) else []
        assert split_records(text) == [(start, end) for start, end in spans if text[start:end].strip(b"\r\n")]


@settings(max_examples=100, deadline=None)
@given(st.lists(TRICKY, min_size=1, max_size=5))
def test_arrow_sees_as_many_records(lines: list[bytes]) -> None:
    text = b"\n".join(line + b",x" for line in lines) + b"\n"
    if cut_records(text, ended=True) < len(text):
        return  # The framer handles unclosed quotes.
    records = 0

    def count(row: pa_csv.InvalidRow) -> str:
        nonlocal records
        records += 1
        return "skip"

    pa_csv.read_csv(
        pa.BufferReader(text),
        read_options=pa_csv.ReadOptions(column_names=[str(n) for n in range(100)], use_threads=False),
        parse_options=pa_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=count),
    )
    assert records == len(split_records(text))


def test_an_open_quote_takes_no_time_to_speak_of() -> None:
    # Without possessive patterns the match would backtrack over each of a million lines.
    assert cut_records(b'"' + b'a,"b\n' * 1_000_000, ended=False) >= 0
    assert cut_records(b'a,"' + b"b,c\n" * 1_000_000, ended=False) == 0


ANY = st.text(alphabet='a,"\r\né', max_size=40).map(str.encode)
FIELDS = st.text(alphabet='a,"é ', max_size=6)


@given(frame=ANY)
def test_what_is_split_is_the_frame_line_by_line(frame: bytes) -> None:
    found = list(split_lines(frame))
    assert b"".join(lines for lines, _ in found) == frame
    assert all(lines for lines, _ in found)
    for lines, is_whole in found:
        if not is_whole:
            assert len(lines.splitlines()) == 1
            assert b'"' in lines


@given(rows=st.lists(st.lists(FIELDS, min_size=1, max_size=4), max_size=6), end=st.sampled_from(["\n", "\r\n", "\r"]))
def test_lines_as_csv_writers_write_them_are_whole(rows: list[list[str]], end: str) -> None:
    written = io.StringIO()
    csv.writer(written, lineterminator=end).writerows(rows)
    assert all(is_whole for _, is_whole in split_lines(written.getvalue().encode()))


@pytest.mark.parametrize("line", [b'"', b'a"', b'a,"b', b'"a"b', b'a""', b'"""', b'a, "b"'])
def test_a_line_whose_quotes_make_no_whole_fields_is_found_between_others(line: bytes) -> None:
    frame = b'1,"x"\n' + line + b'\n"",2'
    assert list(split_lines(frame)) == [(b'1,"x"\n', True), (line + b"\n", False), (b'"",2', True)]


@given(window=ANY)
def test_a_cut_is_behind_a_line_end_that_is_no_half_of_one(window: bytes) -> None:
    cut = cut_csv_lines(window, ended=False)
    assert window[:cut] == b"" or window[:cut].endswith((b"\n", b"\r"))
    assert not (window[:cut].endswith(b"\r") and (window[cut:].startswith(b"\n") or cut == len(window)))
    assert b"\n" not in window[cut:]
    assert cut_csv_lines(window, ended=True) == len(window)
