"""Recordings in an object store, and over TCP in another process: the same as in a folder."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import malstrom_py as mp
from malstrom_py import capture, events, sinks
from malstrom_py.capture import socket
from malstrom_py.errors import CaptureError, DeadlineError, SinkError
from malstrom_py.testing import VirtualClock
from tests.integration.commands import environment
from tests.integration.small_s3 import SmallS3, small_s3
from tests.unit.capture.test_replay import ROWS, captured
from tests.unit.capture.test_time_and_pace import rows_of


@pytest.fixture
def server() -> Iterator[SmallS3]:
    with small_s3() as server:
        yield server


@pytest.fixture(params=["object store", "socket to memory", "socket to a folder"])
def place(request: pytest.FixtureRequest, server: SmallS3, tmp_path: Path) -> Iterator[Any]:
    if request.param == "object store":
        yield capture.ObjectStore("s3://bucket/seen", options=server.options)
        return
    kept: Any = capture.InMemory() if request.param == "socket to memory" else capture.Folder(tmp_path / "seen")
    with capture.Receiver(kept) as receiver:
        yield receiver.socket()


def test_a_job_is_captured_and_replayed_with_snapshots_and_rescales(place: Any, tmp_path: Path) -> None:
    job = captured(place)
    handle = mp.InProcess(
        2, batch=mp.Batching(rows_max=5), snapshots=mp.Snapshots(tmp_path / "kept", interval_s=0.02)
    ).start(job, control=False)
    try:
        handle.rescale(3)
        handle.rescale(1)
    except mp.JobEnded:
        """It was faster."""
    handle.wait(timeout_s=60)
    assert capture.check(place) == []
    assert sorted(rows_of(place)) == sorted(ROWS)
    assert {segment.rpartition(".")[2] for segment in place.names()} == {"capture", "begun"}


def test_a_recording_of_a_job_that_failed_has_what_it_saw(place: Any) -> None:
    failing = mp.Job("original")
    stream = failing.source("in", mp.sources.Memory([3, 2, 1, 0]))
    stream.capture_into("seen", place)
    stream.map("inverse", lambda n: 1 / n).sink("out", sinks.Memory())
    with pytest.raises(mp.OperatorError):
        mp.run(failing, progress=False, batch=mp.Batching(rows_max=1))
    found = [value for _, one in capture.read(place) if isinstance(one, capture.Batch) for value in one.values]
    assert found[:3] == [3, 2, 1]


PROGRAM = """
import sys
import malstrom_py as mp
from malstrom_py import capture, sources

place = capture.Socket(sys.argv[1], sys.argv[2])
job = mp.Job("other")
job.source("in", sources.Memory(range(1000), parts=2)).key_by("key", lambda n: n % 3).capture_into("seen", place)
mp.run(job, 2, progress=False)
"""


def test_another_process_captures_over_tcp(tmp_path: Path) -> None:
    kept = capture.Folder(tmp_path)
    with capture.Receiver(kept, secret="a secret of both sides") as receiver:
        command = [sys.executable, "-c", textwrap.dedent(PROGRAM), receiver.address, receiver.secret]
        subprocess.run(command, env=environment(), check=True, timeout=60)
    assert capture.check(tmp_path) == []
    assert sorted(rows_of(tmp_path)) == list(range(1000))


def test_who_has_another_secret_gets_no_answer_and_changes_nothing() -> None:
    kept = capture.InMemory()
    with capture.Receiver(kept) as receiver:
        wrong = capture.Socket(receiver.address, "another secret, as long", timeout_s=0.5)
        with pytest.raises(DeadlineError, match="has another secret"):
            wrong.create("seen")
        assert receiver.socket().names() == []
    with pytest.raises(DeadlineError):
        capture.Socket(receiver.address, receiver.secret, timeout_s=0.3).names()  # it has ended


def test_wrong_options_are_refused() -> None:
    with pytest.raises(mp.PlanError, match="secret must be a text of at least 16 characters"):
        capture.Socket("tcp://127.0.0.1:1", "short").names()
    with pytest.raises(mp.PlanError, match="slow must be"):
        capture.Socket("tcp://127.0.0.1:1", "x" * 16, slow="maybe")  # type: ignore[arg-type]
    with pytest.raises(mp.PlanError, match="tcp://host:port"):
        capture.Socket("udp://127.0.0.1:1", "x" * 16)
    with pytest.raises(mp.PlanError, match="needs the secret"):
        capture.Recording("tcp://127.0.0.1:1")
    with pytest.raises(mp.PlanError, match="cannot be received"):
        capture.Receiver(capture.InMemory(), address="tcp://no such host:1")


class Slow(capture.InMemory):
    """A place whose writes take time while ``is_slow``."""

    def __init__(self) -> None:
        super().__init__()
        self.is_slow = threading.Event()
        self.is_slow.set()

    def create(self, name: str) -> Any:
        file: Any = super().create(name)
        right = file.write

        def write(data: bytes) -> None:
            while self.is_slow.is_set() and b"MSTR" not in data[:4]:
                time.sleep(0.01)
            right(data)

        file.write = write
        return file


def big(place: Any, seen: list[events.AnyEvent]) -> mp.JobHandle:
    job = mp.Job("big")
    job.source("in", mp.sources.Memory(["x" * 100_000] * 300)).capture_into("seen", place)
    return mp.InProcess(batch=mp.Batching(rows_max=5), on_event=seen.append).start(job, control=False)


def until(kind: type, handle: mp.JobHandle) -> None:
    for event in handle.events():
        if isinstance(event, kind):
            return


def test_a_slow_receiver_slows_the_job_and_no_record_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "_FIRST_WAIT_S", 0.05)
    kept, seen = Slow(), list[events.AnyEvent]()
    with capture.Receiver(kept) as receiver:
        handle = big(receiver.socket(), seen)
        until(events.Input, handle)
        time.sleep(0.3)
        assert handle.status().counts.read < 300  # it waits
        kept.is_slow.clear()
        handle.wait(timeout_s=60)
        assert capture.check(kept) == []
    assert len(rows_of(kept)) == 300
    held = [event for event in seen if isinstance(event, events.BackPressureBegun | events.BackPressureEnded)]
    assert held[:2] == [events.BackPressureBegun("seen", 0), events.BackPressureEnded("seen", 0)]


def test_a_slow_receiver_is_dropped_if_that_is_wanted_and_the_valid_part_can_be_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "_FIRST_WAIT_S", 0.05)
    kept, seen = Slow(), list[events.AnyEvent]()
    with capture.Receiver(kept) as receiver:
        handle = big(receiver.socket(slow="drop"), seen)
        until_s = time.monotonic() + 30
        while handle.status().counts.read < 300:
            assert time.monotonic() < until_s, handle.status()
            time.sleep(0.01)
        kept.is_slow.clear()
        handle.wait(timeout_s=60)
        (fault,) = capture.check(kept)
    assert fault.kind == "truncated"
    assert events.BackPressureBegun("seen", 0) in seen
    with pytest.raises(capture.Truncated, match="without an end frame"):
        rows_of(kept)
    (stats,) = capture.stats(kept)
    assert 0 < stats.rows < 300


class Late(capture.InMemory):
    """A place that takes each write late, though never so late that one of them would be given up."""

    def create(self, name: str) -> Any:
        file: Any = super().create(name)
        right = file.write

        def write(data: bytes) -> None:
            time.sleep(0.05)
            right(data)

        file.write = write
        return file


def test_a_receiver_that_is_a_little_late_each_time_does_not_hold_a_job_that_may_drop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "_FIRST_WAIT_S", 0.2)
    kept = Late()
    with capture.Receiver(kept) as receiver:
        file: Any = receiver.socket(slow="drop").create("seen")
        for _ in range(40):
            file.write(b"x" * 500_000)
        assert file._is_dropped
        file.close()
    with kept.read("seen") as read:
        assert 0 < len(read.read()) < 20 * 500_000  # what was in flight, and what was taken during the one wait


def test_a_writer_that_drops_waits_a_second_in_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    monkeypatch.setattr(socket, "SystemClock", lambda: clock)
    patience = socket._Patience()
    patience.waited(0.75)
    assert patience.left_s() == 0.25
    patience.waited(0.5)
    assert patience.left_s() == 0
    clock.advance(9.5)
    assert patience.left_s() == 0
    clock.advance(0.5)
    assert patience.left_s() == 1.0


def test_no_message_ends_the_receiver() -> None:
    """A message of several parts, or that is not a request, is refused in words, and the next one answered."""
    kept = capture.InMemory()
    packed = msgspec.msgpack.encode
    bad = [[b"a", b"b"], [packed([1, "names"]), b""], [b""], [b"\xc1"], [packed(None)], [packed([])], [packed([1])]]
    bad += [[packed(["x", "names"])], [packed([1, ["names"]])], [packed({"a": 1})], [b"\x91" * 100_000]]
    bad += [[packed([7, what, *more])] for what, *more in (("no",), ("names", 1), ("create", 5), ("write", "a", "b"))]
    with capture.Receiver(kept) as receiver:
        client = socket._Client(receiver.address, receiver.secret, 30.0, None)
        try:
            for parts in bad:
                client._socket.send_multipart(parts)
                number, kind, text = msgspec.msgpack.decode(client._socket.recv())
                assert (number in {0, 1, 7}, kind) == (True, "failed"), (parts, text)
            client._socket.send_multipart([b"a", b"b"])
            assert "a message of one part, and this one has 2" in msgspec.msgpack.decode(client._socket.recv())[2]
        finally:
            client.close()
        assert receiver.socket().names() == []


def test_no_name_of_a_client_leads_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    with capture.Receiver(capture.Folder(tmp_path / "seen")) as receiver:
        place = receiver.socket()
        for name in ("../secret", "/etc/passwd", ".hidden", "a/b", "", "x" * 300):
            for call in (place.create, place.read, place.delete, lambda name: place.rename("seen", name)):
                with pytest.raises(CaptureError, match="not the name of a segment"):
                    call(name)
    assert (tmp_path / "secret").read_text() == "secret"


def test_large_batches_pass_in_pieces() -> None:
    kept = capture.InMemory()
    with capture.Receiver(kept) as receiver:
        job = mp.Job("large")
        job.source("in", mp.sources.Memory(["x" * 5_000_000])).capture_into("seen", receiver.socket())
        mp.run(job, progress=False)
        assert capture.check(receiver.socket()) == []
    assert [len(row) for row in rows_of(kept)] == [5_000_000]


def test_a_receiver_that_cannot_write_fails_the_job_with_its_reason() -> None:
    class Full(capture.InMemory):
        def create(self, name: str) -> Any:
            if name.endswith("open"):
                raise OSError("no space left")
            return super().create(name)

    with capture.Receiver(Full()) as receiver, pytest.raises((SinkError, CaptureError), match="no space left"):
        mp.run(captured(receiver.socket()), progress=False)
