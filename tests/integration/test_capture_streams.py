"""Captured streams over file objects, files and sockets: on any number of workers, followed while they are written."""

from __future__ import annotations

import io
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import pytest

import malstrom_py as mp
from malstrom_py import capture, sinks, sources
from malstrom_py.capture.frames import contents
from malstrom_py.codec import Codec
from malstrom_py.errors import CaptureError, DeadlineError, PlanError, SinkError
from malstrom_py.sources.base import Part
from malstrom_py.sources.polled.ahead import ReadAhead
from malstrom_py.testing.contracts import check_source
from tests.integration.commands import environment
from tests.tree import ROOT
from tests.unit.capture.streams import written
from tests.unit.capture.test_replay import ROWS, as_tuples, captured, counted, expected_counts
from tests.unit.capture.test_time_and_pace import rows_of

PATIENCE_S = 30.0
name: Any = "seen"


def opened(folder: Path) -> Callable[[int], BinaryIO]:
    return lambda worker: (folder / str(worker)).open("wb")


def files(folder: Path, **options: Any) -> capture.Reader:
    """Read all streams of a folder."""
    streams: list[Callable[[], Any]] = [partial(path.open, "rb") for path in sorted(folder.iterdir())]
    return capture.Reader(*streams, **options)


def numbers(file: io.BytesIO, count: int = 100) -> bytes:
    """Capture ``count`` numbers into ``file``, and return the stream."""
    job = mp.Job("numbers")
    job.source("in", sources.Memory(range(count))).capture_into("seen", capture.Writer(file))
    mp.run(job, progress=False, batch=mp.Batching(rows_max=10))
    return file.getvalue()


def first_rows(part: Any) -> list[Any]:
    """Return what the first poll of a partition that has something returns."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        if found := part.poll(10):
            return list(found)
        time.sleep(0.01)
    raise AssertionError("nothing came")


def whole_rows(stream: bytes) -> list[Any]:
    """Return the rows of all batches that are complete in a stream that is cut."""
    rows: list[Any] = []
    with suppress(capture.Truncated):
        for _, content in contents(io.BytesIO(stream), Codec()):
            rows += content.values if isinstance(content, capture.Batch) else []
    return rows


def read_on(part: Any, found: list[Any]) -> None:
    """Add to ``found`` what a partition returns, until its end."""
    while not part.is_finished():
        found += part.poll(100) or []


@pytest.mark.parametrize(("writers", "readers", "columns"), [(1, 1, False), (3, 2, False), (2, 3, True)])
def test_k_streams_are_replayed_on_j_workers(writers: int, readers: int, columns: bool, tmp_path: Path) -> None:
    mp.run(captured(capture.Writer(opened(tmp_path)), columns=columns), writers, progress=False)
    job = mp.Job("again")
    counts, values = counted(job.replay_from("back", files(tmp_path)))
    mp.run(job, readers, progress=False)
    assert counts.by_key == expected_counts()
    found = sorted(row for rows in as_tuples(values.by_key).values() for row in rows)
    assert found == sorted(ROWS)


def test_a_link_in_this_process_replays_one_job_into_another() -> None:
    """The first example of timely dataflow's ``capture``: a linked list of events is a pipe here."""
    reading, writing = os.pipe()
    first, again = mp.Job("first"), mp.Job("again")
    with os.fdopen(reading, "rb") as receiving, os.fdopen(writing, "wb") as sending:
        first.source("numbers", sources.Memory(range(10))).capture_into("sent", capture.Writer(sending))
        handle = mp.InProcess().start(first, control=False)
        assert mp.collect(again.replay_from("back", capture.Reader(receiving))) == list(range(10))
        handle.wait(timeout_s=PATIENCE_S)


@pytest.mark.parametrize("kind", ["file", "socket"])
def test_a_stream_that_is_still_written_is_followed(kind: str, tmp_path: Path) -> None:
    seen, seen_some, theirs = sinks.Memory(), threading.Event(), socket.socketpair()

    def rows(part: int, start: int) -> Iterator[int]:
        yield from range(5)
        assert seen_some.wait(PATIENCE_S), "the replay does not follow"
        yield from range(5, 10)

    def see(number: int) -> None:
        seen_some.set()

    writing = (tmp_path / "seen").open("wb") if kind == "file" else theirs[0].makefile("wb")
    reading = (tmp_path / "seen").open("rb") if kind == "file" else theirs[1].makefile("rb")
    job, again = mp.Job("slow"), mp.Job("again")
    job.source("in", sources.Generator(rows)).capture_into("seen", capture.Writer(writing))
    handle = mp.InProcess(batch=mp.Batching(rows_max=5)).start(job, control=False)
    replayed = again.replay_from("back", capture.Reader(reading))
    replayed.inspect("see", see).sink("out", seen)
    mp.run(again, progress=False)
    handle.wait(timeout_s=PATIENCE_S)
    assert seen.items == list(range(10))
    for file in (reading, writing, *theirs):
        file.close()


def test_a_socket_that_is_closed_before_the_end_of_its_stream_is_an_error_after_all_records() -> None:
    stream = numbers(io.BytesIO())
    ours, theirs = socket.socketpair()
    with theirs, theirs.makefile("wb") as file:
        file.write(stream[:-20])
    ours_read, seen = ours.makefile("rb"), sinks.Memory()
    job = mp.Job("cut")
    job.replay_from("back", capture.Reader(ours_read)).sink("out", seen)
    with pytest.raises(capture.Truncated, match=r"stream 0 of a capture: it ends at byte .*start both jobs again"):
        mp.run(job, progress=False)
    ours_read.close()
    ours.close()


def test_wherever_a_file_is_cut_its_whole_batches_are_read_and_then_its_silence_is_an_error() -> None:
    stream = numbers(io.BytesIO(), 30)
    for size in range(8, len(stream), 29):
        source = sources.Replay(capture.Reader(io.BytesIO(stream[:size]), wait_max_s=0))
        part, found = source.build_part(Part("0"), None), list[Any]()
        with pytest.raises(DeadlineError, match="stream 0 of a capture has brought nothing for 0 s after byte"):
            read_on(part, found)
        part.close()
        assert found == whole_rows(stream[:size])


def test_a_stream_with_a_changed_bit_is_an_error() -> None:
    stream = bytearray(numbers(io.BytesIO()))
    stream[-40] ^= 1
    with pytest.raises(capture.Corrupt, match="stream 0 of a capture"):
        rows_of(capture.Reader(io.BytesIO(bytes(stream))))
    with pytest.raises(capture.Corrupt, match="another kind of file"):
        rows_of(capture.Reader(io.BytesIO(b"x" * 100)))


def test_a_reader_of_files_keeps_the_contract_of_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take = ReadAhead.take
    # The contract polls again immediately, and a thread reads.
    monkeypatch.setattr(ReadAhead, "take", lambda ahead, wait_s=0.0: take(ahead, wait_s=PATIENCE_S))
    job = mp.Job("numbers")
    made = job.source("in", sources.Memory(range(200), parts=2))
    made.capture_into("seen", capture.Writer(opened(tmp_path)))
    mp.run(job, 2, progress=False, batch=mp.Batching(rows_max=2))
    check_source(sources.Replay(files(tmp_path)))
    reader = files(tmp_path)
    for _ in range(2):
        assert sorted(mp.collect(mp.Job("again").replay_from("back", reader))) == list(range(200))
    copy = pickle.loads(pickle.dumps(files(tmp_path, wait_max_s=5.0)))
    assert sorted(mp.collect(mp.Job("copy").source("in", sources.Replay(copy)))) == list(range(200))


def test_a_socket_is_read_on_by_another_worker_of_the_program_and_not_from_anywhere_else() -> None:
    stream = numbers(io.BytesIO())
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(stream)
    file = ours.makefile("rb")
    source = sources.Replay(capture.Reader(file))
    part: Any = source.build_part(Part("0"), None)
    before = first_rows(part)
    position = part.snapshot()
    part.close()
    moved: Any = source.build_part(Part("0"), position)
    after = first_rows(moved)
    assert before + after == list(range(len(before) + len(after)))
    moved.close()
    again: Any = source.build_part(Part("0"), position)
    with pytest.raises(
        CaptureError, match=r"cannot be read again from byte \d+ on, because it is of a socket or a pipe"
    ):
        first_rows(again)
    again.close()
    with pytest.raises(CaptureError, match="a file object cannot go to another process"):
        pickle.dumps(source)
    file.close()
    ours.close()


def test_a_file_object_for_several_workers_is_refused() -> None:
    job = mp.Job("shared")
    job.source("in", sources.Memory(range(10), parts=2)).capture_into("seen", capture.Writer(io.BytesIO()))
    with pytest.raises(PlanError, match="one file object cannot have the streams of 2 workers: give capture"):
        mp.run(job, 2, progress=False)


def test_a_job_that_is_rescaled_is_not_replayed_from_streams(tmp_path: Path) -> None:
    def write(segment: Any) -> None:
        segment.batch(capture.Batch([1]))
        segment.moved(2, mp.MIN_EPOCH)
        segment.end(last=True)

    stream = written(write, capture.Header("job", "step", "w000000-00000000", worker=0))
    with pytest.raises(CaptureError, match="the job that writes it was rescaled"):
        rows_of(capture.Reader(io.BytesIO(stream)))


def test_a_capture_into_streams_does_not_resume(tmp_path: Path) -> None:
    def job(last: int) -> mp.Job:
        made = mp.Job("resumes")
        read = made.source("in", sources.Generator(lambda part, start: iter(range(start, last))))
        read.capture_into("seen", capture.Writer(opened(tmp_path)))
        return made

    kept = mp.Snapshots(tmp_path / "kept", interval_s=None)
    handle = mp.InProcess(snapshots=kept).start(job(10**9), control=False)
    handle.stop()
    with pytest.raises(mp.JobEnded):
        handle.wait(timeout_s=PATIENCE_S)
    with pytest.raises(SinkError, match="Capture into a folder, or start the job and its reader from the beginning"):
        mp.InProcess(snapshots=kept).run(job(10**9))


class Pieces(io.RawIOBase):
    """A raw file object that takes a few bytes at a time."""

    def __init__(self) -> None:
        self.data = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self.data += bytes(data[:7])
        return min(7, len(data))


def test_a_raw_file_object_gets_all_bytes_and_a_closed_one_fails_the_job() -> None:
    raw: Any = Pieces()
    job = mp.Job("raw")
    job.source("in", sources.Memory(range(100))).capture_into("seen", capture.Writer(raw))
    mp.run(job, progress=False)
    assert rows_of(capture.Reader(io.BytesIO(raw.data))) == list(range(100))
    closed = io.BytesIO()
    closed.close()
    job = mp.Job("closed")
    job.source("in", sources.Memory(range(100))).capture_into("seen", capture.Writer(closed))
    with pytest.raises((SinkError, CaptureError), match="its reader is gone, or its disk is full"):
        mp.run(job, progress=False)


def test_a_replay_of_streams_begins_at_a_time_and_keeps_the_pace(tmp_path: Path) -> None:
    mp.run(captured(capture.Writer(opened(tmp_path))), 2, progress=False)
    assert sorted(rows_of(files(tmp_path), since=2_500)) == sorted(row for row in ROWS if row[1] >= 2_500)
    assert sorted(rows_of(files(tmp_path), pace=1000.0)) == sorted(ROWS)
    assert sorted(mp.collect(mp.Job("plain").source("in", sources.Replay(files(tmp_path))))) == sorted(ROWS)


@pytest.mark.parametrize(
    ("wrong", "reported"),
    [
        (lambda: capture.Writer(name), "takes a binary file object, or a function that opens one"),
        (capture.Reader, "at least one"),
        (lambda: capture.Reader(name), "takes binary file objects, or functions"),
        (lambda: capture.Reader(io.BytesIO(), wait_max_s=-1), "wait_max_s must be a number of at least 0, or None"),
        (lambda: sources.Replay(capture.Reader(io.BytesIO()), "seen"), "choose in a recording"),
        (
            lambda: (
                mp.Job("j")
                .source("in", sources.Memory([1]))
                .capture_into("seen", capture.Writer(io.BytesIO()), replace=True)
            ),
            "replace= is for recordings in a place",
        ),
    ],
)
def test_wrong_arguments_are_refused(wrong: Any, reported: str) -> None:
    with pytest.raises(PlanError, match=reported):
        wrong()


def test_a_stream_is_a_segment_that_any_reader_of_segments_reads() -> None:
    file = io.BytesIO(numbers(io.BytesIO(), 10))
    found = [content for _, content in contents(file, Codec())]
    assert isinstance(found[0], capture.Header)
    assert isinstance(found[-1], capture.End)
    assert (found[-1].rows, found[-1].last) == (10, True)


def free_ports(count: int) -> int:
    """Return the first of ``count`` ports in a row at which nothing listens."""
    for first in range(21_000, 29_000, count):
        with ExitStack() as bound:
            try:
                for port in range(first, first + count):
                    bound.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("no ports are free")


def program(*command: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, env=environment(), stdout=pipe, stderr=pipe, text=True
    )


@pytest.mark.parametrize(("writers", "readers"), [(2, 3), (3, 1)])
def test_capture_send_and_capture_recv_over_tcp_between_two_processes(writers: int, readers: int) -> None:
    """The second example of timely dataflow."""
    port = str(free_ports(writers))
    with program("-m", "examples.capture_recv", str(writers), str(readers), "--port", port) as receiving:
        wait_until_all_listen(int(port), writers, receiving)
        with program("-m", "examples.capture_send", str(writers), "--port", port) as sending:
            assert sending.wait(PATIENCE_S) == 0, sending.communicate()
        shown, told = receiving.communicate(timeout=PATIENCE_S)
    assert receiving.returncode == 0, told
    assert sorted(shown.split("\n")) == ["", *(f"replayed: {number}" for number in range(10))]


def wait_until_all_listen(port: int, count: int, receiving: subprocess.Popen[str]) -> None:
    """Wait for the receiver without connecting to it: it accepts one connection at each port."""
    until_s = time.monotonic() + PATIENCE_S
    waited = {f"{one:04X}" for one in range(port, port + count)}
    while waited:
        assert receiving.poll() is None, receiving.communicate()
        assert time.monotonic() < until_s, "the receiver does not listen"
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
        waited -= {line[1].partition(":")[2] for line in lines if line[3] == "0A"}
        time.sleep(0.02)


KILLED = """
import os, signal, sys
import malstrom_py as mp
from examples.capture_send import sending
from malstrom_py import sources

def numbers(part, start):
    yield from range(5)
    os.kill(os.getpid(), signal.SIGKILL)

sources.Memory = lambda *_, **__: sources.Generator(numbers)
mp.run(sending(int(sys.argv[1])), batch=mp.Batching(rows_max=1))
"""


def test_a_sender_that_is_killed_is_an_error_of_the_receiver() -> None:
    port = str(free_ports(1))
    with program("-m", "examples.capture_recv", "1", "2", "--port", port) as receiving:
        wait_until_all_listen(int(port), 1, receiving)
        with program("-c", KILLED, port) as sending:
            assert sending.wait(PATIENCE_S) == -9
        _, told = receiving.communicate(timeout=PATIENCE_S)
    assert "Truncated: " in told
    assert "its writer was stopped, has failed or died, or the connection was lost" in told
