"""Spark sources as a worker has them: pinned by another process, and without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from malstrom_py.sources.spark import Spark
from malstrom_py.sources.spark.footers import inspect_files
from malstrom_py.sources.spark.pin import Pin, new_pin


def pin_over(
    paths: Sequence[Path],
    schema: pa.Schema,
    *,
    names: Sequence[str] = (),
    keep: Any = None,
    partitioned: Sequence[str] = (),
) -> Pin:
    """Return the pin of files, for rows of ``names``, or all of ``schema``."""
    inspected = inspect_files([str(path) for path in paths], schema, keep=keep, partitioned=partitioned)
    return new_pin("files", schema, names or schema.names, [one.file for one in inspected], None)


def copy_with(pin: Pin, keep: Any = None) -> Spark:
    """Return a worker's copy of a source with ``pin``."""
    source = Spark(path="/somewhere")
    source._pin.take(source, lambda: pin)
    source._keep = keep
    copy: Spark = pickle.loads(pickle.dumps(source))
    return copy


def parquet(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    """Write a new Parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)
    return path
