"""Jobs in separate processes, commanded by `malstrom status`, `rescale` and `stop`, and how they end."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py.errors import DeadlineError, JobEnded
from malstrom_py.workers.control import client as control_client
from malstrom_py.workers.control.client import running_jobs
from tests.integration.commands import COMMAND, malstrom, started, until

JOBS = """

import malstrom_py as mp
from malstrom_py import sinks, sources
from tests.endless import endless_numbers


def make(name, sink):
    made = mp.Job(name)
    numbers = made.source("numbers", sources.Generator(endless_numbers, parts=4))
    numbers.key_by("key", lambda n: n % 20).count("seen").map("row", lambda n: {"n": n}).sink("out", sink)
    return made


endless = make("endless", sinks.Files("out", format="csv"))
other = make("other", sinks.Memory())
"""
DEADLINE_S = 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "jobs.py").write_text(JOBS)
    return tmp_path


@contextmanager
def running(folder: Path, *options: str, job: str = "endless") -> Iterator[Any]:
    """`malstrom run` of a job without an end, once it reads."""
    with started(folder, *COMMAND, "run", f"jobs:{job}", *options) as process:
        until(lambda: job in running_jobs() and mp.JobHandle.attach(job).status().counts.read > 0, process)
        yield process


def rows(folder: Path) -> int:
    files = [file for file in (folder / "out").rglob("*") if file.is_file() and file.parent.name != "_malstrom"]
    assert all(file.suffix == ".csv" for file in files), files
    return sum(len(file.read_text().splitlines()) - 1 for file in files)


def test_a_job_that_malstrom_runs_is_watched_rescaled_and_stopped_from_another_terminal(folder: Path) -> None:
    with running(folder, "-w", "2") as process:
        status = malstrom(folder, "status", "endless")
        assert status.stdout.startswith("job endless: running, 2 workers (steady)\njob endless: ")
        rescaled = malstrom(folder, "rescale", "endless", "4")
        assert (rescaled.returncode, rescaled.stderr) == (0, "")
        assert re.match(
            r"job endless runs on 4 workers: \d+ key groups and 2 partitions moved, "
            r"with [\d,]+ keys and [\d.]+ MB of state, in ",
            rescaled.stdout,
        )
        found = json.loads(malstrom(folder, "status", "endless", "--json").stdout)
        assert (found["job"], found["state"], found["workers"]) == ("endless", "running", 4)
        assert found["counts"]["steps"]["numbers"]["rows_in"] > 0
        begun = malstrom(folder, "rescale", "endless", "1", "--no-wait")
        assert (begun.returncode, begun.stdout) == (0, "job endless has begun to rescale to 1\n")
        stopped = malstrom(folder, "stop", "endless")
        assert (stopped.returncode, stopped.stdout, stopped.stderr) == (0, "job endless has finished\n", "")
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (0, "")
    written = re.match(r"job endless: ([\d,]+) read, ([\d,]+) written, ", err)
    assert written
    assert written[1] == written[2]
    assert rows(folder) == int(written[1].replace(",", ""))


def test_a_stop_without_drain_fails_the_run_and_leaves_nothing(folder: Path) -> None:
    with running(folder) as process:
        stopped = malstrom(folder, "stop", "endless", "--no-drain")
        assert (stopped.returncode, stopped.stdout) == (0, "job endless has stopped; nothing was committed\n")
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (1, "")
    assert err.startswith("error: job 'endless' was stopped without drain: nothing was committed")
    assert list((folder / "out").rglob("*")) == []


def test_jobs_that_run_are_listed(folder: Path) -> None:
    assert malstrom(folder, "status").stdout == "no job is running here\n"
    with running(folder), running(folder, job="other"):
        assert malstrom(folder, "status").stdout == "endless\nother\n"
        assert json.loads(malstrom(folder, "status", "--json").stdout) == ["endless", "other"]
        missing = malstrom(folder, "rescale", "endles", "4")
        assert (missing.returncode, missing.stdout) == (2, "")
        assert missing.stderr.startswith(
            "error: no job 'endles' can be reached; running here: endless, other (looked in "
        )
        again = malstrom(folder, "run", "jobs:other")
        assert again.returncode == 1
        assert re.match(r"error: a job 'other' runs already in process \d+: wait for it", again.stderr)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["stop", "absent"], "error: no job 'absent' can be reached; no job is running here"),
        (["status", "absent"], "error: no job 'absent' can be reached"),
        (["status", "two words"], "error: job name 'two words' is not legal"),
        (["rescale", "absent"], "Missing argument 'N'"),
        (["rescale", "absent", "0"], "Invalid value for 'N'"),
        (["rescale", "absent", "4", "--timeout", "-1"], "Invalid value for '--timeout'"),
        (["stop"], "Missing argument 'JOB'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_ends_with_2(arguments: list[str], said: str, folder: Path) -> None:
    done = malstrom(folder, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_a_job_without_control_is_not_found_and_runs_twice(folder: Path) -> None:
    with (
        started(folder, *COMMAND, "run", "jobs", "--no-control") as wrong,
        started(folder, *COMMAND, "run", "jobs:endless", "--no-control") as process,
    ):
        assert wrong.wait(DEADLINE_S) == 2
        deadline_s = time.monotonic() + DEADLINE_S
        while not any(file.stat().st_size for file in (folder / "out").rglob("*.csv")):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        assert running_jobs() == []
        with running(folder):
            assert malstrom(folder, "stop", "endless").returncode == 0
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130


@pytest.mark.long
def test_ctrl_c_stops_the_waiting_of_a_command_and_not_the_job(folder: Path) -> None:
    (folder / "waiting.py").write_text(
        "import malstrom_py as mp\nhandle = mp.JobHandle.attach('endless')\nprint('waits', flush=True)\nhandle.wait()\n"
    )
    with running(folder) as process, started(folder, "waiting.py") as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "waits\n"
        time.sleep(0.5)
        waiting.send_signal(signal.SIGINT)
        _, err = waiting.communicate(timeout=DEADLINE_S)
        assert waiting.returncode == -signal.SIGINT
        assert "job 'endless' continues, and so does the requested operation: only the wait was interrupted" in err
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
    assert running_jobs() == []


@pytest.mark.long
def test_ctrl_c_of_the_run_is_told_to_those_who_wait(folder: Path) -> None:
    (folder / "waiting.py").write_text(
        "import malstrom_py as mp\nhandle = mp.JobHandle.attach('endless')\nprint('waits', flush=True)\n"
        "try:\n    handle.wait()\nexcept mp.JobEnded as error:\n    print(error.how, error)\n"
    )
    with running(folder) as process, started(folder, "waiting.py") as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "waits\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, _ = waiting.communicate(timeout=DEADLINE_S)
        assert process.wait(DEADLINE_S) == 130
    assert out == "stopped job 'endless' was stopped by Ctrl-C\n"


def test_what_a_killed_process_left_is_taken_over(folder: Path, runtime: Path) -> None:
    with running(folder) as process:
        attached = mp.JobHandle.attach("endless")
        process.kill()
        process.wait(DEADLINE_S)
    assert {file.name for file in runtime.iterdir()} == {"endless.sock", "endless.token"}
    with pytest.raises(JobEnded, match="it has ended, or its process has"):
        attached.status()
    assert malstrom(folder, "status", "endless").returncode == 2
    with running(folder):
        assert malstrom(folder, "stop", "endless").returncode == 0
    assert list(runtime.iterdir()) == []


def test_a_process_that_stands_still_is_waited_for_no_longer_than_its_deadline(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(folder) as process:
        attached = mp.JobHandle.attach("endless")
        process.send_signal(signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr(control_client, "ANSWER_S", 0.5)
            with pytest.raises(DeadlineError, match="its process is stopped") as raised:
                attached.wait()
        assert raised.value.wait == "an answer of job 'endless'"
        process.send_signal(signal.SIGCONT)
        assert attached.status().state == "running"


PROGRAM = """
import malstrom_py as mp
from jobs import other
from malstrom_py.workers.control.client import running_jobs

handle = mp.InProcess(2).start(other)
assert running_jobs() == ["other"]
"""

INTERRUPTED = """
import os, signal, threading
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    handle.wait()
except KeyboardInterrupt as error:
    assert handle.status().state == "running"
    assert "only the wait was interrupted" in error.__notes__[0]
handle.stop()
"""

FAILED = """
import time
from malstrom_py import sinks, sources
failing = mp.Job("failing")
failing.source("in", sources.Memory([0])).map("inverse", lambda n: 1 // n).sink("out", sinks.Memory())
mp.InProcess().start(failing)
while "failing" in running_jobs():
    time.sleep(0.01)
handle.stop()
"""

STUCK = """
import threading
from malstrom_py import sinks, sources
from malstrom_py.workers.runtime import job_thread
job_thread._EXIT_S = 0.2
entered = threading.Event()
def block(n):
    entered.set()
    threading.Event().wait()
stuck = mp.Job("stuck")
stuck.source("in", sources.Memory([0])).map("block", block).sink("out", sinks.Memory())
mp.InProcess().start(stuck)
entered.wait()
handle.stop()
"""

FORKING = """
import os, signal, sys, time
import malstrom_py as mp
from jobs import other

handle = mp.InProcess().start(other)
if os.fork() == 0:
    try:
        handle.status()
    except mp.ControlError as error:
        assert "was forked" in str(error)
    assert mp.JobHandle.attach("other").status().state == "running"
    sys.exit()  # as a program ends: what is left to do at the end is done
assert os.wait()[1] == 0
assert handle.status().state == "running"
assert mp.JobHandle.attach("other").status().state == "running"
if os.fork() == 0:
    print(os.getpid(), flush=True)  # it has released its parent's resources by now
    time.sleep(600)
os.kill(os.getpid(), signal.SIGKILL)
"""

STOPPED = r"malstrom: job 'other' was stopped: the program that ran it has ended, and nothing was committed\n"

ENDINGS = {
    "running": ("", STOPPED),
    "exit": ("raise SystemExit(0)", STOPPED),
    "stopped": ("handle.stop()", ""),
    "interrupted": (INTERRUPTED, ""),
    "failed": (
        FAILED,
        r"malstrom: step 'inverse' failed: ZeroDivisionError in <lambda> at .*\n  it was processing a batch .*\n",
    ),
    "stuck": (
        STUCK,
        r"(job stuck: step 'block' .*\n)?malstrom: job 'stuck' did not stop within 0\.2 s, and ends with the program\n",
    ),
}


@pytest.mark.long(but=("exit", "running"))
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_end_of_the_program_ends_its_jobs_and_says_what_nobody_asked(
    ending: str, folder: Path, runtime: Path
) -> None:
    rest, said = ENDINGS[ending]
    (folder / "program.py").write_text(PROGRAM + rest)
    with started(folder, "program.py") as process:
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    assert re.fullmatch(said, err), err
    assert list(runtime.iterdir()) == []


def test_a_forked_process_neither_holds_the_name_nor_stops_the_job(folder: Path, runtime: Path) -> None:
    (folder / "program.py").write_text(FORKING)
    with started(folder, "program.py") as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.wait(DEADLINE_S)
        try:
            with running(folder, job="other"):
                assert malstrom(folder, "stop", "other").returncode == 0
        finally:
            os.kill(child, signal.SIGKILL)
    assert list(runtime.iterdir()) == []
