"""``Spark``: a source over what Spark reads or computes, pinned when a job starts, and read by workers without Spark.

`asked` checks what is asked for, `pinning` speaks to Spark, `footers` looks at files, `staging` keeps folders; `pin`
says what is read, and `pinned_part` reads it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import SourceError
from malstrom_py.sources.base import Part, SourcePart
from malstrom_py.sources.files.parquet import Footers
from malstrom_py.sources.files.reading import LazyPart
from malstrom_py.sources.spark.pin import Pin, pin_of
from malstrom_py.sources.spark.pinned_part import PinnedPart, open_pinned, position_at
from malstrom_py.sources.spark.pinning import PinFolder, pinned
from malstrom_py.sources.spark.query import Bound, bound_of, checked

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_OPEN_MAX: Final = 2
"""Row groups read side by side: as many as Polars may read as wholes at a time. More take twice as long in columns."""


class Spark:
    """Reads the rows of a DataFrame, of a ``table``, of an ``sql`` query, or of what Spark's reader finds at ``path``.

    Just one of them is given. ``format`` (by default Parquet) and ``options`` are those of ``spark.read``; formats
    without a path, such as ``"jdbc"``, take ``format`` and ``options`` alone. ``columns``: the names of those that are
    read, and given, in this order. ``filter``: SQL text or a ``Column``, which Spark evaluates; or an expression of
    ``pyarrow.compute``, which the workers do, and leave out row groups that by their statistics hold nothing it is true
    for (statistics know no NaN, so a filter on floating numbers leaves out none). ``session``: by default the
    active one, which is used and never stopped; where there is none, one is made, and closed again.

    A DataFrame that is evaluated again may give its rows in another order, or other rows. So what is read is *pinned*
    when the job starts, in the program that starts it, the only place where Spark is needed: the DataFrame is evaluated
    once and its rows are written as Parquet into a folder of this start, ``<staging>/<job>/pin-…/``, which is removed
    when the job has ended, whichever way, unless ``keep_staging=True``. What a killed program has left is removed by
    the next start of the same job. ``staging``: a folder that Spark, this program and all workers see under the same
    path, such as one of a shared file system; by default one under the temporary folder, enough on one machine.
    Parquet files given by ``path`` alone (no SQL filter, no ``staging``) are not copied: they are pinned as they are,
    by name, size and time of change, and must be left alone until the job has ended. Files that Arrow would not read
    just as Spark does are copied nonetheless.

    ``since``: the name of a column that only grows, strictly (whole numbers, decimals, text, days or moments). A job
    with snapshots that has finished goes on when it is started again, with the rows whose value is above the largest
    one of the run before, and not above the largest one of when it was pinned. A row that comes later with a value that
    is not above is never read; a row without a value is a SourceError. Rows are always staged then.

    With snapshots the pin is part of them: a job that goes on reads the rows that it had begun to read, and Spark is
    not asked again. So what was staged stays when a job ends before it has finished, until it is gone on with and has
    finished, or is begun anew; give a ``staging`` that outlives the machine's temporary folder.

    Each row group is a part: the splits that move when a job is rescaled, and that are read on from (file, row group,
    row). Rows keep the order that they have in a row group; between parts there is none.

    Values: dicts, column -> value, or columns for steps that take these, as `sources.Files` gives them for Parquet.
    ``TIMESTAMP`` is a datetime in UTC, ``TIMESTAMP_NTZ`` one without a zone, an interval of days and seconds a
    timedelta, a map a list of (key, value), a struct a dict.

    SourceError: there is no such table, column or path, the SQL is wrong, a column's type cannot be carried (intervals
    of months, variant, types of users: the message says what to cast it to), rows cannot be staged, or a pinned file
    was changed or removed. SparkError: Spark cannot be used, or has gone away. PlanError: an argument is wrong.

    >>> Spark(table="flights", columns=["carrier", "delay"], filter="delay IS NOT NULL")
    Spark(table='flights')
    >>> Spark(table="flights", path="flights.parquet")
    Traceback (most recent call last):
    malstrom_py.errors.PlanError: sources.Spark takes one of df, table=, sql= and path=, not table and path together
    """

    parts_open_max: Final = _OPEN_MAX

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
    ) -> None:
        self._asked: Any = checked(
            df=df,
            table=table,
            sql=sql,
            path=path,
            format=format,
            options=options,
            columns=columns,
            filter=filter,
            staging=staging,
            keep_staging=keep_staging,
            session=session,
            since=since,
        )
        self._since: str | None = self._asked.since
        self._bound: Bound | None = None
        self._said = f"Spark({self._asked})"
        self._keep = self._asked.keep
        self._keeps_staging = self._asked.keep_staging
        self._footers = Footers()
        self._pin: Pin | None = None
        self._folder: PinFolder | None = None
        self._jobs = 0
        self._keeps_for_later = False
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return self._said

    def __getstate__(self) -> dict[str, Any]:
        """A copy for another process knows what was pinned, and nothing of Spark."""
        kept = ("_said", "_since", "_bound", "_keep", "_keeps_staging", "_footers", "_pin")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._asked = self._folder = None
        self._jobs = 0
        self._keeps_for_later = False
        self._lock = threading.Lock()

    def pin(self, job: str, record: Any = None) -> None:
        """Pin the rows for ``job``: see the class. Those of a job that reads them just now are kept for both."""
        known = None if record is None else self._recorded(record)
        with self._lock:
            if self._jobs == 0:
                if known is None and self._asked is not None:
                    self._pin, self._folder, self._bound = pinned(self._asked, job)
                else:
                    self._pin, self._folder = _held(known or self._pinned, is_old=known is not None)
                    if record is not None and self._since is not None:
                        self._bound = bound_of(record, self._since)
            elif known is not None and known != self._pin:
                raise SourceError(
                    f"{self!r} is read by another job just now, and this one goes on with other rows of it: give each "
                    f"job a source of its own"
                )
            self._jobs += 1

    @property
    def reads_new(self) -> bool:
        """Whether a finished job goes on with the rows that are new."""
        return self._since is not None

    def pin_next(self, job: str, record: Any) -> None:
        """Pin the rows for ``job`` that are new since ``record``, all of which an earlier run has read."""
        self._check_source(record)
        after = bound_of(record, self._since or "")
        with self._lock:
            if self._jobs:
                raise SourceError(f"{self!r} is read by another job just now: give each job a source of its own")
            if self._asked is not None:
                self._pin, self._folder, self._bound = pinned(self._asked, job, after)
            else:
                self._pin, self._folder = _held(self._pinned, is_old=False)
            self._jobs += 1

    def pin_record(self) -> dict[str, Any]:
        """What is pinned, as plain JSON."""
        since = {} if self._bound is None else {"since": self._bound.record()}
        return {**self._pinned.record(), "source": self._said, **since}

    def unpin(self, *, keep: bool = False) -> None:
        """Remove what was staged, once nobody reads it any more, unless ``keep``."""
        with self._lock:
            self._keeps_for_later |= keep
            self._jobs -= 1
            if self._jobs:
                return
            keep, self._keeps_for_later = self._keeps_for_later, False
            folder, self._folder = self._folder, None
            if self._asked is not None:
                self._pin = None
        if folder is not None:
            folder.leave(keep=keep or self._keeps_staging)

    def list_parts(self) -> Sequence[Part]:
        return self._pinned.parts

    def list_parts_after(self, known: Mapping[Part, Any]) -> Sequence[Part]:
        """The parts that are pinned now: what was read before is not asked for again."""
        return self.list_parts()

    def has_read(self, position: Any) -> bool:
        """Whether a part at ``position`` is at its end."""
        return position["finished"] is True

    def build_part(self, part: Part, state: Any) -> SourcePart[dict[str, Any]]:
        pin = self._pinned
        file, group = pin.find(part)
        start = position_at(file, group)
        if state is not None and (state["file"], state["row_group"]) != (file.path, group):
            raise SourceError(f"{part} cannot be read on from a position in another file or row group ({state})")

        def open_at(position: dict[str, Any]) -> PinnedPart:
            return open_pinned(pin, file, group, self._footers, position, self._keep)

        return LazyPart(start if state is None else state, open_at)

    def _recorded(self, record: Any) -> Pin:
        """The pin that ``record`` tells of; `SourceError` if it was another source's."""
        pin = pin_of(record)
        self._check_source(record)
        return pin

    def _check_source(self, record: Any) -> None:
        if record.get("source") != self._said:
            raise SourceError(
                f"the job goes on from a snapshot in which {record.get('source')} is read, and now it is {self!r}: "
                f"give it the source that it had, or begin anew, under another name of the job"
            )

    @property
    def _pinned(self) -> Pin:
        if self._pin is None:
            raise SourceError(
                f"{self!r} is not pinned: a runtime pins it when a job starts; by hand it is .pin('name')"
            )
        return self._pin


def _held(pin: Pin, *, is_old: bool) -> tuple[Pin, PinFolder | None]:
    """``pin``, with its folder held if it has one. ``is_old``: another run has made it, so its files may be gone."""
    folder = None if pin.staged is None else PinFolder(Path(pin.staged))
    try:
        if folder is not None:
            folder.hold()
        if is_old:
            pin.check()
    except SourceError as error:
        if folder is not None:
            folder.leave(keep=True)
        if not is_old:
            raise
        raise SourceError(
            f"the job goes on from a snapshot, and what it was reading is not there any more: {error}. Put it back, or "
            f"begin anew, under another name of the job"
        ) from error
    return pin, folder
