"""The columns that the folders of partitioned output stand for, read back from their names, ``column=value``.

Rule: a column has the type that all its values have (whole numbers, dates, truth values), else it is text: how a folder
is called is all that is known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import SourceError
from malstrom_py.sinks.files.hive import told_by

if TYPE_CHECKING:
    import pyarrow as pa

_WHOLE: Final = re.compile(r"-?(0|[1-9]\d{0,17})")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_TRUTHS: Final = {"true": True, "false": False}


def partition_texts(file: str) -> dict[str, str | None]:
    """What the folders of ``file``, relative to the output's, are called by: column -> text, None for None.

    >>> partition_texts("day=2013-01-01/to=a%2Fb/out-1.parquet"), partition_texts("out-1.parquet")
    ({'day': '2013-01-01', 'to': 'a/b'}, {})
    """
    texts: dict[str, str | None] = {}
    for folder in file.split("/")[:-1]:
        told = told_by(folder)
        if told is None:
            raise SourceError(f"the file {file!r} is not in a folder of a partition: it is no output of a job")
        texts[told[0]] = told[1]
    return texts


def partition_schema(files: Sequence[Mapping[str, str | None]]) -> pa.Schema:
    """The columns of the partitions, by what is known of each file.

    >>> partition_schema([{"day": "2013-01-01", "to": "7"}, {"day": None, "to": "EWR"}])
    day: date32[day]
    to: string
    """
    import pyarrow as pa

    names = list(files[0]) if files else []
    if any(list(file) != names for file in files):
        raise SourceError("the files are not partitioned by the same columns: they are no output of one job")
    return pa.schema([(name, _type([file[name] for file in files])) for name in names])


def partition_value(text: str | None, kind: pa.DataType) -> Any:
    """The value that ``text`` stands for in a column of type ``kind``.

    >>> import pyarrow as pa
    >>> partition_value("2013-01-01", pa.date32()), partition_value("7", pa.int64()), partition_value(None, pa.string())
    (datetime.date(2013, 1, 1), 7, None)
    """
    import pyarrow as pa

    if text is None:
        return None
    if pa.types.is_date(kind):
        return date.fromisoformat(text)
    if pa.types.is_boolean(kind):
        return _TRUTHS[text]
    return int(text) if pa.types.is_integer(kind) else text


def _type(texts: Sequence[str | None]) -> pa.DataType:
    import pyarrow as pa

    known = [text for text in texts if text is not None]
    if not known:
        return pa.null()
    if all(map(_WHOLE.fullmatch, known)) and "-0" not in known:
        return pa.int64()
    if all(map(_is_date, known)):
        return pa.date32()
    return pa.bool_() if all(text in _TRUTHS for text in known) else pa.string()


def _is_date(text: str) -> bool:
    try:
        return _DATE.fullmatch(text) is not None and date.fromisoformat(text) is not None
    except ValueError:
        return False
