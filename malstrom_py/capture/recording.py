"""Recordings: the captured streams of one step, kept as segments in a `Folder` or in `InMemory`, and read in order.

A segment is called ``<step>.g<generation>.<stream>.<number>.<state>``. A state is ``open`` (a worker writes it),
``closed-<snapshot>`` (pre-committed) or ``capture`` (committed). A generation is one start of the job: each `begin`
opens the next, and deletes what earlier ones captured after the last snapshot, since the job captures it again.
So a recording has each record once at any time, also before the job ends.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from malstrom_py.capture.frames import Header, contents
from malstrom_py.codec import Codec
from malstrom_py.errors import CaptureError, PlanError
from malstrom_py.local_files import local_path

OPEN: Final = "open"
CLOSED: Final = "closed-"
COMMITTED: Final = "capture"

_NAME: Final = re.compile(
    r"(?P<step>[\w-]{1,64})\.g(?P<generation>\d{6})\.(?P<stream>w\d{6}-[0-9a-f]{8})\.(?P<number>\d{6})\."
    r"(?P<state>open|capture|closed-[\w-]{1,64})"
)
_GENERATION: Final = re.compile(r"(?P<step>[\w-]{1,64})\.g(?P<generation>\d{6})\.begun")


class Place(Protocol):
    """Where segments are kept."""

    def names(self) -> list[str]:
        """Return the names of all segments, sorted."""
        ...

    def create(self, name: str) -> SegmentFile:
        """Create a segment, which must not exist."""
        ...

    def read(self, name: str) -> BinaryIO:
        """Open a segment. FileNotFoundError if there is none."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a segment; nothing happens if that was done already."""
        ...

    def delete(self, name: str) -> None:
        """Delete a segment, if it is there."""
        ...


class SegmentFile(Protocol):
    """A segment that is being written: what was written is there for readers, also if the process dies."""

    def write(self, data: bytes, /) -> object:
        """Append ``data``."""
        ...

    def sync(self) -> None:
        """Make what was written durable."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class Folder:
    """Segments as files in a local folder, which all workers share."""

    def __init__(self, uri: str | os.PathLike[str]) -> None:
        self.path = local_path(uri, "a capture")

    def __repr__(self) -> str:
        return f"Folder({str(self.path)!r})"

    def names(self) -> list[str]:
        try:
            return sorted(entry.name for entry in self.path.iterdir())
        except FileNotFoundError:
            return []

    def create(self, name: str) -> SegmentFile:
        self.path.mkdir(parents=True, exist_ok=True)
        return _File(self.path / name)

    def read(self, name: str) -> BinaryIO:
        return (self.path / name).open("rb")

    def rename(self, old: str, new: str) -> None:
        try:
            (self.path / old).rename(self.path / new)
        except FileNotFoundError:
            if not (self.path / new).exists():
                raise
        _sync_folder(self.path)

    def delete(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)


class _File:
    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)

    def write(self, data: bytes, /) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class InMemory:
    """Segments in the memory of this process: for tests and notebooks, with runtimes that run in this process.

    >>> InMemory().names()
    []
    """

    def __init__(self) -> None:
        self.segments: dict[str, bytearray] = {}

    def __repr__(self) -> str:
        return f"InMemory({len(self.segments)} segments)"

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise CaptureError(
            "a capture in memory cannot go to another process: capture into a folder that all workers share"
        )

    def names(self) -> list[str]:
        return sorted(self.segments)

    def create(self, name: str) -> SegmentFile:
        if name in self.segments:
            raise FileExistsError(name)
        return _Buffer(self.segments.setdefault(name, bytearray()))

    def read(self, name: str) -> BinaryIO:
        try:
            return BytesIO(self.segments[name])
        except KeyError:
            raise FileNotFoundError(name) from None

    def rename(self, old: str, new: str) -> None:
        if old in self.segments:
            self.segments[new] = self.segments.pop(old)

    def delete(self, name: str) -> None:
        self.segments.pop(name, None)


class _Buffer:
    def __init__(self, data: bytearray) -> None:
        self._data = data

    def write(self, data: bytes, /) -> None:
        self._data += data

    def sync(self) -> None:
        """Memory needs none."""

    def close(self) -> None:
        """Memory needs none."""


def place_of(target: object) -> Place:
    """Return where ``target``, a URI or a place, keeps segments; `PlanError` for anything else."""
    if isinstance(target, str | os.PathLike):
        return Folder(target)
    if missing := [name for name in ("names", "create", "read", "rename", "delete") if not hasattr(target, name)]:
        raise PlanError(
            f"a capture takes a folder, or an object with the methods of capture.Place; "
            f"{type(target).__name__} has no {missing[0]}"
        )
    place: Place = target  # type: ignore[assignment]  # it has the methods
    return place


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """The name of a segment, taken apart. Sorts by generation, stream and number."""

    step: str
    generation: int
    stream: str
    number: int
    state: str

    @property
    def name(self) -> str:
        return f"{self.step}.g{self.generation:06}.{self.stream}.{self.number:06}.{self.state}"


def segments_in(place: Place, step: str | None = None) -> list[Segment]:
    """Return the segments at ``place``, of one step or of all, sorted."""
    found = [match for match in map(_NAME.fullmatch, place.names()) if match is not None]
    segments = [
        Segment(match["step"], int(match["generation"]), match["stream"], int(match["number"]), match["state"])
        for match in found
    ]
    return sorted(segment for segment in segments if step in (None, segment.step))


def generation_of(place: Place, step: str) -> int:
    """Return the number of the present start of the job; 0 before the first."""
    found = [match for match in map(_GENERATION.fullmatch, place.names()) if match is not None]
    return max((int(match["generation"]) for match in found if match["step"] == step), default=0)


def begin(place: Place, job: str, step: str, committed: Collection[str], *, replace: bool) -> None:
    """Open the next generation of ``step`` of ``job``, and delete what no snapshot of ``committed`` contains.

    Raises:
        CaptureError: the job starts from the beginning, and the recording of another run is there; or that of another
            job is.
    """
    owner = _job_of(place, step)
    if owner not in (None, job):
        raise CaptureError(
            f"{place!r} has the recording {step!r} of job {owner!r}: capture into another folder, or give the step "
            f"another name"
        )
    for segment in segments_in(place, step):
        if segment.state == COMMITTED and not committed:
            if not replace:
                raise CaptureError(
                    f"{place!r} has the recording {step!r} of another run, which would be mixed with this one: "
                    f"capture into another folder, delete the recording, or pass replace=True"
                )
            place.delete(segment.name)
        elif segment.state == OPEN or segment.state.removeprefix(CLOSED) not in {COMMITTED, *committed}:
            place.delete(segment.name)
    last = generation_of(place, step)
    place.create(f"{step}.g{last + 1:06}.begun").close()
    if last:
        place.delete(f"{step}.g{last:06}.begun")


class Recording:
    """The captured streams of one step.

    ``streams``: the segments of each stream, in order; streams of earlier generations come first.
    """

    def __init__(self, target: object, step: str | None = None) -> None:
        self.place = place_of(target)
        segments = segments_in(self.place, step)
        steps = sorted({segment.step for segment in segments})
        if len(steps) != 1:
            found = f"it has those of {', '.join(map(repr, steps))}: name one" if steps else "there is none"
            raise CaptureError(
                f"{self.place!r} must have one recording"
                f"{'' if step is None else f' called {step!r}'}, and {found}. A recording is there as soon as its "
                f"job has written a record"
            )
        (self.step,) = steps
        self.streams: dict[tuple[int, str], list[Segment]] = {}
        for segment in segments:
            self.streams.setdefault((segment.generation, segment.stream), []).append(segment)

    def __repr__(self) -> str:
        return f"Recording({self.step!r}, {len(self.streams)} streams)"

    def open(self, segment: Segment) -> BinaryIO:
        """Open a segment, which may have been renamed by a commit since the recording was listed."""
        try:
            return self.place.read(segment.name)
        except FileNotFoundError:
            for later in segments_in(self.place, self.step):
                if (later.generation, later.stream, later.number) == (
                    segment.generation,
                    segment.stream,
                    segment.number,
                ):
                    return self.place.read(later.name)
            raise CaptureError(
                f"segment {segment.name!r} is gone: the job has started again since, and captures it again"
            ) from None

    def header(self) -> Header:
        """Return the header of the first segment that has one."""
        codec = Codec()
        for segments in self.streams.values():
            for segment in segments:
                for _, content in _until_damage(self.open(segment), codec):
                    if isinstance(content, Header):
                        return content
        raise CaptureError(f"recording {self.step!r} at {self.place!r} has no complete header: it was cut at its begin")


def _job_of(place: Place, step: str) -> str | None:
    """Return the job whose recording ``step`` is at ``place``; None if there is none, or no more than its begin."""
    try:
        return Recording(place, step).header().job
    except CaptureError:
        return None


def _until_damage(file: BinaryIO, codec: Codec) -> Iterator[tuple[Any, Any]]:
    try:
        with file:
            yield from contents(file, codec)
    except CaptureError:
        return
