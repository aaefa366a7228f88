"""Every operator has an example that runs in its docstring, and a test file of its own."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.tree import ROOT, modules, tree_of

PACKAGE = "malstrom_py.operators"
INFRASTRUCTURE = {
    "assigned",
    "base",
    "calls",
    "column_step",
    "expressions",
    "failures",
    "function_source",
    "held",
    "keyed",
    "outputs",
    "part_reader",
    "returning",
    "source_parts",
    "tellable",
}
"""Modules of the package that define no step: what the steps are made of."""

STEPS = {
    name.removeprefix(f"{PACKAGE}."): file
    for name, file in modules().items()
    if name.startswith(f"{PACKAGE}.") and name.removeprefix(f"{PACKAGE}.") not in INFRASTRUCTURE
}


def has_example(file: Path) -> bool:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = [ast.get_docstring(node) or "" for node in ast.walk(tree_of(file)) if isinstance(node, documented)]
    return any(">>>" in docstring for docstring in docstrings)


def test_there_are_steps_and_the_infrastructure_is_still_there() -> None:
    assert len(STEPS) >= 15
    assert {f"{PACKAGE}.{name}" for name in INFRASTRUCTURE} <= set(modules())


@pytest.mark.parametrize("step", sorted(STEPS))
def test_a_step_has_an_example(step: str) -> None:
    assert has_example(STEPS[step]), f"no >>> in a docstring of {STEPS[step].relative_to(ROOT)}"


@pytest.mark.parametrize("step", sorted(STEPS))
def test_a_step_has_a_test_file(step: str) -> None:
    test_file = ROOT / "tests" / "unit" / "operators" / f"test_{step}.py"
    assert test_file.is_file(), f"missing: {test_file.relative_to(ROOT)}"
    assert any(isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in tree_of(test_file).body)
