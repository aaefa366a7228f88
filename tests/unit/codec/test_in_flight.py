"""Batches and state between workers are decoded exactly; an error of encoding names step, key and type."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from malstrom_py.codec.in_flight import decode_batch, decode_in_flight, encode_batch, encode_in_flight
from malstrom_py.data.batch import Batch
from malstrom_py.errors import CodecError
from tests.fuzz.codec_values import Stats, canonical, hashables, values

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
