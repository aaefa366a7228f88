"""A recording as a stream of Spark: each commit of the captured job once, while it runs.

Rules:
- An offset is the last commit that was read. Only what commits name is read: a start of the job never replaces that.
- The types are those of the recording when the query starts. A value that they cannot hold ends the query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from malstrom_py.capture.recording import Recording, Segment, commits_in, read_commit, segment_of
from malstrom_py.errors import CaptureError, SourceError
from malstrom_py.spark.output_stream import EndingReader

if TYPE_CHECKING:
    import pyarrow as pa

    from malstrom_py.spark.recording_source import RecordingRows

Offset = dict[str, str]
"""``commit``: the id of the snapshot with which it was made; empty before the first."""


class RecordingStreamReader(EndingReader):
    """Reads what is committed of a recording, in a task for each captured stream."""

    def __init__(self, recording: Recording, rows: RecordingRows) -> None:
        self._recording = recording
        self._rows = rows

    def initialOffset(self) -> Offset:  # noqa: N802  Spark's name
        return {"commit": ""}

    def latestOffset(self, start: Offset | None = None, limit: object = None) -> Offset:  # noqa: N802  Spark's name
        commits = self._commits()
        if start is not None:
            self._check(start, commits)
        return self._target or {"commit": max(commits, default="")}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        commits = self._commits()
        for offset in (start, end):
            self._check(offset, commits)
        streams: dict[tuple[int, str], list[Segment]] = {}
        for commit in commits:
            if start["commit"] < commit <= end["commit"]:
                named = read_commit(self._recording.place, self._recording.step, commit).segments
                for segment in sorted(filter(None, map(segment_of, named))):
                    streams.setdefault((segment.generation, segment.stream), []).append(segment)
        return [InputPartition(segments) for segments in streams.values()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._rows.batches(self._recording, partition.value)
        except SourceError as error:
            raise SourceError(
                f"{error}. The types are those of the recording when the query started: start a new one, with another "
                f"checkpointLocation"
            ) from error

    def _commits(self) -> list[str]:
        return commits_in(self._recording.place, self._recording.step)

    def _check(self, offset: Offset, commits: Sequence[str]) -> None:
        if offset["commit"] and offset["commit"] not in commits:
            raise CaptureError(
                f"the recording {self._recording.step!r} at {self._recording.place} is another one than this query has "
                f"read: the job has started from the beginning. Read it by a new query, with another checkpointLocation"
            )
