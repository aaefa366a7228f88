"""What a user may call a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from malstrom_py.errors import PlanError
from malstrom_py.local_files import local_path


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("/a/b", "/a/b"),
        (Path("/a/b"), "/a/b"),
        ("/a?b#c", "/a?b#c"),
        ("file:///a/b%20c", "/a/b c"),
        ("file:///a%3Fb", "/a?b"),
        ("file://localhost/a", "/a"),
        ("file:/a/b", "/a/b"),
        ("FILE:/a", "/a"),
        ("a", str(Path("a").absolute())),
        ("a:b", str(Path("a:b").absolute())),
        ("~", str(Path.home())),
    ],
)
def test_paths_and_file_uris_name_folders(uri: Any, expected: str) -> None:
    assert str(local_path(uri, "sinks.Files")) == expected


@pytest.mark.parametrize(
    "uri",
    [
        "s3://bucket/a", "hdfs:/a", "file://host/a", "file:///", "file:/", "file:///a?b", "file:///a#b", "", None, 5,
        b"a", "a\0", "file:///a%00", os,
    ],
)  # fmt: skip
def test_anything_else_is_refused(uri: Any) -> None:
    with pytest.raises(PlanError, match=r"^sinks\.Files "):
        local_path(uri, "sinks.Files")
