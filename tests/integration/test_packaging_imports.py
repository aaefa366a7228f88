"""What an import brings along, and what happens to who imports a room by its bare name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.tree import ROOT

HEAVY = ("ray", "zmq", "pyspark", "polars", "pyarrow", "pandas", "numpy", "rich", "typer", "cloudpickle")


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("module", ["malstrom_py", "malstrom_py.workers", "malstrom_py.rescale"])
def test_an_import_loads_no_heavy_library(module: str) -> None:
    done = python(f"import {module}, sys; print(sorted(set({HEAVY!r}) & set(sys.modules)))")
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize("room", ["workers", "rescale"])
def test_a_room_cannot_be_imported_by_its_bare_name(room: str) -> None:
    done = python(f"import {room}")
    assert done.returncode == 1
    last_line = done.stderr.strip().splitlines()[-1]
    assert last_line.startswith(f"ImportError: this folder is the package `malstrom_py.{room}`")
    assert f"Write `from malstrom_py import {room}`" in last_line


@pytest.mark.parametrize("room", ["workers", "rescale"])
def test_a_room_is_one_module_from_wherever_it_is_imported(room: str) -> None:
    done = python(f"import sys; from malstrom_py import {room} as room; print(room.__name__, '{room}' in sys.modules)")
    assert (done.stdout.strip(), done.stderr) == (f"malstrom_py.{room} False", "")
