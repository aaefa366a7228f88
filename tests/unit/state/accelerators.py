"""Builds the accelerator for tests, where there is a C compiler, so that they run without an installation of it."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from malstrom_py import accelerator
from tests.tree import ROOT

FOLDER: Final = ROOT / "malstrom_py" / "native"
COMPILER: Final = shutil.which("cc") or shutil.which("gcc")

MODULE: Final = ("-O1", "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}")
"""Options for a module of Python; its headers come with a Python that can build packages."""

PATHS: Final = ["Python", *(["C"] if COMPILER else [])]
"""What may run: without a compiler Python alone, as for those who install."""


def compiled(target: Path, sources: Iterable[Path], *options: str) -> Path:
    """Compile ``sources`` to ``target``."""
    command = [str(COMPILER), "-Wall", "-Wextra", "-Werror", *options, f"-I{FOLDER}", "-o", str(target)]
    done = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


@cache
def library_of(path: str) -> Any:
    """The library that `malstrom_py.accelerator.library` should return for one of `PATHS`."""
    if path == "Python":
        return None
    with tempfile.TemporaryDirectory() as folder:
        sources = [FOLDER / "groups.c", FOLDER / "csv.c"]
        return accelerator.load(compiled(Path(folder) / "groups.so", sources, "-O1", "-shared", "-fPIC"))


@cache
def rows_of(path: str) -> accelerator.Rows | None:
    """The module that `malstrom_py.accelerator.rows` should return for one of `PATHS`."""
    if path == "Python":
        return None
    with tempfile.TemporaryDirectory() as folder:
        return accelerator.load_rows(compiled(Path(folder) / "rows.so", [FOLDER / "rows.c"], *MODULE))


@contextmanager
def running(path: str) -> Iterator[None]:
    """While in the context all runs by one of `PATHS`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accelerator, "library", lambda: library_of(path))
        patch.setattr(accelerator, "rows", lambda: rows_of(path))
        yield
