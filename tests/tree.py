"""The paths of the repository, for the tests that check the repository."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

ROOMS = {
    "malstrom_py": ROOT / "malstrom_py",
    "malstrom_py.rescale": ROOT / "rescale",
    "malstrom_py.workers": ROOT / "workers",
}
"""Package -> the folder that holds it. The links inside malstrom_py are not followed."""


def _files_below(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
        if entry.is_symlink() or entry.name == "__pycache__":
            continue
        if entry.is_dir():
            yield from _files_below(entry)
        elif entry.suffix == ".py":
            yield entry


@cache
def modules() -> dict[str, Path]:
    """Every module that must be installed: dotted name -> its file in the repository."""
    found = {}
    for package, folder in ROOMS.items():
        for file in _files_below(folder):
            parts = file.relative_to(folder).with_suffix("").parts
            found[".".join((package, *parts)).removesuffix(".__init__")] = file
    return found


def tree_of(file: Path) -> ast.Module:
    """The parsed source of ``file``. Those of all files, kept, would slow down all tests that follow."""
    return ast.parse(file.read_text(), filename=str(file))


@cache
def pyproject() -> dict[str, Any]:
    """pyproject.toml, parsed."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())
