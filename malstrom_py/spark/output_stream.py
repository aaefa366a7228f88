"""The output of a job as a stream of Spark: ``spark.readStream.format("malstrom")``.

Rules:
- An offset is how many files the output record of a step names, and a digest of their names. A record of one output
  only grows at its end, so the files between two offsets never change.
- A query whose offset does not fit the record is refused: another output has replaced the one that it reads.
"""

from __future__ import annotations

import hashlib
import json
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from malstrom_py.errors import SourceError
from malstrom_py.local_files import local_path
from malstrom_py.sinks.output_record import StepOutput, jobs_in
from malstrom_py.spark.output_files import ASKED_BY, OutputFiles, batches_of_all, check_readable, output_of, step_of

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # before 4.2 a query with availableNow that repeats a batch ends after it
    SupportsTriggerAvailableNow = object  # type: ignore[assignment, misc]

if TYPE_CHECKING:
    import pyarrow as pa

_PATIENCE_S: Final = 10.0
"""How long a named job or step is waited for where others are recorded: they may have committed before it."""

_PAUSE_S: Final = 0.1

Offset = dict[str, Any]
"""``job`` and ``step`` of an output, the number of its ``files``, and the ``digest`` of their names."""


def offset_of(job: str, step: str, files: Sequence[str]) -> Offset:
    """Return the offset after ``files``.

    >>> offset_of("", "", [])
    {'job': '', 'step': '', 'files': 0, 'digest': ''}
    """
    if not files:
        return {"job": "", "step": "", "files": 0, "digest": ""}
    digest = hashlib.sha256(json.dumps(list(files)).encode()).hexdigest()
    return {"job": job, "step": step, "files": len(files), "digest": digest}


@dataclass(frozen=True, slots=True)
class _Recorded:
    """The recorded output of a step."""

    job: str
    step: str
    output: StepOutput

    def fits(self, offset: Offset) -> bool:
        """Return whether ``offset`` is one of this output."""
        return offset == offset_of(self.job, self.step, self.output.files[: offset["files"]])


class EndingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # pyright: ignore[reportGeneralTypeIssues]
    """A reader whose query may end with what is available when it starts."""

    _target: Offset | None = None

    # Spark before 4.2 gives no arguments.
    @abstractmethod
    def latestOffset(self, start: Offset | None = None, limit: object = None) -> Offset:  # noqa: N802  Spark's name
        ...

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        self._target = self.latestOffset()


class OutputStreamReader(EndingReader):
    """Reads the files that a step of a job commits, each once."""

    def __init__(self, path: str, job: str | None, step: str | None, schema: pa.Schema) -> None:
        self._path = path
        self._root: Path = local_path(path, ASKED_BY)
        self._job = job
        self._step = step
        self._schema = schema

    def initialOffset(self) -> Offset:  # noqa: N802  Spark's name
        return offset_of("", "", [])

    def latestOffset(self, start: Offset | None = None, limit: object = None) -> Offset:  # noqa: N802  Spark's name
        found = self._recorded()
        if start is not None:
            self._check(found, start)
        if self._target is not None:
            return self._target
        return self.initialOffset() if found is None else offset_of(found.job, found.step, found.output.files)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if start == end:
            return []
        found = self._recorded()
        self._check(found, start)
        self._check(found, end)
        if found is None or end["files"] < start["files"]:
            raise self._replaced(start)
        new = replace(found.output, files=found.output.files[start["files"] : end["files"]])
        files = OutputFiles(self._root, new)
        # Lines of JSON may have other fields in each file, and the files after the first have its columns.
        if not start["files"] and new.format != "json":
            check_readable({field.name: field.type for field in files.schema()}, self._schema)
        return [InputPartition(splits) for splits in files.tasks()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches_of_all(partition.value, self._schema)

    def _recorded(self) -> _Recorded | None:
        """Return what is recorded; None before the first commit. `SourceError`: others are recorded, and not this."""
        ends_s = time.monotonic() + _PATIENCE_S
        while jobs := jobs_in(self._root):
            is_over = time.monotonic() > ends_s
            if is_over or self._job in {None, *jobs}:
                _, output = output_of(self._path, self._job)
                # The steps of a job are recorded one after the other.
                if is_over or output.final or self._step in {None, *output.outputs}:
                    step = self._step or next(iter(output.outputs))
                    return _Recorded(output.job, step, step_of(output, self._step))
            time.sleep(_PAUSE_S)
        return None

    def _check(self, found: _Recorded | None, offset: Offset) -> None:
        if offset["files"] and (found is None or not found.fits(offset)):
            raise self._replaced(offset)

    def _replaced(self, offset: Offset) -> SourceError:
        return SourceError(
            f"this query has read {offset['files']} files of step {offset['step']!r} of job {offset['job']!r}, and "
            f"the output recorded in {self._root} is another one now: the job has started from the beginning, or "
            f"other options are given. Read the output by a new query, with another checkpointLocation"
        )
