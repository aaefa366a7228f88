"""No process is left over when processes are killed, and what a function does to its process stays there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import PeerError
from malstrom_py.workers.processes.worker_process import FORKS
from tests.integration.processes.worker_pids import children_of, worker_pids
from tests.integration.ray.leftovers import is_alive, until
from tests.integration.ray.traffic import PATIENCE_S
from tests.tree import ROOT

PROGRAM = """
import os, sys, time
import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.workers.processes.worker_process import FORKS

def run(name, function, rows=40):
    job, out = mp.Job(name), sinks.Memory()
    job.source("in", sources.Memory(range(rows), parts=2)).map("function", function).sink("out", out)
    return mp.Processes(2, progress=False).run(job).read
"""
BLOCKED = PROGRAM + "run(sys.argv[1], lambda n: time.sleep(1000))"


@contextmanager
def started(code: str, *arguments: str, options: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    """Run ``code`` in a new group of processes."""
    command, environ = [sys.executable, *options, "-c", code, *arguments], {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environ, start_new_session=True) as program:
        try:
            yield program
        finally:
            program.kill()


def said(code: str, *arguments: str, options: tuple[str, ...] = ()) -> str:
    with started(code, *arguments, options=options) as program:
        out, complaint = program.communicate(timeout=PATIENCE_S)
    assert complaint == ""
    return out


def server_and_workers(program: subprocess.Popen[str]) -> tuple[int, list[int]]:
    """Return the processes of a program, once two workers run."""
    until(lambda: any(len(children_of(server)) == 2 for server in children_of(program.pid)))
    (server,) = children_of(program.pid)
    workers = children_of(server)
    time.sleep(0.3)  # the function blocks them soon; nothing depends on it
    return server, workers


def test_blocked_workers_end_if_their_fork_server_and_then_the_program_is_killed() -> None:
    with started(BLOCKED, "blocked-and-orphaned") as program:
        server, workers = server_and_workers(program)
        os.kill(server, signal.SIGKILL)
        until(lambda: not is_alive(server))
        assert all(map(is_alive, workers))
        program.kill()
        until(lambda: not any(map(is_alive, workers)))


def test_blocked_workers_end_if_one_of_them_and_the_program_are_killed_at_once() -> None:
    with started(BLOCKED, "blocked-together") as program:
        server, workers = server_and_workers(program)
        os.kill(server, signal.SIGSTOP)  # so that it finds both deaths when it continues
        program.kill()
        os.kill(workers[0], signal.SIGKILL)
        program.wait(PATIENCE_S)
        os.kill(server, signal.SIGCONT)
        until(lambda: not any(map(is_alive, [server, *workers])))


def test_a_fork_of_the_program_does_not_keep_its_workers() -> None:
    code = PROGRAM + (
        "job, out = mp.Job('forked-program'), sinks.Memory()\n"
        "source = sources.Generator(lambda part, start: iter(range(start, 1 << 60)), parts=2)\n"
        "job.source('in', source).filter('none', lambda n: n < 0).sink('out', out)\n"
        "handle = mp.Processes(2).start(job)\n"
        "while handle.status().phase != 'steady':\n"
        "    time.sleep(0.01)\n"
        "child = os.fork()\n"
        "if child:\n"
        "    print(child, flush=True)\n"
        "time.sleep(1000)\n"
    )
    with started(code) as program:
        assert program.stdout is not None
        fork = int(program.stdout.readline())
        server = next(child for child in children_of(program.pid) if child != fork)
        workers = children_of(server)
        assert len(workers) == 2
        program.kill()
        try:
            until(lambda: not any(map(is_alive, [server, *workers])))
            assert is_alive(fork)
        finally:
            os.killpg(program.pid, signal.SIGKILL)


def test_ctrl_c_while_the_fork_server_starts_is_of_the_program_alone() -> None:
    with started(PROGRAM + "FORKS.warm_up()\ntime.sleep(1000)") as program:  # a job that runs would stop slowly
        until(lambda: bool(children_of(program.pid)))
        (server,) = children_of(program.pid)
        os.killpg(program.pid, signal.SIGINT)
        _, complaint = program.communicate(timeout=PATIENCE_S)
        assert complaint.count("Traceback") == complaint.count("KeyboardInterrupt") == 1
        until(lambda: not is_alive(server))


def test_a_job_continues_without_its_fork_server_and_the_next_one_starts_another(tidy: None) -> None:
    job = mp.Job("without-fork-server")
    source = sources.Generator(lambda part, start: iter(range(start, 1 << 60)), parts=2)
    job.source("in", source).filter("none", lambda n: n < 0).sink("out", sinks.Memory())
    handle = mp.Processes(2).start(job)
    until(lambda: handle.status().phase == "steady")
    assert FORKS._process is not None
    workers = worker_pids()
    FORKS._process.kill()
    until(lambda: FORKS._server is None)
    handle.rescale(3)
    assert all(map(is_alive, workers))
    assert len(worker_pids()) == 1
    os.kill(workers[0], signal.SIGKILL)
    with pytest.raises(PeerError, match=rf"its process \(pid: {workers[0]}\) has ended\. Its log"):
        handle.wait(timeout_s=PATIENCE_S)


def test_a_fork_server_that_was_just_killed_is_replaced(out: sinks.Memory) -> None:
    for n in range(5):
        assert FORKS._process is not None
        FORKS._process.kill()  # it may still take requests
        job = mp.Job(f"fork-server-{n}")
        job.source("in", sources.Memory([n])).sink("out", out)
        mp.Processes(1, progress=False).run(job)
        assert out.items == [n]


def test_a_process_that_cannot_be_started_is_an_error(tidy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(FORKS, "fork", refuse)
    job = mp.Job("no-process")
    job.source("in", sources.Memory(range(5))).sink("out", sinks.Memory())
    with pytest.raises(PeerError, match=r"no process could be started for worker \d: OSError: .*Too many open files"):
        mp.Processes(2, progress=False).run(job)


def test_a_death_is_seen_though_a_fork_of_the_worker_lives(tidy: None, tmp_path: Path) -> None:
    def fork_and_die(n: int) -> int:
        if n == 3:
            child = os.fork()
            if child == 0:
                time.sleep(1000)
            (tmp_path / "child").write_text(str(child))
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    job = mp.Job("forking-function")
    job.source("in", sources.Memory(range(40), parts=2)).map("fork", fork_and_die).sink("out", sinks.Memory())
    try:
        with pytest.raises(PeerError, match="was ended by SIGKILL"):
            mp.Processes(2, progress=False).run(job)
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def test_a_process_that_a_function_forks_can_be_terminated(out: sinks.Memory) -> None:
    def terminated(n: int) -> int:
        child = os.fork()
        if child == 0:
            signal.pause()
        os.kill(child, signal.SIGTERM)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    job = mp.Job("terminating-function")
    job.source("in", sources.Memory([1])).map("terminate", terminated).sink("out", out)
    mp.Processes(1, progress=False).run(job)
    assert out.items == [-signal.SIGTERM]


def test_lines_that_functions_print_are_whole_and_complete() -> None:
    code = PROGRAM + "run('printing', lambda n: print(f'{n:0>60}') or n, rows=3000)"
    lines = said(code).splitlines()
    assert sorted(lines) == [f"{n:0>60}" for n in range(3000)]


def test_workers_print_to_where_the_program_prints_now(tmp_path: Path) -> None:
    code = PROGRAM + (
        "job = lambda text: run(text, lambda n: print(text, flush=True) or n, rows=1)\n"
        "job('before')\n"
        "os.dup2(os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY), 1)\n"
        "job('after')\n"
    )
    assert said(code, str(tmp_path / "out")) == "before\n"
    assert (tmp_path / "out").read_text() == "after\n"


def test_a_program_in_a_deleted_folder_runs_jobs(tmp_path: Path) -> None:
    folder = tmp_path / "deleted"
    folder.mkdir()
    code = PROGRAM + "os.chdir(sys.argv[1]); os.rmdir(sys.argv[1]); print(run('deleted-folder', abs))"
    assert said(code, str(folder)) == "40\n"


def test_workers_have_the_options_of_python_and_the_environment_of_now() -> None:
    code = PROGRAM + (
        "mp.Processes(1); os.environ.update(SET_LATE='yes', TZ='UTC-7')\n"
        "def check(n):\n"
        "    assert False\n"
        "    return sys.warnoptions, os.environ['SET_LATE'], time.localtime(0).tm_hour\n"
        "job, out = mp.Job('options'), sinks.Memory()\n"
        "job.source('in', sources.Memory([1])).map('check', check).sink('out', out)\n"
        "mp.Processes(1, progress=False).run(job); print(*out.items)\n"
    )
    assert said(code, options=("-O", "-W", "error")) == "(['error'], 'yes', 7)\n"
