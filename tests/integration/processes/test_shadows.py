"""A shadow of a job in processes, by the command line, through a rescale and the loss of a worker."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import malstrom_py as mp
from tests.integration.commands import COMMAND, malstrom, started, until
from tests.integration.processes.worker_pids import children_of

if TYPE_CHECKING:
    import pytest

JOBS = """
import time
from dataclasses import dataclass

import malstrom_py as mp
from malstrom_py import sinks, sources


def numbers(part, start):
    for number in range(start, 1 << 60):
        yield number
        if number % 20 == 0:
            time.sleep(0.002)


@dataclass
class Seen:
    n: int = 0


def seen(key, number, state):
    n = state.n + 1
    return {"key": key, "n": n, "by": 1}, Seen(n)


job = mp.Job("shadowed")
read = job.source("numbers", sources.Generator(numbers)).key_by("key", lambda n: n % 20)
read.stateful_map("seen", seen, default=Seen).sink("out", sinks.Files("out", format="json"))
"""

ODD = ('"n": n,', '"n": -n if n % 10 == 0 else n,')


def answered(folder: Path, *arguments: str) -> Any:
    done = malstrom(folder, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def workers_of(program: int) -> list[int]:
    """The processes of the workers: those that the server of a program has forked."""
    return [worker for server in children_of(program) for worker in children_of(server)]


def test_a_shadow_by_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "r").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "r"))
    options = ["--runtime", "processes", "-w", "2", "--snapshots", "kept", "--interval", "0.5", "--quiet"]
    with started(tmp_path, *COMMAND, "run", "jobs:job", *options) as process:
        until(lambda: "shadowed" in answered(tmp_path, "status"), process)
        until(lambda: mp.JobHandle.attach("shadowed").status().counts.read > 500, process)
        (tmp_path / "jobs.py").write_text(JOBS.replace(*ODD))
        begun = answered(tmp_path, "reload", "shadowed", "seen", "--shadow")
        assert (begun["step"], begun["action"], begun["modules"]) == ("seen", "shadow", ["jobs"])

        def found(rows: int) -> bool:
            return mp.JobHandle.attach("shadowed").metrics().shadows["seen"].compared > rows

        until(lambda: found(1_000), process)
        answered(tmp_path, "rescale", "shadowed", "3")
        os.kill(workers_of(process.pid)[0], signal.SIGKILL)
        rows = mp.JobHandle.attach("shadowed").shadow("seen").compared
        until(lambda: found(rows + 2_000), process)
        shown = malstrom(tmp_path, "reload", "shadowed", "seen", "--differences").stdout
        assert " outputs of the new code differ\n  " in shown
        assert "'n': -" in shown
        report = answered(tmp_path, "reload", "shadowed", "seen", "--differences")
        assert abs(report["different"] - report["compared"] / 10) < 40
        assert report["failure"] == ""
        both = malstrom(tmp_path, "reload", "shadowed", "seen", "--drop", "--promote")
        assert (both.returncode, both.stdout) == (2, "")
        promoted = answered(tmp_path, "reload", "shadowed", "seen", "--promote", "--probation", "0.2")
        assert promoted["action"] == "promote"
        none = malstrom(tmp_path, "reload", "shadowed", "seen", "--differences")
        assert "step 'seen' has no shadow: begin one by" in none.stderr
        answered(tmp_path, "snapshot", "shadowed")
        answered(tmp_path, "stop", "shadowed")
    files = (tmp_path / "out").glob("*.json*")
    written = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    for key in range(20):
        counts = [abs(row["n"]) for row in written if row["key"] == key]
        assert sorted(counts) == list(range(1, len(counts) + 1)), "each record is processed once, with one state"
    assert any(row["n"] < 0 for row in written)
