"""The suites themselves: unit tests mirror the source, and a test that is skipped fails the run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.groups import GROUPS, group_of, place_of
from tests.tree import ROOT, modules

UNIT = ROOT / "tests" / "unit"


def test_unit_tests_mirror_the_packages() -> None:
    packages = {file.parent for module, file in modules().items()}
    folders = {file.parent.relative_to(UNIT) for file in UNIT.rglob("test_*.py")}
    strays = sorted(str(folder) for folder in folders if not {ROOT / "malstrom_py" / folder, ROOT / folder} & packages)
    assert strays == [], "tests/unit/<path> has the tests of the package malstrom_py/<path>"


SKIP, XFAIL = "import pytest; pytest.skip('later')", "import pytest; pytest.xfail('broken')"


@pytest.mark.parametrize(
    ("body", "processes", "code"),
    [("assert True", "0", 0), (SKIP, "0", 1), (XFAIL, "0", 1), (SKIP, "1", 1)],
    ids=["passed", "skipped", "xfailed", "skipped in another process"],
)
def test_a_test_that_is_not_run_to_its_end_fails_the_run(body: str, processes: str, code: int, tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_one.py").write_text(f"def test_one():\n    {body}\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--numprocesses", processes, "."]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stdout
    assert ("not checked here" in done.stdout) is bool(code)


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


@pytest.mark.parametrize(
    ("cases", "options", "run"),
    [
        ("", [], 0),
        ("", ["--long"], 3),
        ("'one'", [], 2),
        ("'t*'", [], 1),
        ("but=('one',)", [], 1),
        ("but=('one',)", ["--long"], 2),
        ("'four'", [], None),
    ],
)
def test_long_cases_are_left_to_make_long(cases: str, options: list[str], run: int | None, tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_one.py").write_text(MARKED.format(cases))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *options]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=60)
    if run is None:
        assert "a mark long names an unknown case: test_one.py::test_it: four" in done.stderr
    else:
        assert (f"{run} passed" if run else "3 deselected") in done.stdout
