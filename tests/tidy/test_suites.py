"""The suites themselves: unit tests mirror the source, and a test that is skipped fails the run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest
from tests.groups import GROUPS, group_of, place_of
from tests.tree import ROOT, modules

UNIT = ROOT / "tests" / "unit"


def test_unit_tests_mirror_the_packages() -> None:
    packages = {file.parent for module, file in modules().items()}
    folders = {file.parent.relative_to(UNIT) for file in UNIT.rglob("test_*.py")}
    strays = sorted(str(folder) for folder in folders if not {ROOT / "malstrom_py" / folder, ROOT / folder} & packages)
    assert strays == [], "tests/unit/<path> has the tests of the package malstrom_py/<path>"


def run_here(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder by the rules of this repository."""
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = long")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", *options]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(("stats", "code"), [({"passed": [1]}, 0), ({"skipped": [1]}, 1), ({"xfailed": [1]}, 1)])
def test_a_test_that_is_not_run_to_its_end_fails_the_run(stats: dict[str, list[int]], code: int) -> None:
    plugins = SimpleNamespace(get_plugin=lambda name: SimpleNamespace(stats=stats))
    session: Any = SimpleNamespace(config=SimpleNamespace(pluginmanager=plugins), exitstatus=pytest.ExitCode.OK)
    conftest.pytest_sessionfinish(session)
    assert session.exitstatus == code


def test_a_test_that_is_skipped_in_another_process_fails_the_run_too(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("import pytest\n\ndef test_one():\n    pytest.skip('later')\n")
    done = run_here(tmp_path, "--numprocesses", "1")
    assert (done.returncode, "not checked here" in done.stdout) == (1, True), done.stdout


STARTS = {
    "ray": re.compile(
        r"\b(ray_here|own_cluster|rays)\b|\bray\.init\(|examples\.flights\.on_ray\"|bench\.(macro\.\{|micro\.transport\")"
    ),
    "lake": re.compile(r"\bimport (TABLE, )?Lake\b"),
    "postgres": re.compile(r"\bneeds_postgres\b"),
    "spark": re.compile(r"\blocal_spark\(|\.getOrCreate\(|examples\.spark_to_ray\"|bench\.macro\.spark\""),
}
"""Group -> what is in a file whose tests start that engine, themselves or in another process."""


@pytest.mark.parametrize("group", sorted(GROUPS.keys() - {"types"}))
def test_what_starts_an_engine_is_in_its_group(group: str) -> None:
    paths = (file.relative_to(ROOT).as_posix() for file in (ROOT / "tests" / "integration").rglob("test_*.py"))
    found = {path for path in paths if STARTS[group].search((ROOT / path).read_text())}
    assert found
    assert {path for path in found if group_of(f"{path}::test_it") != group} == set(), "tests/groups.py has the groups"


def test_the_groups_come_first_and_what_is_short_comes_last() -> None:
    paths = [
        "tests/tidy/test_a.py",
        "tests/simulation/protocol_model/test_b.py",
        "tests/integration/spark/test_c.py",
        "malstrom_py/dag.py",
    ]
    ordered = sorted((f"{path}::test_it" for path in [*paths, "tests/integration/ray/test_d.py"]), key=place_of)
    assert [group_of(nodeid) for nodeid in ordered] == ["ray", "spark", paths[1], paths[0], paths[3]]


MARKED = """
import pytest

@pytest.mark.long({})
@pytest.mark.parametrize("case", ["one", "two", "third"])
def test_it(case):
    pass
"""
LONG = {"all": "", "one": "'one'", "some": "'t*'", "others": "but=('one',)"}


@pytest.mark.parametrize(
    ("options", "run"),
    [
        ((), "one-third one-two others-one some-one"),
        (("--long",), "all-one all-third all-two one-one others-third others-two some-third some-two"),
    ],
    ids=["make test", "make long"],
)
def test_long_cases_are_left_to_make_long(options: tuple[str, ...], run: str, tmp_path: Path) -> None:
    for name, cases in LONG.items():
        (tmp_path / f"test_{name}.py").write_text(MARKED.format(cases))
    found = re.findall(r"test_(\w+)\.py::test_it\[(\w+)\] PASSED", run_here(tmp_path, *options).stdout)
    assert " ".join(sorted(map("-".join, found))) == run


def test_a_mark_that_names_an_unknown_case_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(MARKED.format("'four'"))
    assert "a mark long names an unknown case: test_one.py::test_it: four" in run_here(tmp_path).stderr
