"""``malstrom reload`` and ``malstrom run --reload``: the code of a job of another process changes while it runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import malstrom_py as mp
from tests.integration.commands import PATIENCE_S, environment, malstrom

JOB = """
import time

import malstrom_py as mp
from malstrom_py import sinks, sources


def numbers(part, start):
    while True:
        yield start
        start += 1
        time.sleep(0.001)


def make():
    job = mp.Job("NAME")
    keyed = job.source("in", sources.Generator(numbers)).key_by("key", lambda n: n % 3)
    keyed.stateful_map("total", lambda key, n, seen: ({"seen": seen + 1, "by": 1}, seen + 1), default=int).sink(
        "out", sinks.Files("out", format="json")
    )
    return job
"""


def running(folder: Path, name: str, *options: str) -> tuple[subprocess.Popen[str], Path]:
    file = folder / f"{name.replace('-', '_')}.py"
    file.write_text(JOB.replace("NAME", name))
    command = [sys.executable, "-m", "malstrom_py.cli", "run", f"{file.name}:make", "-w", "2", *options]
    process = subprocess.Popen(command, cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True)
    _until(lambda: _has_written(name))
    return process, file


def _has_written(name: str) -> bool:
    try:
        return mp.JobHandle.attach(name).status().counts.written > 0
    except mp.JobNotFound:
        return False


def _until(reached: Callable[[], bool]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < until_s
        time.sleep(0.05)


def versions(folder: Path) -> set[int]:
    rows = [json.loads(line) for file in (folder / "out").glob("*.json*") for line in file.read_text().splitlines()]
    return {row["by"] for row in rows}


def test_reload_replaces_a_lambda_in_the_function_that_makes_the_job(tmp_path: Path) -> None:
    process, file = running(tmp_path, "docs-cli-reload", "--snapshots", str(tmp_path / "kept"))
    try:
        file.write_text(file.read_text().replace('"by": 1', '"by": 2'))
        reloaded = malstrom(tmp_path, "reload", "docs-cli-reload", "total", "--probation", "0.2")
        assert reloaded.stdout.startswith("job docs-cli-reload: step total has the new code of docs_cli_reload since")
        file.write_text("(")
        refused = malstrom(tmp_path, "reload", "docs-cli-reload", "total")
        assert (refused.returncode, refused.stderr.count("SyntaxError")) == (1, 1)
        assert malstrom(tmp_path, "stop", "docs-cli-reload", "--drain").returncode == 0
    finally:
        process.kill()
        process.communicate()
    assert versions(tmp_path) == {1, 2}


def test_run_with_reload_watches_the_file(tmp_path: Path) -> None:
    process, file = running(tmp_path, "docs-watched", "--reload")
    assert process.stderr is not None
    try:
        file.write_text(file.read_text().replace('"by": 1', '"by": 2'))
        said = ""
        while "step key has the new code of docs_watched" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        assert malstrom(tmp_path, "stop", "docs-watched", "--drain").returncode == 0
        said += process.communicate(timeout=PATIENCE_S)[1]
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0
    assert f"reloading when these change: {file}" in said
    assert versions(tmp_path) == {1, 2}


def test_run_with_reload_needs_its_control_socket(tmp_path: Path) -> None:
    refused = malstrom(tmp_path, "run", "x:y", "--reload", "--no-control")
    assert (refused.returncode, "leave out --no-control" in refused.stderr) == (2, True)
