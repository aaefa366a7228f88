"""Both type checkers accept the repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tree import ROOT


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_the_repository_type_checks(checker: str) -> None:
    command = Path(sys.executable).with_name(checker)
    done = subprocess.run([command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
