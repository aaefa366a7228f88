"""Clients and servers that mean harm, or are broken: none holds the job up, or gets more than is its own."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgpack
import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import (
    ControlError,
    DeadlineError,
    JobEnded,
    OperationInProgress,
)
from malstrom_py.workers.control import client as control_client
from malstrom_py.workers.control import server as control_socket
from malstrom_py.workers.control.client import SocketJob
from malstrom_py.workers.control.messages import REQUEST_BYTES_MAX, encode_request
from malstrom_py.workers.control.registry import NameClaim, socket_path
from malstrom_py.workers.reports.commands import RescaleCommand, StatusCommand, WaitCommand
from tests.integration.control.clients import answer_of, connected, token_of, until
from tests.unit.workers.harness import PATIENCE_S, Gate


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (
            encode_request(RescaleCommand(8, True, 9.0), "wrong" * 9),
            "this is not the token of job 'endless'",
        ),
        (encode_request(WaitCommand(None), "\u20ac"), "this is not the token"),
        (struct.pack(">I", 0), "a message has 0 bytes"),
        (struct.pack(">I", REQUEST_BYTES_MAX + 1) + b"x", "a message has 20,001 bytes"),
        (b"\xff" * 4, "a message has 4,294,967,295 bytes"),
        (struct.pack(">I", 3) + b"\xc1\xc1\xc1", "is not valid"),
        (struct.pack(">I", 4000) + b"\x91" * 4000, "is not valid"),
        (struct.pack(">I", 11) + b"\x81\xa8protocol\x01", "uses another version of this protocol"),
        (b"GET / HTTP/1.1\r\n\r\n", "a message has 1,195,725,856 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_client_that_makes_no_sense_is_told_and_changes_nothing(
    frame: bytes, said: str, handle: mp.JobHandle, runtime: Path
) -> None:
    with connected(runtime) as connection:
        connection.sendall(frame)
        error = answer_of(connection).error
    assert error is not None
    assert (error.type, said in error.text) == ("ControlError", True)
    assert (handle.status().state, handle.status().workers) == ("running", 2)


@contextmanager
def impatient(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> Iterator[None]:
    with monkeypatch.context() as patch:
        for name, value in seconds.items():
            patch.setattr(control_socket, name, value)
        yield


@pytest.mark.parametrize("sent", [b"", b"\x00", b"\x00\x00\x00\x20", b"\x00\x00\x00\x20only a part of it"])
def test_a_client_that_is_slow_is_cut_and_one_that_dies_is_no_loss(
    sent: bytes, handle: mp.JobHandle, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with impatient(monkeypatch, REQUEST_S=0.1), connected(runtime) as slow, connected(runtime) as dying:
        for client in (slow, dying):
            with contextlib.suppress(BrokenPipeError):  # it may have been cut before
                client.sendall(sent)
        dying.close()
        assert slow.recv(1) == b"", "it is closed without a word"
    assert mp.JobHandle.attach("endless").status().state == "running"
    assert handle.status().state == "running"


def test_clients_that_die_while_they_wait_leave_nothing_behind(handle: mp.JobHandle, runtime: Path) -> None:
    before = threading.active_count()
    for _ in range(control_socket.CONNECTIONS_MAX * 2):
        with connected(runtime) as connection, contextlib.suppress(BrokenPipeError):
            connection.sendall(encode_request(WaitCommand(None), token_of(runtime)))
    # Those before them are gone, or there would be no room.
    until(lambda: can_ask("endless"))
    assert threading.active_count() <= before
    handle.stop(timeout_s=PATIENCE_S)


def can_ask(name: str) -> bool:
    try:
        return mp.JobHandle.attach(name).status().state == "running"
    except ControlError:
        return False


def test_a_client_that_dies_while_it_waits_for_a_rescale_has_it_done(handle: mp.JobHandle, runtime: Path) -> None:
    with connected(runtime) as connection:
        connection.sendall(encode_request(RescaleCommand(5, True, PATIENCE_S), token_of(runtime)))
    until(lambda: handle.status().workers == 5 and handle.status().state == "running")


def test_too_many_clients_at_once_are_told_to_come_later(handle: mp.JobHandle, runtime: Path) -> None:
    crowd = [connected(runtime) for _ in range(control_socket.CONNECTIONS_MAX)]
    with pytest.raises(ControlError, match="32 clients are connected already: try again later"):
        SocketJob("endless", socket_path(runtime, "endless"), token_of(runtime)).ask(StatusCommand(1))
    for connection in crowd:
        connection.close()
    until(lambda: can_ask("endless"))


def test_who_comes_to_a_crowd_is_sent_away(
    handle: mp.JobHandle, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_socket, "_CROWD_MAX", 3)
    crowd = [connected(runtime) for _ in range(3)]
    with connected(runtime) as late:
        assert late.recv(1) == b""
    for connection in crowd:
        connection.close()
    until(lambda: can_ask("endless"))
    assert handle.status().state == "running"


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    """Nothing more can be opened by this process; what is open can still be used."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Path(os.devnull).open() as highest:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest.fileno(), allowed[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, allowed)


def test_where_no_descriptors_are_left_who_waits_waits(handle: mp.JobHandle, runtime: Path) -> None:
    handle.rescale(2, timeout_s=PATIENCE_S)  # what a rescale imports is imported: that needs descriptors
    handle.metrics(timeout_s=PATIENCE_S)
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(PATIENCE_S)
    token = token_of(runtime)
    with no_descriptors_left():
        client.connect(str(socket_path(runtime, "endless")))
        client.sendall(encode_request(RescaleCommand(3, True, PATIENCE_S), token))
        time.sleep(0.2)
    with client:
        assert answer_of(client).report is not None
    assert handle.status().workers == 3


def test_a_job_whose_socket_cannot_be_opened_is_not_started(runtime: Path, out: sinks.Memory) -> None:
    job = mp.Job("other")
    job.source("in", sources.Memory([1])).sink("out", out)
    socket_path(runtime, "other").mkdir()
    with pytest.raises(ControlError, match=r"cannot be cleared .*control=False"):
        mp.InProcess().start(job)
    socket_path(runtime, "other").rmdir()
    with no_descriptors_left(), pytest.raises(ControlError, match="cannot be opened"):
        mp.InProcess().start(job)
    assert list(runtime.iterdir()) == []
    assert mp.InProcess().start(job).wait(timeout_s=PATIENCE_S).written == 1


def test_a_client_that_does_not_read_is_cut(
    handle: mp.JobHandle, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with impatient(monkeypatch, WAITING_S=1e-6, REQUEST_S=0.2), connected(runtime) as connection:
        connection.sendall(encode_request(WaitCommand(None), token_of(runtime)))
        # So many "waiting" answers that the buffer has no room left.
        hung_up = select.poll()
        hung_up.register(connection, 0)
        assert hung_up.poll(PATIENCE_S * 1000) == [(connection.fileno(), select.POLLHUP)]
    assert handle.status().state == "running"


def test_a_silent_client_does_not_hold_up_the_end(handle: mp.JobHandle, runtime: Path) -> None:
    with connected(runtime) as silent:
        handle.stop(timeout_s=PATIENCE_S)
        assert silent.recv(1) == b""


def test_a_client_is_told_now_and_then_that_it_is_waited_for(
    handle: mp.JobHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Beside other tests the thread of the socket may wait long for its turn.
    monkeypatch.setattr(control_client, "ANSWER_S", 2.0)
    with impatient(monkeypatch, WAITING_S=0.05), pytest.raises(OperationInProgress):
        mp.JobHandle.attach("endless").wait(timeout_s=3.0)


def test_a_stuck_function_makes_the_figures_old_but_is_no_lack_of_an_answer() -> None:
    gate = Gate()
    job = mp.Job("stuck")
    job.source("in", sources.Memory([1])).map("gate", gate).sink("out", sinks.Memory())
    handle = mp.InProcess().start(job)
    assert gate.entered.wait(PATIENCE_S)
    attached = mp.JobHandle.attach("stuck")
    assert attached.status(timeout_s=0.01).age_s > 0
    with pytest.raises(OperationInProgress, match="is still being stopped"):
        attached.stop(timeout_s=0.01)
    attached.stop(wait=False)
    with pytest.raises(OperationInProgress, match="is being stopped with drain already"):
        attached.stop(drain=False)
    gate.opened.set()
    assert handle.wait(timeout_s=PATIENCE_S).written == 1


@contextmanager
def wrong_server(runtime: Path, say: Callable[[socket.socket], None]) -> Iterator[SocketJob]:
    """A server that takes any token and answers what it likes; a remote job that asks it."""
    claim = NameClaim.of(runtime, "odd")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(claim.socket_path))
    listener.listen(8)
    claim.publish()
    ended = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            say(connection)
            ended.wait(PATIENCE_S)

    thread = threading.Thread(target=serve)
    thread.start()
    yield SocketJob("odd", claim.socket_path, claim.token)
    ended.set()
    thread.join(PATIENCE_S)
    listener.close()
    claim.release()


def framed(message: object) -> bytes:
    payload: bytes = msgpack.packb(message) or b""
    return struct.pack(">I", len(payload)) + payload


@pytest.mark.parametrize(
    ("said", "error", "text"),
    [
        (b"\xff\xff\xff\xff", ControlError, "a message has 4,294,967,295 bytes"),
        (framed({"status": {}}), ControlError, "missing required field"),
        (framed({}), ControlError, "job 'odd' did not answer what it was asked"),
        (framed({"waiting": True}), DeadlineError, r"did not answer within 0\.2 s"),
        (b"\x00\x00\x00\x09half", DeadlineError, r"did not answer within 0\.2 s"),
        (b"", DeadlineError, r"did not answer within 0\.2 s: its process is stopped"),
    ],
    ids=repr,
)
def test_a_server_that_makes_no_sense_is_a_typed_error(
    said: bytes, error: type[Exception], text: str, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_client, "ANSWER_S", 0.2)
    with wrong_server(runtime, lambda connection: connection.sendall(said)) as job, pytest.raises(error, match=text):
        job.ask(StatusCommand(1))


def test_a_server_that_hangs_up_has_ended_unless_it_still_listens(runtime: Path) -> None:
    with (
        wrong_server(runtime, socket.socket.close) as job,
        pytest.raises(ControlError, match=r"closed the connection .*: try again"),
    ):
        job.ask(WaitCommand(None))
    with pytest.raises(JobEnded, match="it has ended, or its process has"):
        job.ask(WaitCommand(None))
