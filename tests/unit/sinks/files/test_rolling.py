"""Open files: one per folder, a bounded number, each finished once and none left over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from malstrom_py.sinks.files.staging import Staging
from malstrom_py.sinks.files.writer import OPEN_MAX, RollingFiles
from tests.unit.sinks.writing import everything


@pytest.fixture
def files(tmp_path: Path) -> Iterator[RollingFiles]:
    files = RollingFiles(Staging(tmp_path, "job", "out"), "json", file_bytes_max=10)
    yield files
    files.discard()


def test_a_folder_has_one_open_file(files: RollingFiles) -> None:
    assert "a=1" not in files
    assert files.current("a=1") is files.current("a=1")
    assert files.current("") is not files.current("a=1")
    assert "a=1" in files


def test_the_one_that_was_not_written_for_longest_is_finished(files: RollingFiles) -> None:
    for number in range(OPEN_MAX):
        files.current(f"a={number}")
    files.current("a=0")
    files.current("a=more")
    assert "a=0" in files
    assert "a=1" not in files
    assert [file.folder for file in files.written] == ["a=1"]


def test_a_file_rolls_at_its_size(files: RollingFiles) -> None:
    for content, is_open in ((b"x" * 9, True), (b"x", False)):
        files.current("").stream.write(content)
        files.roll("")
        assert ("" in files) is is_open
    assert [file.path.stat().st_size for file in files.written] == [10]


def test_one_file_takes_the_place_of_another(files: RollingFiles) -> None:
    for folder in ("a=1", "a=2", "a=1"):
        files.current(folder).stream.write(b"old")
        files.finish(folder)
    old = files.written[0]
    files.current("a=1").stream.write(b"new")
    files.replace(old, files.finish("a=1"))
    assert [(file.folder, file.path.read_bytes()) for file in files.written] == [
        ("a=1", b"new"),
        ("a=2", b"old"),
        ("a=1", b"old"),
    ]
    assert not old.path.exists()


def test_what_is_discarded_leaves_nothing(tmp_path: Path) -> None:
    files = RollingFiles(Staging(tmp_path, "job", "out"), "json", file_bytes_max=10)
    files.current("a=1").stream.write(b"x")
    files.finish("a=1")
    files.current("a=2")
    files.discard()
    assert everything(tmp_path) == []
    assert files.written == []
