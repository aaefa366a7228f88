"""What the names of folders say of the files in them, as Hive and Spark write it: ``year=2013/carrier=UA/…``."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import PurePath
from typing import TYPE_CHECKING

from malstrom_py.sinks.files.hive import told_by

if TYPE_CHECKING:
    import pyarrow as pa


def partition_values(path: str, names: Collection[str]) -> dict[str, str | None]:
    """The values of the columns called ``names`` as the folders of ``path`` tell them, None for null.

    >>> partition_values("/t/year=2013/carrier=U%2FA/__x=1/part-0.parquet", {"year", "carrier"})
    {'year': '2013', 'carrier': 'U/A'}
    """
    told = map(told_by, PurePath(path).parts[:-1])
    return {column: text for column, text in filter(None, told) if column in names}


def constant(value: str | None, kind: pa.DataType) -> pa.Scalar:
    """``value`` as one of the type ``kind``. pyarrow.ArrowException: it is none."""
    import pyarrow as pa

    if value is None or pa.types.is_string(kind):
        return pa.scalar(value, kind)
    return pa.scalar(value, pa.string()).cast(kind)


def is_told_by_text(kind: pa.DataType) -> bool:
    """Whether a value of that type is the same to Spark and to Arrow, by what a folder says of it."""
    import pyarrow as pa

    types = pa.types
    return bool(types.is_string(kind) or types.is_signed_integer(kind) or types.is_date32(kind))
