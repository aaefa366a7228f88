"""The type table accepts classes that can be rebuilt from their parts; extensions have the codes of our own types."""

from __future__ import annotations

import abc
import dataclasses
import decimal
import enum
import struct
from typing import Any, NamedTuple

import cloudpickle
import msgspec
import numpy as np
import pytest

from malstrom_py.codec import extensions
from malstrom_py.codec.encoding_errors import NotDecodable, NotEncodable
from malstrom_py.codec.extensions import MARKS, extension_of, value_of
from malstrom_py.codec.types import TypeTable, can_register
from malstrom_py.errors import PlanError
from tests.fuzz.codec_values import CLASSES, Access, Colour, Pair, Stats


def test_registering_twice_is_harmless() -> None:
    types = TypeTable()
    assert types.register(Stats) is types.register(Stats) is Stats


def test_a_class_is_found_by_its_name_alone() -> None:
    types = TypeTable()
    types.register(Colour)
    found = types.of_name(f"{Colour.__module__}:Colour")
    assert found is not None
    assert found is types.of_type(Colour)
    assert types.of_name("enum:Enum") is None


def test_two_classes_of_one_name_are_refused() -> None:
    def make() -> type:
        @dataclasses.dataclass
        class Twin:
            one: int = 1

        return Twin

    types = TypeTable()
    types.register(make())
    with pytest.raises(PlanError, match=r"Twin is registered already.*Rename one"):
        types.register(make())


class Plain:
    pass


@dataclasses.dataclass
class Abstract(abc.ABC):
    @abc.abstractmethod
    def act(self) -> None: ...


@dataclasses.dataclass
class Failure(Exception):
    why: str


@pytest.mark.parametrize("kind", [Plain, dict, int, Stats(), len, "Stats"])
def test_other_things_are_refused_with_a_remedy(kind: Any) -> None:
    assert not can_register(kind)
    with pytest.raises(PlanError, match=r"takes dataclasses, msgspec\.Structs, NamedTuples and Enums"):
        TypeTable().register(kind)


@pytest.mark.parametrize("kind", [Abstract, Failure])
def test_a_dataclass_that_cannot_be_put_together_is_refused(kind: type) -> None:
    with pytest.raises(PlanError, match="cannot be rebuilt from its fields"):
        TypeTable().register(kind)


def test_values_are_put_together_without_their_own_code() -> None:
    calls = []

    @dataclasses.dataclass
    class Loud:
        one: int

        def __post_init__(self) -> None:
            calls.append(self.one)

    class Louder(NamedTuple):
        one: int

    types = TypeTable()
    entry, tuple_entry = types.of_type(types.register(Loud)), types.of_type(types.register(Louder))
    assert entry is not None
    assert tuple_entry is not None
    assert entry.put_together([5]).one == 5
    assert type(tuple_entry.put_together([5])) is Louder
    assert calls == []


def test_the_table_travels_with_the_job() -> None:
    types = TypeTable()
    for kind in CLASSES:
        types.register(kind)
    back: TypeTable = cloudpickle.loads(cloudpickle.dumps(types))
    entry = back.of_type(Pair)
    assert entry is not None
    assert entry.put_together(list(entry.take_apart(Pair(1, 2)))) == Pair(1, 2)


def test_flags_are_stored_by_their_bits_and_enums_by_their_names() -> None:
    types = TypeTable()
    flag, colour = types.of_type(types.register(Access)), types.of_type(types.register(Colour))
    assert flag is not None
    assert colour is not None
    assert list(flag.take_apart(Access.READ | Access.WRITE)) == [3]
    assert list(colour.take_apart(Colour.ROUGE)) == ["RED"]
    assert colour.put_together(["ROUGE"]) is Colour.RED
    assert can_register(enum.IntFlag)


def test_parts_that_do_not_fit_their_class_are_refused() -> None:
    types = TypeTable()
    wrong: list[tuple[type, list[Any]]] = [
        (Access, ["x"]),
        (Access, [1024]),
        (Colour, ["GREEN"]),
        (Colour, [1]),
        (Pair, [1]),
    ]
    for kind, parts in wrong:
        entry = types.of_type(types.register(kind))
        assert entry is not None
        with pytest.raises((NotDecodable, ValueError)):
            entry.put_together(parts)


def test_what_would_be_lost_is_refused() -> None:
    class Point(NamedTuple):
        x: int

    class Labelled(Point):
        label: str

    class Broken:
        def __get__(self, _instance: object, _owner: type) -> int:
            raise LookupError

        def __set__(self, _instance: object, _value: int) -> None:
            """Accepts every attribute, and has none."""

    @dataclasses.dataclass
    class Unreadable:
        one: int

    Unreadable.one = Broken()  # type: ignore[assignment]  # that is the point
    labelled = Labelled(1)
    labelled.label = "a"
    types = TypeTable()
    for value, why in [(labelled, "not fields"), (Unreadable(1), "raises LookupError")]:
        entry = types.of_type(types.register(type(value)))
        assert entry is not None
        with pytest.raises(NotEncodable, match=why):
            entry.take_apart(value)


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    room: str
    heat: float = 20.0


class Checked(msgspec.Struct):
    room: str

    def __post_init__(self) -> None:
        self.room = self.room.upper()


def test_a_struct_is_its_fields() -> None:
    types = TypeTable()
    types.register(Reading)
    found = types.of_type(Reading)
    assert found is not None
    assert found.shape == ("struct", "room", "heat")
    assert found.put_together(list(found.take_apart(Reading(room="attic")))) == Reading(room="attic")
    with pytest.raises(PlanError, match=r"__post_init__, which would run again"):
        types.register(Checked)


# Extensions


def test_no_code_is_used_twice_and_none_is_msgpacks_own() -> None:
    codes = [*MARKS, *(code for code, _ in extensions.TO_BYTES.values()), 26, 27]
    assert len(set(codes)) == len(codes)
    assert min(codes) >= 0


def test_decimals_are_read_exactly_whatever_the_context() -> None:
    precise = decimal.Decimal("1." + "3" * 60)
    with decimal.localcontext() as context:
        context.prec = 3
        context.traps[decimal.InvalidOperation] = False
        found = extension_of(precise)
        assert found is not None
        assert value_of(*found) == precise
        with pytest.raises(decimal.InvalidOperation):
            value_of(extensions.DECIMAL, b"no number")


@pytest.mark.parametrize(
    ("code", "data"),
    [
        (99, b""),
        (extensions.ZONE, b"../../etc/passwd"),
        (extensions.ZONE, b"/etc/localtime"),
        (extensions.ZONE, b"Europe/Nowhere"),
        (extensions.ZONE, b"America"),
        (extensions.DATETIME, bytes.fromhex("e807010100000000000000") + b"\x00?"),
        (extensions.NUMPY_SCALAR, b"\x01O"),
        (extensions.NUMPY_SCALAR, b"\x03<i8" + bytes(16)),
        (extensions.NUMPY_ARRAY, b"\x02|O\x00"),
        (extensions.NUMPY_ARRAY, b"\x03<i8\x40" + bytes(8 * 64)),
    ],
)
def test_malformed_pieces_are_refused(code: int, data: bytes) -> None:
    with pytest.raises(NotDecodable):
        value_of(code, data)


def test_the_shape_of_an_array_is_checked_against_its_bytes() -> None:
    huge = b"\x03<i8\x02" + struct.pack("<2Q", 1 << 40, 1 << 10) + bytes(8)
    with pytest.raises(ValueError, match="reshape"):
        value_of(extensions.NUMPY_ARRAY, huge)


def test_a_bool_of_numpy_is_true_or_false_whatever_the_byte() -> None:
    assert value_of(extensions.NUMPY_SCALAR, b"\x03|b1\x07").tobytes() == np.bool_(True).tobytes()


@pytest.mark.parametrize("text", [np.str_("a\0"), np.bytes_(b"a\0"), np.str_(""), np.str_("\ud800")])
def test_text_of_numpy_keeps_every_character(text: np.str_ | np.bytes_) -> None:
    found = extension_of(text)
    assert found is not None
    back = value_of(*found)
    assert type(back) is type(text)
    assert list(back) == list(text)
