"""Pins what a job reads from Spark, in the program that starts the job; the only module here that talks to Spark.

A DataFrame could return other rows when evaluated again, so its rows are written to a folder of this start:
``<staging>/<job>/pin-<time>-<random>/``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import PlanError, SourceError
from malstrom_py.errors.text import describe_error, instead_of
from malstrom_py.sources.files.footers import Footer, needed_columns, read_footer
from malstrom_py.sources.pinned.folder import PinFolder, staging_folder
from malstrom_py.sources.pinned.row_groups import PinnedFile, RowGroups, new_pin
from malstrom_py.sources.spark.query import Bound, SparkQuery, bounded
from malstrom_py.spark.failures import spark_errors
from malstrom_py.spark.names import quoted
from malstrom_py.spark.session import default_staging_folder, make_default_staging, spark_session
from malstrom_py.spark.types import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

_THREADS: Final = 16
_BLOCK_BYTES: Final = 32 << 20
_WRITING: Final = {
    "compression": "snappy",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": "false",
}
"""Small row groups are splits, so that several workers share a large partition. Timestamps in 96 bits are slow to read,
and Arrow does not read nested lists in the layout of Spark 1.4.
"""

_CALENDARS: Final = ("spark.sql.parquet.datetimeRebaseModeInWrite", "spark.sql.parquet.int96RebaseModeInWrite")
_NOTHING: Final = "_no_column"


def pinned(query: SparkQuery, job: str, after: Bound | None = None) -> tuple[RowGroups, PinFolder, Bound | None]:
    """Pin the rows of a query for ``job``; return the pin, its locked folder and its bound.

    With ``since``, rows after the bound ``after`` of an earlier run are pinned up to the returned bound.

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
                raise PlanError("sources.Spark: a streaming DataFrame is read in a classic session, not over Connect")
            frame = frame if query.filter is None else frame.filter(query.filter)
            found = frame.schema
        bound = None
        if query.since is not None:
            frame, bound = bounded(frame, found, query.since, after)
        names, schema = columns_of(query, session, found)
        return *_staged(query, job, session, frame, names, schema), bound


def columns_of(query: SparkQuery, session: Any, found: Any) -> tuple[Sequence[str], pa.Schema]:
    """Return the columns of the rows, and the schema of all that are needed, of those ``found`` by Spark.

    `SourceError`: there is no such column, there are several, or its type is not supported.
    """
    with spark_errors(f"Spark does not read {query}", SourceError):
        known_as = str if session.conf.get("spark.sql.caseSensitive") == "true" else str.lower
    names = _chosen(query, found.names)
    _check_names(names, found.names, known_as)
    needed = _needed(query.keep, names, found)
    _check_names(needed, found.names, known_as)
    return names, arrow_schema(type(found)([found[name] for name in needed]))


def _staged(
    query: SparkQuery, job: str, session: Any, frame: Any, names: Sequence[str], schema: pa.Schema
) -> tuple[RowGroups, PinFolder]:
    with staging_folder(query.staging or _default_staging(), job, keep=query.keep_staging) as folder:
        counted = write_rows(query, session, frame, schema, folder)
        footers = footers_in(folder, schema, query.keep)
        check_complete(counted, sum(one.rows for one in footers.values()), len(footers), folder)
        files = [PinnedFile(str(path), one.size, one.mtime_ns, one.groups, {}) for path, one in footers.items()]
        pin = new_pin(folder.path.name, schema, names, files, folder.path)
        folder.note({"job": job, "keep": query.keep_staging, **pin.record()})
    return pin, folder


def _default_staging() -> Path:
    folder = default_staging_folder()
    make_default_staging(folder, SourceError)
    return folder


def write_rows(query: SparkQuery, session: Any, frame: Any, schema: pa.Schema, folder: PinFolder) -> Any:
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

    columns = [quoted(field.name) for field in schema if not pa.types.is_null(field.type)]
    return frame.selectExpr(*(columns or [f"CAST(NULL AS BOOLEAN) AS {_NOTHING}"]))


def footers_in(folder: PinFolder, schema: pa.Schema, keep: Any) -> dict[Path, Footer]:
    """Return the footers of the files that Spark has staged. `SourceError`: one cannot be read."""
    import pyarrow as pa

    paths = sorted(folder.rows.glob("*.parquet"))
    try:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="malstrom-footers") as threads:
            return dict(zip(paths, threads.map(partial(read_footer, schema=schema, keep=keep), paths), strict=True))
    except (pa.ArrowException, OSError) as error:
        raise SourceError(
            f"the rows that Spark has staged in {folder.path} cannot be read: {describe_error(error)}"
        ) from error


def check_complete(counted: Any, rows: int, files: int, folder: PinFolder) -> None:
    """Raise `SourceError` unless this machine sees the rows that Spark has written, and no others."""
    # Without rows the observation may never arrive, so do not wait for it.
    written = int(counted.get["rows"]) if rows else 0
    if not files or rows < written:
        raise SourceError(
            f"Spark has staged {written or 'its'} rows in {folder.path}, but only {rows} of them are here: "
            f"Spark runs on "
            f"other machines than this program. Give staging= a folder that all of them, and all workers, share"
        )
    if rows > written:
        raise SourceError(
            f"Spark has staged {written} rows in {folder.path}, and {rows} are there: something else has written into "
            f"it. Start the job again"
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


def _needed(keep: Any, names: Sequence[str], found: Any) -> Sequence[str]:
    """Return the columns ``names``, and the other columns that ``keep`` uses."""
    import pyarrow as pa

    if keep is None:
        return list(names)
    others: list[Any] = []
    for field in found.fields:
        if field.name not in names:
            with suppress(SourceError):  # the filter cannot use a column of an unsupported type
                others += arrow_schema(type(found)([field]))
    known = [*arrow_schema(type(found)([found[name] for name in names])), *others]
    return [field.name for field in needed_columns(keep, names, pa.schema(known))]
