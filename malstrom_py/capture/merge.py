"""The order in which captured streams are replayed: that of each key and of event time.

Rules:
- An *era* is the time between two moves of keys, within one start of the job. All of an era is read before anything of
  the next: what a key has in one stream comes before what it has in another stream after it moved.
- Within an era, the stream whose event time is lowest is read next, so that no stream is read far ahead.
- The epoch is the minimum over the streams that may still send, and never decreases. Until all streams are in the next
  era, a stream that is counts as at the end of its last one: what it held then may be held by another stream now.
- The maximum epoch of a start of the job waits for what later starts have captured, of input that was new to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from malstrom_py.capture.frames import BATCH, Clock, Frame, Moved, Progress, Truncated, content_of, frames, is_before
from malstrom_py.capture.progress import Held
from malstrom_py.capture.recording import OPEN, Recording, Segment
from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, Epoch
from malstrom_py.errors import CaptureError


class Cursor:
    """The reader of one stream, at a frame of a segment."""

    def __init__(
        self, recording: Recording, name: str, segments: Sequence[Segment], codec: Codec, since: int | None = None
    ) -> None:
        self.name = name
        self.era = (int(name.partition("/")[0]), 0)
        self.held = Held()
        self.before = MAX_EPOCH
        """The epoch at the end of the era before; the maximum in its first one."""
        self.is_over = False
        """Whether all segments that are known have been read."""
        self.captured_ns = 0
        """When the last batch was captured, in ns since 1970."""
        self._since = since
        self._recording = recording
        self._codec = codec
        self._number = self._first = 0
        self._at = 0
        self._file: BinaryIO | None = None
        self._frames: Any = None
        self.follow(segments)

    def position(self) -> list[Any]:
        """Return the position, in plain types."""
        return [self._number, self._at, self.era[1], self.held.image(), self.is_over, self.before]

    def follow(self, segments: Sequence[Segment], first: int | None = None) -> None:
        """Read ``segments`` next, from the number ``first`` on: all that were known before have been read."""
        self._first = self._number if first is None else first
        if [segment.number for segment in segments] != list(range(self._first, self._first + len(segments))):
            raise CaptureError(f"stream {self.name!r} of recording {self._recording.step!r} lacks a segment")
        self._segments = segments
        self.is_over = not segments

    def seek(self, position: Sequence[Any]) -> None:
        """Continue from a `position`."""
        self._number, self._at, version, held, self.is_over, *before = position
        self.before = before[0] if before else MAX_EPOCH  # of an earlier version
        self.era = (self.era[0], version)
        self.held = Held.of_image(held)

    def take(self) -> Batch | None:
        """Read one frame: return a batch; None if it is another frame, and at the end.

        Raises:
            CaptureError: a segment is damaged; names it. The one that a worker was writing as it died may end anywhere.
        """
        segment = self._segments[self._number - self._first]
        try:
            frame = self._frame(segment)
            if frame is None:
                return None
            self._at = frame.end
            if self._since is not None and frame.kind == BATCH and is_before(frame, self._since):
                return None
            content = content_of(frame, self._codec)
            match content:
                case Batch():
                    return content
                case Progress():
                    self.held.update(content.updates)
                case Clock():
                    self.captured_ns = content.ns
                case Moved():
                    self._enter(content)
        except CaptureError as error:
            raise type(error)(f"segment {segment.name!r}: {error}") from None
        return None

    def _enter(self, moved: Moved) -> None:
        self.era = (self.era[0], moved.version)
        # In earlier versions a worker that joined held the earliest time before its first move.
        joins = moved.held is None and self.held.epoch == MIN_EPOCH
        self.before = MAX_EPOCH if joins else self.held.epoch
        if moved.held is not None:
            self.held = Held.of_image(moved.held)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file = self._frames = None

    def _frame(self, segment: Segment) -> Frame | None:
        """Return the next frame; None at the end of the segment, after which the next one follows."""
        if self._file is None:
            self._file = self._recording.open(segment)
            self._frames = frames(self._file, self._at)
        try:
            found: Frame | None = next(self._frames, None)
        except Truncated:
            if segment.state != OPEN:
                raise
            found = None
        if found is None:
            self.close()
            self._number, self._at = self._number + 1, 0
            self.is_over = self._number == self._first + len(self._segments)
        return found


class Merge:
    """Reads streams of a recording in the order of the module's rules."""

    def __init__(
        self, recording: Recording, streams: Sequence[tuple[int, str]], codec: Codec, since: int | None = None
    ) -> None:
        self.captured_ns = 0
        """When the last batch was captured, in ns since 1970."""
        self._cursors = [
            Cursor(recording, f"{generation}/{stream}", recording.streams[generation, stream], codec, since)
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
            if (batch := cursor.take()) is not None:
                self.captured_ns = cursor.captured_ns
                return batch
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

    def _may_send(self, cursor: Cursor) -> bool:
        """Return whether ``cursor`` may still send in its era."""
        return not cursor.is_over

    def _reached(self) -> int:
        """Return the epoch that all streams have passed.

        A stream that begins in a later era does not count: it has no record at or below the epochs of this one. Where
        a later start follows, what a stream held at its end is of records that come in another stream.
        """
        last = max((cursor.era for cursor in self._cursors), default=(0, 0))
        era = min((cursor.era for cursor in self._cursors if not cursor.is_over), default=last)
        is_last = era[0] == last[0]
        epochs = [
            cursor.before if cursor.era > era else cursor.held.epoch
            for cursor in self._cursors
            if cursor.era > era or self._may_send(cursor) or (not is_last and cursor.era[0] == era[0])
        ]
        reached = min(epochs, default=self.epoch)
        return reached if reached < MAX_EPOCH or is_last else self.epoch
