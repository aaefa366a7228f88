"""Pins of Parquet files as Spark's source makes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from malstrom_py.sources.pinned.row_groups import RowGroups, new_pin
from malstrom_py.sources.spark.footers import inspect_files


def pin_over(
    paths: Sequence[Path],
    schema: pa.Schema,
    *,
    names: Sequence[str] = (),
    keep: Any = None,
    partitioned: Sequence[str] = (),
) -> RowGroups:
    """Return the pin of files, for rows of ``names``, or all of ``schema``."""
    inspected = inspect_files([str(path) for path in paths], schema, keep=keep, partitioned=partitioned)
    return new_pin("files", schema, names or schema.names, [one.file for one in inspected], None)


def parquet(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    """Write a new Parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)
    return path
