"""Builds the accelerator for tests, where there is a C compiler, so that they run without an installation of it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

from malstrom_py.state.accelerator import load
from tests.tree import ROOT

FOLDER: Final = ROOT / "malstrom_py" / "state" / "native"
COMPILER: Final = shutil.which("cc") or shutil.which("gcc")

PATHS: Final = ["numpy", *(["C"] if COMPILER else [])]
"""What may run: without a compiler numpy alone, as for those who install."""


def compiled(target: Path, sources: Iterable[Path], *options: str) -> Path:
    """Compile ``sources`` to ``target``."""
    command = [str(COMPILER), "-Wall", "-Wextra", "-Werror", *options, f"-I{FOLDER}", "-o", str(target)]
    done = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


@cache
def library_of(path: str) -> Any:
    """The library that `malstrom_py.state.accelerator.library` should return for one of `PATHS`."""
    if path == "numpy":
        return None
    with tempfile.TemporaryDirectory() as folder:
        return load(compiled(Path(folder) / "groups.so", sorted(FOLDER.glob("*.c")), "-O1", "-shared", "-fPIC"))
