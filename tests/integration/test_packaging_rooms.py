"""The rooms at the top are collected and measured like every other module, and each of their modules once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.commands import python
from tests.tree import ROOT, modules


def run(*arguments: str | Path) -> str:
    done = python(*arguments)
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_doctests_of_every_room_are_collected_once() -> None:
    listed = run("-m", "pytest", "--collect-only", "--quiet", "malstrom_py").splitlines()
    collected = Counter(line.partition("::")[2] for line in listed if "::" in line)
    with_examples = {name for name, file in modules().items() if ">>>" in file.read_text()}
    assert [name for name, times in collected.items() if times > 1] == []
    for module in with_examples:
        assert [name for name in collected if name.startswith(module)], f"no doctest of {module} is collected"
    assert [line for line in listed if line.startswith(("workers/", "rescale/"))] == []
    assert [name for name in with_examples if name.startswith("malstrom_py.workers")], (
        "no example in malstrom_py.workers"
    )


@pytest.mark.long
def test_coverage_measures_every_module_of_every_room(tmp_path: Path) -> None:
    data = f"--data-file={tmp_path / 'coverage'}"
    script = tmp_path / "touch_the_rooms.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(ROOT)!r}); import malstrom_py.rescale, malstrom_py.workers")
    run("-m", "coverage", "run", data, script)
    run("-m", "coverage", "json", data, "-o", tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())["files"]
    assert set(report) == {str(file.relative_to(ROOT)) for file in modules().values()}
    assert report["workers/__init__.py"]["executed_lines"]
