"""Both type checkers infer through a job: right programs pass, and each marked line of a wrong one is refused.

A program is stored in programs/ as text, so that the checks of the repository do not stumble over what is wrong
on purpose. ``# E: a | b`` marks a line on which mypy must say ``a`` and pyright ``b``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tree import ROOT

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.txt"))
MARKER = re.compile(r"# E: (?P<mypy>.+?)(?: \| (?P<pyright>.+))?$")

Diagnostics = dict[str, dict[int, str]]
"""File name -> line -> what was said of it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs as Python files, in a folder outside of this repository."""
    folder = tmp_path_factory.mktemp("programs")
    for program in PROGRAMS:
        (folder / f"{program.stem}.py").write_text(program.read_text())
    return folder


def run(command: list[str], folder: Path) -> str:
    environment = os.environ | {"MYPYPATH": str(ROOT), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=400
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def add(found: Diagnostics, file: str, line: int, message: str) -> None:
    of_file = found.setdefault(file, {})
    of_file[line] = f"{of_file.get(line, '')}\n{message}"


def said_by_mypy(folder: Path) -> Diagnostics:
    # With the settings of `make types`, and with what it has found out about the package: alone it takes half a minute.
    settings = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    command = [sys.executable, "-m", "mypy", *settings, "--no-error-summary", "--no-pretty", "."]
    found: Diagnostics = {}
    for line in run(command, folder).splitlines():
        parts = re.match(r"(?P<file>[^:]+):(?P<line>\d+): error: (?P<message>.*)", line)
        if parts:
            add(found, parts["file"], int(parts["line"]), parts["message"])
    return found


def said_by_pyright(folder: Path) -> Diagnostics:
    settings = {"pythonVersion": "3.11", "typeCheckingMode": "standard", "extraPaths": [str(ROOT)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    found: Diagnostics = {}
    for diagnostic in json.loads(run(command, folder))["generalDiagnostics"]:
        if diagnostic["severity"] == "error":
            line = diagnostic["range"]["start"]["line"] + 1
            add(found, Path(diagnostic["file"]).name, line, diagnostic["message"])
    return found


def expected_of(tool: str) -> dict[str, dict[int, str]]:
    expected: dict[str, dict[int, str]] = {}
    for program in PROGRAMS:
        lines = enumerate(program.read_text().splitlines(), 1)
        marked = {number: found for number, line in lines if (found := MARKER.search(line))}
        expected[f"{program.stem}.py"] = {number: found[tool] or found["mypy"] for number, found in marked.items()}
    return expected


def test_there_are_right_programs_and_wrong_ones() -> None:
    assert sum(len(lines) for lines in expected_of("mypy").values()) >= 40
    assert any(not lines for lines in expected_of("mypy").values())


@pytest.mark.parametrize("tool", ["mypy", "pyright"])
def test_right_lines_pass_and_wrong_lines_are_refused(tool: str, folder: Path) -> None:
    found = said_by_mypy(folder) if tool == "mypy" else said_by_pyright(folder)
    for file, expected in expected_of(tool).items():
        said = found.get(file, {})
        passed = {line: message for line, message in expected.items() if message not in said.get(line, "")}
        assert not passed, f"{file}: {tool} did not say this: {passed}, but that: {said}"
        surprises = {line: message for line, message in said.items() if line not in expected}
        assert not surprises, f"{file}: {tool} refuses what is right: {surprises}"
