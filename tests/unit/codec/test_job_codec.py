"""The codec of one job: one type table, one set of limits, and errors that name the key of a row."""

from __future__ import annotations

import threading

import pytest

from malstrom_py.codec import Codec, Limits, TypeTable
from malstrom_py.data.batch import Batch
from malstrom_py.errors import CodecError
from tests.fuzz.codec_values import Stats


def test_a_class_that_is_registered_later_is_known_from_then_on() -> None:
    types = TypeTable()
    codec = Codec(types)
    with pytest.raises(CodecError, match=r"Call job.register_type\(Stats\)"):
        codec.encode_at_rest(Stats(), step="s")
    types.register(Stats)
    assert codec.decode_at_rest(codec.encode_at_rest(Stats(2), step="s")) == Stats(2)


def test_rows_name_the_key_of_the_row_that_cannot_be_stored() -> None:
    rows = [["a", 1, []], ["b", object(), []]]
    with pytest.raises(CodecError, match=r"step 's' for key 'b': a value of type object") as caught:
        Codec().encode_rows_at_rest(rows, step="s")
    assert caught.value.key == "b"
    assert Codec().decode_at_rest(Codec().encode_rows_at_rest(rows[:1], step="s")) == rows[:1]


def test_states_name_the_key_of_the_one_that_cannot_be_sent() -> None:
    codec = Codec()
    with pytest.raises(CodecError, match=r"step 's' for key 'b': a value of type _thread.lock"):
        codec.encode_states_in_flight(["a", "b"], [1, threading.Lock()], {}, step="s")
    sent = codec.encode_states_in_flight(["a"], [1], {"a": [5]}, step="s")
    assert codec.decode_in_flight(sent) == (["a"], [1], {"a": [5]})


def test_rows_that_are_too_many_only_together_are_refused_as_a_whole() -> None:
    with pytest.raises(CodecError, match="more than 10 values") as caught:
        Codec(limits=Limits(items_max=10)).encode_rows_at_rest([[n, n] for n in range(5)], step="s")
    assert caught.value.key is None


def test_batches_go_through() -> None:
    codec = Codec()
    assert codec.decode_batch(codec.encode_batch(Batch([1.5], keys=["a"]), step="s")).keys == ["a"]


def test_a_long_key_is_cut_in_the_message() -> None:
    with pytest.raises(CodecError) as caught:
        Codec().encode_at_rest(object(), step="s", key="k" * 10_000)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("limit", [{"bytes_max": 0}, {"bytes_max": 1 << 32}, {"items_max": 0}, {"items_max": 1 << 31}])
def test_impossible_limits_are_refused(limit: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be between"):
        Limits(**limit)
