"""Which files a pattern names, and which of a watched folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from malstrom_py.errors import PlanError, SourceError
from malstrom_py.sources.files.follow import WatchedFolder, watched_folders
from malstrom_py.sources.files.listing import (
    check_patterns,
    format_of,
    format_of_parts,
    format_of_patterns,
    goes_below,
    list_files,
    matches,
    matching_names,
)
from tests.unit.sources.reading import file_with


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.csv", "csv"),
        ("A.CSV", "csv"),
        ("a.json", "json"),
        ("a.jsonl", "json"),
        ("a.ndjson", "json"),
        ("a.parquet", "parquet"),
        ("a.txt", "text"),
        ("a.log", "text"),
        ("a.log.gz", "text"),
        ("a.csv.zst", "csv"),
        ("a.gz", None),
        ("a.csv.bak", None),
        ("csv", None),
    ],
)
def test_the_suffix_tells_the_format(name: str, expected: str | None) -> None:
    assert format_of(name) == expected


def test_an_unknown_suffix_is_refused_at_once() -> None:
    with pytest.raises(PlanError, match=r"a\.dat.*pass format="):
        format_of_patterns(["x.csv", "a.dat"])


def test_patterns_of_several_formats_are_refused_at_once() -> None:
    with pytest.raises(PlanError, match="csv and json"):
        format_of_patterns(["x.csv", "y.json"])


@pytest.mark.parametrize("pattern", ["data/*", "data", "data/*.*", "data/**"])
def test_a_pattern_without_suffix_waits_for_its_files(pattern: str) -> None:
    assert format_of_patterns([pattern]) is None


def test_files_of_several_formats_or_none_are_refused(tmp_path: Path) -> None:
    file_with(tmp_path, "a.csv", "")
    file_with(tmp_path, "b.json", "")
    with pytest.raises(PlanError, match="csv and json"):
        format_of_parts(list_files(["*"], tmp_path))
    file_with(tmp_path, "c", "")
    with pytest.raises(PlanError, match="pass format="):
        format_of_parts(list_files(["c"], tmp_path))


def test_files_are_sorted_and_each_is_there_once(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "c.txt", "sub/d.csv"):
        file_with(tmp_path, name, "")
    assert list_files(["*.csv", "./a.csv", "b.csv"], tmp_path) == ["a.csv", "b.csv"]
    assert list_files(["**/*.csv"], tmp_path) == ["a.csv", "b.csv", "sub/d.csv"]
    assert list_files(["**"], tmp_path) == ["a.csv", "b.csv", "c.txt", "sub/d.csv"]
    assert list_files(["a.csv", f"{tmp_path}/a.csv", "sub/../a.csv"], tmp_path) == ["a.csv"]
    (tmp_path / "link.csv").symlink_to("b.csv")
    assert list_files(["link.csv", "*.csv"], tmp_path) == ["a.csv", "link.csv"]
    (tmp_path / "link.csv").unlink()
    assert list_files([f"{tmp_path}/s*/?.csv"], Path("/")) == [f"{tmp_path}/sub/d.csv"]


def test_hidden_files_and_folders_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    for name in ("a.csv", "_b.csv", ".c.csv", "_staging/d.csv", "_logs/e.csv"):
        file_with(tmp_path, name, "")
    assert list_files(["**/*.csv"], tmp_path) == ["a.csv"]
    assert list_files(["_logs/*.csv"], tmp_path) == ["_logs/e.csv"]
    assert list_files(["_*.csv"], tmp_path) == ["_b.csv"]
    assert list_files(["_b.csv"], tmp_path) == ["_b.csv"]


def test_a_name_with_brackets_means_the_file_that_has_it(tmp_path: Path) -> None:
    file_with(tmp_path, "a[1].csv", "")
    file_with(tmp_path, "a1.csv", "")
    assert list_files(["a[1].csv"], tmp_path) == ["a[1].csv"]
    assert list_files(["a[0-9].csv"], tmp_path) == ["a1.csv"]


@pytest.mark.parametrize("pattern", ["none-*.csv", "none.csv", "sub/**/none.csv"])
def test_no_match_names_the_pattern_and_the_folder(pattern: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    with pytest.raises(SourceError) as raised:
        list_files([pattern], tmp_path)
    assert pattern in str(raised.value)
    assert str(tmp_path) in str(raised.value)


def test_each_of_several_patterns_must_match(tmp_path: Path) -> None:
    file_with(tmp_path, "a.csv", "")
    with pytest.raises(SourceError, match="b"):
        list_files(["a.csv", "b*.csv"], tmp_path)


def test_a_folder_in_place_of_a_file_is_told_with_what_to_write(tmp_path: Path) -> None:
    file_with(tmp_path, "out.csv/part-0.csv", "")
    for pattern in ("out.csv", "*.csv"):
        with pytest.raises(SourceError, match=r"folder.*write out\.csv/\*"):
            list_files([pattern], tmp_path)
    assert list_files(["**/*.csv"], tmp_path) == ["out.csv/part-0.csv"]


@pytest.mark.parametrize("pattern", ["", [], None, 5, ["a.csv", 5], b"a.csv", "ftp://host/a.csv", "a\0b.csv"])
def test_what_names_no_local_file_is_refused(pattern: Any) -> None:
    with pytest.raises(PlanError):
        check_patterns(pattern)


def test_a_url_of_a_store_is_kept_and_one_of_a_file_is_a_path() -> None:
    assert check_patterns(["s3://bucket//a%20b.csv", "file:///a%20b.csv"]) == ["s3://bucket//a%20b.csv", "/a b.csv"]


def test_paths_and_home_folders_are_understood(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert check_patterns(Path("a/b.csv")) == ["a/b.csv"]
    assert check_patterns(["~/a.csv", Path("b.csv")]) == [f"{tmp_path}/a.csv", "b.csv"]


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
    found = [name for name in os.listdir(tmp_path) if matches([name], [pattern])]  # noqa: PTH208
    assert sorted(found) == sorted(matching_names(pattern, tmp_path))


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
