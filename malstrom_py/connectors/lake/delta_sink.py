"""``Delta``: a transactional sink for Delta tables. `writer` stages files, `delta_table` commits them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from malstrom_py.connectors.lake.delta_location import location_of
from malstrom_py.connectors.lake.delta_table import DeltaTable
from malstrom_py.connectors.lake.sink import LakeSink
from malstrom_py.sinks.base import CommitContext, SnapshotId, Target
from malstrom_py.sinks.staged.objects import ObjectPlace


class Delta(LakeSink):
    """A sink that appends to the Delta table at ``uri``, exactly once per snapshot.

    Each worker writes Parquet files into the table's hidden folder ``_staging``. At the commit of a snapshot, one
    transaction of the table's log adds all files and notes the snapshot's number under ``malstrom.<job>.<step>``. A
    commit that is repeated, in any process, or that comes after that of a later snapshot changes nothing.

    ``uri``: a path or ``file://…`` that all workers share, or the URL of a folder of an object store, such as
    ``s3://bucket/table``, with ``store_options`` as `sinks.Files` takes them (needs the extra ``objects``).
    ``partition_by``: columns (str, int, bool, date or None)
    of a new table; a table that exists must have the same, if any are given. ``new_columns="add"`` adds columns that
    the table lacks, ``"error"`` refuses rows with such columns. A file of ``file_bytes_max`` bytes or more is finished,
    and the next one begins.

    Rows become columns as in `sinks.Files`. A table that does not exist is created from the first rows. Values are cast
    to the table's types if they fit; a type of another kind is a `SinkError` before the snapshot is durable, and so is
    a column without None that gets one. Columns may come in any order; a missing one is None. A column that holds only
    None and that the table lacks is left out.

    ``mode="upsert"`` replaces the row with the same ``keys``, or inserts it: the commit merges the last row of each key
    into the table, in one transaction. It reads the rows of the snapshot into memory, and rewrites the files of the
    table that have rows with these keys. Key the stream by ``keys``: rows of a key from several workers have no order.
    With ``delete_field``, a bool field that all rows have and that is not written, rows in which it is True delete.

    PlanError: an argument is wrong, or deltalake is not installed. SinkError: the table uses what this sink cannot
    write correctly (column mapping, constraints, generated or identity columns, deletion vectors, other features), the
    rows do not fit, or the folder cannot be written.

    >>> import tempfile
    >>> import malstrom_py as mp
    >>> from malstrom_py import sinks, sources
    >>> folder = tempfile.mkdtemp()
    >>> job = mp.Job("docs")
    >>> delays = job.source("delays", sources.Memory([{"carrier": "UA", "delay": 2}]))
    >>> delays.sink("out", sinks.Delta(folder, partition_by="carrier"))
    >>> _ = mp.run(job)
    >>> import polars as pl
    >>> pl.read_delta(folder).rows()
    [('UA', 2)]
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        mode: Literal["append", "upsert"] = "append",
        keys: str | Iterable[str] = (),
        delete_field: str | None = None,
        partition_by: str | Sequence[str] | None = None,
        new_columns: Literal["add", "error"] = "error",
        file_bytes_max: int = 256 << 20,
        store_options: Mapping[str, str] | None = None,
    ) -> None:
        self._location = location_of(uri, store_options, "sinks.Delta")
        table = DeltaTable(self._location, partition_by, new_columns)
        super().__init__(table, mode=mode, keys=keys, delete_field=delete_field, file_bytes_max=file_bytes_max)
        self.target = Target(self._location.root, replaces=False)

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        place = self._location.place
        if isinstance(place, ObjectPlace):
            place.check(context.job)  # a commit is an object that is written only if it is absent
        super().recover(context, committed)
