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
from collections import deque
from collections.abc import Collection
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from malstrom_py.clock import SystemClock
from malstrom_py.errors import PeerError
from malstrom_py.workers.processes.fork_server import ENDED, Request, send_request
from malstrom_py.workers.remote.packed_plan import packed
from malstrom_py.workers.remote.worker_server import read_black_box
from malstrom_py.workers.remote.worker_setup import WorkerSetup

_SERVE: Final = (
    "import sys; sys.path[:] = sys.argv[2:]; from malstrom_py.workers.processes.fork_server import main; main()"
)

END_S: Final = 2.0
"""How long the exit code of a process that has hung up is waited for."""


class ForkServer:
    """The fork server of this program, started when it is first used."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._codes: dict[int, int] = {}
        self._server: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def warm_up(self) -> None:
        """Start the server, if it does not run."""
        with self._lock:
            if self._server is None or self._pid != os.getpid():  # a fork of this program starts its own
                self._start()

    def fork(self) -> Connection:
        """Return a connection to a new process, which first sends its pid."""
        here, there = socket.socketpair()
        with here, there:
            request = Request(dict(os.environ), str(Path.cwd()), sys.path)
            self.warm_up()
            with self._lock:
                assert self._server is not None
                try:
                    send_request(self._server, request, there.fileno())
                except OSError:  # it was killed
                    self._start()
                    send_request(self._server, request, there.fileno())
            return Connection(here.detach())

    def code_of(self, pid: int) -> int | None:
        """Return the exit code of a process that has hung up, negative if a signal has ended it; None if unknown."""
        clock = SystemClock()
        until_s = clock.monotonic_s() + END_S
        with self._lock:
            while pid not in self._codes and (left_s := until_s - clock.monotonic_s()) > 0:
                self._lock.wait(left_s)
            return self._codes.pop(pid, None)

    def _start(self) -> None:
        here, there = socket.socketpair()
        with there:
            command = [sys.executable, "-c", _SERVE, str(there.fileno()), *sys.path]
            self._process = subprocess.Popen(command, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL)
        self._server, self._pid, self._codes = here, os.getpid(), {}
        threading.Thread(target=self._read_ends, args=(here,), name="malstrom-forks", daemon=True).start()

    def _read_ends(self, server: socket.socket) -> None:
        with suppress(OSError):
            while len(data := server.recv(ENDED.size, socket.MSG_WAITALL)) == ENDED.size:
                pid, code = ENDED.unpack(data)
                with self._lock:
                    self._codes[pid] = code
                    self._lock.notify_all()


FORKS: Final = ForkServer()


class LocalProcess:
    """A process of this machine that can run workers. A `WorkerProcess`."""

    node = None

    def __init__(self) -> None:
        self._calls = FORKS.fork()
        self._pid = 0
        self._waiting: deque[Future[Any]] = deque()
        self._lock = threading.Lock()
        self._code: int | None = None
        self._is_killed = self._has_ended = False
        threading.Thread(target=self._read_answers, name="malstrom-worker-process", daemon=True).start()

    def open(self, setup: WorkerSetup, plan: Any, worker: int, coordinator: Any) -> Future[Any]:
        return self._call("open", setup, plan, worker, coordinator)

    def run(self) -> Future[Any]:
        return self._call("run")

    def result(self, call: Future[Any], worker: int) -> Any:
        try:
            return call.result(timeout=0)
        except EOFError:
            raise worker_died(worker, self._pid, self._code) from None

    def read_black_box(self, path: Path) -> str:
        return read_black_box(path)

    def kill(self) -> None:
        with self._lock:
            self._is_killed = True
            if self._pid and not self._has_ended:
                with suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGKILL)

    def _call(self, method: str, *arguments: Any) -> Future[Any]:
        call: Future[Any] = Future()
        with self._lock:
            if self._has_ended:
                call.set_exception(EOFError())
                return call
            self._waiting.append(call)
        with suppress(OSError):  # it has died, as its reader finds
            self._calls.send_bytes(packed((method, arguments)))
        return call

    def _read_answers(self) -> None:
        with suppress(EOFError, OSError), self._calls:
            pid = pickle.loads(self._calls.recv_bytes())
            with self._lock:
                self._pid = pid
            if self._is_killed:
                self.kill()
            while True:
                answer = pickle.loads(self._calls.recv_bytes())
                self._waiting.popleft().set_result(answer)
        self._code = FORKS.code_of(self._pid)
        with self._lock:
            self._has_ended = True
        while self._waiting:
            self._waiting.popleft().set_exception(EOFError())


def worker_died(worker: int, pid: int, code: int | None) -> PeerError:
    """Return the error for a dead worker process.

    >>> print(worker_died(1, 4711, -9))  # doctest: +ELLIPSIS
    worker 1 died: its process (pid: 4711) was ended by SIGKILL. Its log, and the system's, may say why (...
    """
    how = f"ended with code {code}" if code is None or code >= 0 else f"was ended by {signal.Signals(-code).name}"
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
