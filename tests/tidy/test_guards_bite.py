"""The linters see every room, and a planted violation of each layout rule is reported."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

from tests.tree import ROOT, modules

PLANTED = """import workers
from workers.core import Core
from rescale import slots
from . import batches
from ..malstrom_py import batches
"""


@pytest.mark.parametrize("filename", ["malstrom_py/planted.py", "workers/planted.py", "rescale/planted.py"])
def test_ruff_reports_bare_rooms_and_relative_imports(filename: str) -> None:
    options = ["--select", "TID", "--output-format", "concise", "--stdin-filename", filename]
    command = [sys.executable, "-m", "ruff", "check", *options, "-"]
    done = subprocess.run(command, cwd=ROOT, input=PLANTED, capture_output=True, text=True, check=False)
    found = set(re.findall(r":(\d):\d+: TID(\d+)", done.stdout))
    assert found >= {("1", "251"), ("2", "251"), ("3", "251"), ("4", "252"), ("5", "252")}, done.stdout


def test_the_import_graph_has_every_module_of_every_room() -> None:
    assert set(grimp.build_graph("malstrom_py", cache_dir=None).modules) == set(modules())


AGAINST_THE_LAYERS = {
    "malstrom_py/validation.py": ("malstrom_py.workers", "malstrom_py.rescale"),
    "rescale/__init__.py": ("malstrom_py.workers", "threading"),
    "workers/__init__.py": ("malstrom_py.cli.app",),
    "malstrom_py/unlisted.py": ("math",),
}


def test_import_linter_reports_imports_against_the_layers(tmp_path: Path) -> None:
    """That it accepts the tree without them, `make lint` shows."""
    for top in ("malstrom_py", "workers", "rescale"):
        shutil.copytree(ROOT / top, tmp_path / top, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for file, imported in AGAINST_THE_LAYERS.items():
        with (tmp_path / file).open("a") as module:
            module.writelines(f"\nimport {name}\n" for name in imported)
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    reported = done.stdout.partition("Broken contracts")[2]
    for edge in (
        *("malstrom_py.validation -> malstrom_py.workers", "malstrom_py.validation -> malstrom_py.rescale"),
        *("malstrom_py.rescale -> malstrom_py.workers", "malstrom_py.rescale -> threading"),
        *("malstrom_py.workers -> malstrom_py.cli.app", "malstrom_py.unlisted"),
    ):
        assert f"\n- {edge}" in reported.replace("-   ", "- "), f"{edge} in:\n{done.stdout}"
