"""The settings of the program's logs reach the actors, and SIGTERM has a limit on Ray too."""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from tests.integration.ray.clusters import PATIENCE_S
from tests.integration.ray.leftovers import until
from tests.integration.ray.programs import malstrom

pytestmark = pytest.mark.long

JOBS = """
import time
from itertools import count
from pathlib import Path

import malstrom_py as mp
from malstrom_py import sinks, sources


folder = Path(__file__).parent


def endless(name, function):
    job = mp.Job(name)
    numbers = job.source("numbers", sources.Generator(lambda part, start: count(start), parts=2))
    numbers.map("function", function).key_by("key", lambda n: n % 5).count("n").sink("out", sinks.Callable(str))
    return job


def blocks(number):
    (folder / "began").touch()
    time.sleep(600)


def logged():
    return endless("logged", lambda number: number)


def blocked():
    return endless("blocked", blocks)
"""

RUN = ("--runtime", "ray", "-w", "1", "--num-cpus", "0.1")


def reads(job: str) -> bool:
    with suppress(mp.MalstromError):
        return mp.JobHandle.attach(job).status().counts.read > 100
    return False


def log_lines(text: str) -> list[dict[str, Any]]:
    """Return the lines of actors, which Ray shows with their names in front, and the program's own."""
    found = [line[line.index('{"time"') :] for line in text.splitlines() if '{"time"' in line]
    return [json.loads(line) for line in found]


def test_actors_log_as_the_program_does(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    options = (
        "--log-format",
        "json",
        "--log-level",
        "debug",
        "--snapshots",
        "kept",
        "--interval",
        "1000",
        "--json",
        "--quiet",
    )
    with malstrom(tmp_path, "run", "jobs.py:logged", *RUN, *options, RAY_LOG_TO_DRIVER="1") as process:
        until(lambda: reads("logged"))
        mp.JobHandle.attach("logged").rescale(2)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    (result,) = [line for line in out.splitlines() if line.startswith('{"job"')]
    assert json.loads(result)["state"] == "stopped"
    lines = log_lines(out + err)
    assert {line["job"] for line in lines} == {"logged"}
    (rescaled,) = [line for line in lines if "has been rescaled" in line["message"]]
    assert (rescaled["logger"], rescaled["workers"]) == ("malstrom_py.coordinator", 2)
    started = [line for line in lines if line["message"] == "started"]
    assert sorted((line["worker"], line["incarnation"]) for line in started) == [(0, 1), (1, 1)]


def test_a_stop_past_its_limit_ends_the_job(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    with malstrom(tmp_path, "run", "jobs.py:blocked", *RUN, "--stop-timeout", "2", "--quiet") as process:
        until((tmp_path / "began").exists)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, err
    said = "error: job 'blocked' was stopped: the stop that SIGTERM began has not ended within 2 s, and nothing was"
    assert said in err
