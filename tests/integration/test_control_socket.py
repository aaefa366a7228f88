"""Control sockets with real clients, kind and hostile: none of them holds the job up, or gets more than is its own."""

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
from itertools import count
from pathlib import Path

import msgpack
import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import (
    ControlError,
    DeadlineError,
    JobEnded,
    JobNotFound,
    JobRunning,
    OperationInProgress,
    OperatorError,
    PlanError,
)
from malstrom_py.workers import control_client, control_messages, control_socket
from malstrom_py.workers.control_client import RemoteJob, running_jobs
from malstrom_py.workers.control_files import Claim, server_directory, socket_path, token_path
from malstrom_py.workers.control_messages import (
    REQUEST_BYTES_MAX,
    Answer,
    AskRescale,
    AskWait,
    Request,
    decode_answer,
    encode_request,
)

PATIENCE_S = 60.0


class Gate:
    """A function of a job that waits until it is let through."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, value: int) -> int:
        self.entered.set()
        assert self.opened.wait(PATIENCE_S)
        return value


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return server_directory()


@pytest.fixture
def out() -> sinks.Memory:
    return sinks.Memory()


@pytest.fixture
def handle(out: sinks.Memory) -> Iterator[mp.JobHandle]:
    """Of a job without an end."""
    job = mp.Job("endless")
    numbers = job.source("numbers", sources.Generator(lambda part, start: count(start), parts=4))
    numbers.key_by("key", lambda n: n % 20).count("seen").sink("out", out)
    started = mp.InProcess(2).start(job)
    yield started
    if started.status().state in {"running", "rescaling"}:
        started.stop(drain=False, timeout_s=PATIENCE_S)


def connected(folder: Path, job: str = "endless") -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(PATIENCE_S)
    connection.connect(str(socket_path(folder, job)))
    return connection


def token_of(folder: Path, job: str = "endless") -> str:
    return token_path(folder, job).read_text().partition("\n")[0]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released whenever a client of this process hears something: that it is waited for, or its answer."""
    released, decode = threading.Semaphore(0), control_messages.decode_answer

    def hear(payload: bytes) -> Answer:
        released.release()
        return decode(payload)

    monkeypatch.setattr(control_client, "decode_answer", hear)
    monkeypatch.setattr(control_socket, "WAITING_S", 0.05)
    return released


def answer_of(connection: socket.socket) -> object:
    """What is said until the other side closes."""
    said = b""
    while piece := connection.recv(1 << 16):
        said += piece
    assert len(said) == 4 + int.from_bytes(said[:4], "big")
    return decode_answer(said[4:])


def until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_an_attached_handle_does_what_the_own_one_does(handle: mp.JobHandle, out: sinks.Memory) -> None:
    attached = mp.JobHandle.attach("endless")
    assert attached.name == "endless"
    status = attached.status()
    assert (status.job, status.state, status.workers) == ("endless", "running", 2)
    report = attached.rescale(4, timeout_s=PATIENCE_S)
    assert report.members == (0, 1, 2, 3)
    assert report.slots > 0
    assert attached.rescale(3, wait=False) is None
    assert attached.rescale(3, timeout_s=PATIENCE_S).members == (0, 1, 2)
    with pytest.raises(OperationInProgress, match="'endless' has not ended within 0 s"):
        attached.wait(timeout_s=0)
    attached.stop(timeout_s=PATIENCE_S)
    assert handle.wait().written == len(out.items)
    assert all(values == list(range(1, len(values) + 1)) for values in out.by_key.values())


def test_files_are_the_users_own_and_gone_in_the_end(handle: mp.JobHandle, folder: Path) -> None:
    assert folder.stat().st_mode & 0o777 == 0o700
    files = {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir()}
    assert files == {"endless.token": 0o600, "endless.sock": 0o600}
    assert running_jobs() == ["endless"]
    handle.stop(drain=False)
    assert list(folder.iterdir()) == []
    assert running_jobs() == []


def test_files_are_gone_when_the_job_has_failed(folder: Path) -> None:
    job = mp.Job("failing")
    job.source("in", sources.Memory([0])).map("inverse", lambda n: 1 // n).sink("out", sinks.Memory())
    with pytest.raises(OperatorError):
        mp.InProcess().start(job).wait(timeout_s=PATIENCE_S)
    assert list(folder.iterdir()) == []
    with pytest.raises(OperatorError):
        mp.InProcess().run(job, control=True)
    assert list(folder.iterdir()) == []


def test_nothing_is_there_without_control(folder: Path, out: sinks.Memory) -> None:
    gate = Gate()
    job = mp.Job("hidden")
    job.source("in", sources.Memory([1])).map("gate", gate).sink("out", out)
    handle = mp.InProcess().start(job, control=False)
    assert gate.entered.wait(PATIENCE_S)
    assert list(folder.iterdir()) == []
    with pytest.raises(JobNotFound, match="no job is running here"):
        mp.JobHandle.attach("hidden")
    gate.opened.set()
    assert handle.wait(timeout_s=PATIENCE_S).written == 1


def test_the_end_is_told_to_all_who_wait(heard: threading.Semaphore) -> None:
    gate = Gate()
    job = mp.Job("gated")
    job.source("in", sources.Memory([1, 2])).map("gate", gate).sink("out", sinks.Memory())
    handle = mp.InProcess().start(job)
    results: list[mp.RunResult] = []
    waiting = [mp.JobHandle.attach("gated") for _ in range(5)]
    threads = [threading.Thread(target=lambda one=one: results.append(one.wait())) for one in waiting]
    for thread in threads:
        thread.start()
    # Often enough that each has heard that it is waited for: they are told in turn.
    assert all(heard.acquire(timeout=PATIENCE_S) for _ in range(50))
    with pytest.raises(OperationInProgress):
        waiting[0].rescale(2, timeout_s=0.01)
    gate.opened.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert results == [handle.wait()] * 5
    with pytest.raises(JobEnded, match="cannot be rescaled to 2: it has ended, or its process has") as raised:
        waiting[0].rescale(2)
    assert raised.value.how == ""
    with pytest.raises(JobNotFound, match="there is no job 'gated' to be reached"):
        mp.JobHandle.attach("gated")


def test_those_who_wait_in_another_process_get_the_jobs_error_without_its_data(heard: threading.Semaphore) -> None:
    gate = Gate()
    job = mp.Job("secretive")
    texts = job.source("texts", sources.Memory(["secret-4711"]))
    texts.inspect("gate", gate).map("number", int).sink("out", sinks.Memory())  # type: ignore[arg-type]
    handle = mp.InProcess().start(job)
    attached, told = mp.JobHandle.attach("secretive"), []

    def wait() -> None:
        with pytest.raises(OperatorError, match="step 'number' failed") as raised:
            attached.wait()
        told.append(raised.value)

    thread = threading.Thread(target=wait)
    thread.start()
    assert heard.acquire(timeout=PATIENCE_S)
    gate.opened.set()
    thread.join(PATIENCE_S)
    (error,) = told
    assert handle.status().state == "failed"
    assert (error.step, error.key) == ("number", None)
    assert "secret-4711" not in str(error)


def test_a_stop_without_drain_from_elsewhere_tells_everyone(
    handle: mp.JobHandle, out: sinks.Memory, heard: threading.Semaphore
) -> None:
    attached, told = mp.JobHandle.attach("endless"), []

    def wait() -> None:
        with pytest.raises(JobEnded, match="without drain") as raised:
            mp.JobHandle.attach("endless").wait()
        told.append(raised.value.how)

    thread = threading.Thread(target=wait)
    thread.start()
    assert heard.acquire(timeout=PATIENCE_S)
    attached.stop(drain=False, timeout_s=PATIENCE_S)
    thread.join(PATIENCE_S)
    with pytest.raises(JobEnded, match="nothing was committed"):
        handle.wait()
    assert out.items == []


def test_a_name_is_taken_once_on_this_machine(handle: mp.JobHandle) -> None:
    job = mp.Job("endless")
    job.source("in", sources.Memory([1])).sink("out", sinks.Memory())
    with pytest.raises(JobRunning, match=r"runs already in process \d+: .*malstrom stop endless"):
        mp.InProcess().run(job, control=True)
    with pytest.raises(JobRunning):
        mp.InProcess().start(job)
    assert mp.run(job).written == 1
    assert handle.status().state == "running"


def test_a_handle_on_an_earlier_run_does_not_command_the_next(handle: mp.JobHandle, folder: Path) -> None:
    attached = mp.JobHandle.attach("endless")
    handle.stop(drain=False)
    job = mp.Job("endless")
    job.source("in", sources.Generator(lambda part, start: count(start))).sink("out", sinks.Memory())
    second = mp.InProcess().start(job)
    with pytest.raises(ControlError, match=r"not the token of job 'endless' .*started anew"):
        attached.stop(drain=False)
    assert second.status().state == "running"
    second.stop(drain=False)


@pytest.mark.parametrize("name", ["", "two words", "../../etc/passwd", "a" * 65, 5], ids=repr)
def test_what_cannot_be_a_name_is_refused(name: str) -> None:
    with pytest.raises(PlanError):
        mp.JobHandle.attach(name)


def test_a_name_too_long_for_a_path_is_found_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = tmp_path / "x"
    name = "n" * 64
    short.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    job = mp.Job(name)
    job.source("in", sources.Generator(lambda part, start: count(start))).sink("out", sinks.Memory())
    handle = mp.InProcess().start(job)
    assert running_jobs() == [name]
    mp.JobHandle.attach(name).stop(timeout_s=PATIENCE_S)
    assert handle.wait().written > 0


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (encode_request(Request("wrong" * 9, AskRescale(8, True, 9.0))), "this is not the token of job 'endless'"),
        (encode_request(Request("\udcff\u20ac", AskWait(None))), "this is not the token"),
        (struct.pack(">I", 0), "a message of 0 bytes"),
        (struct.pack(">I", REQUEST_BYTES_MAX + 1) + b"x", "a message of 4,097 bytes"),
        (b"\xff" * 4, "a message of 4,294,967,295 bytes"),
        (struct.pack(">I", 3) + b"\xc1\xc1\xc1", "is not msgpack"),
        (struct.pack(">I", 4000) + b"\x91" * 4000, "is not msgpack"),
        (struct.pack(">I", 1) + b"\x80", "speaks another version"),
        (b"GET / HTTP/1.1\r\n\r\n", "a message of 1,195,725,856 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_client_that_makes_no_sense_is_told_and_changes_nothing(
    frame: bytes, said: str, handle: mp.JobHandle, folder: Path
) -> None:
    with connected(folder) as connection:
        connection.sendall(frame)
        error = answer_of(connection)
    assert isinstance(error, ControlError)
    assert said in str(error)
    assert (handle.status().state, handle.status().workers) == ("running", 2)


@contextmanager
def impatient(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> Iterator[None]:
    with monkeypatch.context() as patch:
        for name, value in seconds.items():
            patch.setattr(control_socket, name, value)
        yield


@pytest.mark.parametrize("sent", [b"", b"\x00", b"\x00\x00\x00\x20", b"\x00\x00\x00\x20only a part of it"])
def test_a_client_that_is_slow_is_cut_and_one_that_dies_is_no_loss(
    sent: bytes, handle: mp.JobHandle, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with impatient(monkeypatch, REQUEST_S=0.1), connected(folder) as slow, connected(folder) as dying:
        for client in (slow, dying):
            with contextlib.suppress(BrokenPipeError):  # it may have been cut before
                client.sendall(sent)
        dying.close()
        assert slow.recv(1) == b"", "it is closed without a word"
    assert mp.JobHandle.attach("endless").status().state == "running"
    assert handle.status().state == "running"


def test_clients_that_die_while_they_wait_leave_nothing_behind(handle: mp.JobHandle, folder: Path) -> None:
    before = threading.active_count()
    for _ in range(control_socket.CONNECTIONS_MAX * 2):
        with connected(folder) as connection, contextlib.suppress(BrokenPipeError):
            connection.sendall(encode_request(Request(token_of(folder), AskWait(None))))
    # Those before them are gone, or there would be no room.
    until(lambda: can_ask("endless"))
    assert threading.active_count() <= before
    handle.stop(timeout_s=PATIENCE_S)


def can_ask(name: str) -> bool:
    try:
        return mp.JobHandle.attach(name).status().state == "running"
    except ControlError:
        return False


def test_a_client_that_dies_while_it_waits_for_a_rescale_has_it_done(handle: mp.JobHandle, folder: Path) -> None:
    with connected(folder) as connection:
        connection.sendall(encode_request(Request(token_of(folder), AskRescale(5, True, PATIENCE_S))))
    until(lambda: handle.status().workers == 5 and handle.status().state == "running")


def test_too_many_clients_at_once_are_told_to_come_later(handle: mp.JobHandle, folder: Path) -> None:
    crowd = [connected(folder) for _ in range(control_socket.CONNECTIONS_MAX)]
    with pytest.raises(ControlError, match="32 others are connected already: try again later"):
        RemoteJob("endless", socket_path(folder, "endless"), token_of(folder)).status(timeout_s=1)
    for connection in crowd:
        connection.close()
    until(lambda: can_ask("endless"))


def test_who_comes_to_a_crowd_is_sent_away(handle: mp.JobHandle, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "_CROWD_MAX", 3)
    crowd = [connected(folder) for _ in range(3)]
    with connected(folder) as late:
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


def test_where_no_descriptors_are_left_who_waits_waits(handle: mp.JobHandle, folder: Path) -> None:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(PATIENCE_S)
    token = token_of(folder)
    with no_descriptors_left():
        client.connect(str(socket_path(folder, "endless")))
        client.sendall(encode_request(Request(token, AskRescale(3, True, PATIENCE_S))))
        time.sleep(0.2)
    with client:
        assert isinstance(answer_of(client), mp.RescaleReport)
    assert handle.status().workers == 3


def test_a_job_whose_socket_cannot_be_opened_is_not_started(folder: Path, out: sinks.Memory) -> None:
    job = mp.Job("other")
    job.source("in", sources.Memory([1])).sink("out", out)
    socket_path(folder, "other").mkdir()
    with pytest.raises(ControlError, match=r"cannot be cleared .*control=False"):
        mp.InProcess().start(job)
    socket_path(folder, "other").rmdir()
    with no_descriptors_left(), pytest.raises(ControlError, match="cannot be opened"):
        mp.InProcess().start(job)
    assert list(folder.iterdir()) == []
    assert mp.InProcess().start(job).wait(timeout_s=PATIENCE_S).written == 1


def test_a_job_whose_token_cannot_be_written_is_not_started(
    folder: Path, out: sinks.Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> int:
        raise OSError(28, "No space left on device")

    job = mp.Job("other")
    job.source("in", sources.Memory([1])).sink("out", out)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(ControlError, match=r"the control socket .* cannot be opened \(No space left on device\)"):
            mp.InProcess().start(job)
    assert list(folder.iterdir()) == []
    assert mp.InProcess().start(job).wait(timeout_s=PATIENCE_S).written == 1


def test_a_client_that_does_not_read_is_cut(
    handle: mp.JobHandle, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with impatient(monkeypatch, WAITING_S=1e-6, REQUEST_S=0.2), connected(folder) as connection:
        connection.sendall(encode_request(Request(token_of(folder), AskWait(None))))
        # It is told so often that its answer is yet to come that at last there is no room for that.
        hung_up = select.poll()
        hung_up.register(connection, 0)
        assert hung_up.poll(PATIENCE_S * 1000) == [(connection.fileno(), select.POLLHUP)]
    assert handle.status().state == "running"


def test_a_silent_client_does_not_hold_up_the_end(handle: mp.JobHandle, folder: Path) -> None:
    with connected(folder) as silent:
        handle.stop(timeout_s=PATIENCE_S)
        assert silent.recv(1) == b""


def test_a_client_is_told_now_and_then_that_it_is_waited_for(
    handle: mp.JobHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_client, "ANSWER_S", 0.5)
    with impatient(monkeypatch, WAITING_S=0.05), pytest.raises(OperationInProgress):
        mp.JobHandle.attach("endless").wait(timeout_s=1.0)


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
def wrong_server(folder: Path, say: Callable[[socket.socket], None]) -> Iterator[RemoteJob]:
    """A server that takes any token and answers what it likes; a remote job that asks it."""
    claim = Claim.of(folder, "odd")
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
    yield RemoteJob("odd", claim.socket_path, claim.token)
    ended.set()
    thread.join(PATIENCE_S)
    listener.close()
    claim.release()


def framed(message: object) -> bytes:
    payload: bytes = msgpack.packb(message)
    return struct.pack(">I", len(payload)) + payload


@pytest.mark.parametrize(
    ("said", "error", "text"),
    [
        (b"\xff\xff\xff\xff", ControlError, "a message of 4,294,967,295 bytes"),
        (framed({"status": {}}), ControlError, "has not all it needs"),
        (framed({"done": {}}), ControlError, "job 'odd' answered with Done"),
        (framed({"waiting": {}}), DeadlineError, r"did not answer within 0\.2 s"),
        (b"\x00\x00\x00\x09half", DeadlineError, r"did not answer within 0\.2 s"),
        (b"", DeadlineError, r"did not answer within 0\.2 s: its process is stopped"),
    ],
    ids=repr,
)
def test_a_server_that_makes_no_sense_is_a_typed_error(
    said: bytes, error: type[Exception], text: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_client, "ANSWER_S", 0.2)
    with wrong_server(folder, lambda connection: connection.sendall(said)) as job, pytest.raises(error, match=text):
        job.status(timeout_s=1)


def test_a_server_that_hangs_up_has_ended_unless_it_still_listens(folder: Path) -> None:
    with wrong_server(folder, socket.socket.close) as job, pytest.raises(ControlError, match="hung up .* try again"):
        job.wait(timeout_s=None)
    with pytest.raises(JobEnded, match="it has ended, or its process has"):
        job.wait(timeout_s=None)


def test_a_folder_that_others_may_open_is_used_by_nobody(handle: mp.JobHandle, folder: Path) -> None:
    folder.chmod(0o755)
    job = mp.Job("other")
    job.source("in", sources.Memory([1])).sink("out", sinks.Memory())
    with pytest.raises(ControlError, match="is open to others"):
        mp.InProcess().start(job)
    with pytest.raises(ControlError, match="is open to others"):
        mp.JobHandle.attach("endless")
    assert running_jobs() == []
    assert mp.InProcess().start(job, control=False).wait(timeout_s=PATIENCE_S).written == 1
