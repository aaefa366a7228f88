"""What is sent between the workers of a job: batches and states, decoded to the exact types."""

from __future__ import annotations

import random
import threading
from collections import OrderedDict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from malstrom_py.codec import Codec
from malstrom_py.codec.encoding_errors import NotDecodable
from malstrom_py.codec.in_flight import (
    FLOATS,
    INTS,
    PICKLED,
    STRINGS,
    _known_names,
    decode_batch,
    decode_column,
    decode_fields,
    decode_in_flight,
    encode_batch,
    encode_column,
    encode_fields,
    encode_in_flight,
)
from malstrom_py.data.batch import Batch, ColumnBatch, place_of
from malstrom_py.errors import CodecError
from tests.fuzz.codec_values import Stats, canonical, hashables, values
from tests.unit.state.accelerators import PATHS, running

columns_of_one_type = st.one_of(
    st.lists(st.integers()),
    st.lists(st.integers(-(2**63), 2**63 - 1)),
    st.lists(st.floats()),
    st.lists(st.booleans() | st.integers()),
    st.lists(st.none() | st.booleans()),
    st.lists(st.text(st.characters(codec=None, exclude_categories=[]))),
    st.lists(st.tuples(st.text(), st.integers())),
    st.lists(st.dictionaries(st.text(max_size=3), st.integers() | st.text(), max_size=3)),
    st.lists(values, max_size=6),
)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    column = draw(columns_of_one_type)
    rows = len(column)
    keys = draw(st.none() | st.lists(hashables, min_size=rows, max_size=rows))
    timestamps = draw(st.none() | st.lists(st.integers(-(2**63), 2**63 - 1), min_size=rows, max_size=rows))
    return Batch(column, keys=keys, timestamps=timestamps, part=draw(st.none() | st.text(max_size=5)))


def contents(batch: Batch) -> Any:
    return canonical([batch.values, batch.keys, batch.timestamps, batch.part])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(batches())
@example(Batch([], keys=[], timestamps=[], part=""))
@example(Batch([""], keys=["\0"], part="p"))
@example(Batch(["a", ""], keys=["", ""]))
def test_s8_a_batch_comes_back_as_it_was(batch: Batch) -> None:
    assert contents(decode_batch(encode_batch(batch, step="s"))) == contents(batch)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(values)
def test_s8_state_in_flight_comes_back_as_it_was(value: Any) -> None:
    assert canonical(decode_in_flight(encode_in_flight(value, step="s"))) == canonical(value)


def test_a_memoryview_is_read_without_ado() -> None:
    data = bytearray(b"??") + encode_batch(Batch([1, 2]), step="s")
    assert decode_batch(memoryview(data)[2:]).values == [1, 2]


def test_what_is_read_does_not_hold_on_to_what_it_was_read_from() -> None:
    data = bytearray(encode_batch(Batch([1, 2], keys=["a", "b"]), step="s"))
    with memoryview(data) as view:
        batch = decode_batch(view)
    data.clear()
    assert (batch.values, batch.keys) == ([1, 2], ["a", "b"])


def test_functions_and_local_classes_travel_by_cloudpickle() -> None:
    class Local:
        def __eq__(self, other: object) -> bool:
            return type(other) is Local

        __hash__ = None  # type: ignore[assignment]  # not a key

    offset = 3
    back = decode_batch(encode_batch(Batch([lambda x: x + offset, Local()]), step="s")).values
    assert back[0](4) == 7
    assert back[1] == Local()


def test_a_value_that_has_no_pickle_is_named_by_step_key_and_type() -> None:
    batch = Batch([1, {"a": threading.Lock()}, 3], keys=["x", "y", "z"])
    with pytest.raises(CodecError, match=r"step 'by-name' for key 'y': a value of type dict cannot be sent") as caught:
        encode_batch(batch, step="by-name")
    assert (caught.value.step, caught.value.key, caught.value.type_name) == ("by-name", "y", "dict")


def test_a_key_that_has_no_pickle_is_named_by_step_and_type() -> None:
    batch = Batch([1], keys=[threading.Lock()])
    with pytest.raises(CodecError, match=r"step 'by-lock': a value of type _thread.lock cannot be sent") as caught:
        encode_batch(batch, step="by-lock")
    assert caught.value.key is None


def test_state_that_has_no_pickle_is_named() -> None:
    with pytest.raises(CodecError, match=r"step 's' for key 7: a value of type _thread.lock"):
        encode_in_flight(threading.Lock(), step="s", key=7)


BATCH = encode_batch(Batch([(1, "a"), 2], keys=["a", "b"], timestamps=[1, 2], part="p"), step="s")
STATE = encode_in_flight([("a", Stats(), [1])], step="s")


@pytest.mark.parametrize(("data", "decode"), [(BATCH, decode_batch), (STATE, decode_in_flight)], ids=["batch", "state"])
def test_nothing_damaged_is_opened(data: bytes, decode: Any) -> None:
    for end in range(len(data)):
        with pytest.raises(CodecError, match="cannot be read"):
            decode(data[:end])
    for at in range(len(data)):
        for bit in range(8):
            hurt = bytearray(data)
            hurt[at] ^= 1 << bit
            with pytest.raises(CodecError, match="cannot be read"):
                decode(bytes(hurt))
    chance = random.Random(2)
    for _ in range(300):
        with pytest.raises(CodecError):
            decode(chance.randbytes(chance.randrange(60)), step="s")


def test_a_batch_is_no_state_and_state_is_no_batch() -> None:
    with pytest.raises(CodecError, match="another version or kind"):
        decode_batch(STATE)
    with pytest.raises(CodecError, match="another version or kind") as caught:
        decode_in_flight(BATCH, step="sum", key="UA")
    assert (caught.value.step, caught.value.key) == ("sum", "UA")


def test_a_memoryview_as_a_value_is_refused_for_it_would_come_back_as_bytes() -> None:
    for value in (memoryview(b"x"), [memoryview(b"x")], (lambda: 1, memoryview(b"x"))):
        with pytest.raises(CodecError, match="'step'"):
            encode_in_flight(value, step="step")


VALUES = {
    "int": (pa.int8(), [1, -128, None]),
    "float": (pa.float64(), [0.5, -0.0, float("inf")]),
    "text": (pa.large_string(), ["", "é\0", None]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", None, "a"]),
    "nested": (pa.list_(pa.struct([("x", pa.decimal128(5, 2))])), [[], None, [{"x": None}]]),
    "null": (pa.null(), [None, None, None]),
    "time": (pa.timestamp("s", "Europe/Oslo"), [0, -1, None]),
}


def batch_of(columns: dict[str, pa.Array], **others: Any) -> ColumnBatch:
    return ColumnBatch(pa.RecordBatch.from_pydict(columns), **others)


def round_trip(batch: ColumnBatch) -> ColumnBatch:
    codec = Codec()
    found = codec.decode_batch(codec.encode_batch(batch, step="x"), step="x")
    assert isinstance(found, ColumnBatch)
    assert found.columns.equals(batch.columns)
    assert found.columns.schema.equals(batch.columns.schema)
    assert not batch.rows_made
    return found


@pytest.mark.parametrize("name", VALUES)
def test_values_of_each_type_come_back(name: str) -> None:
    kind, values = VALUES[name]
    round_trip(batch_of({"a": pa.array(values, kind), "b": pa.array([1, 2, 3])}))


def test_keys_and_timestamps_come_back_as_what_they_were() -> None:
    arrays = batch_of({"n": pa.array([1, 2])}, key_column=pa.array(["a", None]), time_column=pa.array([5, 6]))
    found = round_trip(arrays)
    assert found.key_column is not None
    assert found.key_column.equals(arrays.key_column)
    assert found.time_column is not None
    assert found.time_column.type == pa.int64()
    assert (found.keys, found.timestamps) == (["a", None], [5, 6])
    lists = round_trip(batch_of({"n": pa.array([1, 2])}, keys=[("a", 1), 2.5], timestamps=[7, 8], part="in/0"))
    assert (lists.keys, lists.timestamps, lists.part) == ([("a", 1), 2.5], [7, 8], "in/0")
    assert lists.key_column is None


def test_keys_and_timestamps_that_are_columns_of_the_values_are_sent_once() -> None:
    columns = pa.record_batch({"at": pa.array(range(1000)), "word": pa.array(["word"] * 999 + [None])})
    shared = ColumnBatch(columns, key_column=columns.column("word"), time_column=columns.column("at"))
    found = round_trip(shared)
    assert (found.keys, found.timestamps) == (["word"] * 999 + [None], list(range(1000)))
    assert found.key_column is not None
    assert place_of(found.key_column, found.columns) == 1
    without = Codec().encode_batch(ColumnBatch(columns), step="x")
    assert len(Codec().encode_batch(shared, step="x")) < len(without) + 100


@given(start=st.integers(0, 50), rows=st.integers(1, 50))
def test_a_slice_is_sent_without_what_it_is_cut_from(start: int, rows: int) -> None:
    whole = batch_of({"s": pa.array([str(n) * 10 for n in range(100)])}, key_column=pa.array(range(100)))
    part = whole.cut(start, start + rows)
    found = round_trip(part)
    assert found.keys == list(range(start, start + rows))
    assert len(Codec().encode_batch(part, step="x")) < len(Codec().encode_batch(whole, step="x"))


def test_damage_is_a_codec_error() -> None:
    data = Codec().encode_batch(batch_of({"n": pa.array([1, 2])}), step="x")
    for at in range(0, len(data), 7):
        with pytest.raises(CodecError):
            Codec().decode_batch(data[:at], step="x")
        with pytest.raises(CodecError):
            Codec().decode_batch(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], step="x")


class Word(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("column", "tag"),
    [
        ([1, -(2**63), 2**63 - 1], INTS),
        ([1, 2**63], PICKLED),
        ([1, True], PICKLED),
        ([True, False], PICKLED),
        ([1.0, float("inf")], FLOATS),
        ([1.0, 2], PICKLED),
        (["a", "", "ключ", "\ud800"], STRINGS),
        (["a\0b"], PICKLED),
        (["a", Word("b")], PICKLED),
        ([None, None], PICKLED),
        ([b"a"], PICKLED),
        ([("a", 1)], PICKLED),
        ([], PICKLED),
    ],
)
def test_only_columns_of_one_exact_plain_type_are_packed(column: list[Any], tag: int) -> None:
    found, data = encode_column(column)
    back = decode_column(found, memoryview(data), len(column))
    assert found == tag
    assert back == column
    assert list(map(type, back)) == list(map(type, column))


@pytest.mark.parametrize("column", [[1, 2], [1.5, 2.5], ["a", "b"], [None, None]])
def test_a_column_of_another_length_is_refused(column: list[Any]) -> None:
    tag, data = encode_column(column)
    with pytest.raises(NotDecodable, match="a different length"):
        decode_column(tag, memoryview(data), 3)


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(NotDecodable, match="unknown"):
        decode_column(0, memoryview(b""), 0)


plain = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4) | st.binary(max_size=4)
)
names = st.lists(st.text(max_size=3), min_size=1, max_size=7, unique=True)


@st.composite
def rows_with_fields(draw: st.DrawFn) -> list[Any]:
    """Tuples, or dicts of one order; each field of one type mostly."""
    named = draw(names)
    kinds = [
        draw(st.sampled_from([st.integers(), st.floats(allow_nan=False), st.text(max_size=3), plain])) for _ in named
    ]
    rows = draw(st.lists(st.tuples(*kinds), min_size=1, max_size=20))
    return [dict(zip(named, row, strict=True)) for row in rows] if draw(st.booleans()) else rows


@given(rows_with_fields(), st.sampled_from(PATHS), st.sampled_from(PATHS), st.booleans())
@example([("a", 2**63), ("\0", 1)], PATHS[-1], PATHS[-1], True)
def test_s8_rows_of_plain_fields_come_back_between_workers_with_and_without_c(
    rows: list[Any], sender: str, receiver: str, keyed: bool
) -> None:
    keys = [next(iter(row.values())) if type(row) is dict else row[0] for row in rows] if keyed else None
    with running(sender):
        data = encode_batch(Batch(rows, keys=keys), step="s")
    with running(receiver):
        batch = decode_batch(data)
    assert canonical(batch.values) == canonical(rows)
    assert canonical(batch.keys) == canonical(keys)
    assert [list(row) for row in batch.values] == [list(row) for row in rows]  # the order of names


@pytest.mark.parametrize("path", [path for path in PATHS if path == "C"])
def test_a_field_that_is_the_key_is_sent_once_and_equal_is_not_enough(path: str) -> None:
    keys = [f"user-{n:04}" for n in range(500)]
    with running(path):
        shared = encode_batch(Batch([(key, 1) for key in keys], keys=keys), step="s")
        equal = encode_batch(Batch([(1, 1)] * 3, keys=[1.0, True, 1]), step="s")
        batch = decode_batch(shared)
        assert len(shared) < 2 * sum(map(len, keys)) + 100
        assert all(row[0] is key for row, key in zip(batch.values, batch.keys or [], strict=True))
        assert list(map(type, decode_batch(equal).values[0])) == [int, int]


@pytest.mark.parametrize("path", PATHS)
def test_a_text_that_many_rows_share_is_sent_once(path: str) -> None:
    shared, few = "x" * 10_000, ["done", "failed", "open"]
    rows = [(n, shared, few[n % 3]) for n in range(1000)]
    with running(path):
        data = encode_batch(Batch(rows), step="s")
        batch = decode_batch(data)
    assert batch.values == rows
    assert len(data) < 25_000
    assert len(set(map(id, (text for row in batch.values for text in row[1:])))) == 4


def test_names_of_dicts_that_are_data_are_not_kept() -> None:
    before = _known_names.cache_info().currsize
    for number in range(3):
        wide = {f"{number}-{n}" * 300: n for n in range(20)}
        assert decode_batch(encode_batch(Batch([wide]), step="s")).values == [wide]
    assert _known_names.cache_info().currsize == before


@pytest.mark.parametrize("path", [path for path in PATHS if path == "C"])
@pytest.mark.parametrize(
    "rows",
    [
        [(1, [])],
        [(1, 2), (1, [])],
        [(1, 2), (1, 2, 3)],
        [(1, 2), [1, 2]],
        [{"a": 1}, {"b": 1}],
        [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
        [{"a": 1}, {"a": 1, "b": 1}],
        [{1: 1}],
        [{"a": 1}, OrderedDict(a=1)],
        [(1, Stats(1, 2.0))],
        [()],
        [{}],
        [tuple(range(65))],
        ["text"],
    ],
    ids=str,
)
def test_other_rows_are_pickled_as_one(path: str, rows: list[Any]) -> None:
    with running(path):
        assert encode_fields(rows, None) is None
        assert canonical(decode_batch(encode_batch(Batch(rows), step="s")).values) == canonical(rows)


def test_what_is_shared_by_fields_of_a_row_is_shared_where_it_arrives() -> None:
    shared = [1]
    ((first, second),) = decode_batch(encode_batch(Batch([(shared, shared)]), step="s")).values
    assert first is second


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "fields", [b"", b"\0\0\0\0", b"\0\0\0\0k" + bytes(8), b"\xff" * 9, b"\0\0\0\0p" + bytes(8)], ids=repr
)
def test_damaged_fields_are_not_decoded(path: str, fields: bytes) -> None:
    with running(path), pytest.raises(Exception, match=r".") as raised:
        decode_fields(memoryview(fields), 2, ["a"])
    assert not isinstance(raised.value, AssertionError)
