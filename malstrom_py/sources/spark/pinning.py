"""Pins what a job is to read of Spark, in the program that starts it; the one place here that speaks to Spark.

Folders that rows are staged in for one start of a job: ``<staging>/<job>/pin-<time>-<random>/``.

Rule: what is removed has been made here. A folder of ours has a name of ours and our record in it; everything else
that stands beside it is left alone. While a job reads it a folder is locked, so that nobody else removes it.

Parquet files are pinned as they are, where Arrow reads of them what Spark would. All else, a DataFrame that was run
again might give other rows, or in another order: its rows are written to a folder of this start of the job.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from malstrom_py.errors import InternalError, PlanError, SourceError
from malstrom_py.local_files import RunLock, locked
from malstrom_py.sources.spark.footers import InspectedFile, ReadOtherwiseError, inspect_files
from malstrom_py.sources.spark.pin import Pin, new_pin
from malstrom_py.sources.spark.query import Bound, SparkQuery, bounded
from malstrom_py.spark.failures import spark_errors
from malstrom_py.spark.session import default_staging_folder, make_default_staging, spark_session
from malstrom_py.spark.types import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

RECORD: Final = "malstrom-pin.json"
ROWS: Final = "rows"
_NAME: Final = re.compile(r"pin-[0-9]{8}T[0-9]{12}Z-[0-9a-f]{8}")
_ATTEMPTS: Final = 5
_LOG: Final = logging.getLogger("malstrom_py.sources.spark")


class PinFolder:
    """The folder of one pin; made by `new_folder`, or known by its path in another process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = RunLock(path)

    @property
    def rows(self) -> Path:
        """Where the rows are written: by Spark, which makes the folder."""
        return self.path / ROWS

    def hold(self) -> None:
        """Keep others from removing it. `SourceError` if it is gone."""
        try:
            self._lock.hold(shared=True)
        except OSError as error:
            raise SourceError(
                f"the rows staged in {self.path} are gone ({error.strerror}): start the job again. With workers on "
                f"several machines staging= is a folder that all of them share"
            ) from error

    def note(self, record: Mapping[str, Any]) -> None:
        """Write ``record`` into it, in place of the one before."""
        new = self.path / f"{RECORD}.new"
        new.write_text(json.dumps(record, indent=1))
        new.replace(self.path / RECORD)

    def leave(self, *, keep: bool) -> None:
        """Let go of it; and remove it, unless it is to be kept or somebody else holds it still.

        What cannot be removed is logged: it says nothing of how the job has ended.
        """
        self._lock.release()
        if not keep:
            try:
                _remove(self.path)
            except OSError as error:
                _LOG.warning("what was staged in %s could not be removed: %s", self.path, error.strerror)


def new_folder(staging: Path, job: str, *, keep: bool) -> PinFolder:
    """A new folder for a start of ``job``, held. What earlier starts of it left behind is removed, unless kept.

    SourceError: it cannot be made.
    """
    here = staging / job
    try:
        here.mkdir(parents=True, exist_ok=True)
        if here.is_symlink():
            raise SourceError(f"rows cannot be staged in {here}: it is a symbolic link, remove it")
        for left in here.iterdir():
            if _NAME.fullmatch(left.name):
                _remove(left)
        for _ in range(_ATTEMPTS):
            try:
                return _made(here, job, keep=keep)
            except (FileNotFoundError, FileExistsError, BlockingIOError):
                continue  # another start of the job, which took it for one that was left
    except OSError as error:
        raise SourceError(
            f"rows cannot be staged in {here}: {error.strerror}. Give staging= a folder that this user may write to"
        ) from error
    raise InternalError(f"no folder could be made in {here}")


def _made(here: Path, job: str, *, keep: bool) -> PinFolder:
    here.mkdir(parents=True, exist_ok=True)
    path = here / f"pin-{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}-{secrets.token_hex(4)}"
    path.mkdir()
    folder = PinFolder(path)
    folder._lock.hold(shared=True)
    folder.note({"job": job, "keep": keep})
    return folder


def _remove(folder: Path) -> None:
    """Remove ``folder`` if it is one of ours that nobody holds and that is not to be kept."""
    if folder.is_symlink() or not folder.is_dir():
        return
    with locked(folder) as is_free:
        if is_free and _is_left(folder):
            # First what is large: the record stays until the rows are gone, so that what is cut short is found again.
            shutil.rmtree(folder / ROWS, ignore_errors=True)
            shutil.rmtree(folder)
    try:
        folder.parent.rmdir()
    except OSError:
        """Other folders are there still."""


def _is_left(folder: Path) -> bool:
    record = folder / RECORD
    try:
        return not json.loads(record.read_text())["keep"]
    except FileNotFoundError:
        # Cut short before its first record, or Spark has gone on writing for a while after all was removed.
        return {path.name for path in folder.iterdir()} <= {ROWS}
    except (OSError, ValueError, LookupError, TypeError):
        return False


_BLOCK_BYTES: Final = 32 << 20
_WRITING: Final = {
    "compression": "snappy",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": "false",
}
"""Row groups are splits, so that several workers share a large partition. Moments in 96 bits are slow to read, and
lists in lists as Spark 1.4 wrote them are not read at all.
"""

_READING: Final = {
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96TimestampConversion": "false",
}
"""The settings with which Spark takes days and moments for those that are in the files, as Arrow does."""

_CALENDARS: Final = ("spark.sql.parquet.datetimeRebaseModeInWrite", "spark.sql.parquet.int96RebaseModeInWrite")
_NOTHING: Final = "_no_column"


def pinned(asked: SparkQuery, job: str, after: Bound | None = None) -> tuple[Pin, PinFolder | None, Bound | None]:
    """The pin, and the folder that was made for it, held; None if the files are the user's own. And with ``since`` the
    bound up to which rows are pinned, from the bound ``after`` of an earlier run on.

    Raises:
        SourceError: there is no such table, column or path, the SQL is wrong, a type cannot be carried, a file cannot
            be read, or rows cannot be staged.
        SparkError: Spark cannot be used, or has gone away.
    """
    given = asked.session if asked.df is None else asked.df.sparkSession
    with spark_session(given) as session:
        with spark_errors(f"Spark does not read {asked}", SourceError):
            frame = asked.frame(session)
            if frame.isStreaming:
                raise PlanError("sources.Spark: a streaming DataFrame has no end, so its rows cannot be pinned")
            frame = frame if asked.filter is None else frame.filter(asked.filter)
            found = frame.schema
            is_case_sensitive = session.conf.get("spark.sql.caseSensitive") == "true"
            as_they_are = asked.names_files and all(session.conf.get(name) == mode for name, mode in _READING.items())
            files = frame.inputFiles() if as_they_are else []
        bound = None
        if asked.since is not None:
            frame, bound = bounded(frame, found, asked.since, after)
        names = _chosen(asked, found.names)
        known_as = str if is_case_sensitive else str.lower
        _check_names(names, found.names, known_as)
        needed = _needed(asked.keep, names, found)
        _check_names(needed, found.names, known_as)
        schema = arrow_schema(type(found)([found[name] for name in needed]))
        try:
            pin = _of_files(asked, files, names, schema, found, is_case_sensitive) if files else None
        except ReadOtherwiseError:
            pin = None
        if pin is not None:
            return pin, None, bound
        return *_staged(asked, job, session, frame, names, schema), bound


def _of_files(
    asked: SparkQuery, uris: Sequence[str], names: Sequence[str], schema: pa.Schema, found: Any, is_case_sensitive: bool
) -> Pin:
    paths = [_local(uri) for uri in uris]
    looked = inspect_files(paths, schema, keep=asked.keep, told=found.names, is_case_sensitive=is_case_sensitive)
    return new_pin("files", schema, names, [one.file for one in looked], None)


def _local(uri: str) -> str:
    parts = urlsplit(uri)
    if parts.scheme != "file" or parts.netloc not in {"", "localhost"}:
        raise ReadOtherwiseError(f"{uri} is on no disk of this machine")
    return unquote(uri[re.match(r"file:(//(localhost)?(?=/))?", uri).end() :])  # type: ignore[union-attr]  # see above


def _staged(
    asked: SparkQuery, job: str, session: Any, frame: Any, names: Sequence[str], schema: pa.Schema
) -> tuple[Pin, PinFolder]:
    folder = new_folder(asked.staging or _default_staging(), job, keep=asked.keep_staging)
    try:
        counted = _write(asked, session, frame, schema, folder)
        files = sorted(str(path) for path in folder.rows.glob("*.parquet"))
        looked = _look(files, schema, asked)
        _check_complete(counted, sum(one.rows for one in looked), len(files), folder)
        pin = new_pin(folder.path.name, schema, names, [one.file for one in looked], folder.path)
        folder.note({"job": job, "keep": asked.keep_staging, **pin.record()})
    except BaseException:
        folder.leave(keep=False)
        raise
    return pin, folder


def _default_staging() -> Path:
    folder = default_staging_folder()
    make_default_staging(folder, SourceError)
    return folder


def _write(asked: SparkQuery, session: Any, frame: Any, schema: pa.Schema, folder: PinFolder) -> Any:
    """Have Spark write the rows of ``frame``; returns what will tell how many there were."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    counted = Observation()
    with spark_errors(f"Spark cannot stage the rows of {asked} in {folder.path}", SourceError), _one_calendar(session):
        frame = _carried(frame, schema)
        writer = frame.observe(counted, F.count(F.lit(1)).alias("rows")).write.mode("error")
        for name, value in {**_WRITING, "parquet.block.size": str(_BLOCK_BYTES)}.items():
            writer = writer.option(name, value)
        writer.parquet(f"file://{folder.rows}")
    return counted


@contextmanager
def _one_calendar(session: Any) -> Iterator[None]:
    """Inside, Spark writes days as they are, and not as those of the former calendar that look alike.

    No option of a single write says so; whatever the user has set is set again.
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
    """``frame`` with those columns that are to be written: not every Spark writes columns of nothing but nulls."""
    import pyarrow as pa

    columns = [f"`{field.name.replace('`', '``')}`" for field in schema if not pa.types.is_null(field.type)]
    return frame.selectExpr(*(columns or [f"CAST(NULL AS BOOLEAN) AS {_NOTHING}"]))


def _look(files: Sequence[str], schema: pa.Schema, asked: SparkQuery) -> list[InspectedFile]:
    try:
        return inspect_files(files, schema, keep=asked.keep, is_case_sensitive=True)
    except ReadOtherwiseError as error:
        raise SourceError(f"the rows that Spark has staged cannot be read: {error}") from error


def _check_complete(counted: Any, rows: int, files: int, folder: PinFolder) -> None:
    """`SourceError` if Spark has written more than is to be seen here."""
    # Where there are no rows it may be that nothing was counted, and that it would be waited for in vain.
    written = int(counted.get["rows"]) if rows else 0
    if not files or rows < written:
        raise SourceError(
            f"Spark has staged {written or 'its'} rows in {folder.path}, and {rows} of them are here: Spark runs on "
            f"other machines than this program. Give staging= a folder that all of them, and all workers, share"
        )


def _check_names(needed: Sequence[str], names: Sequence[str], known_as: Callable[[str], str]) -> None:
    """`SourceError` unless each that is ``needed`` means one of the columns ``names`` to Spark."""
    times = Counter(map(known_as, names))
    repeated = sorted({name for name in needed if times[known_as(name)] > 1})
    if repeated:
        raise SourceError(
            f"there is more than one column named {', '.join(map(repr, repeated))}: give each a name of its own, by "
            f"DataFrame.toDF(…) or AS in SQL"
        )
    if not needed:
        raise SourceError("there are no columns, so there are no rows that could be read")


def _chosen(asked: SparkQuery, names: Sequence[str]) -> Sequence[str]:
    chosen = names if asked.columns is None else asked.columns
    missing = [name for name in chosen if name not in names]
    if missing:
        raise SourceError(f"there is no column {', '.join(map(repr, missing))}: there are {', '.join(names)}")
    return chosen


def _needed(keep: Any, names: Sequence[str], found: Any) -> list[str]:
    """The columns ``names``, and those besides that ``keep`` asks for."""
    if keep is None:
        return list(names)
    others: list[Any] = []
    for field in found.fields:
        if field.name not in names:
            with suppress(SourceError):  # what cannot be carried cannot be asked for either
                others += arrow_schema(type(found)([field]))
    known = [*arrow_schema(type(found)([found[name] for name in names])), *others]
    wrong = _why_not(keep, known)
    if wrong is not None:
        raise SourceError(f"the filter {keep} cannot be evaluated: {wrong}")
    asked_for = [field.name for field in others if _why_not(keep, [one for one in known if one is not field])]
    return [*names, *asked_for]


def _why_not(keep: Any, fields: Sequence[pa.Field]) -> str | None:
    """Why ``keep`` cannot be evaluated for columns like ``fields``; None if it can."""
    import pyarrow as pa

    try:
        pa.schema(fields).empty_table().filter(keep)
    except pa.ArrowException as error:
        return str(error).partition("\n")[0]
    return None
