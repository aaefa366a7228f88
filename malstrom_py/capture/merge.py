"""The order in which captured streams are replayed: that of each key and of event time.

Rules:
- An *era* is the time between two moves of keys, within one start of the job. All of an era is read before anything of
  the next: what a key has in one stream comes before what it has in another stream after it moved.
- Within an era, the stream whose event time is lowest is read next, so that no stream is read far ahead.
- The epoch is the minimum over the streams that may still send, and never decreases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from malstrom_py.capture.frames import Corrupt, End, Frame, Moved, Progress, Truncated, content_of, frames
from malstrom_py.capture.progress import Held
from malstrom_py.capture.recording import Recording, Segment
from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MIN_EPOCH, Epoch
from malstrom_py.errors import CaptureError


class Cursor:
    """The reader of one stream, at a frame of a segment."""

    def __init__(self, recording: Recording, name: str, segments: Sequence[Segment], codec: Codec) -> None:
        self.name = name
        self.era = (segments[0].generation, 0)
        self.held = Held()
        self.is_over = False
        self._recording = recording
        self._segments = segments
        self._codec = codec
        self._number = 0
        self._at = 0
        self._file: BinaryIO | None = None
        self._frames: Any = None
        self._next: Frame | None = None

    def position(self) -> list[Any]:
        """Return the position, in plain types."""
        return [self._number, self._at, self.era[1], self.held.image(), self.is_over]

    def seek(self, position: Sequence[Any]) -> None:
        """Continue from a `position`."""
        self._number, self._at, version, held, self.is_over = position
        self.era = (self.era[0], version)
        self.held = Held.of_image(held)

    def take(self) -> Batch | Epoch | None:
        """Read one frame: return a batch, or the epoch if it has advanced; None for all else and at the end."""
        frame = self._frame()
        if frame is None:
            return None
        content = content_of(frame, self._codec)
        self._at = frame.end
        match content:
            case Batch():
                return content
            case Progress():
                before = self.held.epoch
                self.held.update(content.updates)
                return Epoch(self.held.epoch) if self.held.epoch != before else None
            case Moved():
                self.era = (self.era[0], content.version)
            case End():
                self._close()
                self._number, self._at = self._number + 1, 0
        return None

    def close(self) -> None:
        """Close the file."""
        self._close()

    def _frame(self) -> Frame | None:
        while self._number < len(self._segments):
            if self._file is None:
                self._file = self._recording.open(self._segments[self._number])
                self._frames = frames(self._file, self._at)
            try:
                found: Frame = next(self._frames)
            except Truncated:
                if self._number + 1 < len(self._segments) and self._segments[self._number].state == "capture":
                    raise
                # The writer died here: what it had captured is complete up to the cut.
                self._close()
                self._number, self._at = self._number + 1, 0
            except Corrupt as error:
                raise Corrupt(f"segment {self._segments[self._number].name!r}: {error}") from None
            except StopIteration:
                self._close()
                self._number, self._at = self._number + 1, 0
            else:
                return found
        self.is_over = True
        return None

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = self._frames = None


class Merge:
    """Reads streams of a recording in the order of the module's rules."""

    def __init__(self, recording: Recording, streams: Sequence[tuple[int, str]], codec: Codec) -> None:
        self._cursors = [
            Cursor(recording, f"{generation}/{stream}", recording.streams[generation, stream], codec)
            for generation, stream in streams
        ]
        self.epoch = MIN_EPOCH

    def position(self) -> Mapping[str, Any]:
        """Return the position, in plain types."""
        return {"epoch": self.epoch, "streams": {cursor.name: cursor.position() for cursor in self._cursors}}

    def seek(self, position: Mapping[str, Any]) -> None:
        """Continue from a `position`; `CaptureError` if a stream is gone."""
        self.epoch = position["epoch"]
        for cursor in self._cursors:
            if cursor.name not in position["streams"]:
                raise CaptureError(f"stream {cursor.name!r} is new since the snapshot: the recording has grown")
            cursor.seek(position["streams"][cursor.name])

    def is_over(self) -> bool:
        """Whether all streams have been read."""
        return all(cursor.is_over for cursor in self._cursors)

    def take(self) -> Batch | Epoch | None:
        """Return the next batch, or the epoch where it advances; None at the end of all streams."""
        while (cursor := self._lowest()) is not None:
            found = cursor.take()
            if isinstance(found, Batch):
                return found
            if (epoch := self._reached()) > self.epoch:
                self.epoch = epoch
                return Epoch(epoch)
        return None

    def close(self) -> None:
        """Close all files."""
        for cursor in self._cursors:
            cursor.close()

    def _lowest(self) -> Cursor | None:
        """Return the stream to read next: of the earliest era the one with the lowest event time."""
        left = [cursor for cursor in self._cursors if not cursor.is_over]
        return min(left, key=lambda cursor: (cursor.era, cursor.held.epoch), default=None)

    def _reached(self) -> int:
        """Return the epoch that all streams have passed.

        A stream that begins in a later era does not count: it has no record at or below the epochs of this one.
        """
        left = [cursor for cursor in self._cursors if not cursor.is_over]
        era = min((cursor.era for cursor in left), default=None)
        epochs = [cursor.held.epoch for cursor in left if cursor.era == era or cursor.held.epoch != MIN_EPOCH]
        return min(epochs, default=self.epoch)
