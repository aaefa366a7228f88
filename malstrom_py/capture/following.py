"""The order in which a recording is replayed that a job still writes: commit by commit, each as a `Merge` reads it.

Rules:
- Only what a commit names is read. A start of the captured job replaces what it had captured after its last snapshot,
  and never what is committed: so a replay has each record once.
- A commit is a cut through all streams: all of it is read before anything of the next.
- A stream may still send until a commit comes without it.
- The end is a final commit that is the last one: a job that starts again with new input commits more.
- The maximum epoch comes after all that is committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from malstrom_py.capture.merge import Cursor, Merge
from malstrom_py.capture.recording import (
    COMMITTED,
    Commit,
    Recording,
    Segment,
    commits_in,
    read_commit,
    segment_of,
    segments_in,
)
from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, Epoch
from malstrom_py.errors import CaptureError


class GrowingMerge(Merge):
    """Reads a recording up to its last commit, and on when there are more. ``workers``: read only their streams."""

    def __init__(
        self, recording: Recording, workers: Collection[int] | None, codec: Codec, since: int | None = None
    ) -> None:
        super().__init__(recording, (), codec, since)
        self._recording = recording
        self._workers = workers
        self._codec = codec
        self._since = since
        self._commit = ""
        self._is_final = False
        self._listed = deque[str]()
        """Commits that follow. Listed again only once they are read: a recording may have thousands."""

    def position(self) -> Mapping[str, Any]:
        return {**super().position(), "commit": self._commit}

    def seek(self, position: Mapping[str, Any]) -> None:
        """Continue from a `position`; `CaptureError` if its commit is gone."""
        if "commit" not in position:
            raise CaptureError(
                f"the snapshot is of a replay of {self._recording.step!r} that did not follow: a replay resumes as it "
                f"began, with or without follow=True"
            )
        if not (last := position["commit"]):
            return
        commit = self._read(last)
        self.epoch, segments = position["epoch"], self._segments_of(commit)
        for name, at in position["streams"].items():
            found = segments.get(name, [])
            cursor = self._cursor(name)
            cursor.follow(found, found[0].number if found else at[0])
            cursor.seek(at)
            self._cursors.append(cursor)
        if self._is_final and self.epoch == MAX_EPOCH and self._following() is not None:
            self.epoch = MIN_EPOCH  # the job has started again since

    def is_over(self) -> bool:
        return self._is_final and self.epoch == MAX_EPOCH and super().is_over()

    def take(self) -> Batch | Epoch | None:
        """Return the next batch, or the epoch where it advances; None if nothing more is committed now."""
        while (found := super().take()) is None and self._grow():
            pass
        # A start that resumed after the end of its input has captured nothing, and no end either.
        if found is None and self.epoch < MAX_EPOCH and (self._is_final or super()._reached() == MAX_EPOCH):
            if self._is_final:
                Recording(self._recording.place, self._recording.step).of_workers(self._workers)
            self.epoch = MAX_EPOCH
            return Epoch(MAX_EPOCH)
        return found

    def _reached(self) -> int:
        return reached if (reached := super()._reached()) < MAX_EPOCH else self.epoch

    def _may_send(self, cursor: Cursor) -> bool:
        return True

    def _grow(self) -> bool:
        """Read the next commit, if there is one: the streams that it has, and which of those before have ended."""
        place, step = self._recording.place, self._recording.step
        # Listed before the commits: a commit is there before what it names is renamed.
        captured = [] if self._commit else [one for one in segments_in(place, step) if one.state == COMMITTED]
        following = self._following()
        commit = None if following is None else self._read(following)
        named = () if commit is None else (int(name.partition("/")[0]) for name in commit.writers)
        if captured and captured[0].generation < min(named, default=MAX_EPOCH):
            raise CaptureError(
                f"recording {step!r} at {place} was begun by a version that wrote no commits, and cannot be followed: "
                f"replay it without follow=True, or start the captured job again with replace=True"
            )
        if commit is None:
            return False
        segments = self._segments_of(commit)
        known = {cursor.name: cursor for cursor in self._cursors}
        last = max((cursor.era for cursor in self._cursors), default=(0, 0))
        self._cursors = [known.get(name) or self._cursor(name) for name in filter(self._is_wanted, commit.writers)]
        for cursor in self._cursors:
            cursor.era = max(cursor.era, last)  # a worker that joins has nothing to do with the eras before
            cursor.follow(segments.get(cursor.name, []))
        return True

    def _following(self) -> str | None:
        """Return the id of the next commit, if there is one."""
        if not self._listed:
            commits = commits_in(self._recording.place, self._recording.step)
            if self._commit and self._commit not in commits:
                self._read(self._commit)  # says that it is gone
            self._listed.extend(snapshot for snapshot in commits if snapshot > self._commit)
        return self._listed[0] if self._listed else None

    def _read(self, snapshot: str) -> Commit:
        commit = read_commit(self._recording.place, self._recording.step, snapshot)
        if self._listed and self._listed[0] == snapshot:
            self._listed.popleft()
        self._commit, self._is_final = snapshot, commit.final
        return commit

    def _cursor(self, name: str) -> Cursor:
        return Cursor(self._recording, name, [], self._codec, self._since)

    def _is_wanted(self, name: str) -> bool:
        return self._workers is None or int(name.partition("/w")[2][:6]) in self._workers

    def _segments_of(self, commit: Commit) -> dict[str, list[Segment]]:
        found: dict[str, list[Segment]] = {}
        for segment in sorted(filter(None, map(segment_of, commit.segments))):
            # Most commits have renamed their segments by now; `Recording.open` finds the others.
            name = f"{segment.generation}/{segment.stream}"
            found.setdefault(name, []).append(replace(segment, state=COMMITTED))
        return found
