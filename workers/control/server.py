"""The control socket of a running job: other processes of the same user command the job through it.

What a running job answers to those who command it from elsewhere, however they reach it.

Rule: it touches the run through `CommandQueue` alone, and whatever happens there is an answer, never an exception.

Rule: it never holds the run up. It is served by a thread of its own, which touches the run through `CommandQueue`
alone; each wait has a deadline, each message a limit, and a client that is slow, silent, wrong or gone costs its own
connection and nothing else.
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

from malstrom_py.errors import ControlError, InternalError, MalstromError
from malstrom_py.worker_context import LoopThread
from malstrom_py.workers.control.messages import (
    LENGTH_BYTES,
    REQUEST_BYTES_MAX,
    Accepted,
    Answer,
    Command,
    ControlRequest,
    RescaleCommand,
    SnapshotCommand,
    SnapshotMade,
    StatusCommand,
    StopCommand,
    WaitCommand,
    Waiting,
    decode_request,
    encode_answer,
    length_of,
)
from malstrom_py.workers.control.registry import NameClaim, server_directory
from malstrom_py.workers.coordinator.command_queue import CommandQueue
from malstrom_py.workers.reports.job_status import RescaleReport, in_progress


def answering(controls: CommandQueue) -> Callable[[Command], Awaitable[Answer]]:
    """Whoever answers for the run behind ``controls``."""
    return lambda ask: answer_to(ask, controls)


async def answer_to(ask: Command, controls: CommandQueue) -> Answer:
    """The answer to ``ask``, once there is one, or once its ``timeout_s`` is over."""
    try:
        match ask:
            case StatusCommand():
                status = controls.status()
                return status.result() if await _settled(status, ask.timeout_s) else controls.known()
            case RescaleCommand():
                return await _rescaled(ask, controls)
            case SnapshotCommand():
                return await _saved(ask, controls)
            case StopCommand():
                return await _stopped(ask, controls)
            case WaitCommand():
                return await _waited(ask, controls)
    except MalstromError as error:
        return error
    except Exception as error:
        return InternalError(f"whoever answers for job {controls.job!r} met {type(error).__name__}")


async def _rescaled(ask: RescaleCommand, controls: CommandQueue) -> Answer:
    asked = controls.rescale(ask.size)
    awaited: Future[RescaleReport] | Future[None] = asked.done if ask.wait else asked.taken
    if not await _settled(awaited, ask.timeout_s):
        return in_progress(controls.job, "rescale", ask.timeout_s)
    return awaited.result() or Accepted()


async def _saved(ask: SnapshotCommand, controls: CommandQueue) -> Answer:
    done = controls.save(ask.uri).done
    if not await _settled(done, ask.timeout_s):
        return in_progress(controls.job, "snapshot" if ask.uri is None else "savepoint", ask.timeout_s)
    return SnapshotMade(done.result())


async def _stopped(ask: StopCommand, controls: CommandQueue) -> Answer:
    ended = controls.stop(drain=ask.drain)
    if ask.wait and not await _settled(ended, ask.timeout_s):
        return in_progress(controls.job, "stop", ask.timeout_s)
    if ended.done():
        ending = ended.result()
        if ending.how == "failed":
            return ending.told() or Accepted()
        last = ending.stopped(drain=ask.drain, kept=controls.kept)
        return Accepted() if last is None else SnapshotMade(last)
    return Accepted()


async def _waited(ask: WaitCommand, controls: CommandQueue) -> Answer:
    if not await _settled(controls.ended, ask.timeout_s):
        return in_progress(controls.job, "run", ask.timeout_s or 0.0)
    ending = controls.ended.result()
    return ending.told() or ending.counts


async def _settled(future: Future[Any], timeout_s: float | None) -> bool:
    """Whether ``future`` is answered, be it by an error, within ``timeout_s``. Who gives up cancels nothing."""
    loop, settled = asyncio.get_running_loop(), asyncio.Event()

    def tell(_: Future[Any]) -> None:
        try:
            loop.call_soon_threadsafe(settled.set)
        except RuntimeError:
            """The loop has been closed, and nobody waits any more."""

    future.add_done_callback(tell)
    try:
        async with asyncio.timeout(timeout_s):
            await settled.wait()
    except TimeoutError:
        return future.done()
    return True


CONNECTIONS_MAX: Final = 32
_CROWD_MAX: Final = 4 * CONNECTIONS_MAX
"""How many may be told at once that there are too many; whoever else comes is told nothing."""

REQUEST_S: Final = 5.0
"""How long a client may take to send its request, and to take an answer."""

WAITING_S: Final = 2.0
"""How often a client that waits is told that its answer is yet to come."""

_END_S: Final = 2.0
"""How long the end of the run waits for its last answers to be taken."""

_LATE_S: Final = 0.1
"""How long it waits for requests of those who are connected."""

_AGAIN_S: Final = 1.0
"""How long nobody is let in where there are no descriptors left."""


class ControlSocket:
    """Listens for commands for job ``job``, which ``answer`` answers, until `release` and `close`.

    Raises:
        JobRunning: a job of that name runs already.
        ControlError: there is no folder for it that is this user's alone.
    """

    def __init__(self, job: str, answer: Callable[[Command], Awaitable[Answer]]) -> None:
        self._job = job
        self._answer = answer
        self._claim = NameClaim.of(server_directory(), job)
        self._listener: socket.socket | None = None
        self._loop: LoopThread | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._answering: set[asyncio.Task[None]] = set()
        _OPEN.add(self)
        try:
            self._listener = self._listening()
            self._loop = LoopThread(f"malstrom-control-{job}")
            self._loop.run(self._open(self._listener), timeout_s=REQUEST_S, what="opening the control socket")
        except OSError as error:
            self.release()
            self.close()
            raise ControlError(
                f"the control socket {self._claim.socket_path} cannot be opened ({error.strerror}): mend that, or run "
                f"without control (control=False, on the command line --no-control)",
                job=job,
            ) from error
        except BaseException:
            self.release()
            self.close()
            raise

    def release(self) -> None:
        """Give the name back, with the files: nobody new comes in. Who is there already is answered yet."""
        self._claim.release()

    def close(self) -> None:
        """Let who is waiting take the answer, for a while, then end. `release` comes first."""
        _OPEN.discard(self)
        loop, self._loop = self._loop, None
        if loop is not None:
            with contextlib.suppress(MalstromError):  # its thread is a daemon: no job fails for it
                loop.run(self._end(), timeout_s=_END_S + REQUEST_S, what="closing the control socket")
            with contextlib.suppress(MalstromError):
                loop.close()
        if self._listener is not None:
            self._listener.close()

    def forget(self) -> None:
        """In a forked process: let go of what is its parent's, so that it ends when the parent does."""
        self._claim.forget()
        if self._listener is not None:
            with contextlib.suppress(OSError):
                os.close(self._listener.detach())

    def _listening(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(self._claim.socket_path))
            self._claim.socket_path.chmod(0o600)
            self._claim.publish()  # before it can be connected to, so that who can is let in
            listener.setblocking(False)
            listener.listen(_CROWD_MAX)
        except BaseException:
            listener.close()
            raise
        return listener

    # All below runs in the thread of the socket.

    async def _open(self, listener: socket.socket) -> None:
        # Not asyncio's own server: one that is closed in the wrong moment forgets connections without closing them.
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    async def _end(self) -> None:
        if self._listener is not None:
            self._accept(self._listener)
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
        if silent := self._connections - self._answering:
            await asyncio.wait(silent, timeout=_LATE_S)  # their requests may be on their way
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
            except OSError:  # there are no descriptors left, most likely: who waits, waits
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
                raise ControlError(f"{CONNECTIONS_MAX} others are connected already: try again later")
            request = await self._request(reader)
            self._answering.add(task)
            await self._reply(request.ask, reader, writer)
        except ControlError as error:
            with contextlib.suppress(OSError, TimeoutError):
                await _send(writer, error, last=True)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            """The client is gone, or too slow, or the run has ended: nothing is owed to it."""
        finally:
            self._answering.discard(task)
            writer.transport.abort()

    async def _request(self, reader: asyncio.StreamReader) -> ControlRequest:
        async with asyncio.timeout(REQUEST_S):
            length = length_of(await reader.readexactly(LENGTH_BYTES), REQUEST_BYTES_MAX)
            request = decode_request(await reader.readexactly(length))
        if not hmac.compare_digest(request.token.encode(errors="replace"), self._claim.token.encode()):
            raise ControlError(
                f"this is not the token of job {self._job!r} that runs now: it may have been started anew"
            )
        return request

    async def _reply(self, ask: Command, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer, and say now and then that the answer is yet to come; until the client goes away."""
        answer = asyncio.ensure_future(self._answer(ask))
        gone = asyncio.ensure_future(reader.read(1))
        try:
            while True:
                await asyncio.wait({answer, gone}, timeout=WAITING_S, return_when=asyncio.FIRST_COMPLETED)
                if answer.done():
                    await _send(writer, answer.result(), last=True)
                    return
                if gone.done():
                    return
                await _send(writer, Waiting())
        finally:
            answer.cancel()
            gone.cancel()


async def _send(writer: asyncio.StreamWriter, answer: Answer, *, last: bool = False) -> None:
    writer.write(encode_answer(answer))
    async with asyncio.timeout(REQUEST_S):
        await writer.drain()
        if last:  # until all of it is out
            writer.close()
            await writer.wait_closed()


_OPEN: Final = weakref.WeakSet[ControlSocket]()


def _forget_all() -> None:
    for control in list(_OPEN):
        control.forget()


os.register_at_fork(after_in_child=_forget_all)
