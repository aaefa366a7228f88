"""What the tables of both formats do: they are read, created, given columns and changed, by any number of programs.

Rules:
- A change notes the number of the snapshot in the commit that makes it. A library would repeat a commit that loses a
  race without reading the number again, so it does not: a change is repeated from here, after reading.
- What is not known to be written correctly is refused when the job starts.
"""

from __future__ import annotations

import itertools
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from malstrom_py.connectors.lake.types import Shape, check_new_names, new_columns, table_fields
from malstrom_py.errors import InternalError, PlanError, SinkError
from malstrom_py.sinks.base import CommitContext
from malstrom_py.sinks.files.partitions import check_type, checked_columns
from malstrom_py.sinks.staged.payloads import StagedFile

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

DEADLINE_S: Final = 60.0
_ATTEMPTS_MIN: Final = 3
_PAUSE_S: Final = 0.5

R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A file at ``path`` in the table. ``values``: those of the partition columns, as texts.

    ``stats`` and ``spec``: see the table.
    """

    path: str
    size: int
    rows: int
    values: Sequence[str | None]
    stats: Any
    spec: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What a table was when it was read: its shape, and the number of the last snapshot that a step has committed."""

    shape: Shape
    number: int | None


class LakeTable(ABC, Generic[S, T]):
    """The table ``name``. ``partition_by``: of a new table, and required of one that exists, if given.

    Nothing is kept open between two calls. ``app``: the name under which a step notes its snapshots. A subclass gives
    the session ``S`` in which its library finds a table ``T``, and what it does with that.
    """

    kind: ClassVar[str]
    """The name of the format, of its sink and of its source."""

    has_times: ClassVar[bool]
    """Whether columns may hold times of day."""

    illegal: ClassVar[str]
    """Characters that names of columns may not have."""

    in_files: ClassVar[bool]
    """Whether files contain the partition columns too."""

    def __init__(self, name: str, partition_by: str | Sequence[str] | None = None, new_columns: str = "error") -> None:
        if new_columns not in {"add", "error"}:
            raise PlanError(f"sinks.{self.kind}: new_columns must be 'add' or 'error', got {new_columns!r}")
        self.name = name
        self.where = f"the {self.kind} table {name}"
        self.partition_by = checked_columns(partition_by, f"sinks.{self.kind}")
        self._adds_columns = new_columns == "add"

    def look(self, app: str) -> Seen | None:
        """Return the present columns, and the number of the last snapshot that ``app`` has committed.

        None if there is no table. SinkError: the table cannot be written correctly.
        """
        with self._session() as session:
            table = self._find(session)
            return None if table is None else Seen(self._shape_of(table), self._noted(table, app))

    def ensure(self, schema: pa.Schema) -> Shape:
        """Create the table, or the columns that it lacks, for rows of ``schema``. SinkError: they may not be added."""

        def attempt(session: S) -> Shape | None:
            table = self._find(session)
            if table is None:
                self._create(session, self._first_fields(schema))
                return None
            shape = self._shape_of(table)
            added = new_columns(schema, shape.schema.names)
            if not added:
                return shape
            self._add_columns(table, self._further_fields(added, shape))
            return None

        return self._repeated(attempt)

    def commit(self, app: str, number: int, files: Sequence[LakeFile]) -> bool:
        """Add ``files`` and note ``number`` in one commit; nothing if this or a larger number is noted.

        Return whether ``number`` is noted now; False if a larger one is.
        """
        return self._change(app, number, lambda table: self._add(table, app, number, files))

    def merge(self, app: str, number: int, rows: pa.Table, keys: Sequence[str]) -> bool:
        """Replace or, where `DELETES` is true, delete the rows with the ``keys`` of ``rows``; see `commit`."""
        return self._change(app, number, lambda table: self._merge(table, app, number, rows, keys))

    def contains(self, path: str) -> bool:
        """Return whether the newest version has the file at ``path`` in the table."""
        with self._session() as session:
            table = self._find(session)
            return table is not None and self._has(table, path)

    @abstractmethod
    def describe(self, shape: Shape, metadata: pq.FileMetaData) -> Any:
        """Return the statistics of a file, in plain types."""

    @abstractmethod
    def _session(self) -> AbstractContextManager[S]:
        """Open what is needed to find the table."""

    @abstractmethod
    def _find(self, session: S) -> T | None:
        """Return the newest version of the table; None if there is no table."""

    @abstractmethod
    def _noted(self, table: T, app: str) -> int | None:
        """Return the number of the last snapshot that ``app`` has committed."""

    @abstractmethod
    def _shape(self, table: T) -> Shape:
        """Return the shape of ``table``; `SinkError` with the reason if it cannot be written correctly."""

    @abstractmethod
    def _create(self, session: S, fields: Sequence[pa.Field]) -> None:
        """Create the table. Another program may do that at the same time."""

    @abstractmethod
    def _add_columns(self, table: T, fields: Sequence[pa.Field]) -> None:
        """Add columns, in one attempt."""

    @abstractmethod
    def _add(self, table: T, app: str, number: int, files: Sequence[LakeFile]) -> None:
        """Add ``files`` and note ``number``, in one attempt."""

    @abstractmethod
    def _merge(self, table: T, app: str, number: int, rows: pa.Table, keys: Sequence[str]) -> None:
        """Merge ``rows`` and note ``number``, in one attempt."""

    @abstractmethod
    def _has(self, table: T, path: str) -> bool:
        """See `contains`."""

    @abstractmethod
    def _why_lost(self, error: Exception) -> str | None:
        """Return why ``error`` means that an attempt lost a race, or may have; None for an error that is raised."""

    def _refused(self, why: str) -> SinkError:
        """Return the error for a table that cannot be written correctly."""
        return SinkError(f"{self.where} cannot be written by sinks.{self.kind}: {why}. Write to another table")

    def _shape_of(self, table: T) -> Shape:
        shape = self._shape(table)
        if self.partition_by and shape.partition_by != self.partition_by:
            raise SinkError(
                f"{self.where} is partitioned by {list(shape.partition_by)}, and partition_by is "
                f"{list(self.partition_by)}"
            )
        return shape

    def _change(self, app: str, number: int, change: Callable[[T], None]) -> bool:
        """Make a ``change`` that notes ``number``, unless this or a larger number is noted."""

        def attempt(session: S) -> bool:
            table = self._find(session)
            if table is None:
                raise SinkError(f"{self.where} is not there, but rows were written for it: restore it")
            known = self._noted(table, app)
            if known is not None and known >= number:
                return known == number
            change(table)
            return True

        return self._repeated(attempt)

    def _repeated(self, attempt: Callable[[S], R | None]) -> R:
        with self._session() as session:
            return repeat(lambda: attempt(session), self._why_lost, self.where)

    def _first_fields(self, schema: pa.Schema) -> list[pa.Field]:
        """Return the columns of a new table for rows of ``schema``."""
        fields = self._fields(new_columns(schema, ()), ())
        partitions = [field for field in fields if field.name in self.partition_by]
        missing = set(self.partition_by).difference(field.name for field in partitions)
        if missing:
            raise SinkError(
                f"no value of partition column {min(missing)!r} is among the first rows, so {self.where} cannot be "
                f"created: create it before the job starts, or give all rows the column"
            )
        for field in partitions:
            check_type(field.name, field.type)
        if len(fields) == (0 if self.in_files else len(partitions)):
            besides = "" if self.in_files else "besides the partition columns "
            raise SinkError(f"{self.where} cannot be created: no column {besides}has a value yet")
        return fields

    def _further_fields(self, added: Sequence[pa.Field], shape: Shape) -> list[pa.Field]:
        """Return the columns that a table of ``shape`` gets."""
        if not self._adds_columns:
            names = ", ".join(repr(field.name) for field in added)
            raise SinkError(
                f"{self.where} has no column {names}: drop it in a map step, or give sinks.{self.kind} "
                f"new_columns='add'"
            )
        return self._fields(added, shape.schema.names)

    def _fields(self, fields: Sequence[pa.Field], known: Sequence[str]) -> list[pa.Field]:
        check_new_names(fields, known, self.where, self.illegal)
        return table_fields(fields, self.kind, has_times=self.has_times)


def app_of(job: str, step: str) -> str:
    """Return the name under which a table notes the snapshots of a step."""
    return f"malstrom.{job}.{step}"


def lake_file(context: CommitContext, file: StagedFile, path: str) -> LakeFile:
    """Return a staged file at its ``path``; `SinkError` if its payload does not have the details of a table's file."""
    try:
        return LakeFile(path, **(file.details or {}))
    except TypeError:
        raise SinkError(
            f"a pre-commit payload of step {context.step!r} is damaged: resume from an older snapshot"
        ) from None


def repeat(attempt: Callable[[], R | None], lost: Callable[[Exception], str | None], where: str) -> R:
    """Call ``attempt`` until it returns a result, and return that; None asks for another call.

    ``lost``: returns why an error means that the attempt lost a race, or may have; None for an error that is raised.
    `SinkError`: each attempt lost, for `DEADLINE_S`.

    >>> repeat(lambda: 7, lambda error: None, "the table")
    7
    """
    ends = time.monotonic() + DEADLINE_S
    for attempts in itertools.count(1):
        why: str | None = "it does not show what was changed"
        try:
            done = attempt()
        except Exception as error:
            why = lost(error)
            if why is None:
                raise
            done = None
            time.sleep(random.uniform(0, _PAUSE_S))  # so that two do not meet again
        if done is not None:
            return done
        # An attempt may take longer than all that others take, such as the merge of many rows.
        if time.monotonic() > ends and attempts >= _ATTEMPTS_MIN:
            raise SinkError(
                f"{where} could not be changed in {DEADLINE_S:.0f} s ({why}): check that it can be written, and "
                f"let fewer programs write"
            )
    raise InternalError("every attempt returns or raises")
