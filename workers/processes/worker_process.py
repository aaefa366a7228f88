"""Processes of this machine that run workers, as the program that starts a job sees them.

Rule: a process ends with the program, however that ends (`malstrom_py.workers.processes.fork_server`).
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Collection
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

from malstrom_py.clock import SystemClock
from malstrom_py.errors import PeerError
from malstrom_py.errors.text import describe_error
from malstrom_py.workers.processes.fork_server import ENDED, GROUP_SIGNALS, Request, send_request
from malstrom_py.workers.remote.packed_plan import packed
from malstrom_py.workers.remote.worker_server import read_black_box
from malstrom_py.workers.remote.worker_setup import WorkerSetup

_SERVE: Final = (
    "import sys; sys.path[:] = sys.argv[2:]; from malstrom_py.workers.processes.fork_server import main; main()"
)

END_S: Final = 2.0
"""How long the exit code of a process that has hung up is waited for."""


class ForkServer:
    """The fork server of this program, started when it is first used, and again if it has ended."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._codes: dict[int, int] = {}
        self._server: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def warm_up(self) -> None:
        """Start the server, if it does not run."""
        with self._lock:
            if self._server is None:
                self._start()

    def fork(self, request: Request) -> Connection:
        """Return a connection to a new process, which first sends its pid."""
        here, its_end = socket.socketpair()
        with here, its_end:
            with self._lock:
                self.warm_up()
                assert self._server is not None
                try:
                    send_request(self._server, request, its_end.fileno())
                except OSError:  # it was killed
                    self._start()
                    send_request(self._server, request, its_end.fileno())
            return Connection(here.detach())

    def code_of(self, pid: int) -> int | None:
        """Return the exit code of a process that has hung up, negative if a signal has ended it; None if unknown."""
        clock = SystemClock()
        until_s = clock.monotonic_s() + END_S
        with self._lock:
            server = self._server
            while pid not in self._codes and self._server is server and (left_s := until_s - clock.monotonic_s()) > 0:
                self._lock.wait(left_s)
            return self._codes.pop(pid, None)

    def kill(self, pid: int) -> None:
        """Kill a process, unless it has ended: another one may have its number."""
        with self._lock, suppress(ProcessLookupError):
            if pid not in self._codes:
                os.kill(pid, signal.SIGKILL)

    def leave_to_parent(self) -> None:
        """Forget the server in a fork of this program, which starts its own: it must not outlive the program for it."""
        if self._server is not None:
            self._server.close()
        if self._process is not None:
            self._process.returncode = 0  # the parent waits for it
        self._lock, self._codes, self._server, self._process = threading.Condition(), {}, None, None

    def _start(self) -> None:
        here, its_end = socket.socketpair()
        with its_end:
            command = [sys.executable, *_interpreter_flags(), "-c", _SERVE, str(its_end.fileno()), *sys.path]
            # Until the server handles them, signals for the whole group of processes wait.
            former = signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
            try:
                process = subprocess.Popen(command, pass_fds=[its_end.fileno()], stdin=subprocess.DEVNULL)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, former)
        self._server, self._process, self._codes = here, process, {}
        threading.Thread(target=self._read_ends, args=(here, process), name="malstrom-forks", daemon=True).start()

    def _read_ends(self, server: socket.socket, process: subprocess.Popen[bytes]) -> None:
        with suppress(OSError):
            while len(data := server.recv(ENDED.size, socket.MSG_WAITALL)) == ENDED.size:
                pid, code = ENDED.unpack(data)
                with self._lock:
                    self._codes[pid] = code
                    self._lock.notify_all()
        with self._lock:
            if self._server is server:
                self._server = None
            self._lock.notify_all()
        server.close()
        process.wait()


FORKS: Final = ForkServer()
os.register_at_fork(after_in_child=FORKS.leave_to_parent)


def _interpreter_flags() -> list[str]:
    """Return the options of Python that this program runs with, such as -O and -W."""
    private: Any = subprocess  # multiprocessing takes them from there, too
    flags: list[str] = private._args_from_interpreter_flags()
    return flags


class LocalProcess:
    """A process of this machine that can run workers. A `WorkerProcess`.

    Rule: only its thread waits for the fork server and the process, so the deadlines of the coordinator hold if they
    do not react, or take long to read a plan.
    """

    node = None

    def __init__(self) -> None:
        self._calls = SimpleQueue[tuple[bytes, Future[Any]] | None]()
        self._lock = threading.Lock()
        self._pid = 0
        self._code: int | None = None
        self._why_not_started = ""
        self._is_killed = self._has_ended = False
        threading.Thread(
            target=self._work, args=(Request.of_program(),), name="malstrom-worker-process", daemon=True
        ).start()

    def open(self, setup: WorkerSetup, plan: Any, worker: int, coordinator: Any) -> Future[Any]:
        return self._call("open", setup, plan, worker, coordinator)

    def run(self) -> Future[Any]:
        return self._call("run")

    def result(self, call: Future[Any], worker: int) -> Any:
        try:
            return call.result(timeout=0)
        except EOFError:
            if self._why_not_started:
                raise PeerError(
                    f"no process could be started for worker {worker}: {self._why_not_started}", peer=worker
                ) from None
            raise worker_died(worker, self._pid or "unknown", self._code) from None

    def read_black_box(self, path: Path) -> str:
        return read_black_box(path)

    def kill(self) -> None:
        with self._lock:
            self._is_killed = True
            if self._pid and not self._has_ended:
                FORKS.kill(self._pid)
        self._calls.put(None)

    def _call(self, method: str, *arguments: Any) -> Future[Any]:
        data = packed((method, arguments))
        call: Future[Any] = Future()
        with self._lock:
            if not self._has_ended:
                self._calls.put((data, call))
                return call
        call.set_exception(EOFError())
        return call

    def _work(self, request: Request) -> None:
        """Send the calls and read their answers, one by one, until the process is killed or has ended."""
        call: Future[Any] | None = None
        try:
            with self._connected(request) as connection:
                while (asked := self._calls.get()) is not None:
                    data, call = asked
                    connection.send_bytes(data)
                    call.set_result(pickle.loads(connection.recv_bytes()))
                    call = None
        except (EOFError, ConnectionError):
            """The process has ended."""
        except Exception as error:  # too many files, threads or processes
            self._why_not_started = describe_error(error)
        self._code = FORKS.code_of(self._pid) if self._pid else None
        with self._lock:
            self._has_ended = True
        left = [] if call is None else [call]
        with suppress(Empty):
            while True:
                asked = self._calls.get_nowait()
                left += [] if asked is None else [asked[1]]
        for call in left:
            call.set_exception(EOFError())

    def _connected(self, request: Request) -> Connection:
        """Return a connection to the process, once it has sent its pid. A fork server that was just killed may still
        take the request, so the first loss is not the last.
        """
        connection = FORKS.fork(request)
        try:
            pid: int | str = pickle.loads(connection.recv_bytes())
        except (EOFError, ConnectionError):
            connection.close()
            connection = FORKS.fork(request)
            pid = pickle.loads(connection.recv_bytes())
        if isinstance(pid, str):  # the fork server's error
            connection.close()
            self._why_not_started = pid
            raise EOFError
        with self._lock:
            self._pid = pid
            if self._is_killed:
                FORKS.kill(pid)
        return connection


def worker_died(worker: int, pid: int | str, code: int | None) -> PeerError:
    """Return the error for a dead worker process.

    >>> print(worker_died(1, 4711, -9))  # doctest: +ELLIPSIS
    worker 1 died: its process (pid: 4711) was ended by SIGKILL. Its log, and the system's, may say why (...
    """
    how = "has ended" if code is None else f"ended with code {code}"
    if code is not None and code < 0:
        names = {number.value: number.name for number in signal.Signals}
        how = f"was ended by {names.get(-code, f'signal {-code}')}"
    return PeerError(
        f"worker {worker} died: its process (pid: {pid}) {how}. Its log, and the system's, may say why (killed, out of "
        f"memory). Without snapshots the job fails; with them it restarts from the last, as often as restart= allows",
        peer=worker,
    )


class ThisMachine:
    """The machine of this program. A `Machines`, which has room for any number of workers."""

    silent: frozenset[str] = frozenset()

    def new_process(self, but: Collection[str] = ()) -> LocalProcess:
        return LocalProcess()

    def share(self, plan: bytes) -> bytes:
        return plan

    def check_room(self, size: int, *, now: bool = False) -> None:
        """There is room."""

    def check_lost_room(self, wanted: int) -> None:
        """There is room."""

    def why_late(self, wanted: int) -> str:
        return "see the logs of the workers for what takes so long, or allow more with Processes(start_timeout_s=)"
