"""A source of columns and a job whose steps take them. That they give what rows give: `tests/laws/test_forms.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.sources import Part

SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("d", pa.decimal128(20, 3)),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("list", pa.list_(pa.int64())),
    ]
)


class Batches:
    """A source of one part that returns its rows as lists, or as record batches of the same rows."""

    def __init__(self, batches: Sequence[list[dict[str, Any]]], *, columns: bool, schema: pa.Schema = SCHEMA) -> None:
        self._batches = batches
        self._schema = schema if columns else None

    def list_parts(self) -> list[Part]:
        return [Part("all")]

    def build_part(self, part: Part, state: Any) -> _Part:
        return _Part(self._batches, self._schema)


class _Part:
    def __init__(self, batches: Sequence[list[dict[str, Any]]], schema: pa.Schema | None) -> None:
        self._left = list(batches)
        self._schema = schema

    def poll(self, rows_max: int) -> Any:
        if not self._left:
            return None
        rows = self._left.pop(0)
        return rows if self._schema is None else pa.RecordBatch.from_pylist(rows, schema=self._schema)

    def is_finished(self) -> bool:
        return not self._left

    def snapshot(self) -> None:
        return None

    def close(self) -> None:
        """Do nothing."""


VIEWS = pa.schema([("s", pa.string_view()), ("i", pa.binary_view()), ("list", pa.list_(pa.string_view()))])
PLAIN = pa.schema([("s", pa.string()), ("i", pa.binary()), ("list", pa.list_(pa.string()))])
WHOLE: dict[str, Callable[[Any], Any]] = {
    "filter": lambda stream: stream.filter("kept", lambda row: row["i"] != b"1"),
    "branch": lambda stream: stream.branch("odd", lambda row: row["i"] == b"1")[0],
    "final": lambda stream: stream.key_by("k", "s").final(),
    "distinct": lambda stream: stream.key_by("k", "s").distinct("new", by="i"),
    "map_batches": lambda stream: stream.map_batches("same", lambda batch: batch).filter("kept", lambda row: row["s"]),
}


@pytest.mark.parametrize("step", WHOLE)
@pytest.mark.parametrize("made_by", ["a source", "map_batches"])
def test_text_and_bytes_in_views_are_taken_like_others(step: str, made_by: str) -> None:
    rows = [{"s": "aab"[n % 3], "i": b"%d" % (n % 2), "list": ["x"]} for n in range(6)]

    def run(schema: pa.Schema) -> list[Any]:
        is_source = made_by == "a source"
        source = Batches([rows], columns=True, schema=schema if is_source else PLAIN)
        stream: Any = mp.Job("test").source("in", source)
        return mp.collect(
            WHOLE[step](stream if is_source else stream.map_batches("views", lambda one: one.cast(schema)))
        )

    expected = run(PLAIN)
    assert expected
    assert run(VIEWS) == expected


def test_steps_by_column_and_counts_make_no_row() -> None:
    rows = [{"s": "ab"[n % 2], "i": n} for n in range(6)]
    job = mp.Job("test")
    keyed = job.source("in", Batches([rows], columns=True)).key_by("k", "s")
    keyed.count("count").sink("counts", counts := sinks.Memory())
    keyed.sum("sum", by="i").sink("sums", sums := sinks.Memory())
    keyed.max("max", by="missing", on_error="skip").sink("maxima", maxima := sinks.Memory())
    result = mp.run(job)
    assert counts.by_key == {"a": [1, 2, 3], "b": [1, 2, 3]}
    assert sums.by_key == {"a": [0, 2, 6], "b": [1, 4, 9]}
    assert (maxima.items, result.steps["max"].skipped) == ([], 6)
