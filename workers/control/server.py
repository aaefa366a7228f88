"""The control socket of a running job: other processes of the same user command the job through it.

Rule: commands touch the run through `CommandQueue` alone, and their outcome is always an answer, never an exception.
The socket never delays the run: it has its own thread, each wait has a deadline, each message a limit, and a slow,
silent, faulty or lost client costs only its own connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import socket
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from malstrom_py.clock import SystemClock
from malstrom_py.errors import ControlError, MalstromError
from malstrom_py.worker_context import LoopThread
from malstrom_py.workers.control.messages import (
    LENGTH_BYTES,
    REQUEST_BYTES_MAX,
    WAITING,
    ControlRequest,
    decode_request,
    encode_answer,
    error_of,
    length_of,
)
from malstrom_py.workers.control.registry import NameClaim, server_directory
from malstrom_py.workers.coordinator.command_queue import CommandQueue
from malstrom_py.workers.reports.commands import Command, EventsCommand, Result
from malstrom_py.workers.reports.event_log import EventPage

Answer = Callable[[Command], Awaitable[Result]]
"""A function that executes a command and returns its result, or raises its error."""


def answering(commands: CommandQueue) -> Answer:
    """Return a function that executes commands on the run of ``commands``, each within its ``timeout_s``."""

    async def answer(command: Command) -> Result:
        done = commands.submit(command)
        if not await _settled(done, command.timeout_s):
            return commands.unanswered(command, done)
        return commands.result_of(command, done.result(), public=True)

    return answer


async def framed_answer(command: Command, answer: Answer) -> bytes:
    """Execute ``command``, and return its result or its error as a frame."""
    try:
        return encode_answer(await answer(command))
    except Exception as error:
        return encode_answer(error_of(error))


async def _settled(future: Future[Any], timeout_s: float | None) -> bool:
    """Return whether ``future`` is done, maybe with an error, within ``timeout_s``. A timeout cancels nothing."""
    loop, settled = asyncio.get_running_loop(), asyncio.Event()

    def wake(_: Future[Any]) -> None:
        try:
            loop.call_soon_threadsafe(settled.set)
        except RuntimeError:
            """The loop is closed: no client waits."""

    future.add_done_callback(wake)
    try:
        async with asyncio.timeout(timeout_s):
            await settled.wait()
    except TimeoutError:
        return future.done()
    return True


CONNECTIONS_MAX: Final = 32
_CROWD_MAX: Final = 4 * CONNECTIONS_MAX
"""The number of connections that may get the "too many" answer at the same time; others are disconnected."""

REQUEST_S: Final = 5.0
"""How long a client may take to send its request, and to take an answer."""

WAITING_S: Final = 2.0
"""How often a waiting client gets `WAITING`."""

_END_S: Final = 2.0
"""How long the end of the run waits for clients to read their answers."""

FOLLOWERS_S: Final = 2.0
"""How long it waits for a reader of events to ask for the next ones."""

_LOOK_S: Final = 0.01

_LATE_S: Final = 0.1
"""How long it waits for the requests of connected clients."""

_AGAIN_S: Final = 1.0
"""How long no connection is accepted after the process ran out of file descriptors."""


class ControlSocket:
    """Listens for commands for job ``job``, which ``answer`` executes, until `release` and `close`.

    Raises:
        JobRunning: a job of that name runs already.
        ControlError: there is no folder for it that belongs to this user alone.
    """

    def __init__(self, job: str, answer: Answer) -> None:
        self._job = job
        self._answer = answer
        self._claim = NameClaim.of(server_directory(), job)
        self._listener: socket.socket | None = None
        self._loop: LoopThread | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._answering: set[asyncio.Task[None]] = set()
        self._asking = 0
        self._between = 0
        self._answered_s = 0.0
        self._clock = SystemClock()
        _OPEN.add(self)
        try:
            self._listener = self._listening()
            self._loop = LoopThread(f"malstrom-control-{job}")
            self._loop.run(self._open(self._listener), timeout_s=REQUEST_S, what="opening the control socket")
        except OSError as error:
            self.release()
            self.close()
            raise ControlError(
                f"the control socket {self._claim.socket_path} cannot be opened ({error.strerror}): correct that, or "
                f"run without control (control=False, on the command line --no-control)",
                job=job,
            ) from error
        except BaseException:
            self.release()
            self.close()
            raise

    def await_followers(self) -> None:
        """Wait a little until the readers of events have the last one, which can be read now."""
        until_s = self._clock.monotonic_s() + FOLLOWERS_S
        while self._clock.monotonic_s() < until_s:
            is_between = self._between and self._clock.monotonic_s() - self._answered_s < FOLLOWERS_S
            if not (self._asking or is_between):
                return
            self._clock.sleep_s(_LOOK_S)

    async def _followed(self, command: Command) -> Result:
        """Execute the request of a reader that follows events. It comes back unless it has got the last one."""
        self._between = max(0, self._between - 1)
        self._asking += 1
        try:
            result = await self._answer(command)
            if isinstance(result, EventPage) and not result.ended:
                self._between, self._answered_s = self._between + 1, self._clock.monotonic_s()
            return result
        finally:
            self._asking -= 1

    def release(self) -> None:
        """Release the name and its files. Connected clients still get their answers."""
        self._claim.release()

    def close(self) -> None:
        """Give waiting clients a while to read their answers, then end. Call `release` first."""
        _OPEN.discard(self)
        loop, self._loop = self._loop, None
        if loop is not None:
            with contextlib.suppress(MalstromError):  # its thread is a daemon, and no job fails because of it
                loop.run(self._end(), timeout_s=_END_S + REQUEST_S, what="closing the control socket")
            with contextlib.suppress(MalstromError):
                loop.close()
        if self._listener is not None:
            self._listener.close()

    def forget(self) -> None:
        """Close the parent's descriptors in a forked process, so that the socket ends with the parent."""
        self._claim.forget()
        if self._listener is not None:
            with contextlib.suppress(OSError):
                os.close(self._listener.detach())

    def _listening(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(self._claim.socket_path))
            self._claim.socket_path.chmod(0o600)
            self._claim.publish()  # before a client can connect, so that its token is known
            listener.setblocking(False)
            listener.listen(_CROWD_MAX)
        except BaseException:
            listener.close()
            raise
        return listener

    # Executed by the thread of the socket.

    async def _open(self, listener: socket.socket) -> None:
        # Not asyncio's own server: closing it at the wrong moment leaks connections.
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    async def _end(self) -> None:
        if self._listener is not None:
            self._accept(self._listener)
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
        if silent := self._connections - self._answering:
            await asyncio.wait(silent, timeout=_LATE_S)  # their requests may be in flight
            for task in self._connections - self._answering:
                task.cancel()
        if self._connections:
            _, slow = await asyncio.wait(self._connections, timeout=_END_S)
            for task in slow:
                task.cancel()
            await asyncio.gather(*slow)

    def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(CONNECTIONS_MAX):
            try:
                connection, _address = listener.accept()
            except BlockingIOError:
                return
            except OSError:  # most likely no descriptors are left: retry later
                loop.remove_reader(listener)
                loop.call_later(_AGAIN_S, self._accept_again, listener)
                return
            if len(self._connections) >= _CROWD_MAX:
                connection.close()
                continue
            connection.setblocking(False)
            task = loop.create_task(self._serve(connection))
            self._connections.add(task)
            task.add_done_callback(partial(self._gone, connection))

    def _gone(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        connection.close()

    def _accept_again(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    async def _serve(self, connection: socket.socket) -> None:
        task = asyncio.current_task()
        assert task is not None
        reader, writer = await asyncio.open_connection(sock=connection, limit=REQUEST_BYTES_MAX)
        try:
            if len(self._connections) > CONNECTIONS_MAX:
                raise ControlError(f"{CONNECTIONS_MAX} clients are connected already: try again later")
            request = await self._request(reader)
            self._answering.add(task)
            await self._reply(request.command, reader, writer)
        except ControlError as error:
            with contextlib.suppress(OSError, TimeoutError):
                await _send(writer, encode_answer(error), last=True)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            """The client is gone or too slow, or the run has ended: it gets no answer."""
        finally:
            self._answering.discard(task)
            writer.transport.abort()

    async def _request(self, reader: asyncio.StreamReader) -> ControlRequest:
        async with asyncio.timeout(REQUEST_S):
            length = length_of(await reader.readexactly(LENGTH_BYTES), REQUEST_BYTES_MAX)
            request = decode_request(await reader.readexactly(length))
        if not hmac.compare_digest(request.token.encode(errors="replace"), self._claim.token.encode()):
            raise ControlError(
                f"this is not the token of job {self._job!r} that runs now: the job may have been restarted"
            )
        return request

    async def _reply(self, command: Command, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send the answer, and `WAITING` at intervals before it, unless the client disconnects."""
        follows = isinstance(command, EventsCommand) and command.timeout_s > 0
        execute = self._followed if follows else self._answer
        answer = asyncio.ensure_future(framed_answer(command, execute))
        gone = asyncio.ensure_future(reader.read(1))
        try:
            while True:
                await asyncio.wait({answer, gone}, timeout=WAITING_S, return_when=asyncio.FIRST_COMPLETED)
                if answer.done():
                    await _send(writer, answer.result(), last=True)
                    return
                if gone.done():
                    return
                await _send(writer, WAITING)
        finally:
            answer.cancel()
            gone.cancel()


async def _send(writer: asyncio.StreamWriter, frame: bytes, *, last: bool = False) -> None:
    writer.write(frame)
    async with asyncio.timeout(REQUEST_S):
        await writer.drain()
        if last:  # wait until everything is sent
            writer.close()
            await writer.wait_closed()


_OPEN: Final = weakref.WeakSet[ControlSocket]()


def _forget_all() -> None:
    for control in list(_OPEN):
        control.forget()


os.register_at_fork(after_in_child=_forget_all)
