"""``Replay``: reads a recording that ``capture_into`` made, with its keys, timestamps and epochs.

Rule: if keys have moved while the recording was made, it is one part, so that the order of each key is kept; otherwise
each captured stream is a part.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from malstrom_py.capture.frames import MOVED, frames
from malstrom_py.capture.merge import Merge
from malstrom_py.capture.recording import Recording
from malstrom_py.codec import Codec, TypeTable
from malstrom_py.data.batch import ColumnBatch
from malstrom_py.data.messages import Epoch
from malstrom_py.errors import CaptureError
from malstrom_py.sources.base import Part

ALL = Part("all")


class Replay:
    """Reads the recording at ``target``, a folder or a `capture.InMemory`.

    ``name``: the step that was captured; required if several are there. ``streams``: read only the streams of these
    workers. `Job.replay_from` also restores keys, timestamps and epochs; as a plain source it gives the values.

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
    ) -> None:
        self.target = target
        self.name = name
        self.workers = None if streams is None else frozenset(streams)
        self._types = TypeTable()
        self._restores = False

    def restoring(self, types: TypeTable) -> Replay:
        """Return this source with keys, timestamps and epochs, and the classes of a job, for the builder."""
        made = Replay(self.target, self.name, streams=self.workers)
        made._types, made._restores = types, True
        return made

    def __repr__(self) -> str:
        return f"Replay({self.target!r})"

    def list_parts(self) -> Sequence[Part]:
        chosen = self._chosen(recording := Recording(self.target, self.name))
        if self._is_one(recording, chosen):
            return [ALL]
        return [Part(stream) for _, stream in chosen]

    def build_part(self, part: Part, state: Any) -> _ReplayPart:
        chosen = self._chosen(recording := Recording(self.target, self.name))
        if part != ALL:
            chosen = [key for key in chosen if key[1] == part]
        if not chosen:
            raise CaptureError(f"stream {part!r} of recording {recording.step!r} is gone")
        return _ReplayPart(Merge(recording, chosen, Codec(self._types)), state, restores=self._restores)

    def _chosen(self, recording: Recording) -> list[tuple[int, str]]:
        chosen = sorted(key for key in recording.streams if self.workers is None or int(key[1][1:7]) in self.workers)
        if not chosen:
            raise CaptureError(
                f"recording {recording.step!r} has no stream of the workers {sorted(self.workers or ())}; it has those "
                f"of {sorted({int(stream[1:7]) for _, stream in recording.streams})}"
            )
        return chosen

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
                        continue  # the part that reads it says what is wrong
        return False


class _ReplayPart:
    def __init__(self, merge: Merge, state: Any, *, restores: bool) -> None:
        self._merge = merge
        self._restores = restores
        if state is not None:
            merge.seek(state)

    def poll(self, rows_max: int) -> Any:
        found = self._merge.take()
        if self._restores or found is None:
            return found
        while isinstance(found, Epoch):
            found = self._merge.take()
        if isinstance(found, ColumnBatch):
            return found.columns
        return None if found is None else found.values

    def is_finished(self) -> bool:
        return self._merge.is_over()

    def snapshot(self) -> Any:
        return self._merge.position()

    def close(self) -> None:
        self._merge.close()
