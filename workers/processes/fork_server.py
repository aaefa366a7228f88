"""The process that all processes of workers are forked from: it has imported the package, so a fork starts in no time.

It has a Unix socket to the program that starts it. A message with the descriptor of another socket asks for a process,
which serves that socket (`serve`); the end of a process is reported by its pid and status. Rule: no thread runs here,
and nothing is imported that starts one, because a fork has only the thread that calls it. When the program ends,
however it does, its processes are killed; where this process is gone, they end when their sockets hang up.
"""

from __future__ import annotations

import os
import pickle
import queue
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, Never

from malstrom_py.errors.text import describe_error
from malstrom_py.workers.engine.garbage import freeze_shared
from malstrom_py.workers.processes.standard_output import flush, keep_lines_whole
from malstrom_py.workers.remote.packed_plan import PlanAdvice
from malstrom_py.workers.remote.worker_server import PackedFailure, WorkerRuns
from malstrom_py.workers.transport import zeromq

ENDED: Final = struct.Struct("!qi")
"""The end of a process: its pid, and its exit code, negative if a signal has ended it."""

GROUP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
"""What a terminal or a supervisor sends to the whole group of processes. The program alone obeys."""

STREAMS: Final = (1, 2)
"""The descriptors of standard output and standard error, which a program may redirect between two jobs."""

HERE: Final = PlanAdvice(
    module="a worker imports it by this name from where the program does (sys.path), so a module that the program has "
    "made itself must be a file there. Or have its functions copied: cloudpickle.register_pickle_by_value(module)",
    other="check what its functions, sources and sinks do when they are copied to another process",
)

_PRELOADED: Final = (zeromq,)
"""What a worker imports when it is opened."""

_LENGTH: Final = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class Request:
    """What a process takes over from the program: its variables, its folder if there is one, where it imports from, and
    which of ``STREAMS`` are open.
    """

    environ: dict[str, str]
    folder: str | None
    path: Sequence[str]
    streams: Sequence[int]

    @classmethod
    def of_program(cls) -> Request:
        """Return what a process takes over now."""
        try:
            folder = str(Path.cwd())
        except FileNotFoundError:  # it has been deleted
            folder = None
        return cls(dict(os.environ), folder, [*sys.path], [*filter(_is_open, STREAMS)])


def send_request(server: socket.socket, request: Request, descriptor: int) -> None:
    """Ask ``server`` for a process that serves the socket ``descriptor``."""
    data = pickle.dumps(request)
    socket.send_fds(server, [_LENGTH.pack(len(data))], [descriptor, *request.streams])
    server.sendall(data)


def serve(calls: Connection) -> None:
    """Answer the calls of the program, one by one: a method of `WorkerRuns` and its arguments. End this process when
    the program hangs up, also in the middle of a call: the fork server, which else does that, may be gone.
    """
    runs, received = WorkerRuns(HERE, shares_output=True), queue.SimpleQueue[bytes]()
    threading.Thread(target=_receive, args=(calls, received), name="malstrom-calls", daemon=True).start()
    while True:
        data = received.get()
        try:
            method, arguments = pickle.loads(data)
            answer = getattr(runs, method)(*arguments)
        except BaseException as error:
            answer = PackedFailure(error)
        flush()  # the program may kill this process as soon as it has the answer
        calls.send_bytes(pickle.dumps(answer))


def _receive(calls: Connection, received: queue.SimpleQueue[bytes]) -> None:
    try:
        while True:
            received.put(calls.recv_bytes())
    except (EOFError, OSError):
        os._exit(1)


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
        freeze_shared()
        came = select.poll()  # not `select.select`: the program chose the number of its socket, which may be large
        came.register(self._program, select.POLLIN)
        came.register(ended, select.POLLIN)
        try:
            while True:
                ready = {descriptor for descriptor, _ in came.poll()}
                if ended in ready:
                    os.read(ended, 4096)
                    self._report_ends()
                if self._program.fileno() in ready and not self._fork((ended, told)):
                    return
        finally:
            for pid in self._pids:
                os.kill(pid, signal.SIGKILL)

    def _fork(self, own: tuple[int, int]) -> bool:
        """Fork a process; return False once the program has ended."""
        head, descriptors, _, _ = socket.recv_fds(self._program, _LENGTH.size, 1 + len(STREAMS))
        if len(head) < _LENGTH.size or not descriptors:
            return False
        request: Request = pickle.loads(_received(self._program, *_LENGTH.unpack(head)))
        with Connection(descriptors[0]) as calls, ExitStack() as closing:
            for stream in descriptors[1:]:
                closing.callback(os.close, stream)
            try:
                pid = os.fork()
            except OSError as error:
                with suppress(OSError):
                    calls.send_bytes(pickle.dumps(describe_error(error)))
                return True
            if pid == 0:
                _become_worker(request, calls, descriptors[1:], [self._program.detach(), *own])
            self._pids.add(pid)
        return True

    def _report_ends(self) -> None:
        for pid in [*self._pids]:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self._pids.discard(pid)
                self._program.sendall(ENDED.pack(pid, os.waitstatus_to_exitcode(status)))


def _become_worker(request: Request, calls: Connection, streams: Iterable[int], others: Iterable[int]) -> Never:
    """Serve ``calls`` in a process that has just been forked, and end it. ``streams``: what the program has as
    ``request.streams``; ``others``: of the fork server.
    """
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for other in others:
            os.close(other)
        for stream, own in zip(streams, request.streams, strict=True):
            os.dup2(stream, own)
            os.close(stream)
        _give_away_forks(calls)
        os.environ.clear()
        os.environ.update(request.environ)
        time.tzset()
        sys.path[:] = request.path
        if request.folder is not None:
            with suppress(OSError):  # it has been deleted
                os.chdir(request.folder)
        keep_lines_whole()
        calls.send_bytes(pickle.dumps(os.getpid()))
        serve(calls)
    finally:
        os._exit(1)


def _give_away_forks(calls: Connection) -> None:
    """Have a process that a user's function forks be the user's: the death of the worker hangs up ``calls``, and
    signals end the process, also those that come before it has changed how it takes them.
    """

    def leave() -> None:
        calls.close()
        for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            if signal.getsignal(number) is _ignored:
                signal.signal(number, usual)
        let_through()

    def let_through() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)

    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS),
        after_in_parent=let_through,
        after_in_child=leave,
    )


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _received(program: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = program.recv(size - len(data))
        if not more:
            raise ConnectionError("the program has ended")
        data += more
    return data


def _ignored(number: int, frame: object) -> None:
    """Stay: the program stops its workers. A handler, unlike SIG_IGN, is not inherited by programs started here."""


def main() -> None:
    """Serve the program whose socket is the first argument."""
    for number in GROUP_SIGNALS:
        signal.signal(number, _ignored)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)  # blocked since this process was started
    with socket.socket(fileno=int(sys.argv[1])) as program, suppress(ConnectionError):  # it has ended
        _Forks(program).run()
