"""Programs that start a Spark, each in a separate process: what they lack, they lack from the start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.tree import ROOT

_DEADLINE_S = 240


def told_by(code: str, *, environ: Mapping[str, str] | None = None) -> str:
    """What a program prints on its standard output; it must end with 0."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environ or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=_DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def other_python(folder: Path) -> Path:
    """A Python that is this one, but says that it is of another version."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import collections, sys\n"
        "kind = collections.namedtuple('version_info', 'major minor micro releaselevel serial')\n"
        "sys.version_info = kind(3, 99, 0, 'final', 0)\n"
    )
    python = folder / "python3"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder}:$PYTHONPATH exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def fake_java(folder: Path, version: str) -> Path:
    """The home of a Java that prints its version and can do nothing else."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f'#!/bin/sh\n[ "$1" = -version ] || exit 1\necho \'openjdk version "{version}"\' >&2\n')
    java.chmod(0o755)
    return folder
