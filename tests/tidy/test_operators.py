"""Every module of steps has an example that runs in a docstring."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.tree import ROOT, modules, tree_of

PACKAGE = "malstrom_py.operators"
INFRASTRUCTURE = {
    "base",
    "batch_sizing",
    "compiled",
    "compiled_folds",
    "enrich.calls",
    "failures",
    "first_rows",
    "unmatched",
    "keyed",
    "logic",
}
"""Modules of the package that define no step: what the steps are made of."""

STEPS = {
    name.removeprefix(f"{PACKAGE}."): file
    for name, file in modules().items()
    if name.startswith(f"{PACKAGE}.")
    and name != f"{PACKAGE}.enrich"
    and name.removeprefix(f"{PACKAGE}.") not in INFRASTRUCTURE
}


def has_example(file: Path) -> bool:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = [ast.get_docstring(node) or "" for node in ast.walk(tree_of(file)) if isinstance(node, documented)]
    return any(">>>" in docstring for docstring in docstrings)


def test_there_are_steps_and_the_infrastructure_is_still_there() -> None:
    assert len(STEPS) >= 10
    assert {f"{PACKAGE}.{name}" for name in INFRASTRUCTURE} <= set(modules())


@pytest.mark.parametrize("step", sorted(STEPS))
def test_a_step_has_an_example(step: str) -> None:
    assert has_example(STEPS[step]), f"no >>> in a docstring of {STEPS[step].relative_to(ROOT)}"
