"""Text and JSON lines: every line is a row, and a bad line does not affect the others."""

from __future__ import annotations

import pytest

from malstrom_py.sources.files.frames import BadRecord
from malstrom_py.sources.files.lines import json_runs, text_runs


def test_text_lines_come_without_their_ends_and_blank_ones_count() -> None:
    assert text_runs("a\r\n\n b\x0bc\u2028d \ré\nend".encode()) == [["a", "", " b\x0bc\u2028d \ré", "end"]]


def test_a_line_that_is_no_utf8_stands_between_the_others() -> None:
    assert text_runs(b"a\nb\xff\r\nc\r\n") == [["a"], BadRecord("not valid UTF-8 text", b"b\xff"), ["c"]]


def test_json_lines_keep_their_own_fields_and_types() -> None:
    assert json_runs(b'{"a": 1, "t": "2013-01-01"}\n\n  \r\n{"b": [1.5, null]}\r\n') == [
        [{"a": 1, "t": "2013-01-01"}, {"b": [1.5, None]}]
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"a": ', "not valid JSON"),
        (b"{'a': 1}", "not valid JSON"),
        (b'{"a": 1} {"b": 2}', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"a": ' + b"1" * 5000 + b"}", "not valid JSON"),
        (b"[1]", "JSON list"),
        (b"5", "JSON int"),
        (b"null", "JSON NoneType"),
        (b'{"a": "\xff"}', "UTF-8"),
    ],
)
def test_what_is_no_json_object_is_malformed(line: bytes, why: str) -> None:
    first, bad, last = json_runs(b'{"n": 1}\n' + line + b'\n{"n": 2}\n')
    assert (first, last) == ([{"n": 1}], [{"n": 2}])
    assert isinstance(bad, BadRecord)
    assert why in bad.why
    assert bad.record in {line, line.decode(errors="replace")}
