"""How every module reads: it opens with its job, stays small, is named for what it does, and knows its layer."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("file", EVERYTHING, ids=shown)
def test_a_module_opens_with_its_job(file: Path) -> None:
    assert ast.get_docstring(tree_of(file)), f"{shown(file)} does not say what it is for"


@pytest.mark.parametrize("file", EVERYTHING, ids=shown)
def test_modules_and_functions_stay_small(file: Path) -> None:
    lines = len(file.read_text().splitlines())
    assert lines <= LINES_MAX, f"{shown(file)} has {lines} lines"
    functions = [n for n in ast.walk(tree_of(file)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = {f"{f.name} (line {f.lineno})": body_lines(f) for f in functions if body_lines(f) > FUNCTION_LINES_MAX}
    assert not long, f"too long in {shown(file)}: {long}"


@pytest.mark.parametrize("file", EVERYTHING, ids=shown)
def test_a_module_is_named_for_what_it_does(file: Path) -> None:
    assert not VAGUE_NAMES & {part.strip("_") for part in file.relative_to(ROOT).with_suffix("").parts}


@pytest.mark.parametrize(("module", "file"), SOURCES, ids=[module for module, _ in SOURCES])
def test_nothing_below_the_public_face_imports_it(module: str, file: Path) -> None:
    if module.startswith(ABOVE_THE_FACE):
        return
    imports = [
        node.lineno
        for node in ast.walk(tree_of(file))
        if (isinstance(node, ast.Import) and any(alias.name == "malstrom_py" for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module == "malstrom_py" and not only_modules(node))
    ]
    assert not imports, f"{shown(file)} imports the public face in lines {imports}; import the module that defines it"
