"""``malstrom reload`` and ``malstrom run --reload``: the code of a job of another process changes while it runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import malstrom_py as mp
from malstrom_py.workers.control.client import running_jobs
from tests.integration.commands import COMMAND, PATIENCE_S, malstrom, started, until

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


@contextmanager
def running(folder: Path, name: str, *options: str) -> Iterator[tuple[Any, Path]]:
    file = folder / f"{name.replace('-', '_')}.py"
    file.write_text(JOB.replace("NAME", name))
    with started(folder, *COMMAND, "run", f"{file.name}:make", "-w", "2", *options) as process:
        until(lambda: name in running_jobs() and mp.JobHandle.attach(name).status().counts.written > 0, process)
        yield process, file


def versions(folder: Path) -> set[int]:
    rows = [json.loads(line) for file in (folder / "out").glob("*.json*") for line in file.read_text().splitlines()]
    return {row["by"] for row in rows}


def test_reload_replaces_a_lambda_in_the_function_that_makes_the_job(tmp_path: Path) -> None:
    with running(tmp_path, "docs-cli-reload", "--snapshots", str(tmp_path / "kept")) as (_, file):
        file.write_text(file.read_text().replace('"by": 1', '"by": 2'))
        reloaded = malstrom(tmp_path, "reload", "docs-cli-reload", "total", "--probation", "0.2")
        assert reloaded.stdout.startswith("job docs-cli-reload: step total has the new code of docs_cli_reload since")
        file.write_text("(")
        refused = malstrom(tmp_path, "reload", "docs-cli-reload", "total")
        assert (refused.returncode, refused.stderr.count("SyntaxError")) == (1, 1)
        assert malstrom(tmp_path, "stop", "docs-cli-reload", "--drain").returncode == 0
    assert versions(tmp_path) == {1, 2}


def test_run_with_reload_watches_the_file(tmp_path: Path) -> None:
    with running(tmp_path, "docs-watched", "--reload") as (process, file):
        file.write_text(file.read_text().replace('"by": 1', '"by": 2'))
        said = ""
        while "step key has the new code of docs_watched" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        assert malstrom(tmp_path, "stop", "docs-watched", "--drain").returncode == 0
        said += process.communicate(timeout=PATIENCE_S)[1]
        assert process.returncode == 0
    assert f"reloading when these change: {file}" in said
    assert versions(tmp_path) == {1, 2}


def test_run_with_reload_needs_its_control_socket(tmp_path: Path) -> None:
    refused = malstrom(tmp_path, "run", "x:y", "--reload", "--no-control")
    assert (refused.returncode, "leave out --no-control" in refused.stderr) == (2, True)
