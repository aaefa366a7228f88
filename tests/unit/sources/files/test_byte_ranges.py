"""Byte ranges: each record belongs to the range of its first byte, found without reading the whole file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from malstrom_py.errors import SourceError
from malstrom_py.sources.files import frames as byte_ranges
from malstrom_py.sources.files.frames import CSV_LINE_END, LINE_END, record_bounds
from tests.unit.sources.reading import file_with


def starts(content: bytes, line_end: re.Pattern[bytes], begin: int) -> list[int]:
    """Return the offsets of the records of ``content``, read from its start."""
    found = [begin, *(match.end() for match in line_end.finditer(content, begin))]
    return [start for start in found if start < len(content)]


@given(
    content=st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"a", b"word"]), min_size=1).map(b"".join),
    size=st.integers(1, 12),
    chunk=st.integers(1, 5),
    is_csv=st.booleans(),
)
@example(content=b"a\r\n\r\nb", size=2, chunk=1, is_csv=True)
def test_ranges_together_have_every_record_once(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, size: int, chunk: int, is_csv: bool
) -> None:
    line_end = CSV_LINE_END if is_csv else LINE_END
    # The header, if there is one, is the first line.
    begin = min(starts(content, line_end, 0)[1:2], default=len(content)) if is_csv else 0
    path = file_with(tmp_path_factory.mktemp("ranges"), "a", content)
    records = starts(content, line_end, begin)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(byte_ranges, "_CHUNK_BYTES", chunk)
        for start in range(0, len(content), size):
            mine = [record for record in records if start <= record < start + size]
            first, stop = record_bounds(path, start, start + size, begin=begin, line_end=line_end)
            behind = min((record for record in records if record >= start + size), default=len(content))
            if mine:
                assert (first, stop) == (mine[0], behind)
            else:
                assert first == stop


def test_a_file_that_ends_before_the_range_is_told(tmp_path: Path) -> None:
    path = file_with(tmp_path, "a.txt", "short\n")
    with pytest.raises(SourceError, match="it has 6 bytes, and its part begins at byte 6: the file changed"):
        record_bounds(path, 6, 9, begin=0, line_end=LINE_END)
