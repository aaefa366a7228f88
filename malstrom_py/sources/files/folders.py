"""The columns in the names of folders, as Hive lays out files: ``day=2024-01-01/carrier=UA/…``.

Rule: a column of the file goes before one of its folders. Only folders that wildcards have matched count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from malstrom_py.errors import SourceError
from malstrom_py.sources.files.listing import leading_parts

if TYPE_CHECKING:
    import pyarrow as pa

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_INT: Final = re.compile(r"-?[1-9][0-9]{0,17}|0")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def roots_of(patterns: Iterable[str], base: Path | None) -> tuple[str, ...]:
    """Return the folders before the wildcards of ``patterns``, as written and from ``base``; longest first."""
    written = [PurePath(*leading_parts(pattern)) for pattern in patterns]
    from_base = [] if base is None else [base / root for root in written]
    return tuple(sorted({str(root) for root in [*written, *from_base]}, key=len, reverse=True))


def folder_values(file: str, roots: Sequence[str]) -> dict[str, str | None]:
    """Return the columns in the names of the folders of ``file`` below one of ``roots``.

    >>> folder_values("in/day=2024-01-01/carrier=A%2FB/a.parquet", ["in"])
    {'day': '2024-01-01', 'carrier': 'A/B'}
    """
    path = PurePath(file)
    root = next((root for root in roots if path.is_relative_to(root)), None)
    if root is None:
        return {}
    pairs = [part.partition("=") for part in path.relative_to(root).parts[:-1]]
    return {unquote(name): None if text == _NULL else unquote(text) for name, sign, text in pairs if name and sign}


def folder_types(files: Iterable[str], roots: Sequence[str]) -> dict[str, pa.DataType]:
    """Return the types of the columns in the names of folders: int, date or str, as all values read."""
    import pyarrow as pa

    texts: dict[str, list[str]] = {}
    for file in files:
        for name, text in folder_values(file, roots).items():
            texts.setdefault(name, []).extend([] if text is None else [text])
    kinds = ((_INT, pa.int64()), (_DATE, pa.date32()))
    return {
        name: next((kind for pattern, kind in kinds if found and all(map(pattern.fullmatch, found))), pa.string())
        for name, found in texts.items()
    }


def completed(batch: pa.RecordBatch, schema: pa.Schema, values: Mapping[str, str | None], path: str) -> pa.RecordBatch:
    """Return ``batch`` with the columns of ``schema``: those that it lacks hold the ``values`` of its folders, or None.

    `SourceError`: a value is not of its column's type.
    """
    import pyarrow as pa

    there = set(batch.schema.names)
    if there.issuperset(schema.names):
        return batch.select(schema.names)
    columns: list[Any] = []
    for field in schema:
        if field.name in there:
            columns.append(batch.column(field.name))
            continue
        try:
            value = pa.array([values.get(field.name)], pa.string()).cast(field.type)[0]
        except pa.ArrowInvalid as error:
            raise SourceError(
                f"the folder of {path} does not read as {field.type}, the type of column {field.name!r} by other "
                f"folders: rename it, or read it as a separate source."
            ) from error
        except pa.ArrowNotImplementedError:  # a type that text has no cast to, and no folder
            value = pa.scalar(None, field.type)
        columns.append(pa.repeat(value, len(batch)))
    return pa.RecordBatch.from_arrays(columns, names=schema.names)
