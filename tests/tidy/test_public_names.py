"""Every public name is documented where it is defined, and mentioned where a user reads."""

from __future__ import annotations

import inspect
import re
from types import ModuleType

import pytest

import malstrom_py
from malstrom_py import agg, errors, logs, sinks, sources, spark, testing
from malstrom_py.sinks import base as sinks_base
from malstrom_py.sources import base as sources_base
from tests.tree import ROOT

PAGES = "\n".join(page.read_text() for page in [*ROOT.glob("README.md"), *sorted((ROOT / "docs").rglob("*.md"))])


def public_of(module: ModuleType) -> dict[str, object]:
    return {f"{module.__name__}.{name}": getattr(module, name) for name in module.__all__}


CONTRACTS = [kind for base in (sources_base, sinks_base) for kind in vars(base).values() if inspect.isclass(kind)]
"""The contracts of sources and sinks; a method without a docstring inherits that of its contract."""

MODULES = (malstrom_py, agg, logs, sources, sinks, spark, testing, testing.contracts)

PUBLIC = {name: thing for module in MODULES for name, thing in public_of(module).items()}


def defined_here(member: object) -> bool:
    function = member.fget if isinstance(member, property) else member
    return inspect.isfunction(function) and inspect.unwrap(function).__module__.startswith("malstrom_py")


def members_without_words(owner: type) -> list[str]:
    """Public methods and properties, defined in this package, of which neither it nor its bases say a word."""
    contracts = [contract for contract in CONTRACTS if contract is not owner]
    return [
        name
        for name, member in inspect.getmembers(owner)
        if not name.startswith("_")
        and defined_here(member)
        and not any(inspect.getdoc(getattr(kind, name, None)) for kind in [owner, *contracts] if hasattr(kind, name))
    ]


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_public_name_is_documented(name: str) -> None:
    thing = PUBLIC[name]
    if isinstance(thing, type | ModuleType) or inspect.isroutine(thing):
        assert thing.__doc__, f"{name} has no docstring"
    if isinstance(thing, type):
        assert not thing.__doc__ or not thing.__doc__.startswith(f"{thing.__name__}("), f"{name} has no docstring"
        assert members_without_words(thing) == [], f"methods of {name} without docstring"


@pytest.mark.parametrize("name", sorted(set(malstrom_py.__all__) - {"__version__"}))
def test_a_public_name_is_mentioned_in_the_pages(name: str) -> None:
    assert re.search(rf"\b{re.escape(name)}\b", PAGES), f"neither README.md nor docs/ mentions {name}"


def test_the_public_names_are_sorted_and_exist() -> None:
    for module in MODULES:
        assert sorted(set(module.__all__)) == sorted(module.__all__)
        assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^((?:[│ ] {2} ?)*(?:[├└]── )?)([A-Z]\w+)\b", line)
        if found and (found[1] or found[2] == "MalstromError"):
            depth = len(found[1]) // 4
            path[depth:] = [found[2]]
            drawn[found[2]] = path[depth - 1] if depth else "Exception"
    real = {name: kind.__mro__[1].__name__ for name, kind in vars(errors).items() if inspect.isclass(kind)}
    assert drawn == {name: base for name, base in real.items() if issubclass(getattr(errors, name), Exception)}
