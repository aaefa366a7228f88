"""CSV by lines: every line is a record, and one whose quotes do not make whole fields is malformed."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.sources.files.csv import cut_csv_lines, split_lines

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
