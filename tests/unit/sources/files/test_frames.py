"""Frames: whole records, the same from any frame's offset on, in bounded memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from malstrom_py.sources.files import frames
from malstrom_py.sources.files.csv_records import cut_records
from malstrom_py.sources.files.frames import Cut, Framer, RecordFrame
from malstrom_py.sources.files.lines import cut_lines
from malstrom_py.sources.files.streams import ByteStream
from tests.unit.sources.reading import file_with

if TYPE_CHECKING:
    import pytest


def frames_of(path: Path, *, cut: Cut = cut_lines, offset: int = 0) -> list[RecordFrame]:
    stream = ByteStream(path)
    stream.skip_to(offset)
    framer = Framer(stream, cut)
    found = list(iter(framer.next_frame, None))
    framer.close()
    return found


def test_a_line_that_is_too_long_is_left_out_and_the_next_ones_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "FRAME_BYTES", 1 << 10)
    monkeypatch.setattr(frames, "RECORD_BYTES_MAX", 1 << 14)
    path = file_with(tmp_path, "a.txt", b"first\n" + b"x" * 300_000 + b"\nlast\n")
    before, flaw, after = frames_of(path)
    assert (before.data, after.data) == (b"first\n", b"last\n")
    assert flaw.flaw is not None
    assert "longer" in flaw.flaw
    assert len(flaw.data) <= 4096
    assert frames_of(path, offset=flaw.offset) == [flaw, after]


def test_a_quote_that_is_never_closed_costs_its_line(tmp_path: Path) -> None:
    path = file_with(tmp_path, "b.csv", b'1,good\n2,"open\n3,good\n4,good\n')
    assert [(frame.data, frame.flaw is None) for frame in frames_of(path, cut=cut_records)] == [
        (b"1,good\n", True),
        (b'2,"open\n', False),
        (b"3,good\n4,good\n", True),
    ]


def test_frames_of_any_sizes_have_the_same_records(tmp_path: Path) -> None:
    content = b"".join(b"%d,%s\n" % (n, b"x" * (n % 3000)) for n in range(2000))
    path = file_with(tmp_path, "a.txt", content)
    for size in (0, 100_000, 1 << 30):
        framer, found = Framer(ByteStream(path), cut_lines), list[RecordFrame]()
        while (frame := framer.next_frame(size)) is not None:
            found.append(frame)
        framer.close()
        assert b"".join(frame.data for frame in found) == content
        assert max(len(frame.data) for frame in found) <= min(max(size, frames.FRAME_BYTES_MIN), frames.FRAME_BYTES)
