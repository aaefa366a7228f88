"""``Replay``: reads what ``capture_into`` has recorded, or sends to a `Reader`, with keys, timestamps and watermarks.

Rule: if keys have moved while the recording was made, it is one partition, so that the order of each key is kept;
otherwise each captured stream is a partition. Each stream of a `Reader` is one. A recording that is followed is one
partition, because it is not known yet whether keys will move.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

from malstrom_py.capture.following import GrowingMerge
from malstrom_py.capture.frames import MOVED, Header, frames
from malstrom_py.capture.merge import Merge
from malstrom_py.capture.recording import Recording
from malstrom_py.capture.streams import Following, Reader
from malstrom_py.clock import Clock, SystemClock
from malstrom_py.codec import Codec, TypeTable
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import Epoch
from malstrom_py.data.time import to_time
from malstrom_py.errors import CaptureError, PlanError
from malstrom_py.errors.text import describe_error
from malstrom_py.sources.base import WAIT_MAX_S, BasePart, BaseSource, Part
from malstrom_py.validation import checked_flag, checked_number

ALL = Part("all")

PACE_S: Final = 0.01
"""How often a replay by pace looks whether something is due."""

FOLLOW_S: Final = 0.02
"""How often a stream that brings nothing is looked at."""


class Replay(BaseSource[Any]):
    """Reads the recording at ``target``, a folder, the URI of an object store, or a place of `malstrom_py.capture`; or
    the streams of a `capture.Reader`, also while they are written.

    ``name``: the step that was captured; required if several are there. ``streams``: read only the streams of these
    workers. ``since``: leave out records before this event time, an int in the unit of the recording or an aware
    datetime; they are skipped without being decoded. ``pace``: 1.0 for the pace of the original, 2.0 for twice as
    fast; None: as fast as the job can. ``follow``: read what the captured job has committed, and read on while it
    runs, until it has read all its input. `Job.replay_from` also restores keys, timestamps and watermarks; as a plain
    source it gives the values.

    >>> import malstrom_py as mp
    >>> from malstrom_py import capture, sources
    >>> job, kept = mp.Job("docs"), capture.InMemory()
    >>> job.source("words", sources.Memory(["ant", "bee"])).capture_into("seen", kept)
    >>> mp.run(job).read
    2
    >>> mp.collect(mp.Job("again").source("words", sources.Replay(kept)))
    ['ant', 'bee']
    """

    def __init__(
        self,
        target: object,
        name: str | None = None,
        *,
        streams: Collection[int] | None = None,
        since: int | datetime | None = None,
        pace: float | None = None,
        follow: bool = False,
    ) -> None:
        if pace is not None:
            checked_number(pace, "Replay: pace")
        if isinstance(target, Reader) and (name is not None or streams is not None):
            raise PlanError("Replay: name= and streams= choose in a recording; give the capture.Reader what it reads")
        if isinstance(target, Reader) and follow:
            raise PlanError("Replay: follow= is for a recording in a place; a capture.Reader follows in any case")
        self.follow = checked_flag(follow, "Replay: follow")
        self.since = since
        self.pace = pace
        self.target = target
        self.name = name
        self.workers = None if streams is None else frozenset(streams)
        self._types = TypeTable()
        self._restores = False

    def restoring(self, types: TypeTable) -> Replay:
        """Return this source with keys, timestamps and watermarks, and the classes of a job, for the builder."""
        made = Replay(
            self.target, self.name, streams=self.workers, since=self.since, pace=self.pace, follow=self.follow
        )
        made._types, made._restores = types, True
        return made

    def __repr__(self) -> str:
        return f"Replay({self.target!r})"

    def list_parts(self) -> Sequence[Part]:
        if isinstance(self.target, Reader):
            return [Part(str(number)) for number in range(len(self.target))]
        recording = Recording(self.target, self.name)
        if self.follow:
            return [ALL]
        chosen = recording.of_workers(self.workers)
        if self._is_one(recording, chosen):
            return [ALL]
        return [Part(stream) for _, stream in chosen]

    def build_part(self, part: Part, state: Any) -> _ReplayPart:
        codec = Codec(self._types)
        if isinstance(self.target, Reader):
            since = _since(self.since, self.target)
            pacing = None if self.pace is None else Pacing(0, self.pace, SystemClock())
            following = Following(self.target, int(part), codec, since)
            return _ReplayPart(
                following, state, restores=self._restores, since=since, pacing=pacing, wait_max_s=FOLLOW_S
            )
        recording = Recording(self.target, self.name)
        since = _since(self.since, recording)
        if self.follow:
            growing = GrowingMerge(recording, self.workers, codec, since)
            pacing = None if self.pace is None else Pacing(0, self.pace, SystemClock())
            return _ReplayPart(growing, state, restores=self._restores, since=since, pacing=pacing)
        chosen = recording.of_workers(self.workers)
        if part != ALL:
            chosen = [key for key in chosen if key[1] == part]
        if not chosen:
            raise CaptureError(f"stream {part!r} of recording {recording.step!r} is gone")
        pacing = None if self.pace is None else Pacing(recording.began_ns(chosen), self.pace, SystemClock())
        merge = Merge(recording, chosen, codec, since)
        return _ReplayPart(merge, state, restores=self._restores, since=since, pacing=pacing)

    @staticmethod
    def _is_one(recording: Recording, chosen: Sequence[tuple[int, str]]) -> bool:
        if len({generation for generation, _ in chosen}) > 1:
            return True
        for key in chosen:
            for segment in recording.streams[key]:
                with recording.open(segment) as file:
                    try:
                        if any(frame.kind == MOVED for frame in frames(file)):
                            return True
                    except CaptureError:
                        continue  # the partition that reads it says what is wrong
        return False


def header_of(target: object, name: str | None) -> Header:
    """Return the header of a recording, or of the first stream of a `Reader`."""
    return target.header() if isinstance(target, Reader) else Recording(target, name).header()


def _since(since: int | datetime | None, recording: Recording | Reader) -> int | None:
    """Return ``since`` in the unit of ``recording``."""
    if since is None:
        return None
    unit = recording.header().unit
    if unit is None:
        raise PlanError(f"Replay: since= is an event time, and {recording!r} has no timestamps")
    try:
        return to_time(since, unit)
    except (TypeError, ValueError) as error:
        raise PlanError(
            f"Replay: since must be an int in {unit} or an aware datetime ({describe_error(error)})"
        ) from None


class Pacing:
    """The pace of a replay of what was captured from ``began_ns`` on; ``pace``: 2.0 for twice as fast.

    >>> from malstrom_py.clock import VirtualClock
    >>> clock = VirtualClock()
    >>> pacing = Pacing(5_000_000_000, 2.0, clock)
    >>> pacing.is_due(7_000_000_000)
    False
    >>> clock.sleep_s(1.0)
    >>> pacing.is_due(7_000_000_000)
    True
    """

    def __init__(self, began_ns: int, pace: float, clock: Clock) -> None:
        self._began_ns = began_ns
        self._pace = pace
        self._clock = clock
        self._started_s = clock.monotonic_s()

    def begin_at(self, ns: int) -> None:
        """Count the time from now on, and the original's from ``ns``."""
        self._began_ns, self._started_s = ns, self._clock.monotonic_s()

    def is_due(self, ns: int) -> bool:
        """Return whether what was captured at ``ns`` is to be sent."""
        return (ns - self._began_ns) / 1e9 / self._pace <= self._clock.monotonic_s() - self._started_s


class _ReplayPart(BasePart[Any]):
    def __init__(
        self,
        merge: Merge | Following,
        state: Any,
        *,
        restores: bool,
        since: int | None = None,
        pacing: Pacing | None = None,
        wait_max_s: float = WAIT_MAX_S,
    ) -> None:
        self._merge = merge
        self._restores = restores
        self._since = since
        self._pacing = pacing
        self._held: Batch | None = None
        self._before: Any = None
        # What is skipped takes no time, neither before a position nor before ``since``.
        self._is_skipping = state is not None or since is not None or isinstance(merge, Following | GrowingMerge)
        self.wait_max_s = PACE_S if pacing is not None else wait_max_s
        if state is not None:
            merge.seek(state)

    def poll(self, rows_max: int) -> Any:
        found = self._next()
        if self._restores or found is None:
            return found
        while isinstance(found, Epoch):
            found = self._next()
        if isinstance(found, ColumnBatch):
            return found.columns
        return None if found is None else found.values

    def _next(self) -> Batch | Epoch | None:
        """Return the next batch or watermark that is due, without records before ``since``."""
        found: Batch | Epoch | None = self._held
        if found is None:
            if self._pacing is not None:
                self._before = self._merge.position()
            found = self._merge.take()
            while isinstance(found, Batch) and not len(found := self._from_since(found)):
                found = self._merge.take()
        if isinstance(found, Batch) and self._pacing is not None:
            self._held = None if self._is_due(self._pacing) else found
            return None if self._held is not None else found
        return found

    def _from_since(self, batch: Batch) -> Batch:
        since = self._since
        if since is None or batch.timestamps is None or batch.span[0] >= since:
            return batch
        return batch.compress([time >= since for time in batch.timestamps])

    def _is_due(self, pacing: Pacing) -> bool:
        captured_ns = self._merge.captured_ns
        if self._is_skipping:
            pacing.begin_at(captured_ns)
            self._is_skipping = False
        return pacing.is_due(captured_ns)

    def is_finished(self) -> bool:
        return self._held is None and self._merge.is_over()

    def snapshot(self) -> Any:
        return self._before if self._held is not None else self._merge.position()

    def close(self) -> None:
        self._merge.close()
