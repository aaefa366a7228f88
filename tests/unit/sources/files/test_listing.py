"""The files that a pattern matches, and their formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from malstrom_py.errors import PlanError, SourceError
from malstrom_py.sources.files.listing import (
    check_patterns,
    format_of,
    format_of_parts,
    format_of_patterns,
    list_files,
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


@pytest.mark.parametrize("pattern", ["", [], None, 5, ["a.csv", 5], b"a.csv", "s3://bucket/a.csv", "a\0b.csv"])
def test_what_names_no_local_file_is_refused(pattern: Any) -> None:
    with pytest.raises(PlanError):
        check_patterns(pattern)


def test_a_uri_of_an_object_store_is_refused_with_the_page_that_says_what_is_not_there() -> None:
    with pytest.raises(
        PlanError, match=r"give a path \(files in object stores .*docs/not-yet\.md#files-in-object-stores"
    ):
        check_patterns("s3://bucket/a.csv")


def test_paths_and_home_folders_are_understood(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert check_patterns(Path("a/b.csv")) == ["a/b.csv"]
    assert check_patterns(["~/a.csv", Path("b.csv")]) == [f"{tmp_path}/a.csv", "b.csv"]
