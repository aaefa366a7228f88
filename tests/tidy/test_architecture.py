"""docs/architecture.md names modules that exist, and every room."""

from __future__ import annotations

import re

from tests.tree import ROOT, modules

PAGE = (ROOT / "docs" / "architecture.md").read_text()

NAMED = sorted(set(re.findall(r"\bmalstrom_py(?:\.[a-z_]+)+", PAGE)))
"""Every dotted module name on the page, in the text and in the diagrams."""

ROOMS = sorted({module.rpartition(".")[0] for module in modules()} - {"", "malstrom_py"})


def exists(name: str) -> bool:
    return name in modules() or name in ROOMS


def test_modules_that_the_page_names_exist() -> None:
    assert [name for name in NAMED if not exists(name)] == []


def test_the_page_names_every_room() -> None:
    assert [room for room in ROOMS if room not in NAMED] == []
