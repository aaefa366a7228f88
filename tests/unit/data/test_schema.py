"""Types of columns: of which Arrow picks and merges rows."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pytest

from malstrom_py.data.schema import pickable

TEXTS: Final[list[Any]] = ["a", None, "b" * 20]


def encoded(other: str, *, ordered: bool = False) -> pa.Array:
    """Return a dictionary whose entry 1 is null."""
    places = pa.array([0, 1, None, 0, 2], pa.int8())
    return pa.DictionaryArray.from_arrays(places, pa.array(["x", None, other]), ordered=ordered)


def listed(column: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(range(len(column) + 1), pa.int32()), column)


def in_structs(column: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([column], ["in"], mask=pa.array([n == 1 for n in range(len(column))]))


RUNS: Final = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["x", None]))


@pytest.mark.parametrize(
    ("column", "other"),
    [
        (pa.array(TEXTS, pa.string_view()), pa.array(["c"], pa.string_view())),
        (pa.array([b"a", None], pa.binary_view()), pa.array([b"c"], pa.binary_view())),
        (RUNS, RUNS),
        (listed(RUNS), listed(RUNS)),
        *((of(encoded("y")), of(encoded("z"))) for of in (listed, in_structs)),
        (encoded("y"), encoded("z")),
        (encoded("y", ordered=True), encoded("y", ordered=True)),
        (pa.array([[("k", "a")], None], pa.map_(pa.string(), pa.string_view())),) * 2,
    ],
    ids=lambda column: str(column.type),
)
def test_pickable_columns_have_the_same_values_and_merge(column: pa.Array, other: pa.Array) -> None:
    one, two = (pickable(pa.RecordBatch.from_arrays([some], ["value"])) for some in (column, other))
    merged = pa.concat_batches([one, two])
    picked = merged.take(pa.array([*range(len(merged)), None], pa.int64()))
    assert picked.column(0).to_pylist() == [*column.to_pylist(), *other.to_pylist(), None]


def test_columns_that_arrow_picks_are_unchanged() -> None:
    columns = pa.RecordBatch.from_pydict(
        {"text": pa.array(TEXTS), "coded": pa.array(TEXTS).dictionary_encode(), "list": [[1], None, []]}
    )
    assert pickable(columns) is columns
