"""Pins what a job reads from Spark, in the program that starts the job; the only module here that talks to Spark.

Parquet files are pinned directly if Arrow reads them as Spark would. Any other DataFrame could return other rows when
evaluated again, so its rows are written to a folder of this start: ``<staging>/<job>/pin-<time>-<random>/``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from malstrom_py.errors import PlanError, SourceError
from malstrom_py.errors.text import instead_of
from malstrom_py.sources.pinned.folder import PinFolder, new_folder
from malstrom_py.sources.pinned.row_groups import RowGroups, new_pin
from malstrom_py.sources.spark.footers import InspectedFile, ReadOtherwiseError, inspect_files
from malstrom_py.sources.spark.query import Bound, SparkQuery, bounded
from malstrom_py.spark.failures import spark_errors
from malstrom_py.spark.session import default_staging_folder, make_default_staging, spark_session
from malstrom_py.spark.types import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK_BYTES: Final = 32 << 20
_WRITING: Final = {
    "compression": "snappy",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": "false",
}
"""Small row groups are splits, so that several workers share a large partition. Timestamps in 96 bits are slow to read,
and Arrow does not read nested lists in the layout of Spark 1.4.
"""

_READING: Final = {
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96TimestampConversion": "false",
}
"""The settings with which Spark reads dates and timestamps without conversion, as Arrow does."""

_CALENDARS: Final = ("spark.sql.parquet.datetimeRebaseModeInWrite", "spark.sql.parquet.int96RebaseModeInWrite")
_NOTHING: Final = "_no_column"


def pinned(query: SparkQuery, job: str, after: Bound | None = None) -> tuple[RowGroups, PinFolder | None, Bound | None]:
    """Pin the rows of a query for ``job``; return the pin, its locked folder and its bound.

    The folder is None if the files are the user's own. With ``since``, rows after the bound ``after`` of an earlier run
    are pinned up to the returned bound.

    Raises:
        SourceError: there is no such table, column or path, the SQL is wrong, a type is not supported, a file cannot
            be read, or rows cannot be staged.
        SparkError: Spark cannot be used, or its session ended.
    """
    given = query.session if query.df is None else query.df.sparkSession
    with spark_session(given) as session:
        with spark_errors(f"Spark does not read {query}", SourceError):
            frame = query.frame(session)
            if frame.isStreaming:
                raise PlanError("sources.Spark: a streaming DataFrame has no end, so its rows cannot be pinned")
            frame = frame if query.filter is None else frame.filter(query.filter)
            found = frame.schema
            is_case_sensitive = session.conf.get("spark.sql.caseSensitive") == "true"
            is_direct = query.names_files and all(session.conf.get(name) == mode for name, mode in _READING.items())
            files = frame.inputFiles() if is_direct else []
        bound = None
        if query.since is not None:
            frame, bound = bounded(frame, found, query.since, after)
        names = _chosen(query, found.names)
        known_as = str if is_case_sensitive else str.lower
        _check_names(names, found.names, known_as)
        needed = _needed(query.keep, names, found)
        _check_names(needed, found.names, known_as)
        schema = arrow_schema(type(found)([found[name] for name in needed]))
        try:
            pin = _of_files(query, files, names, schema, found, is_case_sensitive) if files else None
        except ReadOtherwiseError:
            pin = None
        if pin is not None:
            return pin, None, bound
        return *_staged(query, job, session, frame, names, schema), bound


def _of_files(
    query: SparkQuery, uris: Sequence[str], names: Sequence[str], schema: pa.Schema, found: Any, is_case_sensitive: bool
) -> RowGroups:
    paths = [_local(uri) for uri in uris]
    inspected = inspect_files(
        paths, schema, keep=query.keep, partitioned=found.names, is_case_sensitive=is_case_sensitive
    )
    return new_pin("files", schema, names, [one.file for one in inspected], None)


def _local(uri: str) -> str:
    parts = urlsplit(uri)
    if parts.scheme != "file" or parts.netloc not in {"", "localhost"}:
        raise ReadOtherwiseError(f"{uri} is on no disk of this machine")
    return unquote(uri[re.match(r"file:(//(localhost)?(?=/))?", uri).end() :])  # type: ignore[union-attr]  # see above


def _staged(
    query: SparkQuery, job: str, session: Any, frame: Any, names: Sequence[str], schema: pa.Schema
) -> tuple[RowGroups, PinFolder]:
    folder = new_folder(query.staging or _default_staging(), job, keep=query.keep_staging)
    try:
        counted = _write(query, session, frame, schema, folder)
        files = sorted(str(path) for path in folder.rows.glob("*.parquet"))
        inspected = _inspect_staged(files, schema, query)
        _check_complete(counted, sum(one.rows for one in inspected), len(files), folder)
        pin = new_pin(folder.path.name, schema, names, [one.file for one in inspected], folder.path)
        folder.note({"job": job, "keep": query.keep_staging, **pin.record()})
    except BaseException:
        folder.leave(keep=False)
        raise
    return pin, folder


def _default_staging() -> Path:
    folder = default_staging_folder()
    make_default_staging(folder, SourceError)
    return folder


def _write(query: SparkQuery, session: Any, frame: Any, schema: pa.Schema, folder: PinFolder) -> Any:
    """Have Spark write the rows of ``frame``; return the observation of their number."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    counted = Observation()
    with spark_errors(f"Spark cannot stage the rows of {query} in {folder.path}", SourceError), _one_calendar(session):
        frame = _carried(frame, schema)
        writer = frame.observe(counted, F.count(F.lit(1)).alias("rows")).write.mode("error")
        for name, value in {**_WRITING, "parquet.block.size": str(_BLOCK_BYTES)}.items():
            writer = writer.option(name, value)
        writer.parquet(f"file://{folder.rows}")
    return counted


@contextmanager
def _one_calendar(session: Any) -> Iterator[None]:
    """Let Spark write dates in the current calendar, without conversion to the former one.

    A single write has no such option, so the session's settings are changed and then restored.
    """
    others = {name: mode for name in _CALENDARS if (mode := session.conf.get(name)) != "CORRECTED"}
    try:
        for name in others:
            session.conf.set(name, "CORRECTED")
        yield
    finally:
        for name, mode in others.items():
            session.conf.set(name, mode)


def _carried(frame: Any, schema: pa.Schema) -> Any:
    """Return the columns of ``frame`` to be written: not every Spark writes columns of nulls only."""
    import pyarrow as pa

    columns = [f"`{field.name.replace('`', '``')}`" for field in schema if not pa.types.is_null(field.type)]
    return frame.selectExpr(*(columns or [f"CAST(NULL AS BOOLEAN) AS {_NOTHING}"]))


def _inspect_staged(files: Sequence[str], schema: pa.Schema, query: SparkQuery) -> list[InspectedFile]:
    try:
        return inspect_files(files, schema, keep=query.keep, is_case_sensitive=True)
    except ReadOtherwiseError as error:
        raise SourceError(f"Arrow cannot read the rows that Spark has staged: {error}") from error


def _check_complete(counted: Any, rows: int, files: int, folder: PinFolder) -> None:
    """Raise `SourceError` if Spark has written more rows than this machine sees."""
    # Without rows the observation may never arrive, so do not wait for it.
    written = int(counted.get["rows"]) if rows else 0
    if not files or rows < written:
        raise SourceError(
            f"Spark has staged {written or 'its'} rows in {folder.path}, but only {rows} of them are here: "
            f"Spark runs on "
            f"other machines than this program. Give staging= a folder that all of them, and all workers, share"
        )


def _check_names(needed: Sequence[str], names: Sequence[str], known_as: Callable[[str], str]) -> None:
    """Raise `SourceError` unless each ``needed`` name is exactly one of Spark's columns ``names``."""
    times = Counter(map(known_as, names))
    repeated = sorted({name for name in needed if times[known_as(name)] > 1})
    if repeated:
        raise SourceError(
            f"there is more than one column named {', '.join(map(repr, repeated))}: give each its own name, by "
            f"DataFrame.toDF(…) or AS in SQL"
        )
    if not needed:
        raise SourceError("the query has no columns, so it has no rows to read")


def _chosen(query: SparkQuery, names: Sequence[str]) -> Sequence[str]:
    chosen = names if query.columns is None else query.columns
    missing = [name for name in chosen if name not in names]
    if missing:
        raise SourceError(f"the query has no column {', '.join(map(repr, missing))}{instead_of(missing[0], names)}")
    return chosen


def _needed(keep: Any, names: Sequence[str], found: Any) -> list[str]:
    """Return the columns ``names``, and the other columns that ``keep`` uses."""
    if keep is None:
        return list(names)
    others: list[Any] = []
    for field in found.fields:
        if field.name not in names:
            with suppress(SourceError):  # the filter cannot use a column of an unsupported type
                others += arrow_schema(type(found)([field]))
    known = [*arrow_schema(type(found)([found[name] for name in names])), *others]
    wrong = _why_not(keep, known)
    if wrong is not None:
        raise SourceError(f"the filter {keep} cannot be evaluated: {wrong}")
    used = [field.name for field in others if _why_not(keep, [one for one in known if one is not field])]
    return [*names, *used]


def _why_not(keep: Any, fields: Sequence[pa.Field]) -> str | None:
    """Return why ``keep`` cannot be evaluated for the columns ``fields``; None if it can."""
    import pyarrow as pa

    try:
        pa.schema(fields).empty_table().filter(keep)
    except pa.ArrowException as error:
        return str(error).partition("\n")[0]
    return None
