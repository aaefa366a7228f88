"""How every module reads: it stays small, is named for what it does, and knows its layer."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.tree import ROOT, modules, tree_of

LINES_MAX = 600
FUNCTION_LINES_MAX = 70
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "v2"}
ABOVE_THE_FACE = ("malstrom_py.cli", "malstrom_py.testing")

SOURCES = sorted(modules().items())
EVERYTHING = [
    *(file for _, file in SOURCES),
    *(file for top in ("tests", "examples", "bench") for file in sorted((ROOT / top).rglob("*.py"))),
]


def shown(file: Path) -> str:
    return str(file.relative_to(ROOT))


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines from `def` to the last statement, without the docstring: examples are welcome to be long."""
    first, end = function.body[0], function.end_lineno or function.lineno
    documented = ast.get_docstring(function) is not None
    docstring_lines = (first.end_lineno or first.lineno) - first.lineno + 1 if documented else 0
    return end - function.lineno + 1 - docstring_lines


def only_modules(node: ast.ImportFrom) -> bool:
    """Return whether every imported name is a module, which the layers of import-linter then judge."""
    return {f"{node.module}.{alias.name}" for alias in node.names} <= set(modules())


def test_modules_and_functions_stay_small() -> None:
    large = {shown(file): lines for file in EVERYTHING if (lines := len(file.read_text().splitlines())) > LINES_MAX}
    assert large == {}
    long = {
        f"{node.name} in {shown(file)}:{node.lineno}": lines
        for file in EVERYTHING
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (lines := body_lines(node)) > FUNCTION_LINES_MAX
    }
    assert long == {}


def test_modules_are_named_for_what_they_do() -> None:
    parts = {file: file.relative_to(ROOT).with_suffix("").parts for file in EVERYTHING}
    assert [shown(file) for file, names in parts.items() if VAGUE_NAMES & {name.strip("_") for name in names}] == []


def test_nothing_below_the_public_face_imports_it() -> None:
    """A module imports the one that defines what it needs."""
    imports = [
        f"{shown(file)}:{node.lineno}"
        for module, file in SOURCES
        if not module.startswith(ABOVE_THE_FACE)
        for node in ast.walk(tree_of(file))
        if (isinstance(node, ast.Import) and any(alias.name == "malstrom_py" for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module == "malstrom_py" and not only_modules(node))
    ]
    assert imports == []
