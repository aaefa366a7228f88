"""Captured streams over any file object: `Writer` sends them, `Reader` receives them, also while they are written.

A stream is one segment in the format of `frames`, from its header to its end frame. It has no name and no generation as
segments in a place have: it cannot be taken back or continued, so it belongs to one run of a job.

Rule: a thread reads each stream, because a socket blocks and `SourcePart.poll` must not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, BinaryIO, Final

from malstrom_py.capture.frames import (
    BATCH,
    END,
    Clock,
    Frame,
    Header,
    Moved,
    Progress,
    Truncated,
    content_of,
    frames,
    is_before,
)
from malstrom_py.capture.progress import Held
from malstrom_py.clock import SystemClock
from malstrom_py.codec import Codec
from malstrom_py.codec.job_codec import without_classes
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MIN_EPOCH, Epoch
from malstrom_py.errors import CaptureError, DeadlineError, PlanError
from malstrom_py.errors.text import describe_error
from malstrom_py.sources.polled.ahead import ReadAhead
from malstrom_py.worker_context import WorkerInfo

WAIT_MAX_S: Final = 60.0
"""By default a stream may bring nothing for so long before its end."""

_LOOK_S: Final = 0.02
"""How often a file is looked at that may grow, and how long a first frame is waited for at a time."""

_ANSWER_S: Final = 2.0
"""How long another program has at least for its first or next bytes."""

_FRAMES_AHEAD: Final = 8


class Writer:
    """Writes what a job captures to file objects, one stream per worker: for `StreamBuilder.capture_into`.

    ``to``: a function that gets the number of a worker and opens its binary file object, for instance
    ``socket.create_connection(…).makefile("wb")``; or one file object, for a job with one worker. A file object that
    the function has opened is closed at the end. While a write blocks, the worker waits.

    What was written cannot be taken back: the start of a job that resumes from a snapshot is a SinkError. Capture
    into a folder instead, which has each record once.

    >>> from io import BytesIO
    >>> Writer(BytesIO())
    Writer(<BytesIO>)
    """

    def __init__(self, to: BinaryIO | Callable[[int], BinaryIO]) -> None:
        if not (callable(to) or _has(to, "write")):
            raise PlanError(
                f"capture.Writer takes a binary file object, or a function that opens one for the number of a worker, "
                f"got {type(to).__name__}"
            )
        self._to = to

    def __repr__(self) -> str:
        return f"Writer({_name(self._to)})"

    def __reduce__(self) -> tuple[Any, ...]:
        if not callable(self._to):
            raise _stays_here("capture.Writer")
        return Writer, (self._to,)

    @property
    def opens(self) -> bool:
        """Whether it opens the file objects, which are then closed at the end."""
        return callable(self._to)

    def open(self, worker: WorkerInfo) -> BinaryIO:
        """Return the file object for the stream of ``worker``."""
        if callable(self._to):
            return self._to(worker.worker)
        if worker.workers > 1 or worker.worker:
            raise PlanError(
                f"step {worker.step!r}: one file object cannot have the streams of {worker.workers} workers: give "
                f"capture.Writer a function that gets the number of a worker and opens a file object for it"
            )
        return self._to


def write_all(file: BinaryIO, data: bytes) -> None:
    """Write all of ``data``, and flush it: a reader follows, and must not wait for the next frame."""
    view = memoryview(data)
    try:
        while view:
            written = file.write(view)
            view = view[len(view) if written is None else written :]
        if _has(file, "flush"):
            file.flush()
    except (OSError, ValueError) as error:  # ValueError: the file object is closed
        raise CaptureError(
            f"a captured stream cannot be written ({describe_error(error)}): its reader is gone, or its disk is full. "
            f"Start both ends again"
        ) from error


class Reader:
    """Reads streams that a `Writer` has written, or still writes: for `Job.replay_from` and `sources.Replay`.

    ``streams``: binary file objects, or functions without arguments that open one, such as a socket's
    ``makefile("rb")``. Each stream is a partition, so any number of workers can read any number of streams. A stream
    ends with its end frame. At the end of a file without one, more is waited for; a socket or a pipe that is closed
    without one is a `Truncated` error. ``wait_max_s``: how long a stream may bring nothing before its end, else it is a
    DeadlineError; 0 for a file that is not written any more, None for any time.

    A file is read again from any position, so its replay can resume from snapshots, and run on Ray if a function opens
    it. A socket is read by the program that has opened it, from the beginning.

    >>> from io import BytesIO
    >>> import malstrom_py as mp
    >>> from malstrom_py import capture, sources
    >>> file, job = BytesIO(), mp.Job("docs")
    >>> job.source("words", sources.Memory(["ant", "bee"])).capture_into("seen", capture.Writer(file))
    >>> mp.run(job).read
    2
    >>> _ = file.seek(0)
    >>> mp.collect(mp.Job("again").replay_from("words", capture.Reader(file)))
    ['ant', 'bee']
    """

    def __init__(self, *streams: BinaryIO | Callable[[], BinaryIO], wait_max_s: float | None = WAIT_MAX_S) -> None:
        if not streams or not all(callable(stream) or _has(stream, "read") for stream in streams):
            raise PlanError("capture.Reader takes binary file objects, or functions that open one: at least one")
        is_number = isinstance(wait_max_s, int | float) and not isinstance(wait_max_s, bool)
        if wait_max_s is not None and not (is_number and wait_max_s >= 0):
            raise PlanError(f"capture.Reader: wait_max_s must be a number of at least 0, or None, got {wait_max_s!r}")
        self._given = streams
        self._wait_max_s = wait_max_s
        self._streams = [ReceivedStream(stream, number, wait_max_s) for number, stream in enumerate(streams)]
        self._header: Header | None = None

    def __repr__(self) -> str:
        return f"Reader({', '.join(map(_name, self._given))})"

    def __reduce__(self) -> tuple[Any, ...]:
        if not all(map(callable, self._given)) or any(stream.stays for stream in self._streams):
            raise _stays_here("capture.Reader")
        for stream in self._streams:
            stream.close()  # it is opened where it is read
        return partial(Reader, wait_max_s=self._wait_max_s), self._given

    def __len__(self) -> int:
        return len(self._streams)

    def header(self) -> Header:
        """Open all streams, and return the header of the first one when it has arrived."""
        if self._header is None:
            for stream in self._streams:
                stream.start()
            self._header = self._streams[0].header()
        return self._header

    def stream(self, number: int) -> ReceivedStream:
        """Return the stream of that number for one partition; again the same one, if no other can be opened."""
        stream = self._streams[number]
        if stream.is_taken and not stream.stays:
            return ReceivedStream(self._given[number], number, self._wait_max_s)
        stream.is_taken = True
        return stream


class ReceivedStream:
    """One stream of a `Reader`: its frames, read ahead. ``at``: the byte after the last frame that was taken."""

    def __init__(self, given: BinaryIO | Callable[[], BinaryIO], number: int, wait_max_s: float | None) -> None:
        self._given = given
        self._base = given.tell() if not callable(given) and _can_seek(given) else 0
        self._wait_max_s = wait_max_s
        self._clock = SystemClock()
        self._ahead: ReadAhead[Frame] | None = None
        self._input = _Input(given, self._base, 0, self._clock)
        self._first: Frame | None = None
        self.number = number
        self.at = 0
        self.is_over = self.is_taken = False

    @property
    def stays(self) -> bool:
        """Whether it has been opened, and could not be read on elsewhere or later."""
        return self._input.file is not None and not self._input.grows

    def start(self) -> None:
        """Begin to read at `at`."""
        if self._ahead is None and not self.is_over:
            self._input = _Input(self._given, self._base, self.at, self._clock)
            self._ahead = ReadAhead(
                self._input.fetch, name=f"stream-{self.number}", chunks_max=_FRAMES_AHEAD, release=self._input.release
            )
            self._input.pause = self._ahead.pause
            self._ahead.start()

    def header(self) -> Header:
        """Return the header, which stays to be taken. Waits for it."""
        self.start()
        while self._first is None and not self.is_over:
            self._first = self._next(wait_s=_LOOK_S)
        if self._first is None or self.at:
            raise CaptureError(
                f"stream {self.number} of a capture has been read: give each replay a new capture.Reader"
            )
        content = content_of(self._first, without_classes())
        if not isinstance(content, Header):
            raise CaptureError(f"stream {self.number} of a capture does not begin with a header")
        return content

    def take(self) -> Frame | None:
        """Return the next frame; None if there is none now, or no more: `is_over`."""
        self.start()
        frame, self._first = self._first or self._next(), None
        if frame is not None:
            self.at, self.is_over = frame.end, frame.kind == END
            if self.is_over:
                self.close()
        return frame

    def seek(self, at: int) -> None:
        """Continue at the byte ``at``, the end of a frame. What cannot be read again from there fails when it is."""
        if at != self.at:
            self.close()
            self.at = at

    def leave(self) -> None:
        """Stop reading, unless the rest could not be read later, for instance by another worker of this program."""
        if not self.stays:
            self.close()

    def close(self) -> None:
        """Stop reading."""
        ahead, self._ahead, self._first = self._ahead, None, None
        if ahead is not None:
            ahead.close()

    def _next(self, wait_s: float = 0.0) -> Frame | None:
        if self._ahead is None:
            return None
        # Asked before a frame is: one may arrive in between.
        is_late = self._wait_max_s is not None and self._input.is_silent(self._wait_max_s)
        try:
            frame = self._ahead.take(wait_s=wait_s)
        except CaptureError as error:
            raise type(error)(f"stream {self.number} of a capture: {error}") from error
        if frame is None and is_late:
            raise DeadlineError(
                f"stream {self.number} of a capture has brought nothing for {self._wait_max_s:g} s after byte "
                f"{self.at:,}, and has no end frame: its writer has not connected, is slow, or died. All records "
                f"before were read. Start both jobs again, or wait longer with capture.Reader(…, wait_max_s=)",
                wait="a captured stream",
                deadline_s=self._wait_max_s or 0.0,
            )
        return frame


class _Closed(Exception):
    """The stream is not read any more."""


class _Input:
    """The bytes of one stream as a file whose reads wait for them, and its frames. One thread reads it."""

    def __init__(self, given: BinaryIO | Callable[[], BinaryIO], base: int, at: int, clock: SystemClock) -> None:
        self._given = given
        self._base = base
        self._start = at
        self._at = 0
        self._clock = clock
        self._frames: Iterator[Frame] | None = None
        self._waits_since_s: float | None = clock.monotonic_s()
        self._is_at_end = False
        self.file: BinaryIO | None = None
        self.grows = False
        self.pause: Callable[[float], bool] = lambda seconds: True
        """Waits, and returns whether the stream is not read any more."""

    def is_silent(self, wait_max_s: float) -> bool:
        """Return whether bytes have been waited for so long. Only a file has an end at which no wait is needed."""
        since_s, least_s = self._waits_since_s, 0.0 if self._is_at_end else _ANSWER_S
        return since_s is not None and self._clock.monotonic_s() - since_s >= max(wait_max_s, least_s)

    def fetch(self) -> Frame:
        """Return the next frame. StopIteration: the stream has ended, or is not read any more."""
        try:
            if self._frames is None:
                self._frames = self._opened()
            frame = next(self._frames)
        except _Closed:
            raise StopIteration from None
        except Truncated as error:
            raise Truncated(
                f"{error}: its writer was stopped, has failed or died, or the connection was lost. All records before "
                f"the cut were read; start both jobs again"
            ) from error
        if frame.kind == END:
            self._frames = iter(())  # what follows the end is not read: a socket would block
        return frame

    def release(self) -> None:
        """Close the file object, unless it is the user's."""
        if self.file is not None and callable(self._given):
            with suppress(OSError):
                self.file.close()

    def read(self, size: int) -> bytes:
        """Read ``size`` bytes; fewer only at the end of what cannot grow."""
        parts: list[bytes] = []
        while size and (data := self._some(size)):
            parts.append(data)
            size -= len(data)
            self._at += len(data)
        return b"".join(parts)

    def seek(self, at: int) -> None:
        """Go to the byte ``at`` of the stream."""
        if at == self._at:
            return
        if self.file is None or not self.grows:
            raise CaptureError(
                f"it cannot be read again from byte {at:,} on, because it is of a socket or a pipe: start both jobs "
                f"from the beginning"
            )
        self.file.seek(self._base + at)
        self._at = at

    def _opened(self) -> Iterator[Frame]:
        file = self._given() if callable(self._given) else self._given
        self.grows = _can_seek(file)
        self.file = file
        if self.grows:
            file.seek(self._base)
        return frames(self, self._start)

    def _some(self, size: int) -> bytes:
        """Return bytes that are there, at least one; none at the end of what cannot grow."""
        assert self.file is not None
        # `read` of a buffered file object would wait for all that were asked for.
        read: Callable[[int], bytes | None] = getattr(self.file, "read1", self.file.read)
        self._waits_since_s = self._waits_since_s or self._clock.monotonic_s()
        try:
            while not (data := read(size) or b"") and self.grows:
                self._is_at_end = True
                if self.pause(_LOOK_S):
                    raise _Closed
        except OSError as error:
            raise Truncated(f"it ends at byte {self._at:,}, as reading failed ({describe_error(error)})") from error
        if data:
            self._waits_since_s, self._is_at_end = None, False
        return data


class Following:
    """Reads a stream of a `Reader` as a `Merge` reads those of a recording: batches, and the epochs between them."""

    def __init__(self, reader: Reader, number: int, codec: Codec, since: int | None = None) -> None:
        self.epoch = MIN_EPOCH
        self.captured_ns = 0
        self._stream = reader.stream(number)
        self._codec = codec
        self._since = since
        self._held = Held()

    def position(self) -> dict[str, Any]:
        """Return the position, in plain types."""
        return {"at": self._stream.at, "epoch": self.epoch, "held": self._held.image(), "over": self._stream.is_over}

    def seek(self, position: dict[str, Any]) -> None:
        """Continue from a `position`."""
        self.epoch, self._held = position["epoch"], Held.of_image(position["held"])
        self._stream.seek(position["at"])
        self._stream.is_over = position["over"]

    def is_over(self) -> bool:
        """Whether the stream has been read to its end."""
        return self._stream.is_over

    def take(self) -> Batch | Epoch | None:
        """Return the next batch, or the epoch where it advances; None if there is none now."""
        while (frame := self._stream.take()) is not None:
            if self._since is not None and frame.kind == BATCH and is_before(frame, self._since):
                continue
            match content_of(frame, self._codec):
                case Batch() as batch:
                    return batch
                case Progress() as progress:
                    self._held.update(progress.updates)
                    if self._held.epoch > self.epoch:
                        self.epoch = self._held.epoch
                        return Epoch(self.epoch)
                case Clock() as clock:
                    self.captured_ns = clock.ns
                case Moved():
                    raise CaptureError(
                        f"stream {self._stream.number} of a capture: the job that writes it was rescaled, and keys "
                        f"went from one stream to another, whose order a reader of streams does not know. Capture a "
                        f"job that is rescaled into a folder"
                    )
        return None

    def close(self) -> None:
        """Leave the stream."""
        self._stream.leave()


def _has(thing: object, method: str) -> bool:
    return callable(getattr(thing, method, None))


def _can_seek(file: BinaryIO) -> bool:
    return _has(file, "seekable") and file.seekable()


def _name(thing: object) -> str:
    return getattr(thing, "__name__", None) or f"<{type(thing).__name__}>"


def _stays_here(what: str) -> CaptureError:
    return CaptureError(
        f"{what}: a file object cannot go to another process: give a function that opens it there. A connection is "
        f"read and written in the program that has opened it"
    )
