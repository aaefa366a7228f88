"""A merge that keeps both sides of a page leaves marks: a row twice, a number of a list again, a heading in a text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages import PAGES, prose_of, shown

_NUMBERED = re.compile(r"^(\d+)\. ")
_NAMES = re.compile(r"^(?:\[?`[^`]+`(?:\([^()]*\))?\]?(?:\([^()]*\))?(?:, | )?)+$")
"""A first cell that holds nothing but names: what its row is about."""

_CASES = "you ask"
"""The heading of a first column that has a name once for each case."""


def damage(markdown: str) -> Iterator[str]:
    """Yield what a merge may have done to a page, with the number of the line."""
    lines = prose_of(markdown)
    before = ""
    rows: set[str] = set()
    about: set[str] = set()
    cases = False
    last = 0
    for number, line in lines:
        if line.startswith("|"):
            first = re.split(r"(?<!\\)\|", line)[1].strip()
            if not rows:
                cases = first == _CASES
            if line in rows or (first in about and not cases):
                yield f"line {number}: a row for {first} again"
            rows.add(line)
            if _NAMES.match(first):
                about.add(first)
        else:
            rows, about = set(), set()
        if line.startswith("#"):
            if before.strip():
                yield f"line {number}: no blank line before the heading {line!r}"
            last = 0
        if item := _NUMBERED.match(line):
            if int(item[1]) not in (1, last + 1):
                yield f"line {number}: item {item[1]} of a list follows item {last}"
            last = int(item[1])
        before = line


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_no_merge_has_left_a_mark_on_a_page(page: Path) -> None:
    assert list(damage(page.read_text())) == []


@pytest.mark.parametrize(
    ("page", "mark"),
    [
        ("| name | use |\n|---|---|\n| `a`, `b` | old |\n| `a`, `b` | new |\n", "line 4: a row for `a`, `b` again"),
        ("| n |\n|---|\n| 1 |\n| 1 |\n", "line 4: a row for 1 again"),
        ("Words.\n## More\n", "line 2: no blank line before the heading '## More'"),
        ("1. One\n2. Two\n2. Deux\n", "line 3: item 2 of a list follows item 2"),
        ("1. One\n2. Two\n4. Four\n", "line 3: item 4 of a list follows item 2"),
    ],
)
def test_a_mark_is_seen(page: str, mark: str) -> None:
    assert list(damage(page)) == [mark]


def test_what_only_looks_like_a_mark_is_none() -> None:
    cases = "| you ask | then |\n|---|---|\n| `stop()` | 1 |\n| `stop()` | 2 |\n"
    page = f"{cases}\n1. One\n\n# New\n\n1. One\n```\n# code\n```\n"
    assert list(damage(page)) == []
