"""Stored values are read without their classes, by the names of fields, members and bits in the data."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from malstrom_py.codec import Codec, TypeTable
from malstrom_py.codec.job_codec import StoredObject, without_classes
from malstrom_py.errors import CodecError


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


def test_damage_is_a_typed_error(codec: Codec) -> None:
    stored = codec.encode_at_rest([Place("here", (1, 2)), Colour.RED], step="a")
    for place in range(len(stored)):
        for damaged in (stored[:place], stored[:place] + bytes([stored[place] ^ 1]) + stored[place + 1 :]):
            try:
                without_classes().decode_at_rest(damaged)
            except CodecError:
                continue


def test_a_class_of_a_kind_that_is_not_known_is_refused(codec: Codec) -> None:
    stored = codec.encode_at_rest(Colour.RED, step="a").replace(b"\xa4enum", b"\xa4menu")
    with pytest.raises(CodecError, match="is of a kind that this version does not know"):
        without_classes().decode_at_rest(stored)
