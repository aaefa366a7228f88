"""`Groups` beside the row path: the same results, states and types, over generated data; or it changes nothing."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malstrom_py import agg
from malstrom_py.agg import Aggregation
from malstrom_py.state.group_index import GroupIndex, NotColumnar, ids_of, keys_as_columns, listed_keys
from malstrom_py.state.groups import Groups
from malstrom_py.state.key_symbols import KeySymbols, SymbolIndex

NAMES = ("count", "first", "last", "max", "mean", "min", "sum")

KEYS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int": (pa.int64(), st.integers(-2, 4) | st.sampled_from([2**63 - 1, -(2**63)])),
    "small": (pa.uint8(), st.integers(0, 5)),
    "str": (pa.string(), st.sampled_from(["", "a", "b", "ä\0", "日本" * 9])),
    "view": (pa.string_view(), st.sampled_from(["", "a", "a long one, beyond twelve bytes"])),
    "bytes": (pa.large_binary(), st.binary(max_size=2)),
    "none": (pa.null(), st.none()),
}
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int": (pa.int64(), st.integers(-3, 3) | st.sampled_from([2**53 + 1, -(2**53) - 1, 2**62, -(2**63), 2**63 - 1])),
    "small": (pa.uint16(), st.integers(0, 9)),
    "float": (pa.float64(), st.sampled_from([0.0, -0.0, 0.1, 1e17, -1e17]) | st.floats(width=64)),
    "half": (pa.float32(), st.floats(width=32)),
    "bool": (pa.bool_(), st.booleans()),
    "none": (pa.null(), st.none()),
}


def same(one: Any) -> Any:
    """Type and bits of results, all NaN alike."""
    if isinstance(one, list | tuple):
        return [same(each) for each in one]
    if isinstance(one, dict):
        return same(list(one.items()))
    if isinstance(one, float):
        return "NaN" if one != one else struct.pack("d", one)
    return type(one), one


class RowPath:
    """The states of some aggregations as the loops over rows keep them."""

    def __init__(self, aggregations: Sequence[Aggregation[Any, Any]]) -> None:
        self.aggregations = aggregations
        self.states: list[dict[Any, Any]] = [{} for _ in aggregations]

    def add(self, keys: list[Any], values: list[Any]) -> list[list[Any]]:
        results: list[list[Any]] = [[] for _ in self.aggregations]
        for one, states, out in zip(self.aggregations, self.states, results, strict=True):
            one.run(zip(keys, values, strict=True), out, states)
        return results

    def merge(self, other: RowPath) -> None:
        for one, states, later in zip(self.aggregations, self.states, other.states, strict=True):
            for key, state in later.items():
                states[key] = one.merge(states[key], state) if key in states else state


def check(groups: Groups, rows: RowPath) -> None:
    keys, results = groups.finish()
    assert [keys.to_pylist()] * len(rows.states) == [list(states) for states in rows.states]
    assert len(groups) == len(keys)
    for one, states, own, result in zip(rows.aggregations, rows.states, groups.states(), results, strict=True):
        assert same(own) == same(list(states.values())), one
        assert same(result.to_pylist()) == same([one.finish(state) for state in states.values()]), one


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_groups_are_the_row_path(data: st.DataObject) -> None:
    skips = data.draw(st.booleans())
    names = data.draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    aggs = [getattr(agg, name)(*(["v"] if skips else []), skip_nulls=skips) for name in names]
    key_type, key = KEYS[data.draw(st.sampled_from(sorted(KEYS)))]
    value_type, value = VALUES[data.draw(st.sampled_from(sorted(VALUES)))]
    value = st.none() | value if skips or data.draw(st.integers(0, 9)) == 0 else value
    groups, rows = Groups(aggs), RowPath(aggs)
    for _ in range(data.draw(st.integers(1, 4))):
        pairs = data.draw(st.lists(st.tuples(st.none() | key, value), max_size=30))
        keys, values = [one for one, _ in pairs], [one for _, one in pairs]
        pad = data.draw(st.integers(0, 2))  # a slice has an offset
        columns = [pa.array([*values[:1] * pad, *values], value_type)[len(values[:1]) * pad :]] * len(aggs)
        key_column = pa.array([*keys[:1] * pad, *keys], key_type)[len(keys[:1]) * pad :]
        if data.draw(st.booleans()):
            columns = [column.dictionary_encode() for column in columns]
        before = same(groups.states())
        do = data.draw(st.sampled_from(["scan", "fold", "merge", "put"]))
        results = None
        try:
            if do == "scan":
                results = groups.scan(key_column, columns)
            elif do == "fold":
                groups.fold(key_column, columns)
            else:
                later = Groups(aggs)
                later.fold(key_column, columns)
                if do == "put":
                    copy = Groups(aggs)
                    copy.put(later.keys().to_pylist(), later.states())
                    later = copy
                groups = Groups.merged([groups, later])
        except NotColumnar:
            assert same(groups.states()) == before
            return
        if results is None and do != "fold":
            own = RowPath(aggs)
            own.add(keys, values)
            rows.merge(own)
        else:
            expected = rows.add(keys, values)
            if results is not None:
                assert same([column.to_pylist() for column in results]) == same(expected)
        check(groups, rows)


def test_long_groups_are_added_in_order_of_rows() -> None:
    aggs = [agg.sum(), agg.mean()]
    groups, rows = Groups(aggs), RowPath(aggs)
    keys = [0 if place % 3 else place % 7 for place in range(2_000)]
    values = [0.1 * place if place % 5 else 1e16 for place in range(2_000)]
    for _ in range(2):
        results = groups.scan(pa.array(keys), [pa.array(values)] * 2)
        assert same([column.to_pylist() for column in results]) == same(rows.add(keys, values))
    check(groups, rows)


def test_times_are_compared_and_kept() -> None:
    aggs = [agg.min(), agg.last()]
    for type_, values in (
        (pa.timestamp("ms"), [datetime(2013, 1, 2), datetime(1, 1, 1), datetime(9999, 12, 31)]),  # noqa: DTZ001
        (pa.timestamp("us", "UTC"), [datetime(2013, 1, 2, tzinfo=UTC), datetime(1960, 1, 2, tzinfo=UTC)]),
        (pa.date32(), [date(2013, 1, 2), date(1, 1, 1)]),
    ):
        groups, rows = Groups(aggs), RowPath(aggs)
        groups.fold(pa.array([1] * len(values)), [pa.array(values, type_)] * 2)
        rows.add([1] * len(values), values)
        check(groups, rows)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([Decimal("1.5")]),
        pa.array(["a"]),
        pa.array([1], pa.timestamp("ns")),
        pa.array([datetime(2013, 1, 2, tzinfo=timezone(timedelta(hours=1)))]),
        pa.array([2**62], pa.timestamp("s")),
        pa.array([2**64 - 1], pa.uint64()),
        pa.array([[1]]),
    ],
    ids=lambda column: str(column.type),
)
def test_other_values_are_refused(column: pa.Array) -> None:
    for one in (agg.min(), agg.sum(), agg.last()):
        groups = Groups([one])
        with pytest.raises(NotColumnar):
            groups.fold(pa.array(["a"]), [column])
        assert len(groups) == 0


def test_a_type_never_changes() -> None:
    groups = Groups([agg.sum()])
    groups.fold(pa.array(["a"]), [pa.array([1])])
    with pytest.raises(NotColumnar):
        groups.fold(pa.array(["b"]), [pa.array([1.5])])
    with pytest.raises(NotColumnar):
        groups.put(["c"], [[1.5]])
    with pytest.raises(NotColumnar):
        groups.fold(pa.array([1]), [pa.array([1])])
    assert groups.states() == [[1]]


@pytest.mark.parametrize("one", [agg.std(), agg.n_unique(), agg.custom(int, max, max, int)], ids=repr)
def test_other_aggregations_have_no_arrays(one: Aggregation[Any, Any]) -> None:
    assert not Groups.supports([agg.count(), one])
    with pytest.raises(NotColumnar):
        Groups([one])


def test_states_that_no_array_holds_are_refused() -> None:
    for one, state in ((agg.sum(), 2**63), (agg.sum(), Decimal(1)), (agg.sum(), True), (agg.min(), "a")):
        with pytest.raises(NotColumnar):
            Groups([one]).put(["k"], [[state]])
    for key in (1.0, True, ("a",), 2**63, "\udc80"):
        with pytest.raises(NotColumnar):
            Groups([agg.count()]).put([key], [[1]])


def test_keys_that_are_taken_come_back_new() -> None:
    groups = Groups([agg.count(), agg.min()])
    everyone = pa.array(range(10_000))
    groups.fold(everyone, [None, everyone])
    for step in range(5):
        gone = pa.array(range(step * 1_500, step * 1_500 + 1_500))
        groups.take(groups.find(gone))
        assert groups.find(gone).tolist() == [-1] * 1_500
    assert len(groups) == 2_500
    assert groups.keys().to_pylist() == list(range(7_500, 10_000))
    groups.fold(pa.array([3, 9_999]), [None, pa.array([5, 5])])
    assert groups.states(groups.find(pa.array([3, 9_999]))) == [[1, 2], [5, 5]]
    groups.fold(everyone, [None, everyone])
    groups.take(groups.live())
    assert groups.find(pa.array([3])).tolist() == [-1], "all have left together"


def test_changed_ids_are_flagged() -> None:
    groups = Groups([agg.count()])
    groups.fold(pa.array(["a", "b"]), [None])
    groups.changed[:] = False
    groups.fold(pa.array(["b", "c"]), [None])
    assert groups.keys(groups.live()[groups.changed[groups.live()]]).to_pylist() == ["b", "c"]


def test_an_index_takes_one_kind_of_keys() -> None:
    index = GroupIndex()
    assert index.ids(pa.array([5, None], pa.int8())).tolist() == [0, 1]
    assert index.ids(pa.array([None, 5, 6], pa.int64()).dictionary_encode()).tolist() == [1, 0, 2]
    for other in (pa.array(["5"]), pa.array([b"5"]), pa.array([5.0]), pa.array([2**64 - 1], pa.uint64())):
        with pytest.raises(NotColumnar):
            index.ids(other)
    assert index.find(pa.array([6, 7])).tolist() == [2, -1]
    assert index.keys().to_pylist() == [5, None, 6]
    assert GroupIndex.supports(pa.dictionary(pa.int32(), pa.string()))
    assert not GroupIndex.supports(pa.timestamp("us"))


@settings(max_examples=60, deadline=None)
@given(
    runs=st.lists(st.tuples(st.sampled_from(["", "a", "ab", "ä", None]), st.integers(1, 200)), min_size=1, max_size=8),
    missing=st.booleans(),
    start=st.integers(0, 70),
)
def test_a_key_that_repeats_has_the_id_of_the_row_before(runs: list[Any], missing: bool, start: int) -> None:
    keys = [key for key, times in runs for _ in range(times) if missing or key is not None]
    column, index = pa.array(keys, pa.string()).slice(start), GroupIndex()
    expected = {key: number for number, key in enumerate(dict.fromkeys(column.to_pylist()))}
    assert index.find(column).tolist() == [-1] * len(column)
    assert index.ids(column).tolist() == [expected[key] for key in column.to_pylist()]
    assert index.find(column).tolist() == [expected[key] for key in column.to_pylist()]


@given(data=st.data(), kind=st.sampled_from(sorted(KEYS)))
def test_keys_of_some_ids_are_those_of_all(data: st.DataObject, kind: str) -> None:
    type_, keys = KEYS[kind]
    index = GroupIndex()
    for batch in data.draw(st.lists(st.lists(keys | st.none(), max_size=9), max_size=4)):
        index.ids(pa.array(batch, type_))
        ids = data.draw(st.lists(st.integers(0, len(index) - 1))) if len(index) else []
        every, some = index.keys(), index.keys(np.array(ids, np.int64))
        assert len(every) == len(set(every.to_pylist())) == len(index)
        assert (some.to_pylist(), some.type) == ([every.to_pylist()[place] for place in ids], every.type)
        assert index.find(every).tolist() == list(range(len(index)))


TUPLES = st.integers(2, 4).flatmap(
    lambda width: st.lists(
        st.lists(st.tuples(*[st.sampled_from([1, -2, 2**62, None]), *[st.sampled_from(["", "a", None])] * (width - 1)]))
    )
)


@settings(max_examples=60, deadline=None)
@given(TUPLES)
def test_tuples_have_ids_as_in_a_dict(batches: list[list[tuple[Any, ...]]]) -> None:
    index, expected = GroupIndex(), dict[tuple[Any, ...], int]()
    for keys in filter(None, batches):
        columns = keys_as_columns(keys)
        assert index.find(columns).tolist() == [expected.get(key, -1) for key in keys]
        assert index.ids(columns).tolist() == [expected.setdefault(key, len(expected)) for key in keys]
    if expected:
        places = np.arange(len(expected))[::-2]
        assert index.has_tuples
        assert listed_keys(index.keys()) == list(expected)
        assert listed_keys(index.raw(places)) == [list(expected)[place] for place in places]
        assert ids_of(index.find, [(True, 2.5), (1.0, ""), "a"]).tolist() == [-1, expected.get((1, ""), -1), -1]


def test_an_index_of_tuples_takes_tuples_of_one_kind() -> None:
    index = GroupIndex()
    assert index.ids(keys_as_columns([(1, "a"), (1, "b")])).tolist() == [0, 1]
    others: list[list[Any]] = [
        [1],
        ["a"],
        [(1, "a", 2)],
        [("a", 1)],
        [None],
        [(True, "a")],
        [(1, 0.5)],
        [((1, 2), "a")],
    ]
    for keys in others:
        with pytest.raises(NotColumnar):
            index.ids(keys_as_columns(keys))
    for keys in ([(1, "a"), (1, 2, 3)], [(1,)], [(1, "a"), None], [(1, "a"), (1, 2)]):
        with pytest.raises(NotColumnar):
            keys_as_columns(keys)
    with pytest.raises(NotColumnar):
        GroupIndex(index._kind).ids(pa.array(["a"]))
    plain = GroupIndex()
    plain.ids(pa.array([1]))
    with pytest.raises(NotColumnar):
        plain.find(keys_as_columns([(1, "a")]))


def test_text_that_is_not_utf8_is_refused() -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff")]
    )
    index = GroupIndex()
    with pytest.raises(NotColumnar):
        index.ids(broken)
    assert len(index) == 0


# Key symbols


CLOSE = st.integers(-5, 5)
INTS = st.one_of(CLOSE, st.sampled_from([9_000, 20_000, 2**63 - 1, -(2**63), 10**9, 10**9 + 1]))
SYMBOL_KEYS = st.one_of(
    st.lists(st.lists(CLOSE, min_size=1, max_size=12), max_size=6),
    st.lists(st.lists(INTS, min_size=1, max_size=12), max_size=6),
    st.lists(st.lists(st.one_of(st.none(), INTS), min_size=1, max_size=12), max_size=6),
    st.lists(st.lists(st.sampled_from(["", "a", "ä", "🐜", None]), min_size=1, max_size=12), max_size=6),
    st.lists(st.lists(st.sampled_from([b"", b"a", b"\xff"]), min_size=1, max_size=12), max_size=6),
)


@settings(max_examples=60, deadline=None)
@given(batches=SYMBOL_KEYS)
def test_ids_are_those_of_an_index_of_columns(batches: list[list[Any]]) -> None:
    symbols = KeySymbols()
    ours, theirs = [SymbolIndex(symbols) for _ in range(2)], [GroupIndex() for _ in range(2)]
    for number, keys in enumerate(batches):
        column = pa.array(keys)
        try:
            numbers = symbols.of(column)
        except NotColumnar:
            assert None in keys
            continue
        rows, expected = ours[number % 2].group(numbers), theirs[number % 2].group(column)
        assert rows.ids.tolist() == expected.ids.tolist()
        assert sorted(rows.which.tolist()) == sorted(set(rows.ids.tolist()))
        assert [rows.which[code] for code in rows.codes] == rows.ids.tolist()
        for one, other in zip(ours, theirs, strict=True):
            assert len(one) == len(other)
            assert one.keys().to_pylist() == other.keys().to_pylist()
            assert one.find(column).tolist() == other.find(column).tolist()


def test_ids_stay_when_numbers_spread_and_close_up() -> None:
    symbols, index = KeySymbols(), GroupIndex()
    ours = SymbolIndex(symbols)
    for keys in ([3, 1], [5_000, 1], [-9_000, 3], [70_000, 3], range(60_000), [-(2**63), 7, 70_000], [2**63 - 1, 5]):
        column = pa.array(keys, pa.int64())
        assert ours.group(symbols.of(column)).ids.tolist() == index.ids(column).tolist()
        assert ours.find(column).tolist() == index.find(column).tolist()
    assert ours.keys().equals(index.keys())


def test_keys_that_no_index_has_are_forgotten_once_they_are_many() -> None:
    symbols, kept, gone = KeySymbols(), None, None
    kept, gone = SymbolIndex(symbols), SymbolIndex(symbols)
    kept.group(symbols.of(pa.array(["b", "a"])))
    for batch in range(10):
        gone.group(symbols.of(pa.array([f"{batch}-{number}" for number in range(1000)])))
    kept.group(symbols.of(pa.array(["c"])))
    symbols.forget([kept, gone])
    assert symbols.of(pa.array(["c"])).tolist() == [10_002]
    symbols.forget([kept])
    assert symbols.of(pa.array(["new"])).tolist() == [10_003]  # looked at again once there are twice as many
    for batch in range(30):
        symbols.of(pa.array([f"{batch}+{number}" for number in range(1000)]))
    symbols.forget([kept])
    assert symbols.of(pa.array(["d"])).tolist() == [3]
    assert kept.keys().to_pylist() == ["b", "a", "c"]
    assert kept.group(symbols.of(pa.array(["a", "d", "b"]))).ids.tolist() == [1, 3, 0]
    symbols.forget([])
    assert symbols.of(pa.array([7])).tolist() == [7]


def test_integers_are_their_own_numbers_and_take_no_none() -> None:
    symbols = KeySymbols()
    assert symbols.find(pa.array([3]))[1].tolist() == [False]
    assert symbols.of(pa.array([2**62, -4], pa.int64())).tolist() == [2**62, -4]
    assert SymbolIndex(symbols).find(pa.array([None, 2**62])).tolist() == [-1, -1]
    with pytest.raises(NotColumnar):
        symbols.of(pa.array([1, None]))
    with pytest.raises(NotColumnar):
        symbols.of(pa.array(["a"]))


@settings(max_examples=60, deadline=None)
@given(
    values=st.sampled_from([name for name in VALUES if name != "none"]).flatmap(
        lambda kind: st.lists(st.none() | VALUES[kind][1], min_size=2, max_size=9).map(lambda of: (VALUES[kind][0], of))
    ),
    name=st.sampled_from(NAMES),
    skip_nulls=st.booleans(),
)
def test_rows_of_one_key_give_what_rows_of_several_do(
    values: tuple[pa.DataType, list[Any]], name: str, *, skip_nulls: bool
) -> None:
    """Of one number per batch there is one reduction."""
    one = agg.count() if name == "count" and not skip_nulls else getattr(agg, name)("v", skip_nulls=skip_nulls)
    column, found = pa.array(values[1], values[0]), []
    for others in ([], ["b"]):
        symbols = KeySymbols()
        groups = Groups([one], SymbolIndex(symbols))
        keys = pa.array(["a"] * len(column) + others)
        try:
            for _ in range(2):
                numbers = symbols.of(keys) if others else symbols.of(keys[:1], rows=len(keys))
                groups.fold(numbers, [pa.concat_arrays([column, column[:1]]) if others else column])
            found.append(groups.states(groups.find(pa.array(["a"]))))
        except NotColumnar:
            found.append([["rows"]])
    assert same(found[0]) == same(found[1])


@pytest.mark.parametrize("nothing", [pa.null(), pa.int64(), pa.string(), pa.binary()], ids=str)
@pytest.mark.parametrize("keys", [[1, None], ["1", None], [b"1", None]], ids=repr)
def test_keys_of_windows_have_the_type_of_those_that_are_not_none(nothing: pa.DataType, keys: list[Any]) -> None:
    """A column of None alone that came before had set it: 1 became "1", text became bytes, or the step failed."""
    symbols = KeySymbols()
    numbers = [*symbols.of(pa.nulls(1, nothing)), *symbols.of(pa.array(keys))]
    assert symbols.keys(np.array(numbers)).to_pylist() == [None, *keys]
