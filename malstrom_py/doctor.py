"""What works on this machine, and what to do about the rest.

Rule: optional packages are looked up, never imported: importing them can take seconds, or fail in ways of its own.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Final, Literal

from malstrom_py.spark.java import find_java


@dataclass(frozen=True, slots=True)
class Wanted:
    """A package that jobs run without: the extra of ours that brings it, and what needs it; nothing yet if empty."""

    extra: str
    needed_by: str = ""
    at_least: tuple[int, ...] = ()


CORE: Final = ("cloudpickle", "msgpack", "polars", "pyarrow", "rich", "typer", "xxhash")
OPTIONAL: Final = {
    "ray": Wanted("ray", "jobs on Ray", at_least=(2, 52)),
    "pyzmq": Wanted("ray", "jobs on Ray", at_least=(26,)),
    "pyspark": Wanted("spark"),
}
"""By distribution."""

_PYTHON_MIN: Final = (3, 11)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. ``missing``: jobs run without it; ``broken``: they do not. ``what_to_do`` may be empty.

    >>> print(Finding("missing", "ray", "not installed", "pip install 'malstrom-py[ray]'"))
    missing  ray: not installed. pip install 'malstrom-py[ray]'
    """

    state: Literal["ok", "missing", "broken"]
    what: str
    said: str
    what_to_do: str = ""

    def __str__(self) -> str:
        return f"{self.state:<7}  {self.what}: {self.said}" + (f". {self.what_to_do}" if self.what_to_do else "")

    @property
    def is_fatal(self) -> bool:
        """Whether no job can run because of it."""
        return self.state == "broken"


def examine() -> list[Finding]:
    """Look at everything, in the order in which it is needed."""
    return [
        examine_python(sys.version_info[:2], platform.python_version(), sys.executable),
        *(examine_core(name) for name in CORE),
        examine_store(tempfile.gettempdir()),
        *(examine_optional(name, wanted) for name, wanted in OPTIONAL.items()),
        examine_java(os.environ),
    ]


def examine_python(version: tuple[int, int], text: str, executable: str) -> Finding:
    """Whether this Python is new enough."""
    if version < _PYTHON_MIN:
        wanted = ".".join(map(str, _PYTHON_MIN))
        return Finding("broken", "Python", f"{text} at {executable}", f"Install Python {wanted} or newer")
    return Finding("ok", "Python", f"{text} at {executable}")


def examine_core(name: str) -> Finding:
    """Whether a package is there that no job runs without: imported, for a broken build shows only then."""
    try:
        version = metadata.version(name)
        import_module(name)
    except metadata.PackageNotFoundError:
        return Finding("broken", name, "not installed", f"pip install {name}")
    except Exception as error:
        said = f"installed, but its import raised {type(error).__name__}: {error}"
        return Finding("broken", name, said, f"pip install --force-reinstall {name}")
    return Finding("ok", name, version)


def examine_optional(name: str, wanted: Wanted) -> Finding:
    """Whether an optional package is installed, and new enough."""
    what_to_do = f"pip install 'malstrom-py[{wanted.extra}]'"
    use = f"needed by {wanted.needed_by}" if wanted.needed_by else "not used by this release"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding("missing", name, f"not installed; {use}", what_to_do)
    if is_older(version, wanted.at_least):
        least = ".".join(map(str, wanted.at_least))
        return Finding("missing", name, f"{version} is too old; {use}", f"pip install '{name}>={least}'")
    return Finding("ok", name, f"{version}, {use}")


def is_older(version: str, than: tuple[int, ...]) -> bool:
    """Whether the release that ``version`` begins with comes before ``than``.

    >>> is_older("2.9.3", (2, 52)), is_older("2.52.0rc1", (2, 52)), is_older("27", (26,)), is_older("odd", ())
    (True, False, False, False)
    """
    found = re.match(r"\d+(?:\.\d+)*", version)
    release = tuple(map(int, found[0].split("."))) if found else ()
    return release[: len(than)] < than


def examine_store(folder: str) -> Finding:
    """Whether files can be written to ``folder``."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="malstrom-") as file:
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        said = f"{folder} cannot be written: {error.strerror or error}"
        return Finding("broken", "temporary folder", said, "Free some space, or set TMPDIR to another folder")
    return Finding("ok", "temporary folder", f"{folder} can be written")


def examine_java(environ: Mapping[str, str]) -> Finding:
    """Whether there is a Java that Spark runs on."""
    found = find_java(environ)
    return Finding("ok", "Java", found.said) if found.fits else Finding("missing", "Java", found.said, found.what_to_do)
