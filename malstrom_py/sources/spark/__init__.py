"""``Spark``: a source over what Spark reads or computes, pinned when a job starts, and read by workers without Spark.

`query` checks the arguments; `pinning` talks to Spark and keeps staging folders, `streaming` those of streams, whose
batches are in a `stream_folder`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.sources.base import Part
from malstrom_py.sources.files.ahead import AheadPart
from malstrom_py.sources.files.reading import LazyPart
from malstrom_py.sources.pinned.later import GrowingRowGroups, start_at
from malstrom_py.sources.pinned.row_groups import RowGroups
from malstrom_py.sources.spark.pinning import pinned
from malstrom_py.sources.spark.query import BATCH_ID, Bound, SparkQuery, bound_of
from malstrom_py.sources.spark.stream_folder import BatchLog, StreamFolder
from malstrom_py.sources.spark.streaming import follow as followed
from malstrom_py.sources.spark.streaming import pinned_batches

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_BATCHES: Final = Part("batches")
"""The partition of a query that runs on."""


class Spark(GrowingRowGroups):
    """Reads the rows of a DataFrame, of a ``table``, of an ``sql`` query, or of what Spark's reader finds at ``path``.

    Give exactly one of them. ``format`` (by default Parquet) and ``options`` are those of ``spark.read``; formats
    without a path, such as ``"jdbc"``, take ``format`` and ``options`` alone. ``columns``: the columns to read, in this
    order. ``filter``: SQL text or a ``Column``, which Spark evaluates; or an expression of ``pyarrow.compute``, which
    workers evaluate, skipping row groups whose statistics exclude it (statistics omit NaN, so filters on floats skip
    none). ``session``: by default the active one, which is never stopped; without one, the source creates a session
    and closes it.

    A DataFrame that is evaluated again may return other rows, or another order. So its rows are *pinned* when the job
    starts, in the program that starts it; no other process needs Spark. The DataFrame is evaluated once and its rows
    are written as Parquet to a folder of this start, ``<staging>/<job>/pin-…/``, which is removed when the job has
    ended or failed, unless ``keep_staging=True``. The next start of the same job removes the folder of a killed
    program. ``staging``: a folder that Spark, this program and all workers see under the same path, for instance on a
    shared file system; by default one under the temporary folder, enough on one machine. `sources.Files` reads Parquet
    files without Spark and without a copy.

    ``since``: the name of a column that only grows, strictly (ints, decimals, text, dates or timestamps). A finished
    job with snapshots, started again, reads the rows whose value is above the largest one of the last run, up to the
    largest one at the time of pinning. A later row with a value that is not larger is never read; a row without a
    value is a SourceError.

    A streaming DataFrame of a classic session: a run reads what its query finds now, in batches that stay below
    ``staging``, which must be given. The next run of a finished job with snapshots reads what is new since then, each
    row once; a run from the beginning reads all batches again. With ``follow=True`` the query runs for as long as the
    job, in the program that starts it; its batches are one partition without an end, in their order, and are removed
    once a committed snapshot has passed them.

    Snapshots contain the pin: a resumed job reads the same rows, and Spark does not run again. So staged rows stay when
    a job ends unfinished, until it is resumed and finishes, or starts from the beginning; give a ``staging`` that
    outlives the machine's temporary folder.

    Each row group is a partition: a split that moves when a job is rescaled, and resumes at (file, row group, row).
    Rows keep their order within a row group; partitions have no order.

    Values: dicts, column -> value, or columns for steps that take these, as `sources.Files` gives them for Parquet.
    ``TIMESTAMP`` is a datetime in UTC, ``TIMESTAMP_NTZ`` one without a zone, an interval of days and seconds a
    timedelta, a map a list of (key, value), a struct a dict.

    SourceError: there is no such table, column or path, the SQL is wrong, a column's type is not supported (intervals
    of months, variant, user-defined types: the message says what to cast it to), rows cannot be staged, or a staged
    file was changed or removed. MalformedRecord: a value that Python cannot hold (dates before the year 1 or after
    9999, text that is not UTF-8). SparkError: Spark cannot be used, or its session ended. PlanError: an argument is
    wrong.

    >>> Spark(table="flights", columns=["carrier", "delay"], filter="delay IS NOT NULL")
    Spark(table='flights')
    >>> Spark(table="flights", path="flights.parquet")
    Traceback (most recent call last):
    malstrom_py.errors.PlanError: sources.Spark takes one of df, table=, sql= and path=, not table and path together
    """

    reads_new_with = 'since="column"'
    looks_every_s = 0.05

    def __init__(
        self,
        df: DataFrame | None = None,
        *,
        table: str | None = None,
        sql: str | None = None,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        format: str | None = None,
        options: Mapping[str, Any] | None = None,
        columns: Iterable[str] | None = None,
        filter: str | Column | Any = None,
        staging: str | os.PathLike[str] | None = None,
        keep_staging: bool = False,
        session: SparkSession | None = None,
        since: str | None = None,
        follow: bool = False,
    ) -> None:
        asked = (df, table, sql, path, format, options, columns, filter, staging, keep_staging, session, since, follow)
        self._query: Any = SparkQuery(*asked)
        super().__init__(self._query.keep, keeps_staging=self._query.keep_staging or self._query.is_stream)
        self._follow: bool = self._query.follow
        self.ends_with_program = self.is_acknowledging = self._follow
        self._since: str | None = BATCH_ID if self._query.is_stream and not self._follow else self._query.since
        self.reads_new = self._since is not None
        self._bound: Bound | None = None
        self._description = f"Spark({self._query}{', follow=True' if self._follow else ''})"

    def __repr__(self) -> str:
        return self._description

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy for another process: the pin, without anything of Spark."""
        return {**super().__getstate__(), "_query": None}

    def pin(self, job: str, record: Any = None) -> None:
        """Pin the rows for ``job`` (see the class). A source that another job is reading keeps its pin for both."""
        if self._follow:
            self._pin_query(job, None if record is None else self._recorded(record))
        elif record is None:
            super().pin(job)
        else:
            bound = self._bound_of(record)
            super().pin(job, record)
            self._bound = bound

    def _pin_query(self, job: str, earlier: RowGroups | None) -> None:
        """Start the query for ``job``, in the program that starts the job; no two jobs read one query.

        A copy, where the job is coordinated in another process, asks for a query that has failed.
        """

        def find() -> RowGroups:
            if self._query is None:
                pin = self._pin.of(self)
                self._hold(pin, is_resumed=False)
                _folder_of(pin).ask_again()
                return pin
            pin, self._folder = followed(self._query, job, earlier)
            return pin

        self._pin.take(self, find, lambda pin: False)

    def _bound_of(self, record: Any) -> Bound | None:
        self._check_source(record)
        return None if self._since is None else bound_of(record, self._since)

    def _find(self, job: str, after: Bound | None = None) -> RowGroups:
        if self._query is None:
            return self._pin.of(self)
        find = pinned_batches if self._query.is_stream else pinned
        pin, self._folder, self._bound = find(self._query, job, after)
        return pin

    def pin_next(self, job: str, record: Any) -> None:
        """Pin the rows for ``job`` that are new since ``record``, whose rows an earlier run has read."""
        after = self._bound_of(record)

        def find() -> RowGroups:
            if self._query is None:
                self._hold(self._pin.of(self), is_resumed=False)
            return self._find(job, after)

        self._pin.take(self, find, lambda pin: False)

    def pin_record(self) -> dict[str, Any]:
        """Return the pin as plain JSON."""
        since = {} if self._bound is None else {"since": self._bound.record()}
        return {**super().pin_record(), **since}

    def list_parts(self) -> Sequence[Part]:
        return [_BATCHES] if self._follow else super().list_parts()

    def _part(self, pin: RowGroups, part: Part, state: Any) -> LazyPart | AheadPart:
        if not self._follow:
            return super()._part(pin, part, state)
        log = BatchLog(_folder_of(pin), pin.id)
        return self._later(pin, part, start_at(_BATCHES, 0) if state is None else state, log)

    def acknowledge(self, job: str, positions: Mapping[Part, Any]) -> None:
        """Remove the batches that a durable snapshot has passed (see `BaseSource`)."""
        position = positions.get(_BATCHES)
        if position is not None:
            folder = _folder_of(pin := self._pin.of(self))
            if folder.name() == pin.id:  # another one in its place has other rows
                folder.remove_before(position["version"])

    def list_parts_after(self, known: Mapping[Part, Any]) -> Sequence[Part]:
        """Return the partitions pinned now; partitions of earlier runs are not read again."""
        return self.list_parts()

    def has_read(self, position: Any) -> bool:
        """Return whether a partition at ``position`` is at its end."""
        return position is not None and position["finished"] is True


def _folder_of(pin: RowGroups) -> StreamFolder:
    assert pin.staged is not None
    return StreamFolder(Path(pin.staged))
