"""Run programs of users and commands in separate processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.ray.clusters import PATIENCE_S
from tests.tree import ROOT


@contextmanager
def _started(folder: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Start Python with ``arguments`` in a new process group."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_LOG_TO_DRIVER": "0", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def program(folder: Path, text: str, *arguments: object, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Start a program of a user in a new process group."""
    file = folder / "program.py"
    file.write_text(text)
    with _started(Path.cwd(), str(file), *map(str, arguments), **environment) as process:
        yield process


@contextmanager
def malstrom(folder: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command in a new process group."""
    with _started(folder, "-m", "malstrom_py.cli", *arguments, **environment) as process:
        yield process


def said(process: subprocess.Popen[str]) -> str:
    """Wait until a program has ended with exit code 0, and return its output."""
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    return out
