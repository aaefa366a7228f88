"""Folders whose files count only as a log in them says: of Spark's streaming, Delta and Iceberg.

Rule: a pattern never reads such files without their log, which alone knows those that were written twice,
replaced or deleted. A file that is named without wildcards is read: the user has chosen it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath
from typing import Final

from malstrom_py.errors import SourceError


@dataclass(frozen=True, slots=True)
class _Log:
    """A ``folder`` with a log, whose files end with ``suffix``; ``who`` writes it, and ``instead`` reads by it."""

    folder: str
    suffix: str
    who: str
    instead: str


_LOGS: Final = (
    _Log("_spark_metadata", "", "Spark's streaming", 'sources.Spark(path={folder!r}, format="{format}")'),
    _Log("_delta_log", "", "Delta", "sources.Delta({folder!r})"),
    _Log("metadata", ".metadata.json", "Iceberg", "sources.Iceberg"),
)

HasLog = Callable[[str, str], bool]
"""(a folder, the end of names) -> whether there is a file with such a name in it."""


def refuse_tables(files: Iterable[str], pattern: str, has_log: HasLog, *, root: str = "") -> None:
    """Raise `SourceError` if one of ``files``, matched by ``pattern``, is in a folder with a log.

    ``files`` are absolute; ``root`` is what goes before them in words, such as ``s3://bucket``.
    """
    known = cache(has_log)
    for folder in sorted({file.rpartition("/")[0] or "/" for file in files}):
        for above, log in _logs_above(folder):
            if known(str(PurePath(above, log.folder)), log.suffix):
                table = root + above
                instead = log.instead.format(folder=table, format=PurePath(pattern).suffix.lstrip(".") or "parquet")
                raise SourceError(
                    f"{table} was written by {log.who}, and its log {log.folder} says which of its files count: "
                    f"{pattern!r} would read some twice, or deleted ones. Read it with {instead}."
                )


def _logs_above(folder: str) -> Iterable[tuple[str, _Log]]:
    """Yield each folder from ``folder`` upwards with each log that it may have, unless ``folder`` is in a log."""
    path = PurePath(folder)
    for above in (path, *path.parents):
        if not {log.folder for log in _LOGS}.intersection(path.parts[len(above.parts) :][:1]):
            yield from ((str(above), log) for log in _LOGS)


def has_local_log(folder: str, suffix: str) -> bool:
    """Return whether the local ``folder`` has a file whose name ends with ``suffix``."""
    return any(True for _ in Path(folder).glob(f"*{suffix}"))


def refuse_local_tables(names: Iterable[str], pattern: str, base: Path) -> None:
    """Raise `SourceError` if one of ``names``, relative to ``base``, is in a folder with a log."""
    refuse_tables([os.path.normpath(base / name) for name in names], pattern, has_local_log)
