"""Names that are loaded on first use: the same as those that type checkers see, and like any other name of a module."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import sys
from types import ModuleType
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py.lazy_names import lazy_names
from tests.tree import modules, tree_of


def table_of(module: str) -> dict[str, str] | None:
    """Name -> module that has it, as the call of `lazy_names` in ``module`` says; None if there is no call."""
    for node in ast.walk(tree_of(modules()[module])):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "lazy_names":
            homes: dict[str, str] = ast.literal_eval(node.args[1])
            return {name: home for home, names in homes.items() for name in names.split()}
    return None


def seen_by_type_checkers(module: str) -> dict[str, str]:
    """Name -> module that has it, by the imports under TYPE_CHECKING beside the table."""
    tests = [node for node in tree_of(modules()[module]).body if isinstance(node, ast.If) and node.orelse]
    imports = [node for test in tests for node in test.body if isinstance(node, ast.ImportFrom)]
    assert ast.unparse(tests[0].test) == "TYPE_CHECKING"
    return {alias.name: home_of(node, alias.name) for node in imports for alias in node.names}


def home_of(node: ast.ImportFrom, name: str) -> str:
    is_module = f"{node.module}.{name}" in modules()
    return f"{node.module}.{name}" if is_module else str(node.module)


CALLING = [name for name, file in modules().items() if "lazy_names(" in file.read_text()]
TABLES: dict[str, dict[str, str]] = {name: table for name in CALLING if (table := table_of(name))}


def test_there_are_tables() -> None:
    assert {"malstrom_py", "malstrom_py.sinks", "malstrom_py.sources"} <= set(TABLES)


@pytest.mark.parametrize("module", sorted(TABLES))
def test_type_checkers_see_the_names_that_are_loaded(module: str) -> None:
    assert seen_by_type_checkers(module) == TABLES[module]


@pytest.mark.parametrize("module", sorted(TABLES))
def test_every_lazy_name_is_public_and_loads(module: str) -> None:
    face = importlib.import_module(module)
    assert set(face.__all__) - {"__version__"} == set(TABLES[module])
    for name, home in TABLES[module].items():
        value = getattr(face, name)
        assert value is (sys.modules[home] if isinstance(value, ModuleType) else getattr(sys.modules[home], name))


@pytest.fixture
def face(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module with one lazy name, as none has used it yet."""
    made: Any = ModuleType("face")
    monkeypatch.setitem(sys.modules, "face", made)
    made.__getattr__, made.__dir__ = lazy_names("face", {"malstrom_py.clock": "SystemClock"}, "MODULE")
    return made


def test_a_name_is_listed_before_it_is_loaded_and_loaded_once(face: Any) -> None:
    assert "SystemClock" in dir(face)
    assert "SystemClock" not in vars(face)
    from malstrom_py.clock import SystemClock

    assert face.SystemClock is SystemClock
    assert vars(face)["SystemClock"] is SystemClock


def test_an_unknown_name_has_its_answer(face: Any) -> None:
    with pytest.raises(AttributeError, match="module 'face' has no attribute 'nothing'"):
        _ = face.nothing
    with pytest.raises(AttributeError, match=r"'topology': here it is mp\.Job"):
        _ = face.topology
    with pytest.raises(ImportError, match=r"cannot import name 'topology' from 'face': here it is mp\.Job"):
        from face import topology  # type: ignore[import-not-found]  # noqa: F401


def test_a_lazy_name_is_pickled_by_reference_and_has_its_signature() -> None:
    assert pickle.loads(pickle.dumps(mp.Job)) is mp.Job
    assert b"malstrom_py.builder.job" in pickle.dumps(mp.Job)
    assert list(inspect.signature(mp.Job).parameters) == ["name", "slots", "compile"]


@pytest.mark.parametrize("module", sorted(TABLES))
def test_a_lazy_name_is_not_that_of_another_module_in_the_package(module: str) -> None:
    """The import of that module would take its place."""
    taken = {name for name, home in TABLES[module].items() if home != f"{module}.{name}"}
    assert [name for name in taken if f"{module}.{name}" in modules()] == []


def test_a_module_of_the_package_needs_no_import_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mp, "errors", raising=False)
    assert mp.errors is sys.modules["malstrom_py.errors"]
    assert not hasattr(mp, "no_such_module")
