"""``final`` of columns whose values it keeps as rows: of lists there are no arrays."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import malstrom_py as mp
from malstrom_py import sources


@pytest.mark.parametrize(
    "keys",
    [
        pa.array(["a", "b", None, "a", None]).dictionary_encode(),
        pa.array(["a", "b", "", "a", "b"]),
        pa.array([1.5, 0.0, -0.0, 0.0, 1.5]),
        pa.array([True, False, True, None, True]),
    ],
)
def test_final_of_rows_of_columns_is_the_last_of_each_key(keys: pa.Array) -> None:
    """A dictionary as the key failed; 0.0 and -0.0 are one key, of which an earlier value could come out."""

    def columns(given: pa.RecordBatch) -> pa.RecordBatch:
        numbers = given.column("n").to_pylist()
        picked = keys.take(pa.array(numbers))
        return pa.RecordBatch.from_pydict(
            {"key": picked, "n": pa.array(numbers), "list": pa.array([[n] for n in numbers])}
        )

    rows = mp.Job("final").source("rows", sources.Memory([{"n": number} for number in range(len(keys))]))
    last: dict[Any, int] = {key: number for number, key in enumerate(keys.to_pylist())}
    found = mp.collect(rows.map_batches("columns", columns).key_by("key", "key").final("final"))
    assert [row["n"] for row in found] == list(last.values())
