"""The page of missing features is right: what it names does not exist."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest

import malstrom_py
from malstrom_py import sinks, sources
from malstrom_py.cli.commands import COMMANDS, loaded
from malstrom_py.errors import PlanError
from tests.pages import shown
from tests.tree import ROOT

PAGE = ROOT / "docs" / "not-yet.md"
SECTIONS = {section.partition("\n")[0]: section.partition("\n")[2] for section in PAGE.read_text().split("\n## ")[1:]}


def commands() -> set[str]:
    """The commands of ``malstrom``, of all depths."""
    inner = {name: getattr(loaded(name), "commands", ()) for name in COMMANDS}
    return {
        *(f"malstrom {name}" for name in inner),
        *(f"malstrom {name} {one}" for name in inner for one in inner[name]),
    }


def is_there(name: str) -> bool:
    """Whether what ``name`` names can be used: a command, a call, a module or an attribute."""
    if name.startswith("malstrom "):
        return name in commands()
    if "(" in name:
        try:
            eval(name, {"sources": sources, "sinks": sinks})
        except PlanError:
            return False
        return True
    first, *rest = name.split(".")
    thing: Any = malstrom_py if first == "malstrom_py" else getattr(malstrom_py, first)
    for number, attribute in enumerate(rest, 1):
        if first == "malstrom_py" and not hasattr(thing, attribute):
            try:
                thing = importlib.import_module(".".join([first, *rest[:number]]))
            except ModuleNotFoundError:
                return False
        elif hasattr(thing, attribute):
            thing = getattr(thing, attribute)
        else:
            return False
    return True


def names_of(section: str) -> list[str]:
    """What a section says is not there."""
    lines = [line for line in SECTIONS[section].splitlines() if line.startswith("Not there: ")]
    return re.findall(r"`([^`]+)`", " ".join(lines))


def test_the_page_has_sections() -> None:
    assert len(SECTIONS) >= 3
    assert {"Other connectors", "Splitting hot keys"} <= set(SECTIONS)


@pytest.mark.parametrize("section", SECTIONS)
def test_what_a_section_names_is_not_there(section: str) -> None:
    names = names_of(section)
    assert names, f"section {section!r} names nothing: end it with a line 'Not there: `name`, …'"
    built = [name for name in names if is_there(name)]
    assert not built, f"{built} is there: take section {section!r} from {shown(PAGE)}, and correct what links to it"


@pytest.mark.parametrize(
    "name",
    [
        *("StreamBuilder.map", "KeyedStreamBuilder.stateful_map", "sources.Files", "JobHandle.rescale"),
        *("malstrom_py.rescale.slots", "malstrom_py.workers.engine.flow_limits.Batching", "malstrom run"),
        *("malstrom snapshots list", 'sources.Files("in/*.csv")', "sources.Memory"),
    ],
)
def test_what_is_there_would_be_found(name: str) -> None:
    assert is_there(name)
