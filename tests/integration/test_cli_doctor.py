"""``malstrom doctor``: what it finds on this machine, and on machines that lack something."""

from __future__ import annotations

import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from malstrom_py import accelerator
from malstrom_py.cli.doctor import (
    CORE,
    OPTIONAL,
    Requirement,
    examine_accelerator,
    examine_core,
    examine_java,
    examine_optional,
    examine_python,
    examine_spark_python,
    examine_store,
)
from malstrom_py.errors import pip_install
from malstrom_py.workers.ray.cluster import RAY_MIN
from tests.integration.commands import python
from tests.tree import pyproject


def fake_java(folder: Path, said: str) -> Path:
    """A Java that says what it is and does nothing else; its home."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    java.chmod(0o755)
    return folder


def test_doctor_ends_with_0_where_jobs_can_run() -> None:
    done = python("-m", "malstrom_py.cli", "doctor")
    assert done.returncode == 0, done.stdout
    for what in (*CORE, *OPTIONAL, "Python", "accelerator", "temporary folder", "Python of Spark", "Java"):
        assert f"{what}: " in done.stdout


def test_doctor_ends_with_1_where_nothing_can_be_written() -> None:
    code = (
        "import sys, tempfile\n"
        "tempfile.tempdir = '/nowhere'\n"
        "sys.argv = ['malstrom', 'doctor']\n"
        "from malstrom_py.cli.app import main\n"
        "main()\n"
    )
    done = python("-c", code)
    assert done.returncode == 1
    assert "broken   temporary folder: /nowhere cannot be written: No such file or directory. Free some" in done.stdout


def test_doctor_imports_no_optional_package() -> None:
    code = (
        "import sys\n"
        "from malstrom_py.cli.doctor import examine\n"
        "examine()\n"
        "print({'ray', 'zmq', 'pyspark'} & set(sys.modules))\n"
    )
    assert python("-c", code).stdout == "set()\n"


def test_the_core_that_is_examined_is_the_core_that_is_required() -> None:
    required = [requirement.partition(">")[0] for requirement in pyproject()["project"]["dependencies"]]
    assert sorted(CORE) == sorted(required)


def test_the_accelerator_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "library", lambda: None)
    monkeypatch.setattr(accelerator, "rows", lambda: None)
    monkeypatch.setattr(accelerator, "built", lambda name: Path(f"old {name}.so"))
    assert examine_accelerator({}).said.startswith("old groups.so was built for another machine or version")
    monkeypatch.setattr(accelerator, "built", lambda name: None)
    for environ, said in (({}, "not built"), ({accelerator.VARIABLE: "off"}, "off")):
        finding = examine_accelerator(environ)
        same = "aggregates over columns make rows of them and rows are routed in Python, with the same results"
        assert finding.said == f"{said}; {same}"
        assert not finding.is_fatal
    monkeypatch.setattr(accelerator, "library", object)
    assert examine_accelerator({}).said == "not built; rows are routed in Python, with the same results"
    monkeypatch.setattr(accelerator, "rows", object)
    assert examine_accelerator({}).state == "ok"


def test_an_old_python_is_fatal() -> None:
    assert examine_python((3, 10), "3.10.2", "/usr/bin/python3").is_fatal
    assert not examine_python((3, 11), "3.11.0", "/usr/bin/python3").is_fatal


def test_a_missing_core_package_is_fatal() -> None:
    core = examine_core("no-such-package")
    assert core.is_fatal
    assert core.what_to_do == "pip install no-such-package"


@pytest.mark.parametrize(
    ("name", "limits", "what_to_do", "said"),
    [
        ("no-such-package", {}, "pip install 'ray>=2.52' 'pyzmq>=26'", "not installed; needed by jobs"),
        ("ray", {"at_least": (999, 1)}, "pip install 'ray>=999.1'", "is too old; needed by jobs"),
        ("pandas", {"below": (1, 5)}, "pip install 'pandas<1.5'", "is too new; needed by jobs"),
    ],
)
def test_an_optional_package_that_does_not_fit_is_missing(name: str, limits: Any, what_to_do: str, said: str) -> None:
    found = examine_optional(name, Requirement(pip_install("ray"), "jobs", **limits))
    assert (found.state, found.what_to_do, found.is_fatal) == ("missing", what_to_do, False)
    assert found.said.endswith(said)


def test_every_package_of_every_extra_is_examined_with_its_least_version() -> None:
    brought = dict(pyproject()["project"]["optional-dependencies"])
    del brought["dev"]
    for extra, packages in brought.items():
        for package in packages:
            name = re.split(r"[\[<>=]", package)[0]
            least = ".".join(map(str, OPTIONAL[name].at_least))
            assert OPTIONAL[name].installed_by == pip_install(extra)
            assert f">={least}" in package or "<" in package, package


def test_what_jobs_on_ray_need_is_what_the_extra_brings_and_the_runtime_asks_for() -> None:
    brought = pyproject()["project"]["optional-dependencies"]["ray"]
    named = {name: one for name, one in OPTIONAL.items() if one.installed_by == pip_install("ray")}
    assert sorted(brought) == sorted(f"{name}>={'.'.join(map(str, one.at_least))}" for name, one in named.items())
    assert named["ray"].at_least == RAY_MIN


def test_what_spark_needs_is_what_the_extra_brings() -> None:
    brought = pyproject()["project"]["optional-dependencies"]["spark"]
    assert sorted(brought) == ["pandas>=2.2,<3", "pyspark>=4.0"]
    assert (OPTIONAL["pyspark"].at_least, OPTIONAL["pandas"].below) == ((4, 0), (3,))
    assert examine_optional("pyspark", OPTIONAL["pyspark"]).said.endswith("needed by sources.Spark and sinks.Spark")
    assert examine_optional("grpcio", OPTIONAL["grpcio"]).said.endswith("needed by sessions of Spark Connect")


def test_what_connect_needs_is_what_pyspark_brings_for_it() -> None:
    asked = [requirement for requirement in metadata.requires("pyspark") or () if 'extra == "connect"' in requirement]
    known = {name for name, one in OPTIONAL.items() if "pyspark[connect]" in one.installed_by}
    named = {re.split(r"[<>=;~! ]", requirement)[0] for requirement in asked}
    assert known == named - {"numpy", "pandas", "pyarrow"}


@pytest.mark.parametrize(
    ("version", "state", "said"),
    [
        (platform.python_version(), "ok", "(by PYSPARK_PYTHON)"),
        ("3.8.1", "missing", "3.8.1 at "),
        ("what?", "missing", "does not print its version"),
    ],
)
def test_the_python_of_spark_is_judged_by_its_version(version: str, state: str, said: str, tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\necho '{version}'\n")
    python.chmod(0o755)
    found = examine_spark_python({"PYSPARK_PYTHON": str(python), "PATH": ""})
    assert found.state == state
    assert said in found.said
    assert examine_spark_python({"PATH": str(tmp_path)}).state == state
    assert state == "ok" or found.what_to_do == f"Set PYSPARK_PYTHON={sys.executable} before Spark is started"


def test_no_python_for_spark_says_what_to_do() -> None:
    found = examine_spark_python({"PATH": ""})
    assert (found.state, found.said) == ("missing", "python3 (by PATH, as PYSPARK_PYTHON is not set) was not found")


@pytest.mark.parametrize(
    ("manager", "line"),
    [
        ("apt-get", "apt install openjdk-21-jre-headless"),
        ("brew", "brew install openjdk@21"),
        ("other", "sdk install java"),
    ],
)
def test_where_java_is_missing_it_says_how_to_get_it(manager: str, line: str, tmp_path: Path) -> None:
    (tmp_path / manager).touch(mode=0o755)
    assert line in examine_java({"PATH": str(tmp_path)}).what_to_do


def test_a_ray_that_is_new_enough_is_ok() -> None:
    assert examine_optional("ray", OPTIONAL["ray"]).state == examine_optional("pyzmq", OPTIONAL["pyzmq"]).state == "ok"


def test_a_folder_that_cannot_be_written_is_fatal(tmp_path: Path) -> None:
    assert examine_store(str(tmp_path)).state == "ok"
    assert list(tmp_path.iterdir()) == []
    assert examine_store(str(tmp_path / "missing")).is_fatal


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "ok"),
        ('openjdk version "21" 2023-09-19', "ok"),
        ('java version "1.8.0_412"', "missing"),
        ('openjdk version "11.0.2" 2019-01-15', "missing"),
        ("not what it says", "missing"),
    ],
)
def test_java_is_judged_by_its_major_version(said: str, state: str, tmp_path: Path) -> None:
    home = fake_java(tmp_path, said)
    assert examine_java({"JAVA_HOME": str(home), "PATH": ""}).state == state
    assert examine_java({"PATH": str(home / "bin")}).state == state


def test_the_java_of_java_home_goes_before_that_of_the_path(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", 'openjdk version "21.0.1"')
    other = fake_java(tmp_path / "other", 'openjdk version "11.0.1"')
    found = examine_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (found.state, "by JAVA_HOME" in found.said) == ("ok", True)


def test_no_java_says_what_to_do(tmp_path: Path) -> None:
    nowhere = examine_java({"PATH": ""})
    assert (nowhere.state, nowhere.said) == ("missing", "not found")
    assert "JAVA_HOME" in nowhere.what_to_do
    assert str(tmp_path) in examine_java({"JAVA_HOME": str(tmp_path), "PATH": ""}).said
