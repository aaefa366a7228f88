"""What a user asks Spark for, checked as soon as it is said; and the DataFrame that it is."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from malstrom_py.errors import PlanError
from malstrom_py.local_path import local_path

_LISTING: Final = frozenset(
    (
        "basepath",
        "compression",
        "mergeschema",
        "modifiedafter",
        "modifiedbefore",
        "pathglobfilter",
        "recursivefilelookup",
    )
)
"""Options that say which files are read, and nothing of how."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Just one of ``df``, ``table``, ``sql`` and what ``format`` with ``paths`` or ``options`` reads.

    ``filter`` is for Spark to evaluate, ``keep`` (of Arrow) for the workers.
    """

    df: Any
    table: str | None
    sql: str | None
    paths: tuple[str, ...]
    format: str | None
    options: Mapping[str, Any]
    columns: tuple[str, ...] | None
    filter: Any
    keep: Any
    staging: Path | None
    keep_staging: bool
    session: Any
    since: str | None = None

    def __str__(self) -> str:
        return self._what() + ("" if self.since is None else f", since={self.since!r}")

    def _what(self) -> str:
        if self.df is not None:
            return "a DataFrame"
        if self.table is not None:
            return f"table={self.table!r}"
        if self.sql is not None:
            return "sql=…"  # it may hold what nobody else is to see
        what = [f"path={path!r}" for path in self.paths[:3]]
        return ", ".join([*what, *([] if self.format is None else [f"format={self.format!r}"])])

    @property
    def names_files(self) -> bool:
        """Whether it is about Parquet files that might be read as they are."""
        if self.since is not None:
            return False
        is_parquet = bool(self.paths) and self.format in {None, "parquet"} and _are_apart(self.paths)
        only_lists = _LISTING.issuperset(option.lower() for option in self.options)
        return is_parquet and only_lists and self.filter is None and self.staging is None

    def frame(self, session: Any) -> Any:
        """The DataFrame, nothing of which has been evaluated."""
        if self.df is not None:
            return self.df
        if self.sql is not None:
            return session.sql(self.sql)
        reader = session.read.format(self.format or "parquet")
        for name, value in self.options.items():
            reader = reader.option(name, value)
        if self.table is not None:
            return reader.table(self.table)
        return reader.load(list(self.paths)) if self.paths else reader.load()


def checked(
    *,
    df: object,
    table: object,
    sql: object,
    path: object,
    format: object,
    options: object,
    columns: object,
    filter: object,
    staging: object,
    keep_staging: object,
    session: object,
    since: object = None,
) -> Asked:
    """What the user asks for; `PlanError` for the first argument that is wrong by itself."""
    _check_one(df=df, table=table, sql=sql, path=path, format=format)
    if df is not None and not _is_of_spark(df, "DataFrame"):
        raise PlanError(f"sources.Spark: df is a DataFrame of Spark, got {type(df).__module__}.{type(df).__name__}")
    if session is not None and df is not None:
        raise PlanError("sources.Spark: a DataFrame has its session, so leave out session=")
    if session is not None and not _is_of_spark(session, "SparkSession"):
        raise PlanError(f"sources.Spark: session is a SparkSession, got {type(session).__name__}")
    for name, text in (("table", table), ("sql", sql), ("format", format), ("since", since)):
        if text is not None and not (isinstance(text, str) and text.strip()):
            raise PlanError(f"sources.Spark: {name} is a str that is not empty, got {text!r}")
    if format is not None and not (df is table is sql is None):
        raise PlanError("sources.Spark: format is for path=, or for options= alone: leave it out")
    if not isinstance(keep_staging, bool):
        raise PlanError(f"sources.Spark: keep_staging is True or False, got {keep_staging!r}")
    by_workers = _is_of_arrow(filter)
    return Asked(
        df=df,
        table=table if isinstance(table, str) else None,
        sql=sql if isinstance(sql, str) else None,
        paths=_paths(path),
        format=format if isinstance(format, str) else None,
        options=_options(options, allowed=df is None and sql is None),
        columns=_columns(columns),
        filter=None if by_workers else _filter(filter),
        keep=filter if by_workers else None,
        staging=None if staging is None else local_path(staging, "sources.Spark(staging=)"),
        keep_staging=keep_staging,
        session=session,
        since=since if isinstance(since, str) else None,
    )


def _check_one(**given: object) -> None:
    format = given.pop("format")
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise PlanError(f"sources.Spark takes one of df, table=, sql= and path=, not {' and '.join(named)} together")
    if not named and format is None:
        raise PlanError("sources.Spark takes a DataFrame, or one of table=, sql= and path=: nothing was given")


def _paths(path: object) -> tuple[str, ...]:
    if path is None:
        return ()
    given = list(path) if isinstance(path, Iterable) and not isinstance(path, str | os.PathLike | bytes) else [path]
    texts = [os.fspath(one) if isinstance(one, str | os.PathLike) else None for one in given]
    paths = [text for text in texts if isinstance(text, str) and text]
    if not paths or len(paths) < len(given):
        raise PlanError(f"sources.Spark: path is a path or URI that Spark reads, or a list of them, got {path!r}")
    # Spark's own working directory is where its JVM was started.
    return tuple(one if re.match(r"/|[A-Za-z][A-Za-z0-9+.-]*:", one) else str(Path.cwd() / one) for one in paths)


def _are_apart(paths: Sequence[str]) -> bool:
    """Whether no file can be in more than one of ``paths``: Spark reads such a file as often, and lists it once."""
    if len(paths) == 1:
        return "{" not in paths[0]
    if any(re.search(r"^[^/]|[*?\[{\\]", path) for path in paths):
        return False
    for known in (os.path.normpath, os.path.realpath):
        ordered = sorted(Path(known(path)).parts for path in paths)
        if any(later[: len(one)] == one for one, later in pairwise(ordered)):
            return False
    return True


def _options(options: object, *, allowed: bool) -> Mapping[str, Any]:
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise PlanError(f"sources.Spark: options are those of Spark's reader, name -> value, got {options!r}")
    if not allowed:
        raise PlanError("sources.Spark: options are for path=, table= or format=: leave them out")
    return dict(options)


def _columns(columns: object) -> tuple[str, ...] | None:
    if columns is None:
        return None
    names = list(columns) if isinstance(columns, Iterable) and not isinstance(columns, str) else [None]
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise PlanError(
            f"sources.Spark: columns is a list of names, each once, for instance ['carrier'], got {columns!r}"
        )
    return tuple(str(name) for name in names)


def _filter(filter: object) -> Any:
    if filter is None or (isinstance(filter, str) and filter.strip()) or _is_of_spark(filter, "Column"):
        return filter
    raise PlanError(
        f"sources.Spark: filter is SQL text or a Column, for Spark to evaluate, or an expression of pyarrow.compute, "
        f"for the workers; got {filter!r}"
    )


def _is_of_spark(thing: object, kind: str) -> bool:
    """Whether it is of that class of pyspark, classic or Connect; told without importing it."""
    return any(base.__name__ == kind and base.__module__.startswith("pyspark.sql") for base in type(thing).__mro__)


def _is_of_arrow(thing: object) -> bool:
    return type(thing).__name__ == "Expression" and type(thing).__module__.startswith("pyarrow.")
