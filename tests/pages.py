"""The pages a user reads, and what they are made of: fenced blocks, headings and links. For the tests of the pages.

Notes in docs/design are pages whose links are checked, but whose code does not run: they also show what was rejected.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.tree import ROOT

DESIGN = ROOT / "docs" / "design"
SPARK = ROOT / "docs" / "spark.md"

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "tests/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
"""Every page, from the root of the repository down."""

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)$")
_HEADING = re.compile(r"^(?P<level>#{1,6}) +(?P<text>.+?) *#*$")
_LINK = re.compile(r"(?<!\\)\[(?P<text>(?:[^\[\]`]|`[^`]*`)*)\]\((?P<target>[^()\s]*)\)")
_CODE = re.compile(r"(?<!`)(`+)(?!`)(?:(?!\n\n).)+?(?<!`)\1(?!`)", flags=re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: the info string of its fence, its text, and the line number of its first line."""

    info: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Link:
    """A link of a page: its target and its line number."""

    target: str
    line: int


def shown(page: Path) -> str:
    """A page as a test names it: its path in the repository."""
    return str(page.relative_to(ROOT))


def _cut(markdown: str) -> tuple[list[Block], list[tuple[int, str]]]:
    """The fenced blocks of a page, and the numbered lines outside of them."""
    blocks: list[Block] = []
    prose: list[tuple[int, str]] = []
    opened: tuple[str, str, int] | None = None
    inside: list[str] = []
    for number, line in enumerate(markdown.splitlines(), 1):
        fence = FENCE.match(line)
        if opened is None:
            if fence:
                opened, inside = (fence["fence"], fence["info"].strip(), number + 1), []
            else:
                prose.append((number, line))
        elif fence and fence["fence"].startswith(opened[0]) and not fence["info"].strip():
            blocks.append(Block(opened[1], "\n".join(inside) + "\n", opened[2]))
            opened = None
        else:
            inside.append(line)
    assert opened is None, f"the fence before line {opened[2]} is never closed"
    return blocks, prose


def blocks_of(markdown: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return _cut(markdown)[0]


def headings_of(markdown: str) -> list[str]:
    """Return the headings of a page as written, without the marks before them."""
    found = (_HEADING.match(line) for _, line in _cut(markdown)[1])
    return [heading["text"] for heading in found if heading]


def anchors_of(markdown: str) -> set[str]:
    r"""The anchors that a page's headings have where it is shown: lower case, words joined by hyphens.

    >>> sorted(anchors_of("# `map`: one for one\n\n## `map`, again\n\n## `map`: one for one\n"))
    ['map-again', 'map-one-for-one', 'map-one-for-one-1']
    """
    seen: Counter[str] = Counter()
    anchors: set[str] = set()
    for heading in headings_of(markdown):
        text = _LINK.sub(lambda link: link["text"], heading)
        kept = (letter for letter in text.lower() if letter in " -_" or unicodedata.category(letter)[0] in "LN")
        anchor = "".join(kept).strip().replace(" ", "-")
        anchors.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return anchors


def links_of(markdown: str) -> list[Link]:
    """The links of a page, but not what looks like one inside code.

    >>> links_of("See [`map`](map.md#map) and `[x](y)`.")
    [Link(target='map.md#map', line=1)]
    """
    return [Link(found["target"], markdown.count("\n", 0, found.start()) + 1) for found in _found_links(markdown)]


def relinked(markdown: str, target_of: Callable[[str], str]) -> str:
    """Return a page with other targets of its links.

    >>> relinked("See [a](a.md) and `[b](b.md)`.", str.upper)
    'See [a](A.MD) and `[b](b.md)`.'
    """
    for found in reversed(_found_links(markdown)):
        start, end = found.span("target")
        markdown = markdown[:start] + target_of(found["target"]) + markdown[end:]
    return markdown


def _found_links(markdown: str) -> list[re.Match[str]]:
    # Fences are blanked, so that a wrapped link is still found where it is.
    prose = dict(_cut(markdown)[1])
    text = "\n".join(prose.get(number, " " * len(line)) for number, line in enumerate(markdown.split("\n"), 1))
    codes = [code.span() for code in _CODE.finditer(text)]
    return [
        found
        for found in _LINK.finditer(text)
        if not any(start <= found.start() and found.end() <= end for start, end in codes)
    ]
