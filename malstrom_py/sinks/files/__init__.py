"""``Files``: a transactional sink that writes files. Nothing is visible before its commit.

`columns` makes values columns, `encoders` makes them bytes, `rolling` keeps files to a size, `staging` moves them from
hidden to visible.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, Literal

from malstrom_py.batches import Batch
from malstrom_py.errors import PlanError
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.sinks.files.encoders import CsvEncoder, Encoder, JsonEncoder, ParquetEncoder
from malstrom_py.sinks.files.rolling import RollingFiles
from malstrom_py.sinks.files.staging import (
    Staging,
    local_path,
    publish,
    remove_empty,
    remove_leftovers,
    sink_errors,
    staged_files,
)
from malstrom_py.worker_info import WorkerInfo

_ENCODERS: Final[dict[str, type[CsvEncoder | JsonEncoder | ParquetEncoder]]] = {
    "csv": CsvEncoder,
    "json": JsonEncoder,
    "parquet": ParquetEncoder,
}


class Files:
    """Writes files named ``<step>-<snapshot>-<number>.<format>`` into the folder ``uri`` (a path, or ``file://…``).

    Files appear complete, under their final names, when the job commits; several do so one after the other, and if
    one cannot, those before it are taken back. Until then they stand in ``_staging`` in that folder, which readers
    skip because of the ``_``; a job that fails removes them. Missing folders are made. A job without any row makes
    the folder and no file. Files of earlier runs stay. Several runs may write into one folder at once: each locks
    what it stages (``flock``; where the file system has no such locks, let only one run at a time of a job write
    there), and a run clears away what earlier ones left that are over.

    A dict becomes columns, so do the fields of a dataclass or namedtuple; any other value is the column ``value``.
    On a keyed stream the column ``key`` comes first, unless all values have a field of that name.
    Timestamps are not written. ``format="json"`` writes one object per line, each with its own fields (times as ISO
    8601, NaN and infinity as null). **parquet** (default) and **csv** have the columns of the first batch: a field
    that a later value lacks is None there, one it has besides is a `SinkError`. Types may widen: a column that held
    only None takes any type (and is one of str if it never holds more), whole numbers become floats; date and
    datetime, datetimes with and without a zone, str and bytes never share a column (a `SinkError`). The parquet
    files of one commit and worker share one schema. Datetimes with a zone are written in UTC. csv holds plain values
    only, None as an empty field (where there is one column: an empty line, which some programs skip), text in quotes.

    PlanError: another format or scheme. SinkError: the folder cannot be made or written, the disk is full, values do
    not go into one column.

    >>> import tempfile
    >>> from malstrom_py.sinks import CommitContext, SnapshotId, WorkerId, WorkerInfo
    >>> folder = tempfile.mkdtemp()
    >>> sink = Files(folder, format="csv")
    >>> writer = sink.open(WorkerInfo("docs", "out", WorkerId(0)))
    >>> writer.write(Batch([{"carrier": "UA", "delay": 2}]))
    >>> context = CommitContext("docs", "out", SnapshotId("s1"), incarnation=1)
    >>> payload = writer.pre_commit(context)
    >>> os.listdir(folder)
    ['_staging']
    >>> sink.commit(context, [payload])
    >>> writer.close()
    >>> os.listdir(folder)
    ['out-s1-00000.csv']
    """

    def __init__(self, uri: str | os.PathLike[str], *, format: Literal["csv", "json", "parquet"] = "parquet") -> None:
        if format not in _ENCODERS:
            raise PlanError(f"sinks.Files: format is one of {', '.join(_ENCODERS)}, got {format!r}")
        self._root = local_path(uri)
        self._format = format

    def __repr__(self) -> str:
        return f"Files({str(self._root)!r}, format={self._format!r})"

    def open(self, worker: WorkerInfo) -> _FilesWriter:
        files = RollingFiles(Staging(self._root, worker.job, worker.step), self._format)
        return _FilesWriter(str(self._root), files, _ENCODERS[self._format](files))

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        publish(self._root, context, staged_files(self._root, context, payloads))

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        staged = staged_files(self._root, context, payloads)
        with sink_errors("cannot remove uncommitted files in", self._root):
            for path in staged:
                path.unlink(missing_ok=True)
            remove_empty(*{path.parent for path in staged}, self._root)

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        remove_leftovers(self._root, context, committed)


class _FilesWriter:
    def __init__(self, root: str, files: RollingFiles, encoder: Encoder) -> None:
        self._root = root
        self._files = files
        self._encoder = encoder

    def write(self, batch: Batch) -> None:
        if len(batch):
            with sink_errors("cannot write to", self._root):
                self._encoder.write(batch)

    def pre_commit(self, context: CommitContext) -> bytes:
        with sink_errors("cannot write to", self._root):
            self._encoder.finish()
            return self._files.pre_commit(context.snapshot)

    def close(self) -> None:
        self._encoder.abandon()
        self._files.discard()
