"""Dicts that a source gives become columns where these give the same results: of many rows, and of exact types."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import agg, windows
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.json_columns import DictColumns
from malstrom_py.operators import dict_batches
from malstrom_py.operators.batch_sizing import SMALL_IN_A_ROW
from malstrom_py.operators.dict_batches import ROWS_FEW, DictBatches
from malstrom_py.sinks import Files
from malstrom_py.sources import Memory
from malstrom_py.sources.memory import _MemoryPart
from malstrom_py.testing.exact import same

Stream = mp.StreamBuilder[Any, Any]
FIRST = {"n": 1, "x": 0.5, "s": "a", "b": True, "more": []}


class Number(IntEnum):
    ONE = 1


SAME: dict[str, dict[str, Any]] = {
    "None": {"n": None, "x": None, "s": None, "b": None},
    "another order": {"b": False, "s": "", "x": -0.0, "n": -(1 << 63), "other": object()},
    "floats of all kinds": FIRST | {"x": float("-inf")},
}
OTHER: dict[str, Any] = {
    "a float among integers": FIRST | {"n": 2.0},
    "an integer among floats": FIRST | {"x": 2},
    "a truth as number": FIRST | {"n": True},
    "a number as truth": FIRST | {"b": 1},
    "beyond 64 bits": FIRST | {"n": 1 << 63},
    "a number of a class": FIRST | {"n": Number.ONE},
    "a text of a class": FIRST | {"s": type("Text", (str,), {})("a")},
    "half a character": FIRST | {"s": "\ud800"},
    "a list": FIRST | {"n": [1]},
    "a field that is missing": {"n": 1, "x": 0.5, "s": "a"},
    "a dict of a class": defaultdict(int, FIRST),
    "no dict": (1, 0.5, "a", True),
}


@pytest.mark.parametrize("name", SAME)
def test_dicts_are_columns(name: str) -> None:
    rows = [FIRST, SAME[name]]
    columns = DictColumns(["n", "x", "s", "b"]).convert(rows)
    assert columns is not None
    assert same(columns.to_pylist(), [{name: row[name] for name in "nxsb"} for row in rows])


@pytest.mark.parametrize("name", OTHER)
@pytest.mark.parametrize("is_first", [True, False])
def test_what_columns_do_not_hold_stays_a_dict(name: str, is_first: bool) -> None:
    columns = DictColumns(["n", "x", "s", "b"])
    if is_first:
        assert columns.convert([OTHER[name], FIRST]) is None
    else:
        assert columns.convert([FIRST]) is not None
        assert columns.convert([OTHER[name]]) is None


def test_nan_stays_nan() -> None:
    columns = DictColumns(["x"]).convert([{"x": float("nan")}, {"x": None}])
    assert columns is not None
    assert (columns.column(0).null_count, repr(columns.column(0)[0].as_py())) == (1, "nan")


def converted(dicts: DictBatches, rows: list[Any], *, left: int = 1_000_000) -> bool:
    return isinstance(dicts.convert(Batch(rows), [_MemoryPart([None] * left, 0)]), ColumnBatch)


def test_few_dicts_stay_dicts() -> None:
    assert not converted(DictBatches(["n"]), [FIRST], left=10)
    assert converted(DictBatches(["n"]), [FIRST])


def test_a_batch_that_columns_do_not_hold_stays_dicts_and_after_many_all_do() -> None:
    dicts, other = DictBatches(["n"]), [{"n": "1"}]
    assert [converted(dicts, rows) for rows in ([FIRST], [], other, [FIRST])] == [True, False, False, True]
    assert not any(converted(dicts, other) for _ in range(8))
    assert not converted(dicts, [FIRST])


def test_small_batches_stay_dicts() -> None:
    dicts = DictBatches(["n"])
    assert [converted(dicts, [FIRST]) for _ in range(SMALL_IN_A_ROW + 1)].count(True) == SMALL_IN_A_ROW
    assert not converted(dicts, [FIRST] * ROWS_FEW)


def test_columns_of_a_source_stay_as_they_are() -> None:
    batch = ColumnBatch(pa.RecordBatch.from_pylist([FIRST]))
    assert DictBatches(["n"]).convert(batch, []) is batch


VALUES: st.SearchStrategy[Any] = st.one_of(
    st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=2), st.booleans(), st.none()
)


@st.composite
def rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Dicts whose fields have mostly one type each."""
    kinds: list[st.SearchStrategy[Any]] = [st.integers(-3, 3), st.floats(-3, 3), st.text(max_size=1), st.booleans()]
    of = {name: draw(st.sampled_from(kinds)) for name in ("key", "value")} | {"at": st.integers(0, 30)}
    made = draw(st.lists(st.fixed_dictionaries(of), min_size=1, max_size=12))
    if draw(st.booleans()):
        made[draw(st.integers(0, len(made) - 1))][draw(st.sampled_from(("key", "value")))] = draw(VALUES)
    if draw(st.integers(0, 9)) == 0:
        del made[-1]["value"]
    return made


def in_windows(rows: Stream) -> Stream:
    on_time, _ = rows.assign_timestamps("at", lambda row: row["at"], unit="ms").generate_epochs(
        "epochs", mp.limit_out_of_orderness(30)
    )
    keyed = on_time.key_by("k", lambda row: row["key"])
    return keyed.window("w", windows.tumbling(10)).aggregate(n=agg.count(), most=agg.max("value"))


JOBS: dict[str, Callable[[Stream], Stream]] = {
    "windows": in_windows,
    "final": lambda rows: (
        rows.filter("f", lambda row: row["value"] is not None)
        .key_by("k", lambda row: row["key"])
        .aggregate("a", n=agg.count(), last=agg.last("value"), least=agg.min("value"))
        .final("z")
    ),
    "functions": lambda rows: (
        rows.map("m", lambda row: {"key": row["key"], "twice": row["value"] * 2})
        .filter("f", lambda row: row["twice"] != 4)
        .key_by("k", lambda row: row["key"])
        .aggregate("a", n=agg.count(), last=agg.last("twice"))
    ),
}


WRITTEN: dict[str, Callable[[Stream], Stream]] = JOBS | {
    "map": lambda rows: rows.map("m", lambda row: {"of": row["key"], "twice": row["value"] * 2}),
    "fold": lambda rows: rows.key_by("k", lambda row: row["key"]).fold("f", lambda n, row: n + row["at"], default=int),
    "stateful_map": lambda rows: rows.key_by("k", lambda row: row["key"]).stateful_map(
        "s", lambda key, row, most: ({"at": row["at"], "before": most}, max(most, row["at"])), default=int
    ),
}


def outcome(build: Callable[[Stream], Stream], items: list[dict[str, Any]]) -> Any:
    try:
        return mp.collect(build(mp.Job("dicts").source("rows", Memory(items))), batch=mp.Batching(rows_max=5))
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", JOBS)
@given(items=rows())
def test_jobs_of_dicts_find_the_same_in_columns(name: str, items: list[dict[str, Any]]) -> None:
    before = [dict(item) for item in items]
    by_rows = outcome(JOBS[name], items)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dict_batches, "ROWS_MANY", 0)
        in_columns = outcome(JOBS[name], items)
    assert same(in_columns, by_rows)
    assert same(items, before)


def written(build: Callable[[Stream], Stream], items: list[dict[str, Any]], folder: Path) -> Any:
    """The rows and the types of the files, or the error."""
    job = mp.Job("dicts")
    build(job.source("rows", Memory(items))).sink("out", Files(folder, format="parquet"))
    try:
        mp.run(job, batch=mp.Batching(rows_max=5))
    except Exception as error:
        return type(error), str(error)
    return [
        (table.schema.to_string(), table.to_pylist()) for table in map(pq.read_table, sorted(folder.glob("*.parquet")))
    ]


@pytest.mark.parametrize("name", WRITTEN)
@settings(max_examples=30)
@given(items=rows())
def test_files_of_dicts_are_the_same_by_columns(name: str, items: list[dict[str, Any]]) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        by_rows = written(WRITTEN[name], items, Path(folder) / "rows")
        patch.setattr(dict_batches, "ROWS_MANY", 0)
        assert same(written(WRITTEN[name], items, Path(folder) / "columns"), by_rows)
