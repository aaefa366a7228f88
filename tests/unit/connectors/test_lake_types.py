"""What a new table of a lake is made of, and what it cannot be made of."""

from __future__ import annotations

import pyarrow as pa
import pytest

from malstrom_py.connectors.lake.types import table_fields
from malstrom_py.errors import SinkError


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (pa.struct([("x", pa.null()), ("y", pa.int64())]), r"a\.x"),
        (pa.list_(pa.null()), r"a\[\]"),
        (pa.struct([("s", pa.struct([("x", pa.null())]))]), r"a\.s\.x"),
    ],
)
def test_a_field_that_was_none_in_all_rows_is_named(kind: pa.DataType, place: str) -> None:
    with pytest.raises(SinkError, match=f"'{place}' is None in all rows so far.*column 'a' is not known"):
        table_fields([pa.field("n", pa.int64()), pa.field("a", kind)], "Delta", has_times=False)
