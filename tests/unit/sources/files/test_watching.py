"""The folders that patterns watch, the files in them, and which files were certainly removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from malstrom_py.errors import SourceError
from malstrom_py.sources.files.follow import WatchedFolder, watched_folders
from malstrom_py.sources.files.listing import goes_below, list_files, matching_names, matching_of
from tests.unit.sources.reading import file_with


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["a/*.csv"], {"a/*.csv": ("a", ["*.csv"])}),
        (["*.csv"], {"*.csv": (".", ["*.csv"])}),
        (["a.csv"], {"a.csv": (".", ["a.csv"])}),
        (["a/b-*/x.csv"], {"a/b-*/x.csv": ("a", ["b-*/x.csv"])}),
        (["a/*.csv", "b/*.csv"], {"a/*.csv": ("a", ["*.csv"]), "b/*.csv": ("b", ["*.csv"])}),
        (["a/*.csv", "./a/*.gz", "b/../a/x"], {"a/*.csv|a/*.gz|b/../a/x": ("a", ["*.csv", "*.gz", "x"])}),
        (["a/*.csv", "a/b/*.csv"], {"a/*.csv": ("a", ["*.csv"]), "a/b/*.csv": ("a/b", ["*.csv"])}),
        (["a/b/*.csv", "a/**/*.csv"], {"a/**/*.csv|a/b/*.csv": ("a", ["**/*.csv", "b/*.csv"])}),
        (["a/**", "a/b/c/d"], {"a/**|a/b/c/d": ("a", ["**", "b/c/d"])}),
        (["a/**", "ab/*"], {"a/**": ("a", ["**"]), "ab/*": ("ab", ["*"])}),
    ],
)
def test_a_folder_is_what_stands_in_front_of_the_wildcards(
    patterns: list[str], expected: dict[str, tuple[str, list[str]]], tmp_path: Path
) -> None:
    found = {one.part: (one.folder, list(one.patterns)) for one in watched_folders(patterns, tmp_path)}
    assert found == {part: (tmp_path / folder, below) for part, (folder, below) in expected.items()}


def test_a_folder_behind_a_link_is_that_folder(tmp_path: Path) -> None:
    file_with(tmp_path, "real/below/a.txt", "")
    (tmp_path / "link").symlink_to(tmp_path / "real" / "below")
    (watched,) = watched_folders(["link/../*/a.txt"], tmp_path)
    assert watched.names() == {"below/a.txt": "*/a.txt"}


@pytest.mark.parametrize("pattern", ["*", "*.csv", "_*", ".*", "[!a]*", "a.csv", "a[1].csv", "none", "?.csv"])
def test_a_listing_of_names_agrees_with_a_search(pattern: str, tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv", "_c.csv", ".d.csv", "a[1].csv", "a1.csv", "é.csv", "folder/a.csv"):
        file_with(tmp_path, name, "")
    assert not goes_below(pattern)
    assert sorted(matching_of(os.listdir(tmp_path), pattern)) == sorted(matching_names(pattern, tmp_path))  # noqa: PTH208


def test_what_matches_is_what_a_source_without_an_end_would_read(tmp_path: Path) -> None:
    for name in ("a.csv", "_b.csv", "x/c.csv", "x/_d.csv", "_y/e.csv", "x/y/f.csv"):
        file_with(tmp_path, name, "")
    for pattern in ("*.csv", "*/*.csv", "**/*.csv", "**", "_*.csv"):
        (watched,) = watched_folders([pattern], tmp_path)
        assert list(watched.files(watched.names() or {})) == list_files([pattern], tmp_path)


def test_a_folder_that_is_not_there_is_none_yet_and_one_that_is_no_folder_is_told(tmp_path: Path) -> None:
    (watched,) = watched_folders(["in/*.csv"], tmp_path)
    assert watched.names() is None
    assert watched.first_files(8) == []
    file_with(tmp_path, "in", "a file")
    with pytest.raises(SourceError, match="in is not a folder that can be watched"):
        watched.names()
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(SourceError, match=r"loop cannot be watched: .*symbolic links"):
        watched_folders(["loop/*.csv"], tmp_path)[0].names()


def test_only_what_is_certainly_not_there_has_gone(tmp_path: Path) -> None:
    file_with(tmp_path, "there", "")
    (tmp_path / "dangling").symlink_to("nothing")
    watched = WatchedFolder(watched_folders(["*"], tmp_path)[0].part, tmp_path, ("*",))
    gone = {name: watched.has_gone(name) for name in ("there", "dangling", "none", "there/below", "n" * 300)}
    # A name that the disk refuses simulates a disk that does not answer.
    assert gone == {"there": False, "dangling": False, "none": True, "there/below": True, "n" * 300: False}


def test_folders_among_the_names_are_left_out_unless_a_file_was_meant(tmp_path: Path) -> None:
    file_with(tmp_path, "folder/a.csv", "")
    file_with(tmp_path, "b", "")
    (watched,) = watched_folders(["*"], tmp_path)
    assert list(watched.files(watched.names() or {})) == ["b"]
    (tmp_path / "out.csv").mkdir()
    for pattern in ("*.csv", "out.csv"):
        (watched,) = watched_folders([pattern], tmp_path)
        with pytest.raises(SourceError, match=r"'out\.csv' is a folder, not a file"):
            list(watched.files(watched.names() or {}))
