"""The linters see every room, and a planted violation of each layout rule is reported."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

from tests.tree import ROOT, modules


def ruff(source: str, *, filename: str) -> str:
    command = [sys.executable, "-m", "ruff", "check", "--select", "TID", "--stdin-filename", filename, "-"]
    return subprocess.run(command, cwd=ROOT, input=source, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("filename", ["malstrom_py/planted.py", "workers/planted.py", "rescale/planted.py"])
@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("import workers", "TID251"),
        ("from workers.core import Core", "TID251"),
        ("from rescale import slots", "TID251"),
        ("from . import batches", "TID252"),
        ("from ..malstrom_py import batches", "TID252"),
    ],
)
def test_ruff_reports_bare_rooms_and_relative_imports(source: str, rule: str, filename: str) -> None:
    assert rule in ruff(source, filename=filename)


def test_the_import_graph_has_every_module_of_every_room() -> None:
    assert set(grimp.build_graph("malstrom_py", cache_dir=None).modules) == set(modules())


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources to plant something in."""
    for top in ("malstrom_py", "workers", "rescale"):
        shutil.copytree(ROOT / top, tmp_path / top, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_import_linter_keeps_its_peace_with_the_tree_as_it_is(tree: Path) -> None:
    done = lint_imports(tree)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("file", "planted"),
    [
        ("malstrom_py/validation.py", "import malstrom_py.workers"),
        ("malstrom_py/validation.py", "import malstrom_py.rescale"),
        ("rescale/__init__.py", "import malstrom_py.workers"),
        ("rescale/__init__.py", "import threading"),
        ("workers/__init__.py", "import malstrom_py.cli.app"),
        ("malstrom_py/unlisted.py", "import math"),
    ],
)
def test_import_linter_reports_an_import_against_the_layers(file: str, planted: str, tree: Path) -> None:
    with (tree / file).open("a") as module:
        module.write(f"\n{planted}\n")
    done = lint_imports(tree)
    assert done.returncode == 1, done.stdout
    assert "BROKEN" in done.stdout
