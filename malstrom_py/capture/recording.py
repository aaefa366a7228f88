"""Recordings: the captured streams of one step, kept as segments in a `Folder` or in `InMemory`, and read in order.

A segment is called ``<step>.g<generation>.<stream>.<number>.<state>``. A state is ``open`` (a worker writes it),
``closed-<snapshot>`` (pre-committed) or ``capture`` (committed). A generation is one start of the job: each `begin`
opens the next, and deletes what earlier ones captured after the last snapshot, since the job captures it again.
So a recording has each record once at any time, also before the job ends.

Rule: what is committed is what the files ``<step>.<snapshot>.commit`` name. Each appears whole, once its snapshot is
durable and before the segments are renamed. Nothing that one names is ever replaced by a later start.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Final

import msgspec

from malstrom_py.capture.frames import Clock, Corrupt, Header, contents
from malstrom_py.capture.places import Place, place_of
from malstrom_py.codec import Codec
from malstrom_py.errors import CaptureError
from malstrom_py.errors.text import describe_error

OPEN: Final = "open"
CLOSED: Final = "closed-"
COMMITTED: Final = "capture"

_LOOKS: Final = 5
"""How often a segment is looked for. It is renamed twice, and a list that is made in between may lack it."""

_NAME: Final = re.compile(
    r"(?P<step>[\w-]{1,64})\.g(?P<generation>\d{6})\.(?P<stream>w\d{6}-[0-9a-f]{8})\.(?P<number>\d{6})\."
    r"(?P<state>open|capture|closed-[\w-]{1,64})"
)
_COMMIT: Final = re.compile(r"(?P<step>[\w-]{1,64})\.(?P<snapshot>[\w-]{1,64})\.commit")
_GENERATION: Final = re.compile(r"(?P<step>[\w-]{1,64})\.g(?P<generation>\d{6})\.begun")


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


class Commit(msgspec.Struct, frozen=True):
    """What one commit of a recording contains.

    ``writers``: the streams that may have sent until then, each as ``<generation>/<stream>``; one that is missing in a
    later commit has ended. ``segments``: their names, as they were before the commit. ``final``: nothing follows.
    """

    writers: list[str]
    segments: list[str]
    final: bool


def segment_of(name: str) -> Segment | None:
    """Return the segment called ``name``; None if no segment has such a name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return Segment(match["step"], int(match["generation"]), match["stream"], int(match["number"]), match["state"])


def commits_in(place: Place, step: str) -> list[str]:
    """Return the ids of all commits of ``step``, in their order."""
    found = [match for match in map(_COMMIT.fullmatch, place.names()) if match is not None]
    return sorted(match["snapshot"] for match in found if match["step"] == step)


def write_commit(place: Place, step: str, snapshot: str, commit: Commit) -> None:
    """Make ``commit`` visible, whole; nothing happens if it is there already."""
    name = f"{step}.{snapshot}.commit"
    with suppress(FileNotFoundError), place.read(name):
        return
    place.delete(f"{name}-new")  # of a committer that died
    file = place.create(f"{name}-new")
    file.write(msgspec.json.encode(commit))
    file.sync()
    file.close()
    place.rename(f"{name}-new", name)


def read_commit(place: Place, step: str, snapshot: str) -> Commit:
    """Return a commit. `CaptureError` if it is gone, `Corrupt` if it has changed."""
    name = f"{step}.{snapshot}.commit"
    try:
        with place.read(name) as file:
            return msgspec.json.decode(file.read(), type=Commit)
    except FileNotFoundError:
        raise CaptureError(
            f"{name!r} at {place} is gone: the recording was deleted, or replaced by that of another run, since it "
            f"was read up to there. Start the replay from the beginning"
        ) from None
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{name!r} at {place} has changed ({describe_error(error)})") from error


def segments_in(place: Place, step: str | None = None) -> list[Segment]:
    """Return the segments at ``place``, of one step or of all, sorted."""
    found = map(segment_of, place.names())
    return sorted(segment for segment in found if segment is not None and step in (None, segment.step))


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
            f"{place} has the recording {step!r} of job {owner!r}: capture into another folder, or give the step "
            f"another name"
        )
    for segment in segments_in(place, step):
        if segment.state == COMMITTED and not committed:
            if not replace:
                raise CaptureError(
                    f"{place} has the recording {step!r} of another run, which would be mixed with this one: "
                    f"capture into another folder, delete the recording, or pass replace=True"
                )
            place.delete(segment.name)
        elif segment.state.removeprefix(CLOSED) not in {COMMITTED, *committed}:
            place.delete(segment.name)
    for snapshot in () if committed else commits_in(place, step):
        place.delete(f"{step}.{snapshot}.commit")
    last = generation_of(place, step)
    _open_generation(place, step, last + 1)
    if last:
        place.delete(f"{step}.g{last:06}.begun")


def begin_new(place: Place, step: str) -> None:
    """Open the first generation of ``step``; `CaptureError` if there is one, of any program."""
    if generation_of(place, step) or segments_in(place, step):
        # Also one that nothing is committed of: a job, or a tap, may be writing it.
        raise CaptureError(f"{place} has a recording {step!r}: give another folder")
    _open_generation(place, step, 1)


def _open_generation(place: Place, step: str, number: int) -> None:
    try:
        place.create(f"{step}.g{number:06}.begun").close()
    except FileExistsError:
        raise CaptureError(
            f"{place} has a recording {step!r} that another program began at the same moment: give another folder"
        ) from None


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
                f"{self.place} must have one recording"
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
        name, opened = segment.name, replace(segment, state=OPEN)
        for _ in range(_LOOKS):
            with suppress(FileNotFoundError):
                return self.place.read(name)
            found = (one.name for one in segments_in(self.place, self.step) if replace(one, state=OPEN) == opened)
            name = next(found, name)
        raise CaptureError(f"segment {segment.name!r} is gone: the job has started again since, and captures it again")

    def of_workers(self, workers: Collection[int] | None) -> list[tuple[int, str]]:
        """Return the streams of ``workers``, by default all; `CaptureError` if they have none."""
        chosen = sorted(key for key in self.streams if workers is None or int(key[1][1:7]) in workers)
        if not chosen:
            raise CaptureError(
                f"recording {self.step!r} has no stream of the workers {sorted(workers or ())}; it has those "
                f"of {sorted({int(stream[1:7]) for _, stream in self.streams})}"
            )
        return chosen

    def header(self) -> Header:
        """Return the header of the first segment that has one."""
        codec = Codec()
        for segments in self.streams.values():
            for segment in segments:
                for _, content in _until_damage(self.open(segment), codec):
                    if isinstance(content, Header):
                        return content
        raise CaptureError(f"recording {self.step!r} at {self.place} has no complete header: it was cut at its begin")

    def began_ns(self, streams: Collection[tuple[int, str]]) -> int:
        """Return when the first of ``streams`` was captured, in ns since 1970; 0 if they have no records."""
        found = (self._first_clock(self.streams[stream]) for stream in streams)
        return min((ns for ns in found if ns is not None), default=0)

    def _first_clock(self, segments: Collection[Segment]) -> int | None:
        for segment in segments:
            for _, content in _until_damage(self.open(segment), Codec()):
                if isinstance(content, Clock):
                    return content.ns
        return None


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
