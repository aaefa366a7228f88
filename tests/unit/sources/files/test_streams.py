"""Bytes of a file from any offset, compressed or not; lines of text and JSON; names of sections."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.errors import SourceError
from malstrom_py.sources.files.frames import BadRecord
from malstrom_py.sources.files.lines import json_runs, text_runs
from malstrom_py.sources.files.listing import Section, section_of
from malstrom_py.sources.files.streams import READ_ERRORS, ByteStream, why_unreadable
from tests.unit.sources.reading import file_with

CONTENT = b"".join(b"%d\n" % n for n in range(60_000))
BOM = b"\xef\xbb\xbf"


def read(path: Path, offset: int = 0) -> bytes:
    stream = ByteStream(path)
    try:
        stream.skip_to(offset)
        assert stream.offset == max(offset, stream.offset)
        found = b"".join(iter(stream.read, b""))
        assert stream.read() == b""
        return found
    finally:
        stream.close()


def packed(folder: Path, suffix: str, content: bytes) -> Path:
    if suffix == ".gz":
        content = gzip.compress(content)
    if suffix == ".zst":
        content = pa.compress(content, "zstd", asbytes=True)
    return file_with(folder, f"file.txt{suffix}", content)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("offset", [0, 1, 2, 3, 4, 1000, 65_536, 65_537, 200_000, len(CONTENT)])
def test_reading_begins_at_any_offset(suffix: str, offset: int, tmp_path: Path) -> None:
    assert read(packed(tmp_path, suffix, CONTENT), offset) == CONTENT[offset:]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("content", [b"", b"a", b"ab", b"abc", b"abcd"])
def test_small_files_are_read_whole(suffix: str, content: bytes, tmp_path: Path) -> None:
    assert read(packed(tmp_path, suffix, content)) == content


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_a_byte_order_mark_is_dropped_and_counted(suffix: str, tmp_path: Path) -> None:
    path = packed(tmp_path, suffix, BOM + b"abc")
    assert read(path, 3) == b"abc"
    stream = ByteStream(path)
    assert stream.offset == 3
    assert stream.read() == b"abc"
    stream.close()


def test_members_of_a_gz_file_are_read_one_after_the_other(tmp_path: Path) -> None:
    assert read(file_with(tmp_path, "a.gz", gzip.compress(b"one") + gzip.compress(b"two"))) == b"onetwo"


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_file_shorter_than_the_saved_position_is_told(suffix: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="changed since"):
        read(packed(tmp_path, suffix, b"short"), 100)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_cut_off_and_damaged_data_are_told_apart(suffix: str, tmp_path: Path) -> None:
    whole = packed(tmp_path, suffix, CONTENT).read_bytes()
    damaged = whole[:4] + b"\xff" * 200 + whole[204:]
    for content, expected in ((whole[:-20], "cut off"), (damaged, "damaged"), (b"no compression at all", "damaged")):
        with pytest.raises(READ_ERRORS) as raised:
            read(file_with(tmp_path, f"broken{suffix}", content))
        assert expected in why_unreadable(raised.value)


def test_why_a_file_cannot_be_opened(tmp_path: Path) -> None:
    loop = tmp_path / "loop.txt"
    loop.symlink_to(loop)
    for path, expected in ((tmp_path / "none.txt", "does not exist"), (tmp_path, "folder"), (loop, "symbolic links")):
        with pytest.raises(OSError) as raised:  # noqa: PT011
            ByteStream(path)
        assert expected in why_unreadable(raised.value)
    assert "permissions" in why_unreadable(PermissionError(13, "Permission denied"))


@pytest.mark.parametrize("stop", [0, 1, 2, 3, 4, 1000, 65_536, 65_537, len(CONTENT), len(CONTENT) + 9])
def test_reading_ends_where_it_is_to_stop(stop: int, tmp_path: Path) -> None:
    for head in (b"", BOM):
        path = file_with(tmp_path, "file.txt", head + CONTENT)
        for offset in (0, 5, 65_000):
            stream = ByteStream(path, stop=stop)
            stream.skip_to(min(offset, stop))
            assert b"".join(iter(stream.read, b"")) == (head + CONTENT)[max(offset, len(head)) : stop]
            stream.close()


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


FILES = st.text(max_size=20) | st.tuples(
    st.text(max_size=5),
    st.sampled_from(["#whole", "#bytes=0-5", "#rowgroups=1-2", "#bytes=0-", "#whole\n", "#bytes=0-٣"]),
).map("".join)
SECTIONS = st.builds(Section, FILES) | st.builds(
    Section, FILES, st.sampled_from(["bytes", "rowgroups"]), st.integers(0, 10**15), st.integers(0, 10**15)
)


@given(section=SECTIONS)
def test_a_section_comes_back_from_the_name_of_its_part(section: Section) -> None:
    assert section_of(section.part) == section


@pytest.mark.parametrize(
    "file", ["a.csv", "folder/a b#c.txt", "#", "a#bytes=", "a#bytes=1-2.csv", "x#bytes=" + "9" * 5000]
)
def test_a_whole_file_goes_by_its_path(file: str) -> None:
    assert Section(file).part == file
    assert section_of(file) == Section(file)
