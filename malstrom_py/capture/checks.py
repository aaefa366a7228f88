"""The checker of recordings: bytes, and the protocol of progress. Also what a recording contains, in figures."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal, NamedTuple

from malstrom_py.capture.frames import Content, End, Header, Moved, Progress, Truncated, contents
from malstrom_py.capture.progress import Held, ProtocolError
from malstrom_py.capture.recording import OPEN, Recording, Segment, commits_in, read_commit, segment_of, segments_in
from malstrom_py.codec import Codec
from malstrom_py.codec.job_codec import without_classes
from malstrom_py.data.batch import Batch
from malstrom_py.errors import CaptureError, CodecError

Kind = Literal["truncated", "corrupt", "protocol", "unfinished"]


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a recording. ``at``: where the frame begins that breaks the protocol, in bytes."""

    segment: str
    kind: Kind
    text: str
    at: int | None = None


@dataclass(slots=True)
class Stats:
    """The counts of one stream. ``epoch``: no record at or below it follows."""

    stream: str
    generation: int
    segments: int = 0
    frames: int = 0
    rows: int = 0
    bytes: int = 0
    version: int = 0
    epoch: int = 0
    is_complete: bool = False


def read(target: object, name: str | None = None, *, codec: Codec | None = None) -> Iterator[tuple[str, Content]]:
    """Read the contents of a recording, stream by stream: the name of the stream, and what each frame means.

    Values of classes that are not registered with ``codec`` are dicts of their fields.

    Raises:
        Truncated, Corrupt: after all contents before the damage.
        CaptureError: there is no such recording.
    """
    recording = Recording(target, name)
    for (_, stream), segments in recording.streams.items():
        for segment in segments:
            with recording.open(segment) as file:
                for _, content in contents(file, codec or without_classes()):
                    yield stream, content


def stats(target: object, name: str | None = None) -> list[Stats]:
    """Return the figures of each stream, up to its damage if it has any."""
    return [examined.stats for examined in _examine(Recording(target, name))]


def check(target: object, name: str | None = None) -> list[Fault]:
    """Return all that is wrong with a recording: an empty list if it is whole and complete.

    A stream may end before its event time does if the job started again after it.

    Raises:
        CaptureError: there is no such recording.
    """
    recording = Recording(target, name)
    examined = _examine(recording)
    faults = [fault for stream in examined for fault in stream.faults] + _gone(recording)
    last = max(stream.stats.generation for stream in examined)
    present = [stream for stream in examined if stream.stats.generation == last]
    some_complete = any(stream.held.is_complete for stream in present)
    for stream in present:
        # In earlier versions the stream of a worker that left held what it did before.
        has_left = some_complete and stream.is_closed and stream.stats.version and not stream.moves
        if not (stream.faults or stream.held.is_complete or has_left):
            text = "its event time never ends: the job was stopped, has failed, or runs"
            faults.append(Fault(stream.last, "unfinished", text))
    return faults


def _gone(recording: Recording) -> list[Fault]:
    """Return what is wrong with the commits, and which segments they name that are not there."""
    place, step = recording.place, recording.step
    faults, named = [], list[tuple[str, str]]()
    for snapshot in commits_in(place, step):
        try:
            named += ((snapshot, segment) for segment in read_commit(place, step, snapshot).segments)
        except CaptureError as error:
            faults.append(Fault(f"{step}.{snapshot}.commit", "corrupt", str(error)))
    # Listed after them: a segment is there before its commit, which renames it.
    there = {replace(segment, state=OPEN) for segment in segments_in(place, step)}
    for snapshot, name in named:
        if (segment := segment_of(name)) is None or replace(segment, state=OPEN) not in there:
            faults.append(Fault(name, "corrupt", f"it is gone, and was committed with snapshot {snapshot}"))
    return faults


class _Move(NamedTuple):
    """A move in one stream, and the epochs before and after it."""

    version: int
    before: int
    after: int
    segment: str
    at: int


class _Examined:
    def __init__(self, generation: int, stream: str) -> None:
        self.stats = Stats(stream, generation)
        self.held = Held()
        self.faults: list[Fault] = []
        self.last = ""
        self.is_closed = False
        self.moves: list[_Move] = []

    def held_until(self, version: int) -> int:
        """Return the epoch that the stream had passed when ``version`` began."""
        at = bisect_left(self.moves, version, key=lambda move: move.version)
        return self.moves[at].before if at < len(self.moves) else self.held.epoch


def _examine(recording: Recording) -> list[_Examined]:
    found = []
    codec = without_classes()
    for (generation, stream), segments in recording.streams.items():
        examined = _Examined(generation, stream)
        for number, segment in enumerate(segments):
            examined.last, examined.is_closed = segment.name, segment.state != OPEN
            if segment.number != number:
                examined.faults.append(Fault(segment.name, "protocol", f"segment {number} of its stream is missing"))
                break
            if not _segment(recording, segment, examined, codec):
                break
        examined.stats.epoch, examined.stats.is_complete = examined.held.epoch, examined.held.is_complete
        found.append(examined)
    for _, streams in groupby(found, key=lambda examined: examined.stats.generation):
        _compare(list(streams))
    return found


def _compare(streams: Sequence[_Examined]) -> None:
    """Add the faults of moves after which a stream holds a time that no stream of its generation held before."""
    versions = {move.version for stream in streams for move in stream.moves}
    passed = {version: min(stream.held_until(version) for stream in streams) for version in versions}
    for stream in streams:
        for move in stream.moves:
            if move.after < (least := passed[move.version]):
                text = f"move {move.version} takes it back to epoch {move.after}, and all streams had passed {least}"
                stream.faults.append(Fault(move.segment, "protocol", text, move.at))


def _segment(recording: Recording, segment: Segment, examined: _Examined, codec: Codec) -> bool:
    """Examine one segment; return whether the next one can follow."""
    figures, rows, at = examined.stats, 0, None
    figures.segments += 1
    try:
        with recording.open(segment) as file:
            for frame, content in contents(file, codec):
                at = frame.at
                figures.frames, figures.bytes = figures.frames + 1, figures.bytes + frame.end - frame.at
                if isinstance(content, Batch):
                    rows += len(content)
                    figures.rows += len(content)
                _obey(content, examined, segment, rows, frame.at)
    except (CaptureError, CodecError) as error:
        examined.faults.append(_fault(error, segment, at))
        return False
    return True


def _fault(error: Exception, segment: Segment, at: int | None) -> Fault:
    """Return ``error`` as a fault; ``at``: the frame that was read last."""
    if isinstance(error, Truncated):
        why = ": its worker died, or is writing it" if segment.state == OPEN else ""
        return Fault(segment.name, "truncated", f"{error}{why}")
    if isinstance(error, ProtocolError):
        return Fault(segment.name, "protocol", str(error), at)
    return Fault(segment.name, "corrupt", str(error))


def _obey(content: Content, examined: _Examined, segment: Segment, rows: int, at: int) -> None:
    """Raise `ProtocolError` if ``content`` may not come here."""
    held = examined.held
    match content:
        case Header() if content.segment != segment.number or content.stream != segment.stream:
            raise ProtocolError(f"its header is that of segment {content.segment} of stream {content.stream!r}")
        case Progress():
            held.update(content.updates)
        case Moved() if content.version < examined.stats.version:
            raise ProtocolError(f"version {content.version} follows version {examined.stats.version}")
        case Moved():
            examined.stats.version = content.version
            if content.held is not None:
                examined.held = Held.of_image(content.held)
                examined.moves.append(_Move(content.version, held.epoch, examined.held.epoch, segment.name, at))
        case Batch():
            if held.is_complete:
                raise ProtocolError("records follow the end of event time")
            times: list[Any] = content.timestamps or []
            if times and not held.allows(min(times)):
                raise ProtocolError(f"a record at time {min(times)} comes after epoch {held.epoch}")
        case End() if content.rows != rows:
            raise ProtocolError(f"its end says {content.rows} rows, and it has {rows}")
