"""What several processes write to one pipe: whole lines."""

from __future__ import annotations

import io
import os
from pathlib import Path

from malstrom_py.workers.processes.standard_output import _WHOLE, _WholeLines


class _Recorded(_WholeLines):
    """Records how many bytes each write has taken."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "wb")
        self.taken: list[int] = []

    def write(self, data: object, /) -> int:
        self.taken.append(super().write(data))
        return self.taken[-1]


def test_lines_are_written_whole_as_many_as_a_pipe_takes_at_once(tmp_path: Path) -> None:
    raw = _Recorded(tmp_path / "out")
    lines = b"".join(b"%060d\n" % n for n in range(3000))
    with io.BufferedWriter(raw) as out:
        out.write(lines)
    assert (tmp_path / "out").read_bytes() == lines
    assert all(taken <= _WHOLE and taken % 61 == 0 for taken in raw.taken)
    assert len(raw.taken) < 3000 / 60


def test_a_longer_line_is_written_too(tmp_path: Path) -> None:
    raw = _Recorded(tmp_path / "out")
    data = b"x" * 3 * _WHOLE + b"\nshort\n"
    with io.BufferedWriter(raw) as out:
        out.write(data)
    assert (tmp_path / "out").read_bytes() == data


def test_a_pipe_that_takes_less_gets_the_rest_later() -> None:
    ours, theirs = os.pipe()
    with open(ours, "rb") as reader:  # noqa: PTH123  # a descriptor
        with io.BufferedWriter(_WholeLines(theirs, "wb")) as out:
            out.write(b"one\ntwo\n")
        assert reader.read() == b"one\ntwo\n"
