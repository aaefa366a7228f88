"""Row forms: values made of columns, and fields looked up by name."""

from __future__ import annotations

import pickle
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest

from malstrom_py.codec.in_flight import decode_batch, encode_batch
from malstrom_py.data.batch import ColumnBatch
from malstrom_py.data.row_form import (
    DICTS,
    SCALAR,
    TUPLES,
    RowForm,
    class_fields,
    field_lists,
    fields_of,
    form_of,
    getter_of,
    looked_up,
    python_values,
)
from malstrom_py.windows import WINDOW_RESULT, WindowResult


class Struct(msgspec.Struct, frozen=True):
    key: str
    price: int | None


class KeywordStruct(msgspec.Struct, kw_only=True):
    key: str
    price: int | None


class CorrectedStruct(msgspec.Struct):
    key: str
    price: int | None

    def __post_init__(self) -> None:
        self.price = 0 if self.price is None else self.price


@dataclass(frozen=True, slots=True)
class Data:
    key: str
    price: int | None


@dataclass(kw_only=True)
class KeywordData:
    key: str
    price: int | None


@dataclass(init=False)
class OwnInit:
    key: str
    price: int | None

    def __init__(self, key: str, price: int | None) -> None:
        self.key = key.upper()
        self.price = price


class Named(NamedTuple):
    key: str
    price: int | None


Plain = namedtuple("Plain", ["key", "price"])


class OwnNew(Named):
    def __new__(cls, key: str, price: int | None) -> OwnNew:
        return super().__new__(cls, key * 2, price)


COLUMNS = pa.RecordBatch.from_pydict({"key": ["a", "b", "a"], "price": [3, None, 2**60]})
TURNED = COLUMNS.select(["price", "key"])
PLAIN: list[type] = [Struct, KeywordStruct, Data, KeywordData, Named, Plain]
CHANGED: list[type] = [CorrectedStruct, OwnInit, OwnNew]


@pytest.mark.parametrize("kind", [*PLAIN, *CHANGED])
@pytest.mark.parametrize("columns", [COLUMNS, TURNED], ids=["in order", "turned"])
def test_a_class_is_made_by_its_constructor(kind: Callable[..., Any], columns: pa.RecordBatch) -> None:
    form = form_of(kind)
    made = form.rows(columns)
    assert made == [kind(key=row["key"], price=row["price"]) for row in columns.to_pylist()]
    assert {type(value) for value in made} == {kind}
    assert form.rows(columns.slice(0, 0)) == []


@pytest.mark.parametrize("kind", CHANGED)
def test_a_class_that_changes_its_arguments_is_not_looked_up_in_columns(kind: type) -> None:
    batch = ColumnBatch(COLUMNS, form=form_of(kind))
    assert batch.field("key") is None
    assert batch.as_dicts() is None
    assert not form_of(kind).has_fields


@pytest.mark.parametrize("kind", PLAIN)
def test_fields_of_a_plain_class_are_its_columns(kind: type) -> None:
    batch = ColumnBatch(COLUMNS, form=form_of(kind))
    assert batch.field("price") == [value.price for value in batch.values]
    found = batch.as_dicts()
    assert found is not None
    assert found.values == fields_of(batch.values) == COLUMNS.to_pylist()


def test_scalars_and_tuples_have_no_names() -> None:
    column = COLUMNS.column("price")
    scalars = ColumnBatch(pa.RecordBatch.from_arrays([column], names=["value"]), form=SCALAR)
    tuples = ColumnBatch(COLUMNS, form=TUPLES)
    assert scalars.values == [3, None, 2**60]
    assert tuples.values == [("a", 3), ("b", None), ("a", 2**60)]
    for batch in (scalars, tuples):
        assert (batch.field("value"), batch.column("key"), batch.series("value")) == (None, None, None)
    as_dicts = scalars.as_dicts()
    assert as_dicts is not None
    assert as_dicts.values == fields_of(scalars.values)
    assert tuples.as_dicts() is None
    no_columns = COLUMNS.select([])
    assert TUPLES.rows(no_columns) == [()] * no_columns.num_rows


def test_results_of_windows_have_values_or_dicts() -> None:
    bounds = {"start": [0, 10], "end": [10, 20], "value": [1.5, None], "update": [False, True]}
    batch = ColumnBatch(pa.RecordBatch.from_pydict(bounds), form=WINDOW_RESULT)
    assert batch.values == [WindowResult(0, 10, 1.5), WindowResult(10, 20, None, True)]
    figures = [{"n": 1, "mean": 2.5}, {"n": 2, "mean": None}]
    batch = ColumnBatch(pa.RecordBatch.from_pydict({**bounds, "value": figures}), form=WINDOW_RESULT)
    assert batch.values == [WindowResult(0, 10, figures[0]), WindowResult(10, 20, figures[1], True)]
    assert batch.field("value") == figures
    assert batch.field("end") == [10, 20]


def forms() -> list[tuple[RowForm, pa.RecordBatch]]:
    scalar = pa.RecordBatch.from_arrays([COLUMNS.column("price")], names=["value"])
    window = pa.RecordBatch.from_pydict(
        {"start": [0, 1, 2], "end": [3, 4, 5], "value": [{"n": 1}] * 3, "update": [True] * 3}
    )
    classes = [(form_of(kind), COLUMNS) for kind in (*PLAIN, *CHANGED)]
    return [(DICTS, COLUMNS), (SCALAR, scalar), (TUPLES, COLUMNS), (WINDOW_RESULT, window), *classes]


@pytest.mark.parametrize(("form", "columns"), forms(), ids=lambda thing: getattr(thing, "name", ""))
@pytest.mark.parametrize("rows_first", [False, True])
def test_the_form_travels_with_the_batch(form: RowForm, columns: pa.RecordBatch, rows_first: bool) -> None:
    import polars as pl

    batch = ColumnBatch(columns, keys=["x", "y", "x"], timestamps=[1, 2, 3], form=form)
    expected = form.rows(columns)
    if rows_first:
        assert batch.values == expected
    assert batch.cut(1, 3).values == expected[1:]
    assert batch.take([2, 0]).values == [expected[2], expected[0]]
    assert batch.drop([1]).values == [expected[0], expected[2]]
    assert batch.where(pl.Series([False, True, None])).values == [expected[1]]
    assert batch.with_keys([1, 2, 3]).with_timestamps([4, 5, 6]).of_part("p", named=True).values == expected
    assert [value for piece in batch.pieces(2) for value in piece.values] == expected
    framed = ColumnBatch(None, frame=batch.frame, form=form)
    assert framed.cut(0, 2).values == expected[:2]
    again: ColumnBatch = pickle.loads(pickle.dumps(batch))
    decoded = decode_batch(encode_batch(batch, step="s"))
    assert isinstance(decoded, ColumnBatch)
    for one in (again, decoded):
        assert one.form is form
        assert (one.keys, one.values, one.timestamps) == (["x", "y", "x"], expected, [1, 2, 3])


def test_a_class_made_inside_a_function_travels() -> None:
    class Local(msgspec.Struct):
        key: str
        price: int | None

    batch = ColumnBatch(COLUMNS, keys=[1, 2, 3], form=form_of(Local))
    found = decode_batch(encode_batch(batch, step="s"))
    assert found.values == batch.values


def test_what_is_no_form() -> None:
    @dataclass
    class Unset:
        key: str

        def __post_init__(self) -> None:
            self.key += "x"

    with pytest.raises(TypeError, match="int has no fields: give dict"):
        form_of(int)
    assert form_of(Unset).by_name is False

    @dataclass
    class Computed:
        key: str
        size: int = field(init=False, default=0)

    with pytest.raises(TypeError, match=r"'size' of .*Computed is not an argument"):
        form_of(Computed)


VALUES: list[Any] = [{"key": "a"}, Struct("a", 1), Data("a", 1), Named("a", 1), WindowResult(1, 2, 3)]


def test_a_name_is_an_item_of_a_dict_and_a_field_of_a_class() -> None:
    for value in VALUES[:-1]:
        assert getter_of(itemgetter("key"), value)(value) == "a"
    assert [looked_up(itemgetter("key"))(value) for value in VALUES[:-1]] == ["a"] * 4
    window = VALUES[-1]
    assert [getter_of(itemgetter(name), window)(window) for name in ("start", "end", "value")] == [1, 2, 3]
    # Only fields count: `count` is a method of tuples.
    for value in (window, Named("a", 1)):
        with pytest.raises(TypeError):
            looked_up(itemgetter("count"))(value)
    assert getter_of(itemgetter(0), (5, 6))((5, 6)) == 5
    assert getter_of(itemgetter(0, 1), (5, 6))((5, 6)) == (5, 6)
    assert class_fields(dict) == ()


def test_field_lists_are_the_fields_of_the_rows() -> None:
    alike: list[list[Any]] = [
        [{"a": 1, "b": 2}, {"b": 3, "a": None}],
        [Struct("a", 1), Struct("b", None)],
        [Named("a", 1), Named("b", 2)],
        [Data("a", 1)],
        [WindowResult(1, 2, {"n": 3})],
    ]
    for values in alike:
        lists = field_lists(values)
        assert lists is not None
        assert [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)] == fields_of(values)
    other: list[list[Any]] = [
        [],
        [{}],
        [1, 2],
        [(1, 2)],
        [{"a": 1}, {"a": 1, "b": 2}],
        [{"a": 1, "b": 2}, {"a": 1}],
        [{"a": 1}, {"b": 1}],
        [{"a": 1}, Struct("a", 1)],
        [Struct("a", 1), Named("a", 1)],
    ]
    assert [field_lists(values) for values in other] == [None] * len(other)


def test_structs_without_nulls_are_made_field_by_field() -> None:
    when = datetime(2013, 1, 1)  # noqa: DTZ001
    values = [{"a": 1, "b": {"at": when, "l": [1]}}, {"a": None, "b": {"at": None, "l": []}}]
    column = pa.array(values)
    assert python_values(column, "c") == values
    assert python_values(column.slice(1), "c") == values[1:]
    with_null = pa.array([values[0], None])
    assert python_values(with_null, "c") == [values[0], None]
