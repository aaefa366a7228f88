"""The ends of streams under test: in a thread of this process or in a separate one, with one interface.

An end runs functions that take the transport first, in the process of the transport.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, Final, Protocol

import pytest

from malstrom_py.workers.transport.base import JobSecret, Transport
from tests.tree import ROOT

PATIENCE_S: Final = 60.0
SPAWN: Final = multiprocessing.get_context("spawn")


class End(Protocol):
    """A transport, wherever it lives."""

    @property
    def address(self) -> Any: ...

    def start(self, act: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
        """Begin ``act(transport, *arguments)``; what is given back waits for its result, or raises what it raised."""
        ...

    def run(self, act: Callable[..., Any], *arguments: Any) -> Any:
        """What ``act(transport, *arguments)`` gives back."""
        ...

    def kill(self) -> None:
        """End its process by SIGKILL."""
        ...


class Kind(Protocol):
    """One implementation of `Transport`, and how its ends are made."""

    def end(
        self, me: int, *, incarnation: int = 1, secret: JobSecret | None = None, own_process: bool = False
    ) -> End: ...


class ThreadEnd:
    """A ZeroMQ end that is used by a thread of this process."""

    def __init__(self, me: int, incarnation: int, secret: JobSecret, host: str | None) -> None:
        self._thread = ThreadPoolExecutor(1)
        self.transport = self._thread.submit(made_zeromq, me, incarnation, secret, host).result(PATIENCE_S)
        self.address = self.transport.address

    def start(self, act: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
        future: Future[Any] = self._thread.submit(act, self.transport, *arguments)
        return lambda: future.result(PATIENCE_S)

    def run(self, act: Callable[..., Any], *arguments: Any) -> Any:
        return self.start(act, *arguments)()

    def kill(self) -> None:
        raise NotImplementedError("it lives in the process of the tests")

    def close(self) -> None:
        self.run(closed)
        self._thread.shutdown()


class ProcessEnd:
    """A ZeroMQ end in a separate process."""

    def __init__(self, me: int, incarnation: int, secret: JobSecret, host: str | None) -> None:
        self._pipe, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=serve, args=(theirs, me, incarnation, secret, host), daemon=True)
        self.process.start()
        theirs.close()
        self.address = self._answer()

    def start(self, act: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
        self._pipe.send((act, arguments))
        return self._answer

    def run(self, act: Callable[..., Any], *arguments: Any) -> Any:
        return self.start(act, *arguments)()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(PATIENCE_S)

    def close(self) -> None:
        self.kill()
        self.process.close()
        self._pipe.close()

    def _answer(self) -> Any:
        assert self._pipe.poll(PATIENCE_S), "no answer"
        return unwrapped(self._pipe.recv())


def made_zeromq(me: int, incarnation: int, secret: JobSecret, host: str | None) -> Transport:
    from malstrom_py.workers.transport.zeromq import ZeroMQTransport

    return ZeroMQTransport(me, incarnation=incarnation, secret=secret, host=host)


def closed(transport: Transport) -> None:
    transport.close(linger_s=0.2)


def serve(pipe: Connection, me: int, incarnation: int, secret: JobSecret, host: str | None) -> None:
    """The process of a `ProcessEnd`."""
    transport = made_zeromq(me, incarnation, secret, host)
    pipe.send((transport.address, None))
    with suppress(EOFError):
        while True:
            act, arguments = pipe.recv()
            pipe.send(outcome(act, transport, *arguments))


def outcome(act: Callable[..., Any], *arguments: Any) -> tuple[Any, Exception | None]:
    """What ``act`` gives back, and what it raises."""
    try:
        return act(*arguments), None
    except Exception as error:
        return None, error


def unwrapped(told: tuple[Any, Exception | None]) -> Any:
    value, error = told
    if error is not None:
        raise error
    return value


class ZeroMQKind:
    """Makes ends of the direct stream at ``host``; None: of one machine, over Unix sockets."""

    def __init__(self, host: str | None = "127.0.0.1") -> None:
        self._host = host
        self.secret = JobSecret.new()
        self._ends: list[ThreadEnd | ProcessEnd] = []

    def end(self, me: int, *, incarnation: int = 1, secret: JobSecret | None = None, own_process: bool = False) -> End:
        made = (ProcessEnd if own_process else ThreadEnd)(me, incarnation, secret or self.secret, self._host)
        self._ends.append(made)
        return made

    def close(self) -> None:
        for end in self._ends:
            end.close()


@contextmanager
def local_ray(*, num_cpus: int = 2) -> Iterator[None]:
    """Start a Ray on this machine whose processes find these tests.

    They get the path from the environment: with a ``runtime_env`` Ray cannot use the workers that it has prestarted.
    """
    import ray

    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("PYTHONPATH", str(ROOT))
        ray.init("local", num_cpus=num_cpus, include_dashboard=False, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()
