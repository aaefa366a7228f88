"""Watched folders: every file once, sorted by name, and exactly the rest after a restore at any position."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from malstrom_py.errors import PlanError, SourceError
from malstrom_py.sources.base import Part, SourcePart
from malstrom_py.sources.files import Files, frames
from malstrom_py.testing.contracts import check_source
from tests.unit.sources.reading import Bad, file_with, poll_once


def followed(source: Files[Any], state: Any = None) -> SourcePart[Any]:
    """Return the one part of ``source``."""
    (part,) = source.list_parts()
    return source.build_part(part, state)


def now(part: SourcePart[Any], size: int = 1000) -> list[Any]:
    """Return all rows available now."""
    found: list[Any] = []
    while rows := poll_once(part, size):
        found += rows
        assert not part.is_finished()
    assert part.poll(size) is None
    assert not part.is_finished()
    return found


def test_new_files_are_read_by_name_as_they_come(tmp_path: Path) -> None:
    part = followed(Files(tmp_path / "in" / "*.txt", follow=True))
    assert now(part) == []
    for name in ("b", "c", "a"):
        file_with(tmp_path, f"in/{name}.txt", f"{name}1\n{name}2\n")
    assert now(part) == ["a1", "a2", "b1", "b2", "c1", "c2"]
    file_with(tmp_path, "in/aa.txt", "late")
    file_with(tmp_path, "in/z.txt", "end")
    file_with(tmp_path, "in/other.csv", "n\n1\n")
    assert now(part) == ["late", "end"]
    part.close()


def test_the_part_is_called_by_its_pattern_wherever_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = Files("in/*.txt", follow=True)
    assert source.list_parts() == ["in/*.txt"]
    monkeypatch.chdir("/")
    file_with(tmp_path, "in/a.txt", "one")
    assert source.list_parts() == ["in/*.txt"]
    part = source.build_part(Part("in/*.txt"), None)
    assert now(part) == ["one"]
    part.close()
    with pytest.raises(SourceError, match=r"'in/\*\.log' is not one of the watched folders 'in/\*\.txt'"):
        source.build_part(Part("in/*.log"), None)


def test_a_hidden_file_is_read_once_it_has_its_name(tmp_path: Path) -> None:
    part = followed(Files(tmp_path / "*.txt", follow=True))
    hidden = [file_with(tmp_path, name, "half a li") for name in ("_a.txt", ".b.txt")]
    assert now(part) == []
    for path in hidden:
        path.write_text("a line\n")
        path.rename(tmp_path / path.name[1:])
    assert now(part) == ["a line", "a line"]
    part.close()


def test_files_of_one_folder_are_one_part_and_no_file_is_in_two(tmp_path: Path) -> None:
    patterns = ["a/*.txt", "b/*/x.txt", "a/*.log", "b/c/*.txt", "./a/*.txt", "d.txt"]
    source = Files([tmp_path / pattern for pattern in patterns], follow=True)
    for name in ("a/1.txt", "a/2.log", "b/c/x.txt", "b/c/y.txt", "b/d/x.txt", "b/x.txt", "d.txt"):
        file_with(tmp_path, name, name)
    parts = {part: source.build_part(part, None) for part in source.list_parts()}
    assert {part.replace(f"{tmp_path}/", ""): now(opened) for part, opened in parts.items()} == {
        "a/*.txt|a/*.log": ["a/1.txt", "a/2.log"],
        "b/*/x.txt|b/c/*.txt": ["b/c/x.txt", "b/c/y.txt", "b/d/x.txt"],
        "d.txt": ["d.txt"],
    }
    for opened in parts.values():
        opened.close()


def test_a_file_is_read_once_as_long_as_it_is_there(tmp_path: Path) -> None:
    part = followed(Files(tmp_path / "*.txt", follow=True))
    path = file_with(tmp_path, "a.txt", "one")
    file_with(tmp_path, "b.txt", "two")
    assert now(part) == ["one", "two"]
    path.write_text("another")
    assert now(part) == []
    path.unlink()
    assert now(part) == []
    assert part.snapshot()["taken"] == ["b.txt"]
    path.write_text("again")
    assert now(part) == ["again"]
    part.close()


def test_an_empty_folder_makes_nothing_forgotten(tmp_path: Path) -> None:
    """An unmounted disk looks like an empty folder."""
    part = followed(Files(tmp_path / "in" / "*.txt", follow=True))
    file_with(tmp_path, "in/a.txt", "one")
    assert now(part) == ["one"]
    (tmp_path / "in").rename(tmp_path / "away")
    assert now(part) == []
    (tmp_path / "in").mkdir()
    assert now(part) == []
    (tmp_path / "in").rmdir()
    (tmp_path / "away").rename(tmp_path / "in")
    assert now(part) == []
    part.close()


def test_a_file_that_goes_before_it_is_opened_is_passed_over(tmp_path: Path) -> None:
    for suffix, head in (("txt", ""), ("csv", "n\n")):
        part = followed(Files(tmp_path / suffix / f"*.{suffix}", follow=True))
        paths = [file_with(tmp_path, f"{suffix}/{name}.{suffix}", f"{head}{name}\n") for name in "abcd"]
        assert len(poll_once(part, 10)) == 1
        for path in paths[1:3]:
            path.unlink()
        assert len(now(part)) == 1
        part.close()


def test_a_link_to_nothing_waits_until_there_is_something(tmp_path: Path) -> None:
    part = followed(Files(tmp_path / "*.csv", follow=True))
    (tmp_path / "a.csv").symlink_to(tmp_path / "b")
    file_with(tmp_path, "c.csv", "n\n1\n")
    assert now(part) == [{"n": 1}]
    file_with(tmp_path, "b", "n\n2\n")
    assert now(part) == [{"n": 2}]
    part.close()


def test_a_file_that_was_being_read_and_has_gone_is_told_on_resume(tmp_path: Path) -> None:
    part = followed(Files(tmp_path / "*.txt", follow=True))
    path = file_with(tmp_path, "a.txt", "one\ntwo\n")
    assert poll_once(part, 1) == ["one"]
    state = part.snapshot()
    path.unlink()
    # A part that has the file open reads it to its end.
    assert now(part) == ["two"]
    part.close()
    resumed = followed(Files(tmp_path / "*.txt", follow=True), state)
    with pytest.raises(SourceError, match=r"a\.txt was read in part.*no longer exists: restore it"):
        resumed.poll(1)
    assert resumed.snapshot() == state
    resumed.close()


def test_a_file_of_which_nothing_was_read_may_go(tmp_path: Path) -> None:
    file_with(tmp_path, "a.csv", "n,m\nmalformed\n")
    path = file_with(tmp_path, "b.csv", "n,m\n")
    part = followed(Files(tmp_path / "*.csv", follow=True))
    assert poll_once(part, 5) == [Bad("malformed")]
    part.poll(5)
    state = part.snapshot()
    part.close()
    path.unlink()
    resumed = followed(Files(tmp_path / "*.csv", follow=True), state)
    assert now(resumed) == []
    resumed.close()


def test_a_great_many_files_without_rows_do_not_hold_up_a_poll(tmp_path: Path) -> None:
    for number in range(200):
        file_with(tmp_path, f"{number:03}.txt", "")
    file_with(tmp_path, "end.txt", "row")
    part = followed(Files(tmp_path / "*.txt", follow=True))
    answers = [poll_once(part, 5) for _ in range(5)]
    assert [] in answers
    assert ["row"] in answers
    assert len(part.snapshot()["taken"]) == 201
    part.close()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a folder of four files in each format, one of them without rows."""
    folder = tmp_path_factory.mktemp("contract")
    for number in range(4):
        rows = range(number * 10, number * 10 + 8 * (number != 1))
        lines = "".join(f"{row}\n" for row in rows)
        file_with(folder, f"{number}.txt", lines.encode() + b"\xff\n" * len(rows))
        file_with(folder, f"{number}.csv", f"n\n{lines}" + "1,2\n" * (len(rows) > 0))
        file_with(folder, f"{number}.csv.gz", gzip.compress(f"n\n{lines}".encode()))
        file_with(folder, f"{number}.jsonl", "".join(f'{{"n": {row}}}\n' for row in rows))
        pq.write_table(pa.table({"n": pa.array(rows, pa.int64())}), folder / f"{number}.parquet", row_group_size=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "FRAME_BYTES", 16)
        yield folder


@pytest.mark.parametrize("pattern", ["*.txt", "*.csv", "*.csv.gz", "*.jsonl", "*.parquet", "none/*.csv"])
def test_a_followed_folder_keeps_the_contract(pattern: str, folders: Path) -> None:
    source: Files[Any] = Files(folders / pattern, follow=True)
    check_source(source)
    check_source(Files([folders / pattern, folders / "below" / pattern], follow=True))


def test_types_are_those_of_the_first_file_that_has_rows(tmp_path: Path) -> None:
    source: Files[Any] = Files(tmp_path / "*.csv", follow=True)
    part = followed(source)
    for content, expected in (
        ("", []),
        ("n,m\n", []),
        ("n,m\n1.5,\n", [{"n": 1.5, "m": None}]),
        ("n,m\n2,3\n", [{"n": 2.0, "m": "3"}]),
    ):
        file_with(tmp_path, f"{len(list(tmp_path.iterdir()))}.csv", content)
        assert now(part) == expected
        part.close()
        part = followed(Files(tmp_path / "*.csv", follow=True), part.snapshot())
    part.close()


def test_a_resumed_folder_keeps_its_types_though_the_first_file_is_gone(tmp_path: Path) -> None:
    part = followed(Files(tmp_path / "*.csv", follow=True))
    first = file_with(tmp_path, "a.csv", "n\n1.5\n")
    assert now(part) == [{"n": 1.5}]
    state = part.snapshot()
    part.close()
    first.unlink()
    file_with(tmp_path, "b.csv", "n\n2\n")
    file_with(tmp_path, "c.csv", "n\ntext\n")
    resumed = followed(Files(tmp_path / "*.csv", follow=True), state)
    assert now(resumed) == [{"n": 2.0}, Bad("text")]
    resumed.close()


def test_all_folders_have_the_columns_of_the_first_file(tmp_path: Path) -> None:
    source: Files[Any] = Files([tmp_path / "a" / "*.csv", tmp_path / "b" / "*.csv"], follow=True)
    first, second = (source.build_part(part, None) for part in source.list_parts())
    file_with(tmp_path, "b/1.csv", "n\n1.5\n")
    assert now(second) == [{"n": 1.5}]
    file_with(tmp_path, "a/1.csv", "n\n1\n")
    file_with(tmp_path, "a/2.csv", "m\n1\n")
    assert poll_once(first, 5) == [{"n": 1.0}]
    with pytest.raises(SourceError, match=r"a/2\.csv has other columns than .*b/1\.csv"):
        poll_once(first, 5)
    first.close()
    second.close()


def test_what_is_wrong_with_a_file_is_told_by_its_name(tmp_path: Path) -> None:
    part = followed(Files(tmp_path / "*.csv.gz", follow=True))
    file_with(tmp_path, "a.csv.gz", b"no gzip")
    with pytest.raises(SourceError, match=r"a\.csv\.gz cannot be read: the compressed data is damaged"):
        part.poll(1)
    part.close()


def test_what_cannot_be_watched_is_told(tmp_path: Path) -> None:
    file_with(tmp_path, "file", "")
    with pytest.raises(SourceError, match="file is not a folder that can be watched"):
        Files(tmp_path / "file" / "*.txt", follow=True).list_parts()
    part = followed(Files(tmp_path / "*.csv", follow=True))
    (tmp_path / "out.csv").mkdir()
    with pytest.raises(SourceError, match=r"'out\.csv' is a folder, not a file"):
        part.poll(1)
    part.close()


def test_the_format_is_to_be_known_before_there_are_files(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="follow=True: pass format="):
        Files(tmp_path / "*", follow=True)
    file_with(tmp_path, "any", "row")
    part = followed(Files(tmp_path / "*", format="text", follow=True))
    assert now(part) == ["row"]
    part.close()
