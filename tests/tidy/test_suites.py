"""The suites themselves: unit tests mirror the source, and a test that is skipped fails the run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tree import ROOT, modules

UNIT = ROOT / "tests" / "unit"


def module_under_test(test_file: Path) -> str | None:
    """The module that ``test_file`` is about: the longest one, in the mirrored folder, that its name starts with."""
    folder = ".".join(("malstrom_py", *test_file.relative_to(UNIT).parent.parts))
    about = test_file.stem.removeprefix("test_")
    candidates = (module.removeprefix(f"{folder}.") for module in modules() if module.startswith(f"{folder}."))
    fitting = [name for name in candidates if about == name or about.startswith(f"{name}_")]
    return max(fitting, key=len, default=None)


def test_unit_tests_mirror_the_source() -> None:
    strays = [
        str(file.relative_to(ROOT))
        for file in sorted(UNIT.rglob("test_*.py"))
        if file.name != "test_unit_guard.py" and module_under_test(file) is None
    ]
    assert strays == [], (
        "each is named tests/unit/<path>/test_<module>[_<what>].py after malstrom_py/<path>/<module>.py"
    )


@pytest.mark.parametrize(
    ("body", "code"),
    [("assert True", 0), ("import pytest; pytest.skip('later')", 1), ("import pytest; pytest.xfail('broken')", 1)],
    ids=["passed", "skipped", "xfailed"],
)
def test_a_test_that_is_not_run_to_its_end_fails_the_run(body: str, code: int, tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_one.py").write_text(f"def test_one():\n    {body}\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stdout
    assert ("not checked here" in done.stdout) is bool(code)
