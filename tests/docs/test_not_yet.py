"""Missing features are on one page, which is right; no other page, and no docstring, calls a feature missing."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import malstrom_py
from malstrom_py import sinks, sources
from malstrom_py.cli.commands import COMMANDS, loaded
from malstrom_py.errors import PlanError
from tests.pages import PAGES, shown
from tests.tree import ROOT, modules

PAGE = ROOT / "docs" / "not-yet.md"
ELSEWHERE = [page for page in PAGES if page not in (PAGE, ROOT / "CHANGELOG.md")]

SECTIONS = {section.partition("\n")[0]: section.partition("\n")[2] for section in PAGE.read_text().split("\n## ")[1:]}

POINTS_THERE = re.compile(r"\[[^\[\]]*\]\([^()\s]*not-yet\.md[^()\s]*\)")
"""A link to the page, or to a section of it, which may say what it likes: if the section goes, the link is dead."""

_PAGES = r"""
    \bnot\ (?:there\ )?yet\b(?!\ (?:visible|committed|read|sent|known|done|open)\b)
    | \b(?:there\ (?:is|are)\ no|takes?\ no|has\ no|have\ no)\ (?!room\b|snapshot\ yet)[\w\ -]{1,40}\ yet\b
    | \bno\ (?:recovery|parallelism|runtime)\b
    | \bplanned:|\bwhat\ is\ planned\b|\bis\ planned\ for\b
    | \bdoes\ not\ exist\ yet\b | \bnot\ (?:implemented|supported)\b
    | \b(?:this|the\ next|a\ later|a\ future|a\ coming)\ release\b | \b(?:in\ )?a\ (?:later|future)\ version\ will\b
    | \bfor\ now\b(?!,\ for\ it\ grows) | \(later\) | \bproven\ .{1,40}\ later\b | \bgrows\ into\ it\b
    | \bonce\ jobs\ can\b | \bas\ long\ as\ nothing\ resumes\b
    | \broad-?map\b | \b(?:TODO|FIXME)\b | \|\s*not\ there\b
    | \bNothing\ is\ stored,\ so\ a\ job\b | \brun\ again\ from\ its\ beginning\b
"""

_CODE = r"""
    \bno\ (?:recovery|parallelism|runtime)\b | \bplanned:|\bwhat\ is\ planned\b
    | \bnot\ (?:implemented|supported)\ yet\b | \bdoes\ not\ exist\ yet\b | \bis\ not\ there\ yet\b
    | \b(?:this|the\ next|a\ later|a\ future|a\ coming)\ release\b | \ba\ (?:later|future)\ version\ will\b
    | \(later\) | \broad-?map\b | \b(?:TODO|FIXME)\b | \bonce\ jobs\ can\b
"""


def _compiled(says_so: str) -> re.Pattern[str]:
    """A space is any white space, so that what is broken over two lines is found."""
    return re.compile(says_so.replace("\\ ", r"\s+"), re.VERBOSE | re.IGNORECASE)


SAYS_SO, SAYS_SO_IN_CODE = _compiled(_PAGES), _compiled(_CODE)


def claims(text: str, says_so: re.Pattern[str]) -> list[str]:
    """Return the lines of ``text`` that call a feature missing, with the matching words."""
    # As many characters and lines stay.
    plain = POINTS_THERE.sub(lambda link: re.sub(r"[^\n]", "·", link[0]), text)
    return [f"line {plain.count(chr(10), 0, match.start()) + 1}: {match[0]!r}" for match in says_so.finditer(plain)]


def docstrings(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


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
    assert {"Capture and replay", "Splitting hot keys"} <= set(SECTIONS)


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


@pytest.mark.parametrize("page", ELSEWHERE, ids=shown)
def test_no_other_page_says_that_something_is_not_there_yet(page: Path) -> None:
    assert claims(page.read_text(), SAYS_SO) == [], f"say it in {shown(PAGE)}, and link to its section"


def test_no_docstring_says_that_something_is_not_there_yet() -> None:
    said = [
        f"{module}: {claim}"
        for module, file in modules().items()
        for docstring in docstrings(file)
        for claim in claims(docstring, SAYS_SO_IN_CODE)
    ]
    assert said == [], f"say it in {shown(PAGE)}"


def test_what_says_so_is_found_and_what_is_said_of_a_run_or_links_there_is_not() -> None:
    for said in (
        "ends: this release has no [snapshots](#what). A state",
        "plays them; no runtime takes\nsnapshots yet.",
        "a job that failed or was stopped is run\nagain from its beginning",
        "There are no windows\n    yet.",
        "recovery: [not yet](running.md)",
    ):
        assert claims(said, SAYS_SO), said
    for said in (
        "what it had pre-committed is not yet visible",
        "a part that has had no record yet holds back nothing",
        "[not yet](not-yet.md#reload); see below",
        "the snapshot is planned and then taken",
    ):
        assert not claims(said, SAYS_SO), said
