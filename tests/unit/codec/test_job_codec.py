"""The codec of one job: one type table, one set of limits, errors that name the key, and reading without classes."""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from malstrom_py.codec import Codec, Limits, TypeTable
from malstrom_py.codec.job_codec import StoredObject, without_classes
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


def test_a_long_key_is_cut_in_the_message() -> None:
    with pytest.raises(CodecError) as caught:
        Codec().encode_at_rest(object(), step="s", key="k" * 10_000)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("limit", [{"bytes_max": 0}, {"bytes_max": 1 << 32}, {"items_max": 0}, {"items_max": 1 << 31}])
def test_impossible_limits_are_refused(limit: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be between"):
        Limits(**limit)


@dataclass(frozen=True)
class Place:
    name: str
    of: tuple[int, int]


class Pair(NamedTuple):
    left: int
    right: Any


class Colour(enum.Enum):
    RED = "r"


class Rights(enum.IntFlag):
    READ = 1
    WRITE = 2


@pytest.fixture
def codec() -> Codec:
    types = TypeTable()
    for kind in (Place, Pair, Colour, Rights):
        types.register(kind)
    return Codec(types)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Place("here", (1, 2)), {"name": "here", "of": (1, 2)}),
        (Pair(1, Pair(2, None)), {"left": 1, "right": {"left": 2, "right": None}}),
        (Colour.RED, "RED"),
        (Rights.READ | Rights.WRITE, 3),
        ([Colour.RED, 7, (1, 2)], ["RED", 7, (1, 2)]),
        ({"plain": 1}, {"plain": 1}),
    ],
    ids=["dataclass", "namedtuple", "enum", "flag", "list", "dict"],
)
def test_an_object_is_told_by_what_is_stored_of_it(value: Any, expected: Any, codec: Codec) -> None:
    assert without_classes().decode_at_rest(codec.encode_at_rest(value, step="a")) == expected


def test_an_object_may_be_a_key(codec: Codec) -> None:
    found = without_classes().decode_at_rest(codec.encode_at_rest({Place("here", (1, 2)): 7}, step="a"))
    (key,) = found
    assert found[StoredObject(name="here", of=(1, 2))] == 7
    assert key["name"] == "here"


def test_what_was_read_without_its_class_is_not_stored_again(codec: Codec) -> None:
    tool = without_classes()
    with pytest.raises(CodecError):
        tool.encode_at_rest(Place("here", (1, 2)), step="a")


def test_a_class_of_a_kind_that_is_not_known_is_refused(codec: Codec) -> None:
    stored = codec.encode_at_rest(Colour.RED, step="a").replace(b"\xa4enum", b"\xa4menu")
    with pytest.raises(CodecError, match="is of a kind that this version does not know"):
        without_classes().decode_at_rest(stored)
