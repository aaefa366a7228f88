"""The process that all processes of workers are forked from: it has imported the package, so a fork starts in no time.

It has a Unix socket to the program that starts it. A message with the descriptor of another socket asks for a process,
which serves that socket (`serve`); the end of a process is reported by its pid and status. Rule: no thread runs here,
and nothing is imported that starts one, because a fork has only the thread that calls it. When the program ends,
however it does, its processes are killed.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import socket
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final, Never

from malstrom_py.workers.remote.worker_server import WorkerRuns
from malstrom_py.workers.transport import zeromq

ENDED: Final = struct.Struct("!qi")
"""The end of a process: its pid, and its exit code, negative if a signal has ended it."""

_PRELOADED: Final = (zeromq,)
"""What a worker imports when it is opened."""

_LENGTH: Final = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class Request:
    """What a process takes over from the program: its variables, its folder, and where it imports from."""

    environ: dict[str, str]
    folder: str
    path: list[str]


def send_request(server: socket.socket, request: Request, descriptor: int) -> None:
    """Ask ``server`` for a process that serves the socket ``descriptor``."""
    data = pickle.dumps(request)
    socket.send_fds(server, [_LENGTH.pack(len(data))], [descriptor])
    server.sendall(data)


def serve(calls: Connection) -> None:
    """Answer the calls of the program, one by one, until it hangs up: a method of `WorkerRuns` and its arguments."""
    runs = WorkerRuns()
    while True:
        try:
            method, arguments = pickle.loads(calls.recv_bytes())
        except EOFError:
            return
        calls.send_bytes(pickle.dumps(getattr(runs, method)(*arguments)))


class _Forks:
    """The processes that ``program`` has asked for."""

    def __init__(self, program: socket.socket) -> None:
        self._program = program
        self._pids: set[int] = set()

    def run(self) -> None:
        """Fork as requested, until the program has ended."""
        ended, told = os.pipe()
        for end in (ended, told):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, _ignored)
        signal.set_wakeup_fd(told)
        gc.freeze()  # so that a collection in a fork does not copy what is shared
        while True:
            ready, _, _ = select.select([self._program.fileno(), ended], [], [])
            if ended in ready:
                os.read(ended, 4096)
                self._report_ends()
            if self._program.fileno() in ready and not self._fork((ended, told)):
                break
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)

    def _fork(self, own: tuple[int, int]) -> bool:
        """Fork a process; return False once the program has ended."""
        head, descriptors, _, _ = socket.recv_fds(self._program, _LENGTH.size, 1)
        if len(head) < _LENGTH.size or not descriptors:
            return False
        request: Request = pickle.loads(_received(self._program, *_LENGTH.unpack(head)))
        pid = os.fork()
        if pid == 0:
            _become_worker(request, descriptors[0], [self._program.detach(), *own])
        self._pids.add(pid)
        with Connection(descriptors[0]) as calls, suppress(ConnectionError):
            calls.send_bytes(pickle.dumps(pid))
        return True

    def _report_ends(self) -> None:
        for pid in [*self._pids]:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self._pids.discard(pid)
                self._program.sendall(ENDED.pack(pid, os.waitstatus_to_exitcode(status)))


def _become_worker(request: Request, descriptor: int, others: Iterable[int]) -> Never:
    """Serve ``descriptor`` in a process that has just been forked, and end it. ``others``: of the fork server."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for other in others:
            os.close(other)
        os.environ.clear()
        os.environ.update(request.environ)
        os.chdir(request.folder)
        sys.path[:] = request.path
        serve(Connection(descriptor))
        code = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _received(program: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += program.recv(size - len(data))
    return data


def _ignored(number: int, frame: object) -> None:
    """Stay: the program stops its workers. A handler, unlike SIG_IGN, is not inherited by programs started here."""


def main() -> None:
    """Serve the program whose socket is the first argument."""
    for number in (signal.SIGINT, signal.SIGTERM):  # of a terminal or a supervisor, for the whole group of processes
        signal.signal(number, _ignored)
    with socket.socket(fileno=int(sys.argv[1])) as program, suppress(ConnectionError):  # it has ended
        _Forks(program).run()
