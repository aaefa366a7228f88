"""docs/architecture.md names modules that exist, and every room."""

from __future__ import annotations

import re

import pytest

from tests.tree import ROOT, modules

PAGE = (ROOT / "docs" / "architecture.md").read_text()

NAMED = sorted(set(re.findall(r"\bmalstrom_py(?:\.[a-z_]+)+", PAGE)))
"""Every dotted module name on the page, in the text and in the diagrams."""

ROOMS = sorted({module.rpartition(".")[0] for module in modules()} - {"", "malstrom_py"})


def exists(name: str) -> bool:
    return name in modules() or name in ROOMS


@pytest.mark.parametrize("name", NAMED)
def test_a_module_that_the_page_names_exists(name: str) -> None:
    assert exists(name), f"docs/architecture.md names {name}, which does not exist"


@pytest.mark.parametrize("room", ROOMS)
def test_the_page_names_every_room(room: str) -> None:
    assert room in NAMED, f"docs/architecture.md does not name the room {room}"


def test_a_module_that_does_not_exist_is_found() -> None:
    assert not exists("malstrom_py.workers.engine.no_such_module")
