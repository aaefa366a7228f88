"""Values of every type that can be stored, and an exact comparison of decoded values."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import struct
import uuid
import zoneinfo
from collections import namedtuple
from decimal import Decimal
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from hypothesis import strategies as st

from malstrom_py.codec import TypeTable

T = TypeVar("T")


@dataclasses.dataclass
class Stats:
    count: int = 0
    extra: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    name: Any


@dataclasses.dataclass
class Nothing:
    pass


@dataclasses.dataclass
class Computed(Generic[T]):
    given: T
    doubled: T = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.doubled = self.given


class Pair(NamedTuple):
    left: Any
    right: Any


Old = namedtuple("Old", ["only"])


class Colour(enum.Enum):
    RED = "red"
    ROUGE = "red"  # noqa: PIE796  an alias
    BLUE = ("a", 1)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(enum.StrEnum):
    YES = "yes"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


CLASSES = (Stats, Frozen, Nothing, Computed, Pair, Old, Colour, Level, Word, Access)


def table() -> TypeTable:
    """Return a type table with all classes of this module."""
    types = TypeTable()
    for kind in CLASSES:
        types.register(kind)
    return types


def canonical(value: Any) -> Any:
    """Return the type and contents of ``value``: equal results mean equal bits, types and order of dicts."""
    kind = type(value)
    contents: Any
    if isinstance(value, enum.Enum):
        contents = value.value
    elif isinstance(value, np.character):
        contents = value.item()
    elif isinstance(value, np.ndarray | np.generic):
        contents = (value.dtype.str, value.shape, value.tobytes())
    elif dataclasses.is_dataclass(value):
        contents = [canonical(getattr(value, field.name)) for field in dataclasses.fields(value)]
    elif kind is dict:
        contents = [(canonical(key), canonical(item)) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        contents = [canonical(item) for item in value]
    elif isinstance(value, set | frozenset):
        contents = sorted(map(canonical, value), key=repr)
    else:
        contents = _in_one_piece(value)
    return kind, contents


def _in_one_piece(value: Any) -> Any:
    match value:
        case float():
            return struct.pack("d", value)
        case complex():
            return struct.pack("dd", value.real, value.imag)
        case Decimal():
            return value.as_tuple()
        case dt.datetime() | dt.time():
            zone = None if value.tzinfo is None else canonical(value.tzinfo)
            return value.replace(tzinfo=None).isoformat(), value.fold, zone
        case dt.timezone():
            return value.__getinitargs__()  # type: ignore[attr-defined]  # offset and name, as pickle takes them
        case zoneinfo.ZoneInfo():
            return value.key
        case _:
            return value


ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Etc/GMT+5")
OFFSETS = st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23))

fixed_zones = st.builds(dt.timezone, OFFSETS) | st.builds(dt.timezone, OFFSETS, st.text(max_size=4))
zones = st.none() | fixed_zones | st.sampled_from(ZONES).map(zoneinfo.ZoneInfo)

numpy_scalars = st.one_of(
    st.integers(-128, 127).map(np.int8),
    st.integers(0, 2**64 - 1).map(np.uint64),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.floats(width=16).map(np.float16),
    st.floats(width=32).map(np.float32),
    st.floats().map(np.float64),
    st.booleans().map(np.bool_),
    st.complex_numbers().map(np.complex128),
    st.integers(-(2**62), 2**62).map(lambda n: np.datetime64(n, "ns")),
    st.integers(-(2**62), 2**62).map(lambda n: np.timedelta64(n, ("s", 25))),
    # The pickle of numpy drops trailing NUL characters.
    st.text(max_size=5).map(lambda text: np.str_(text.rstrip("\0"))),
    st.binary(max_size=5).map(lambda data: np.bytes_(data.rstrip(b"\0"))),
)

hashable_leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64]),
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters(codec=None, exclude_categories=[]), max_size=8),
    st.binary(max_size=8),
    st.decimals().filter(lambda number: not number.is_snan()),
    st.uuids() | st.just(uuid.UUID(int=0)),
    st.dates(),
    st.times(timezones=zones),
    st.datetimes(timezones=zones, allow_imaginary=True),
    st.builds(lambda moment, fold: moment.replace(fold=fold), st.datetimes(timezones=zones), st.sampled_from([0, 1])),
    st.timedeltas(),
    fixed_zones,
    numpy_scalars,
    st.sampled_from([*Colour, *Level, *Word, Access.READ, Access.READ | Access.WRITE, Access(0)]),
)


def _hashable_from(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4).map(tuple),
        st.frozensets(inner, max_size=4),
        st.builds(Pair, inner, inner),
        st.builds(Old, inner),
        st.builds(Frozen, inner),
    )


@st.composite
def any_leaf(draw: st.DrawFn) -> Any:
    """A short name for all strategies, because hypothesis prints the whole strategy otherwise."""
    return draw(hashable_leaves)


hashables = st.recursive(any_leaf(), _hashable_from, max_leaves=6)

arrays = st.one_of(
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6).map(lambda items: np.array(items, dtype=np.int32)),
    st.lists(st.floats(), max_size=6).map(lambda items: np.array([items, items], dtype=">f8")),
    st.lists(st.booleans(), max_size=6).map(lambda items: np.array(items, dtype=np.bool_)),
    st.just(np.array(3.5)),
    st.just(np.zeros((0, 3), dtype="M8[us]")),
)


@st.composite
def any_hashable(draw: st.DrawFn) -> Any:
    """A short name for the strategies of keys."""
    return draw(hashables)


def _value_from(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(any_hashable(), inner, max_size=4),
        st.sets(any_hashable(), max_size=4),
        st.builds(Stats, inner, inner),
        st.builds(Computed, inner),
        st.builds(Nothing),
        st.builds(Pair, inner, inner),
    )


signalling = st.just(Decimal("sNaN12"))

values = st.recursive(any_hashable() | arrays | signalling, _value_from, max_leaves=12)
"""Everything that can be stored."""
