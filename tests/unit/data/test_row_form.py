"""Row forms: values made of columns, and fields looked up by name."""

from __future__ import annotations

import datetime as dt
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
from hypothesis import given
from hypothesis import strategies as st

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
    rows_of,
)
from malstrom_py.errors import CodecError
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


class OwnProperty(Named):
    @property
    def price(self) -> int | None:
        return None


@dataclass
class OwnSetter:
    key: str
    price: int | None

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value * 2 if name == "key" else value)


class OwnGetter(msgspec.Struct):
    key: str
    price: int | None

    def __getattribute__(self, name: str) -> Any:
        return "x" if name == "key" else super().__getattribute__(name)


class Doubled:
    def __get__(self, of: Any, kind: type) -> Any:
        if of is None:
            raise AttributeError
        return of.set_key * 2

    def __set__(self, of: Any, value: Any) -> None:
        of.set_key = value


@dataclass
class OwnDescriptor:
    key: Doubled = Doubled()
    price: int | None = None


COLUMNS = pa.RecordBatch.from_pydict({"key": ["a", "b", "a"], "price": [3, None, 2**60]})
TURNED = COLUMNS.select(["price", "key"])
PLAIN: list[type] = [Struct, KeywordStruct, Data, KeywordData, Named, Plain]
CHANGED: list[type] = [CorrectedStruct, OwnInit, OwnNew, OwnProperty, OwnSetter, OwnGetter, OwnDescriptor]


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


# Rows of columns


NAMES = st.text(min_size=1, max_size=5)
TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bool": (pa.bool_(), st.booleans()),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "double": (pa.float64(), st.floats(allow_nan=False)),
    "text": (pa.string(), st.text()),
    "bytes": (pa.binary(), st.binary()),
    "decimal": (
        pa.decimal128(38, 2),
        st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**9), max_value=10**9),
    ),
    "date": (pa.date32(), st.dates()),
    "time": (pa.time64("us"), st.times()),
    "us": (pa.timestamp("us"), st.datetimes()),
    "ms": (pa.timestamp("ms"), st.datetimes().map(lambda at: at.replace(microsecond=0))),
    "zone": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    "duration": (pa.duration("us"), st.timedeltas(dt.timedelta(days=-9999), dt.timedelta(days=9999))),
    "list": (pa.list_(pa.int64()), st.lists(st.integers(-5, 5), max_size=3)),
    "struct": (pa.struct([("x", pa.int64())]), st.fixed_dictionaries({"x": st.integers(-5, 5) | st.none()})),
}


@pytest.mark.parametrize("name", TYPES)
@given(data=st.data())
def test_every_type_comes_as_arrow_itself_gives_it(name: str, data: st.DataObject) -> None:
    kind, values = TYPES[name]
    column = pa.array(data.draw(st.lists(st.none() | values, max_size=6)), kind)
    found = python_values(column, "x")
    assert found == column.to_pylist()
    assert [type(value) for value in found] == [type(value) for value in column.to_pylist()]


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC")])
@given(hours=st.lists(st.none() | st.sampled_from([-(10**6), 0, 7, 10**6]), max_size=40), start=st.integers(0, 3))
def test_moments_that_repeat_come_as_arrow_itself_gives_them(
    kind: pa.DataType, hours: list[int | None], start: int
) -> None:
    zero = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
    times = [None if hour is None else zero + dt.timedelta(hours=hour) for hour in hours]
    column = pa.array(times, kind).slice(start)
    assert python_values(column, "x") == column.to_pylist() == times[start:]
    assert python_values(pa.chunked_array([column, column], kind), "x") == times[start:] * 2


def test_dates_beyond_those_of_python_are_refused_and_dictionaries_are_decoded() -> None:
    days = pa.array([0, 10**7], pa.int32()).view(pa.date32())
    with pytest.raises(CodecError, match="has a value that Python cannot hold"):
        python_values(days, "x")
    words = pa.array(["a", None, "b", "a"]).dictionary_encode()
    assert python_values(words, "x") == ["a", None, "b", "a"]


@given(names=st.lists(NAMES, min_size=1, max_size=6, unique=True), rows=st.integers(0, 4))
def test_names_are_data_never_code(names: list[str], rows: int) -> None:
    columns = pa.RecordBatch.from_arrays([pa.array([n] * rows, pa.int64()) for n in range(len(names))], names=names)
    assert rows_of(columns) == columns.to_pylist()


@pytest.mark.parametrize("width", [0, 1, 2, 199, 200, 201, 300])
def test_any_number_of_columns(width: int) -> None:
    columns = pa.RecordBatch.from_pydict({f"c{n}": [n, None] for n in range(width)})
    assert rows_of(columns) == columns.to_pylist()


def test_rows_without_columns_are_empty_dicts() -> None:
    batch = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    assert rows_of(batch) == [{}, {}]


def test_signs_and_kinds_of_floats_stay() -> None:
    values = python_values(pa.array([-0.0, float("nan"), float("-inf")]), "x")
    assert [str(value) for value in values] == ["-0.0", "nan", "-inf"]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("time", [2**63 - 1, -(2**63) + 1])
def test_times_beyond_python_s_years_are_an_error_that_tells_no_value(unit: str, time: int) -> None:
    with pytest.raises(
        CodecError, match=rf"^column 'at' of Arrow type timestamp\[{unit}\] has a value that Python cannot"
    ):
        rows_of(pa.RecordBatch.from_arrays([pa.array([time], pa.timestamp(unit))], names=["at"]))


def test_the_first_and_the_last_moment_are_there() -> None:
    ends = pa.array([-62_135_596_800_000_000, 253_402_300_799_999_999, None], pa.timestamp("us"))
    assert [str(at) for at in python_values(ends, "x")] == ["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "None"]
