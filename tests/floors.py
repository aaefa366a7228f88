"""Runs the package with the lowest declared version of each dependency: ``python -m tests.floors``, or ``make floors``.

A fresh environment gets the core alone, then all extras, each at its floor. There a job runs in this process and, with
the extras, on Ray; then the command line, and the examples of all docstrings.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path
from typing import Final

from tests.tree import ROOT

RUNS_DOCTESTS: Final = ("pytest", "pytest-timeout")
"""What the docstrings need beside the extras."""

JOB: Final = """
import malstrom_py as mp
from malstrom_py import sinks, sources

out = sinks.Memory()
job = mp.Job("floors")
words = job.source("words", sources.Memory(["a", "b", "a"] * 100, parts=2)).key_by("word", lambda word: word)
words.count("count").sink("out", out)
{runtime}.run(job)
assert sorted(out.items)[-1] == 200, out.items
"""


def floors(extras: bool) -> list[str]:
    """Return the requirements of the core, or of the core and all extras but ``dev``, each at its lowest version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    wanted = list(project["dependencies"])
    if extras:
        wanted += [one for extra, needed in optional.items() if extra != "dev" for one in needed]
        wanted += [one for one in optional["dev"] if name_of(one) in RUNS_DOCTESTS]
    return sorted({at_floor(requirement) for requirement in wanted})


def name_of(requirement: str) -> str:
    """Return the name of a distribution without its extras and versions."""
    return re.split(r"[\[<>=!~ ]", requirement)[0]


def at_floor(requirement: str) -> str:
    """Return a requirement with its lowest version alone.

    >>> at_floor("pandas>=2.2,<3"), at_floor("pyspark[connect]>=4.0")
    ('pandas==2.2', 'pyspark[connect]==4.0')
    """
    found = re.fullmatch(r"([^<>=!~]+)>=([^,]+)(,.*)?", requirement)
    assert found, f"{requirement} has no lowest version"
    return f"{found[1]}=={found[2]}"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="malstrom-floors-") as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder, "bin", "python"))
        _install(python, *floors(extras=False))
        _install(python, "--no-deps", "--editable", str(ROOT))
        _run(python, "-c", JOB.format(runtime="mp.InProcess(workers=2)"))
        _run(python, "-m", "malstrom_py", "run", "examples.word_count")
        _install(python, *floors(extras=True))
        _run(python, "-c", JOB.format(runtime="mp.RayRuntime(workers=2)"))
        _run(python, "-m", "malstrom_py", "doctor")
        # An old library beside new ones may warn of what it uses of them.
        _run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore::DeprecationWarning", "malstrom_py")
    print(f"the package runs with {len(floors(extras=True))} lowest versions: {', '.join(floors(extras=True))}")


def _install(python: str, *what: str) -> None:
    _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what)


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, check=False, timeout=1800)
    if done.returncode:
        sys.exit(f"failed at the lowest versions: {' '.join(command[1:])[:200]}")


if __name__ == "__main__":
    main()
