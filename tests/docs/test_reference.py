"""The API reference of the site has every public name, with the words of its docstring."""

from __future__ import annotations

import importlib
import inspect
import re
from types import ModuleType

import pytest

from tests.docs.reference import described, origins_of, pages, public_modules
from tests.tree import modules

MODULES = {name: importlib.import_module(name) for name in public_modules()}


def names_of(module: ModuleType) -> list[str]:
    """What is public in ``module``."""
    own = [name for name, thing in vars(module).items() if getattr(thing, "__module__", "") == module.__name__]
    return list(getattr(module, "__all__", [name for name in own if not name.startswith("_")]))


@pytest.mark.parametrize("module", sorted(MODULES))
def test_every_public_name_is_in_the_reference_with_its_words(module: str) -> None:
    page = described(MODULES[module].__name__)
    assert page.docstring
    for name in set(names_of(MODULES[module])) - {"__version__"}:
        thing = getattr(MODULES[module], name)
        if isinstance(thing, ModuleType):
            assert thing.__name__ in MODULES
            continue
        member = page.get(name)
        assert member is not None, name
        assert member.docstring.strip(), f"nothing is said of {name}"
        if isinstance(thing, type) or inspect.isroutine(thing):
            assert member.docstring == inspect.getdoc(thing), name


def test_the_reference_has_what_users_import() -> None:
    below = ("clock", "errors", "partitioners", "sinks", "sources", "testing", "testing.contracts")
    assert {"malstrom_py", *(f"malstrom_py.{name}" for name in below)} <= set(MODULES)
    assert "KeyedStreamBuilder" in names_of(MODULES["malstrom_py"])
    assert origins_of("malstrom_py")["MAX_EPOCH"] == "malstrom_py.data.messages"
    assert set(origins_of("malstrom_py").values()) <= set(modules())


def test_examples_are_fenced_and_names_are_links() -> None:
    page = pages()["malstrom_py.sinks"]
    assert "## `sinks.Files` { #Files " in page
    assert "[`SinkError`](malstrom_py.md#SinkError)" in page
    assert page.count("```pycon\n>>> ") == page.count("```pycon") > 3


def test_a_signature_is_as_in_the_source() -> None:
    page = pages()["malstrom_py"]
    assert "```python\ncollect(" in page
    assert re.search(r"\nrun\(\n    job: Job,\n    workers: int = 1,\n    \*,\n.*\n\) -> RunResult\n", page, re.DOTALL)
    assert "Has all of [`StreamBuilder`](malstrom_py.md#StreamBuilder) too." in page
