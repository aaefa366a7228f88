"""Finds running jobs of this machine by name, and commands them through their control sockets.

Rule: one connection per command. Every wait for an answer has a deadline, which each message of the other side extends:
a slow job is waited for, a frozen or lost one is not.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

from malstrom_py.clock import SystemClock
from malstrom_py.errors import ControlError, DeadlineError, JobEnded, JobNotFound
from malstrom_py.validation import check_name
from malstrom_py.workers.control.messages import (
    ANSWER_BYTES_MAX,
    LENGTH_BYTES,
    Reply,
    decode_answer,
    encode_request,
    length_of,
)
from malstrom_py.workers.control.registry import check_directory, names_in, places, read_token, socket_path
from malstrom_py.workers.reports.commands import Command, Result
from malstrom_py.workers.reports.job_status import still_running

ANSWER_S: Final = 10.0
"""The timeout of a silent server, which sends a message every two seconds."""

_CONNECT_S: Final = 5.0
_AGAIN_S: Final = 0.05


class SocketJob:
    """A job of any process, commanded through its socket at ``path`` with ``token``."""

    def __init__(self, name: str, path: Path, token: str) -> None:
        self.name = name
        self._path = path
        self._token = token
        self._clock = SystemClock()

    def ask(self, command: Command) -> Result:
        """Send ``command`` and return its result."""
        try:
            with _connected(self._path) as connection:
                connection.settimeout(ANSWER_S)
                with suppress(BrokenPipeError, ConnectionResetError):  # an answer may precede the close
                    connection.sendall(encode_request(command, self._token))
                while (reply := self._next(connection)).waiting:
                    """The job is alive and executes the command."""
        except KeyboardInterrupt as error:
            error.add_note(still_running(self.name))
            raise
        except (TimeoutError, BlockingIOError):
            raise DeadlineError(
                f"job {self.name!r} did not answer within {ANSWER_S:g} s: its process is stopped, or very busy",
                wait=f"an answer of job {self.name!r}",
                deadline_s=ANSWER_S,
            ) from None
        except OSError as error:
            if _listens(self._path):
                raise ControlError(
                    f"job {self.name!r} closed the connection before it answered: try again", job=self.name
                ) from None
            raise JobEnded(
                f"job {self.name!r} cannot be {command.what}: it has ended, or its process has "
                f"({type(error).__name__}); only that process knows how",
                job=self.name,
            ) from None
        return reply.result(command, self.name)

    def _next(self, connection: socket.socket) -> Reply:
        until_s = self._clock.monotonic_s() + ANSWER_S
        length = length_of(self._read(connection, LENGTH_BYTES, until_s), ANSWER_BYTES_MAX)
        return decode_answer(self._read(connection, length, until_s))

    def _read(self, connection: socket.socket, size: int, until_s: float) -> bytes:
        pieces: list[bytes] = []
        while size:
            left_s = until_s - self._clock.monotonic_s()
            if left_s <= 0:
                raise TimeoutError
            connection.settimeout(left_s)
            piece = connection.recv(min(size, 1 << 16))
            if not piece:
                raise ConnectionResetError
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)


def find(name: str) -> SocketJob:
    """Return the running job of that name.

    Raises:
        PlanError: the name is invalid.
        JobNotFound: there is no such job.
        ControlError: other users can write to the folder of control files.
    """
    check_name(name, "job")
    unsafe: ControlError | None = None
    for directory in places():
        if not directory.is_dir():
            continue
        try:
            check_directory(directory)
        except ControlError as error:
            unsafe = error
            continue
        token = read_token(directory, name)
        path = socket_path(directory, name)
        if token is not None and _listens(path):
            return SocketJob(name, path, token)
    if unsafe is not None:
        raise unsafe
    running = tuple(running_jobs())
    known = f"running here: {', '.join(running)}" if running else "no job is running here"
    raise JobNotFound(
        f"no job {name!r} can be reached; {known} (looked in {', '.join(map(str, places()))}). Start it with "
        f"`malstrom run`, or give --address for a job on Ray",
        job=name,
        running=running,
    )


def running_jobs() -> list[str]:
    """Return the names of this user's running jobs on this machine."""
    found: set[str] = set()
    for directory in places():
        with suppress(ControlError):
            check_directory(directory)
            found.update(name for name in names_in(directory) if _listens(socket_path(directory, name)))
    return sorted(found)


def _listens(path: Path) -> bool:
    try:
        with _connected(path):
            return True
    except (TimeoutError, BlockingIOError):
        return True  # the process is stopped or very busy, but exists
    except OSError:
        return False


def _connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    clock = SystemClock()
    until_s = clock.monotonic_s() + _CONNECT_S
    try:
        connection.settimeout(_CONNECT_S)
        while True:
            try:
                connection.connect(str(path))
                return connection
            except BlockingIOError:  # the queue of connections is full
                if clock.monotonic_s() >= until_s:
                    raise
                clock.sleep_s(_AGAIN_S)
    except BaseException:
        connection.close()
        raise
