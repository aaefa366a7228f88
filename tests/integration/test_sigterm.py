"""SIGTERM for real: a planned stop within a limit, and a second signal that ends the process immediately."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from tests.integration.commands import COMMAND, started, until
from tests.integration.test_interrupt import DEADLINE_S

Begun = Callable[..., Any]

JOBS = """
import asyncio
import time
from pathlib import Path

import malstrom_py as mp
from malstrom_py import sinks, sources
from tests.endless import endless_numbers


def numbers(job):
    return job.source("numbers", sources.Generator(endless_numbers))


def blocks(number):
    Path("began").touch()
    time.sleep(600)


def noted(number):
    Path("began").touch()
    return {"number": number}


def endless():
    job = mp.Job("endless")
    numbers(job).map("noted", noted).sink("out", sinks.Files("out", format="csv"))
    return job


def blocked():
    job = mp.Job("blocked")
    numbers(job).map("blocks", blocks).sink("out", sinks.Memory())
    return job


async def asks(key):
    Path("began").touch()
    await asyncio.sleep(600)
    return key


def awaiting():
    job = mp.Job("awaiting")
    keyed = numbers(job).key_by("key", lambda number: number)
    keyed.map("row", lambda number: {"number": number}).enrich("asked", asks).sink("out", sinks.Files("out"))
    return job

"""


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "r").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "r"))


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Start a job on the command line, and return its process once a function of it has been called."""
    with ExitStack() as stack:

        def start(job: str, *options: str) -> Any:
            process = stack.enter_context(started(tmp_path, *COMMAND, "run", f"jobs:{job}", *options))
            until((tmp_path / "began").exists, process)
            return process

        yield start


def ended(process: Any) -> tuple[int, str]:
    _, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, err


def wait_until_stopping(folder: Path, job: str, process: Any) -> None:
    handle = mp.JobHandle.attach(job)
    until(lambda: handle.status(timeout_s=0.1).state == "stopping", process)


@pytest.mark.parametrize("kept", [False, True], ids=["drain", "snapshot"])
def test_one_stops_the_job_as_planned_and_the_exit_code_is_0(kept: bool, tmp_path: Path, begun: Begun) -> None:
    process = begun("endless", *(("--snapshots", "kept") if kept else ()))
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)  # as to the group and to the process: the same
    code, err = ended(process)
    assert code == 0, err
    assert ("job endless has stopped; it can resume from snapshot" in err) is kept
    assert any((tmp_path / "out").glob("*.csv"))


@pytest.mark.parametrize("job", ["blocked", "awaiting"])
def test_a_second_one_ends_the_process_immediately(job: str, tmp_path: Path, begun: Begun) -> None:
    """A function blocks, or the drain takes long."""
    process = begun(job)
    process.send_signal(signal.SIGTERM)
    wait_until_stopping(tmp_path, job, process)
    time.sleep(1.2)  # longer than signals that are the same
    process.send_signal(signal.SIGTERM)
    code, err = ended(process)
    assert (code, err.splitlines()[-1]) == (
        143,
        "terminated: a second SIGTERM has ended the job immediately, as SIGKILL does",
    )


def test_a_stop_past_its_limit_ends_the_job(tmp_path: Path, begun: Begun) -> None:
    """A call is awaited, and nothing blocks: the job ends in order, without drain."""
    process = begun("awaiting", "--stop-timeout", "0.5")
    process.send_signal(signal.SIGTERM)
    code, err = ended(process)
    said = "error: job 'awaiting' was stopped: the stop that SIGTERM began has not ended within 0.5 s, and nothing was"
    assert (code, err.startswith(said)) == (1, True), err
    assert list((tmp_path / "out").rglob("*")) == []


def test_a_stop_past_its_limit_ends_the_process_of_a_function_that_blocks(tmp_path: Path, begun: Begun) -> None:
    process = begun("blocked", "--stop-timeout", "0.5")
    process.send_signal(signal.SIGTERM)
    code, err = ended(process)
    said = "error: the stop that SIGTERM began has not ended within 0.5 s: the job has been ended immediately"
    assert (code, err.startswith(said)) == (1, True), err
