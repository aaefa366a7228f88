"""Detection of the Java that Spark would run on: that of JAVA_HOME, else the first on the path."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FIT: Final = (17, 21)
"""The versions that Spark 4 runs on."""

_DEADLINE_S: Final = 20
_WHAT_TO_DO: Final = f"Spark needs Java {' or '.join(map(str, FIT))}; install one, or set JAVA_HOME to it"


@dataclass(frozen=True, slots=True)
class Java:
    """The Java that was found. ``description``: its version and path, or why there is none."""

    fits: bool
    description: str
    what_to_do: str = _WHAT_TO_DO


def find_java(environ: Mapping[str, str]) -> Java:
    """Return the Java that the variables ``environ`` select."""
    for java, found_by in _javas(environ):
        version = _version(java)
        if version is None:
            return Java(fits=False, description=f"{java} ({found_by}) does not print its version")
        return Java(fits=version[0] in FIT, description=f"{version[1]} at {java} ({found_by})")
    home = environ.get("JAVA_HOME")
    description = f"JAVA_HOME ({home}) has no bin/java, and the path has none" if home else "not found"
    return Java(fits=False, description=description)


def major_of(printed: str) -> tuple[int, str] | None:
    """Parse the output of ``java -version`` into (major version, full version); None if it holds no version.

    >>> major_of('openjdk version "17.0.15" 2025-04-15'), major_of('java version "1.8.0_412"')
    ((17, '17.0.15'), (8, '1.8.0_412'))
    """
    found = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', printed)
    return (int(found[2]), found[1]) if found else None


def _javas(environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    if home := environ.get("JAVA_HOME"):
        java = Path(home) / "bin" / "java"
        if java.is_file():
            yield java, "by JAVA_HOME"
    if found := shutil.which("java", path=environ.get("PATH")):
        yield Path(found), "by PATH"


def _version(java: Path) -> tuple[int, str] | None:
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, errors="replace", timeout=_DEADLINE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return major_of(done.stderr + done.stdout)
