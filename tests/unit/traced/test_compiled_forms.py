"""Steps on columns whose rows are of a class, and whose keys are tuples, give what they give row by row."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.row_form import form_of
from malstrom_py.errors import CodecError
from malstrom_py.operators.aggregate import Sum
from malstrom_py.operators.key_by import KeyBy
from malstrom_py.operators.stateless import Filter, Map
from malstrom_py.state.figure_states import FigureStates
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.windows import WINDOW_RESULT, WindowResult
from tests.unit.operators.stepping import Stepped
from tests.unit.traced.test_compiled import batch_of


@pytest.mark.parametrize(
    ("function", "keys"),
    [
        (lambda r: (r["i"], r["s"]), [(1, "a"), (2, None), (3, "a")]),
        (lambda r: (r["i"] % 2, r["f"] > 1, "x"), [(1, False, "x"), (0, True, "x"), (1, False, "x")]),
    ],
)
def test_keys_of_two_fields_are_the_tuples_of_rows(function: Callable[[Any], Any], keys: list[Any]) -> None:
    given = batch_of(i=pa.array([1, 2, 3], pa.int8()), s=["a", None, "a"], f=[0.5, 1.5, 1.0])
    (sent,) = Stepped(partial(KeyBy, fn=function)).push(given).batches()
    assert isinstance(sent, ColumnBatch)
    assert (sent.key_column, given.rows_made) == (None, False)
    for batch, expected in (
        (sent, keys),
        (sent.take([2, 0]), [keys[2], keys[0]]),
        (sent.where(pl.Series([True, False, True])), [keys[0], keys[2]]),
        (sent.compress([0, 1, 1]).cut(1, 2), keys[2:]),
        (pickle.loads(pickle.dumps(sent)), keys),
    ):
        assert isinstance(batch, ColumnBatch)
        assert batch.is_keyed
        assert repr(batch.keys) == repr(expected)


def test_a_tuple_with_nan_is_the_error_of_rows() -> None:
    def keyed(*, compile: bool) -> Any:
        rows = mp.Job("job", compile=compile).source(
            "in", sources.Memory([{"i": 1, "f": 0.5}, {"i": 2, "f": float("nan")}])
        )
        return rows.select("columns", "i", "f").key_by("key", lambda r: (r["i"], r["f"])).count("n")

    errors = []
    for compile in (True, False):
        with pytest.raises(CodecError) as raised:
            mp.collect(keyed(compile=compile))
        errors.append(re.sub(r"lambda> at \S*", "", str(raised.value)))
    assert errors[0] == errors[1]


@pytest.mark.parametrize("key", [lambda r: (r["i"] % 2, r["s"]), lambda r: (r["s"], r["i"] % 3, r["i"] % 2)])
def test_figures_by_two_fields_are_in_arrays_and_at_rest_as_of_rows(key: Callable[[Any], Any]) -> None:
    given = batch_of(i=list(range(8)), s=["a", "b", None, "a", "b", "a", None, "b"])
    (keyed,) = Stepped(partial(KeyBy, fn=key)).push(given).batches()
    assert isinstance(keyed, ColumnBatch)
    assert keyed.key_columns is not None
    figure = partial(Sum, by=lambda r: r["i"])
    columns, rows = Stepped(figure), Stepped(figure)
    rows.push(Batch(keyed.values, keys=keyed.keys))
    columns.push(ColumnBatch(given.columns, key_column=keyed.key_columns))
    assert repr(columns.rows()) == repr(rows.rows())
    assert isinstance(columns.operator, Sum)
    assert isinstance(rows.operator, Sum)
    ours, theirs = columns.operator.state, rows.operator.state
    assert isinstance(ours.values, FigureStates)
    assert not ours.by_slot
    assert repr(dict(ours.values.items())) == repr(dict(theirs.values))
    stored = ours.snapshot()
    assert stored == theirs.snapshot()
    restored = KeyedState("x", Codec())
    restored.restore(stored)
    assert repr(restored.values) == repr(dict(theirs.values))
    some = next(iter(theirs.values))
    assert ours.collect([some, (5, 5)]) == theirs.collect([some, (5, 5)])
    assert some not in ours.values


class Trip(msgspec.Struct):
    car: str
    km: float | None
    n: int


@dataclass
class Ride:
    car: str
    km: float | None
    n: int


class Way(NamedTuple):
    car: str
    km: float | None
    n: int


class Odd(Ride):
    def __post_init__(self) -> None:
        self.n += 1


OF_CLASSES: dict[str, Callable[[Any], Any]] = {
    "map": lambda stream: stream.map("x", lambda r: {"car": r.car.upper(), "n": r.n * 2, "km": r.km}),
    "filter": lambda stream: stream.filter("x", lambda r: r.n > 1),
    "filter_map": lambda stream: stream.filter_map("x", lambda r: {"n": r.n} if r.km else None),
    "filter_map to itself": lambda stream: stream.filter_map("x", lambda r: r if r.n > 1 else None),
    "branch": lambda stream: stream.branch("x", lambda r: r.km is None)[1],
    "fold": lambda stream: (
        stream.key_by("k", lambda r: r.car).fold("x", lambda most, r: max(most, r.n), default=int).final()
    ),
    "stateful_map": lambda stream: stream.key_by("k", lambda r: r.car).stateful_map(
        "x", lambda k, r, n: (r.n - n, r.n), default=int
    ),
    "sums": lambda stream: stream.key_by("k", lambda r: (r.car, r.n % 2)).sum("x", by=lambda r: r.n + 1).final(),
}


@pytest.mark.parametrize("name", OF_CLASSES)
@pytest.mark.parametrize("rows", [Trip, Ride, Way, Odd])
def test_rows_of_a_class_are_computed_by_their_fields(name: str, rows: Any, tmp_path: Path) -> None:
    table = pa.table({"car": ["a", "b", "a"] * 9, "km": [1.5, None, 3.0] * 9, "n": [1, 2, 3] * 9})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=9)

    def collected(*, compile: bool) -> list[Any]:
        stream = mp.Job("job", compile=compile).source("in", sources.Files(tmp_path / "in.parquet", rows=rows))
        return mp.collect(OF_CLASSES[name](stream))

    assert repr(collected(compile=True)) == repr(collected(compile=False))


TUPLES_OF: dict[str, Callable[[Any], Any]] = {
    "counted words": lambda stream: (
        stream.map("pairs", lambda r: (r["car"], 1)).key_by("k", lambda t: t[0]).sum("x", by=lambda t: t[1]).final()
    ),
    "tuples": lambda stream: stream.map("pairs", lambda r: (r["car"], r["n"] * 2, r["km"])),
    "tuples of tuples": lambda stream: stream.map("pairs", lambda r: (r["car"], r["n"])).map(
        "back", lambda t: {"n": t[-1], "of": len(t), "car": t[0]}
    ),
    "some tuples": lambda stream: (
        stream.filter_map("some", lambda r: (r["n"], r["km"]) if r["n"] > 1 else None)
        .filter("large", lambda t: t[0] > 2)
        .filter_map("same", lambda t: t if t[1] else None)
    ),
    "a tuple that is too short": lambda stream: stream.map("pairs", lambda r: (r["car"], r["n"])).filter(
        "third", lambda t: t[2], on_error="skip"
    ),
    "fold": lambda stream: (
        stream.map("pairs", lambda r: (r["car"], r["n"]))
        .key_by("k", lambda t: t[0])
        .fold("x", lambda sums, t: {"n": sums["n"] + t[1]}, default=lambda: {"n": 0})
    ),
    "unpacked": lambda stream: stream.map("pairs", lambda r: (r["car"], r["n"])).map("sums", unpacked),
    "in windows of a number": lambda stream: (
        stream.map("pairs", lambda r: (r["n"], r["km"])).key_by("k", lambda t: (t[0], "x")).count("n").final()
    ),
}


def unpacked(pair: Any) -> Any:
    car, n = pair
    return {"car": car, "n": n + 1}


@pytest.mark.parametrize("name", TUPLES_OF)
def test_tuples_are_computed_by_their_places(name: str, tmp_path: Path) -> None:
    table = pa.table({"car": ["a", "b", "a"] * 9, "km": [1.5, None, 3.0] * 9, "n": [1, 2, 3] * 9})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=9)

    def collected(*, compile: bool) -> list[Any]:
        stream = mp.Job("job", compile=compile).source("in", sources.Files(tmp_path / "in.parquet"))
        return mp.collect(TUPLES_OF[name](stream))

    assert repr(collected(compile=True)) == repr(collected(compile=False))


def test_no_tuple_is_made_of_columns() -> None:
    (pairs,) = Stepped(partial(Map, fn=lambda r: (r["i"], r["s"]))).push(batch_of(i=[1, 2], s=["a", "b"])).batches()
    assert isinstance(pairs, ColumnBatch)
    for step in (
        partial(Map, fn=lambda t: {"n": t[0] * 2}),
        partial(Filter, predicate=lambda t: t[0] > 1),
        partial(KeyBy, fn=lambda t: t[1]),
    ):
        (sent,) = Stepped(step).push(pairs).batches()
        assert isinstance(sent, ColumnBatch)
    assert not pairs.rows_made
    assert pairs.values == [(1, "a"), (2, "b")]


def test_tuples_of_a_batch_that_is_done_row_by_row_are_columns_again() -> None:
    stepped = Stepped(partial(Map, fn=lambda r: (4 // r["i"], r["s"])), on_error="skip")
    stepped.push(batch_of(i=[4], s=["a"]), batch_of(i=[0, 2], s=["b", "c"]))
    assert all(isinstance(batch, ColumnBatch) for batch in stepped.batches())
    assert stepped.values() == [(1, "a"), (2, "c")]
    keyed = Stepped(partial(KeyBy, fn=lambda r: (4 // r["i"], r["s"])), on_error="skip")
    keyed.push(batch_of(i=[4], s=["a"]), batch_of(i=[0, 2], s=["b", "c"]))
    assert [batch.keys for batch in keyed.batches()] == [[(1, "a")], [(2, "c")]]
    assert all(isinstance(batch, ColumnBatch) and batch.key_columns is not None for batch in keyed.batches())


def test_no_object_is_made_of_rows_of_a_class() -> None:
    for kind in (Trip, Ride, Way):
        given = ColumnBatch(pa.record_batch({"car": ["a", "b"], "km": [1.5, None], "n": [1, 2]}), form=form_of(kind))
        for step in (
            partial(Map, fn=lambda r: {"n": r.n * 2}),
            partial(Filter, predicate=lambda r: r.n > 1),
            partial(KeyBy, fn=lambda r: r.car),
        ):
            (sent,) = Stepped(step).push(given).batches()
            assert isinstance(sent, ColumnBatch)
        assert not given.rows_made


def test_results_of_windows_are_computed_by_their_fields() -> None:
    windows = WindowResult(0, 10, 5, False), WindowResult(10, 20, 7, False)
    given = ColumnBatch(
        pa.record_batch({"start": [0, 10], "end": [10, 20], "value": [5, 7], "update": [False, False]}),
        form=WINDOW_RESULT,
    )
    (sent,) = Stepped(partial(Map, fn=lambda w: {"at": w.start, "n": w.value + 1})).push(given).batches()
    assert isinstance(sent, ColumnBatch)
    assert sent.values == [{"at": one.start, "n": one.value + 1} for one in windows]
