"""The checks of ``malstrom doctor``: what works on this machine, and the remedy for the rest.

Rule: optional packages are looked up, never imported: an import can take seconds, or fail for its own reasons."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from typing import Final, Literal

import typer

import malstrom_py as mp
from malstrom_py import accelerator
from malstrom_py.cli.commands import examples
from malstrom_py.cli.options import JsonOption
from malstrom_py.cli.output import FAILED, print_json, print_out, reporting_errors
from malstrom_py.errors import EXTRAS, pip_command, pip_install
from malstrom_py.errors.text import describe_error
from malstrom_py.spark.java import find_java


@dataclass(frozen=True, slots=True)
class Requirement:
    """An optional package: how to install it and what needs it. ``below``: the first version that is too new."""

    installed_by: str
    needed_by: str
    at_least: tuple[int, ...] = ()
    below: tuple[int, ...] = ()


_CONNECT: Final = pip_command("pyspark[connect]>=4.0")

CORE: Final = ("cloudpickle", "msgpack", "msgspec", "numpy", "polars", "pyarrow", "rich", "typer", "xxhash")
_USES: Final = {
    "dashboard": "the dashboard",
    "delta": "sources.Delta and sinks.Delta",
    "demo": "the example of the flights",
    "formats": "formats.Avro, formats.Protobuf and formats.JsonSchema",
    "iceberg": "sources.Iceberg and sinks.Iceberg",
    "kafka": "sources.Kafka and sinks.Kafka",
    "metrics": "metrics for Prometheus",
    "nats": "sources.JetStream and sinks.JetStream",
    "objects": "snapshots and files in object stores",
    "postgres": "sources.Postgres, sources.PostgresChanges and sinks.Postgres",
    "ray": "jobs on Ray",
    "redis": "sources.RedisStream and sinks.RedisStream",
    "sql": "queries for the state of running jobs",
    "spark": "sources.Spark and sinks.Spark",
    "state": "state on disk",
    "testing": "check_operator and the strategies of malstrom_py.testing",
}
"""What the packages of each extra are for."""

_REQUIREMENT: Final = re.compile(r"(?P<name>[\w-]+)(?:\[.*\])?(?:>=(?P<least>[\d.]+))?,?(?:<(?P<below>[\d.]+))?")


def _required(extra: str, requirement: str) -> tuple[str, Requirement]:
    """Return the name and the limits of a package that ``extra`` brings.

    >>> name, wanted = _required("ray", "ray>=2.52")
    >>> name, wanted.at_least, wanted.needed_by
    ('ray', (2, 52), 'jobs on Ray')
    """
    found = _REQUIREMENT.fullmatch(requirement)
    assert found is not None, requirement
    least, below = (
        tuple(map(int, (found[limit] or "").split("."))) if found[limit] else () for limit in ("least", "below")
    )
    return found["name"], Requirement(pip_install(extra), _USES[extra], least, below)


OPTIONAL: Final = {
    **dict(_required(extra, requirement) for extra, brought in EXTRAS.items() for requirement in brought),
    **dict.fromkeys(
        ("grpcio", "grpcio-status", "googleapis-common-protos", "zstandard"),
        Requirement(_CONNECT, "sessions of Spark Connect"),
    ),
}
"""The optional packages by name of distribution."""

_PYTHON_MIN: Final = (3, 11)
_DEADLINE_S: Final = 20
_JAVA_BY: Final = {
    "apt-get": "apt install openjdk-21-jre-headless, or openjdk-17-jre-headless",
    "dnf": "dnf install java-21-openjdk-headless, or java-17-openjdk-headless",
    "brew": "brew install openjdk@21",
}
"""The command of each package manager that installs a suitable Java."""

_JAVA_ELSEWHERE: Final = "with SDKMAN (https://sdkman.io): sdk install java 21.0.5-tem"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. ``missing``: jobs run without it; ``broken``: no job runs. ``what_to_do`` may be empty.

    >>> print(Finding("missing", "ray", "not installed", pip_install("ray")))
    missing  ray: not installed. pip install 'ray>=2.52' 'pyzmq>=26'
    """

    state: Literal["ok", "missing", "broken"]
    what: str
    said: str
    what_to_do: str = ""

    def __str__(self) -> str:
        return f"{self.state:<7}  {self.what}: {self.said}" + (f". {self.what_to_do}" if self.what_to_do else "")

    @property
    def is_fatal(self) -> bool:
        """Whether the finding prevents all jobs from running."""
        return self.state == "broken"


def examine() -> list[Finding]:
    """Run all checks, the most basic first."""
    return [
        examine_python(sys.version_info[:2], platform.python_version(), sys.executable),
        *(examine_core(name) for name in CORE),
        examine_accelerator(os.environ),
        examine_store(tempfile.gettempdir()),
        *(examine_optional(name, wanted) for name, wanted in OPTIONAL.items()),
        examine_spark_python(os.environ),
        examine_java(os.environ),
    ]


def examine_python(version: tuple[int, int], text: str, executable: str) -> Finding:
    """Check that this Python is new enough."""
    if version < _PYTHON_MIN:
        wanted = ".".join(map(str, _PYTHON_MIN))
        return Finding("broken", "Python", f"{text} at {executable}", f"Install Python {wanted} or newer")
    return Finding("ok", "Python", f"{text} at {executable}")


def examine_core(name: str) -> Finding:
    """Check a required package by importing it: only an import shows a broken build."""
    try:
        version = metadata.version(name)
        import_module(name)
    except metadata.PackageNotFoundError:
        return Finding("broken", name, "not installed", pip_command(name))
    except Exception as error:
        said = f"installed, but its import raised {describe_error(error)}"
        return Finding("broken", name, said, f"pip install --force-reinstall {name}")
    return Finding("ok", name, version)


def examine_accelerator(environ: Mapping[str, str]) -> Finding:
    """Check whether aggregates over columns and the routing of rows run in C."""
    parts = [
        ("groups", accelerator.library(), "aggregates over columns make rows of them"),
        ("rows", accelerator.rows(), "rows are routed in Python"),
    ]
    missing = [(name, said) for name, loaded, said in parts if loaded is None]
    if not missing:
        return Finding("ok", "accelerator", "aggregates over columns and the routing of rows run in C")
    said = f"{' and '.join(said for _, said in missing)}, with the same results"
    if environ.get(accelerator.VARIABLE) == "off":
        return Finding("missing", "accelerator", f"off; {said}", f"Unset {accelerator.VARIABLE}")
    paths = [path for name, _ in missing if (path := accelerator.built(name)) is not None]
    if paths:
        why = f"{paths[0]} was built for another machine or version"
        return Finding("missing", "accelerator", f"{why}; {said}", "Install malstrom-py again, with a C compiler")
    what_to_do = "Install a C compiler and the headers of Python, then malstrom-py again"
    return Finding("missing", "accelerator", f"not built; {said}", what_to_do)


def examine_optional(name: str, wanted: Requirement) -> Finding:
    """Check that an optional package is installed, new enough and not too new."""
    use = f"needed by {wanted.needed_by}"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding("missing", name, f"not installed; {use}", wanted.installed_by)
    if is_older(version, wanted.at_least):
        least = ".".join(map(str, wanted.at_least))
        return Finding("missing", name, f"{version} is too old; {use}", pip_command(f"{name}>={least}"))
    if wanted.below and not is_older(version, wanted.below):
        below = ".".join(map(str, wanted.below))
        return Finding("missing", name, f"{version} is too new; {use}", pip_command(f"{name}<{below}"))
    return Finding("ok", name, f"{version}, {use}")


def is_older(version: str, than: tuple[int, ...]) -> bool:
    """Whether ``version`` is of an older release than ``than``.

    >>> is_older("2.9.3", (2, 52)), is_older("2.52.0rc1", (2, 52)), is_older("27", (26,)), is_older("odd", ())
    (True, False, False, False)
    """
    found = re.match(r"\d+(?:\.\d+)*", version)
    release = tuple(map(int, found[0].split("."))) if found else ()
    return release[: len(than)] < than


def examine_store(folder: str) -> Finding:
    """Check that files can be written to ``folder``."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="malstrom-") as file:
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        said = f"{folder} cannot be written: {error.strerror or error}"
        return Finding("broken", "temporary folder", said, "Free some space, or set TMPDIR to another folder")
    return Finding("ok", "temporary folder", f"{folder} can be written")


def examine_spark_python(environ: Mapping[str, str]) -> Finding:
    """Check that Spark would run functions in this version of Python: by PYSPARK_PYTHON, else python3 on the path."""
    asked = environ.get("PYSPARK_PYTHON", "python3")
    found = shutil.which(asked, path=environ.get("PATH"))
    where = "by PYSPARK_PYTHON" if "PYSPARK_PYTHON" in environ else "by PATH, as PYSPARK_PYTHON is not set"
    what_to_do = f"Set PYSPARK_PYTHON={sys.executable} before Spark is started"
    if found is None:
        return Finding("missing", "Python of Spark", f"{asked} ({where}) was not found", what_to_do)
    version = _version_of(found)
    if version is None:
        return Finding("missing", "Python of Spark", f"{found} ({where}) does not print its version", what_to_do)
    if tuple(version.split(".")[:2]) != tuple(map(str, sys.version_info[:2])):
        said = f"{version} at {found} ({where}) is another version than this Python"
        return Finding("missing", "Python of Spark", said, what_to_do)
    return Finding("ok", "Python of Spark", f"{version} at {found} ({where})")


def examine_java(environ: Mapping[str, str]) -> Finding:
    """Check that there is a Java that Spark runs on."""
    found = find_java(environ)
    if found.fits:
        return Finding("ok", "Java", f"{found.description}, needed by Spark")
    managers = (line for manager, line in _JAVA_BY.items() if shutil.which(manager, path=environ.get("PATH")))
    return Finding("missing", "Java", found.description, f"{found.what_to_do}: {next(managers, _JAVA_ELSEWHERE)}")


def _version_of(python: str) -> str | None:
    command = [python, "-c", "import platform; print(platform.python_version())"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_DEADLINE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if re.fullmatch(r"\d+\.\d+\S*\s*", done.stdout) else None


app = typer.Typer(rich_markup_mode=None)


@app.command(epilog=examples("malstrom doctor", "malstrom doctor --json"))
def doctor(as_json: JsonOption = False) -> None:
    """Check what works on this machine.

    Print each problem with its remedy. The exit code is 0 if jobs can run.
    """
    findings = examine()
    with reporting_errors(traceback=False):
        if as_json:
            print_json({"version": mp.__version__, "findings": [asdict(finding) for finding in findings]})
        else:
            print_out("\n  ".join((f"malstrom {mp.__version__}", *map(str, findings))))
    if any(finding.is_fatal for finding in findings):
        raise typer.Exit(FAILED)
