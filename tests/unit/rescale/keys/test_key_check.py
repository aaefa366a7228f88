"""Which keys are legal, and what is said of the others."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, time, timedelta
from decimal import Decimal
from enum import Enum, IntFlag
from fractions import Fraction
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malstrom_py.errors import CodecError
from malstrom_py.rescale.keys import key_types
from malstrom_py.rescale.keys.key_types import DEPTH_MAX, Kind, check_key, check_keys, compared_fields, kind_of
from tests.vectors.key_hash_keys import Access, Color, Level, Point, Seat, Suit, key_of, published

pd: Any = importlib.import_module("pandas")  # without types


class Loud(str):
    """A str that is compared in its own way."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.lower() == other.lower()

    def __hash__(self) -> int:
        return hash(self.lower())


class Name(str):
    """A str with a name."""

    __slots__ = ()


class Odd(Enum):
    """An Enum that equals numbers."""

    ONE = 1

    def __eq__(self, other: object) -> bool:
        return self is other or other == 1

    def __hash__(self) -> int:
        return hash(1)


@dataclass
class Thawed:
    x: int


@dataclass(unsafe_hash=True)
class Hashable:
    x: int


@dataclass(frozen=True, eq=False)
class SameOnly:
    x: int


@dataclass(frozen=True)
class Custom:
    x: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom) and abs(self.x) == abs(other.x)

    def __hash__(self) -> int:
        return hash(abs(self.x))


@dataclass(frozen=True, slots=True)
class Holder:
    inside: Any


class Pair(NamedTuple):
    left: Any
    right: Any


def nested(depth: int, make: Callable[[Any], Any] = lambda inside: (inside,)) -> Any:
    key: Any = 1
    for _ in range(depth):
        key = make(key)
    return key


LEGAL: list[Any] = [
    *(key_of(expression) for row in published() for expression in [row["key"], *row["equal"]]),
    *(np.int8(1), np.uint64(2**64 - 1), np.float16(0.5), np.float32(0.1), np.float64(2.5), np.longdouble(1)),
    *(np.bool_(True), np.str_("a"), np.bytes_(b"a")),
    Name("a"),
    Holder(Holder((1.5, Decimal(2)))),
    Pair(Suit.HEARTS, Pair(Level.LOW, Color.RED)),
    (Access.READ, Seat(1, "A"), Point(1, 2)),
    nested(DEPTH_MAX),
    nested(DEPTH_MAX, Holder),
]

NAN_KEYS: list[tuple[Any, str]] = [
    (float("nan"), "float"),
    (Decimal("NaN"), "Decimal"),
    (Decimal("sNaN"), "Decimal"),
    (np.float32("nan"), "float32"),
    (np.float64("nan"), "float64"),
    ((1, float("nan")), "float"),
    (Holder(Decimal("NaN")), "Decimal"),
]

UNHASHABLE: list[tuple[Any, str]] = [
    ([1], "list"),
    ({"a": 1}, "dict"),
    ({1}, "set"),
    (bytearray(b"a"), "bytearray"),
    (Thawed(1), "Thawed"),
    (np.array([1]), "ndarray"),
    (("a", [1]), "list"),
    (Pair(1, {}), "dict"),
    (Holder([1]), "list"),
]

UNLISTED: list[tuple[Any, str]] = [
    (frozenset((1,)), "frozenset"),
    (Fraction(1), "Fraction"),
    (complex(1), "complex"),
    (range(3), "range"),
    (memoryview(b"a"), "memoryview"),
    (object(), "object"),
    (len, "builtin_function_or_method"),
    (int, "type"),
    (..., "ellipsis"),
    (Loud("a"), "Loud"),
    (Odd.ONE, "Odd"),
    (Hashable(1), "Hashable"),
    (SameOnly(1), "SameOnly"),
    (Custom(1), "Custom"),
    (np.datetime64("2013-01-01"), "datetime64"),
    (np.timedelta64(1, "s"), "timedelta64"),
    (np.complex128(1), "complex128"),
    (pd.Timestamp(0), "Timestamp"),
    ((1, Fraction(1)), "Fraction"),
    (nested(DEPTH_MAX + 1), "tuple"),
    (nested(DEPTH_MAX + 1, Holder), "Holder"),
]

ILLEGAL = NAN_KEYS + UNHASHABLE + UNLISTED


@pytest.mark.parametrize("key", LEGAL, ids=lambda key: type(key).__name__)
def test_f4_a_listed_type_is_a_legal_key(key: Any) -> None:
    check_key(key, "step")
    assert (check_keys([key, "a", key], "step") or set()) >= {type(key), str}


def test_f4_all_legal_keys_pass_together() -> None:
    assert (check_keys(LEGAL) or set()) >= {type(key) for key in LEGAL}


def test_f4_the_check_knows_the_types_inside_keys() -> None:
    assert check_keys(["a", (1, ("b", 2.5)), Pair(None, 1)]) == {str, tuple, int, float, Pair, type(None)}


@pytest.mark.parametrize(("key", "culprit"), ILLEGAL, ids=lambda value: type(value).__name__)
def test_f4_any_other_key_is_refused_naming_step_and_type(key: Any, culprit: str) -> None:
    checks: list[Callable[[], object]] = [
        lambda: check_key(key, "carrier"),
        lambda: check_keys(["a", 1.5, key, key], "carrier"),
    ]
    for check in checks:
        with pytest.raises(CodecError) as raised:
            check()
        assert str(raised.value).startswith("step 'carrier': a key ")
        assert f" {culprit}, " in str(raised.value)
        assert (raised.value.step, raised.value.key, raised.value.type_name) == ("carrier", None, culprit)


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ([1], "make it a tuple"),
        ({"a": 1}, "tuple(sorted(d.items()))"),
        (frozenset(), "tuple(sorted(s))"),
        (Fraction(1, 3), "(f.numerator, f.denominator)"),
        (np.array([1]), "tuple(a.tolist())"),
        (np.datetime64("2013-01-01"), ".item()"),
        (pd.Timestamp(0), ".to_pydatetime()"),
        (Thawed(1), "@dataclass(frozen=True)"),
        (SameOnly(1), "let @dataclass make its =="),
        (Loud("a"), "has an == other than that of str: turn it into a plain str"),
        (Odd.ONE, "other than that of Enum"),
        (object(), "take a str, a number or a tuple that identifies it"),
        (float("nan"), "return None, or filter NaN out first"),
        (nested(DEPTH_MAX + 1), "take a flat tuple"),
        (type("Box", (), {"__hash__": None})(), "take something immutable"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_refusal_says_what_to_do(key: Any, remedy: str) -> None:
    with pytest.raises(CodecError) as raised:
        check_key(key)
    assert remedy in str(raised.value)
    assert str(raised.value).startswith("a key is of type ")


def test_a_refusal_tells_the_key_from_what_it_holds() -> None:
    with pytest.raises(CodecError, match="a key of type Pair holds a dict, "):
        check_key(Pair(1, {}))


def test_a_refusal_does_not_show_the_value() -> None:
    with pytest.raises(CodecError) as raised:
        check_keys(["a", ["secret"]])
    assert "secret" not in str(raised.value)


def test_f4_a_key_is_refused_even_if_it_equals_a_legal_one() -> None:
    check_keys([1, (1,)])
    for key in (Fraction(1), complex(1), (Fraction(1),)):
        with pytest.raises(CodecError):
            check_keys([1, (1,), key])


def test_fields_that_are_not_compared_may_hold_anything() -> None:
    check_key(Seat(1, "A", note=[]))  # type: ignore[arg-type]
    check_keys([Seat(1, "A", note=[])])  # type: ignore[arg-type]


def test_nothing_is_hashed() -> None:
    class Counting(str):
        __slots__ = ()
        hashed = 0

        def __hash__(self) -> int:
            Counting.hashed += 1
            return str.__hash__(self)

        __eq__ = str.__eq__

    keys = [Counting("a"), (Counting("b"),)]
    check_key(keys[0])
    check_keys(keys)
    assert Counting.hashed == 0


def test_an_empty_batch_has_no_types() -> None:
    assert check_keys([]) == set()


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.decimals(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.dates(),
    st.datetimes(timezones=st.none() | st.just(UTC)),
    st.sampled_from([time(1), timedelta(1), UUID(int=1), Suit.HEARTS, Level.LOW, date.min]),
    st.sampled_from([culprit for culprit, _ in ILLEGAL]),
)
KEYS = st.recursive(LEAVES, lambda inner: st.tuples(inner, inner) | st.builds(Holder, inner), max_leaves=6)


def refused(check: Callable[[], object]) -> str | None:
    try:
        check()
    except CodecError as error:
        return str(error)
    return None


@given(st.lists(KEYS, max_size=6))
@settings(deadline=None, max_examples=300)
def test_a_batch_is_refused_exactly_for_its_first_illegal_key(keys: list[Any]) -> None:
    alone = [refused(lambda key=key: check_key(key, "s")) for key in keys]  # type: ignore[misc]
    assert refused(lambda: check_keys(keys, "s")) == next((message for message in alone if message), None)


class Mixed(str, Enum):  # noqa: UP042  the older way to write a StrEnum is in use
    """An enum of strings in the older way."""

    A = "a"


class Rights(IntFlag):
    """An int."""

    READ = 1


@dataclass(frozen=True)
class Base:
    x: int


class Derived(Base):
    """Compared as its base is, by class and fields."""


@pytest.mark.parametrize(
    ("key_type", "kind"),
    [
        (type(None), "none"),
        (bool, "int"),
        (Level, "int"),
        (Rights, "int"),
        (Color, "str"),
        (Mixed, "str"),
        (Suit, "enum"),
        (Access, "flag"),
        (Point, "tuple"),
        (Seat, "dataclass"),
        (Derived, "dataclass"),
        (np.int32, "numpy int"),
        (np.bool_, "numpy int"),
        (np.float64, "numpy float"),
        (np.timedelta64, None),
        (np.void, None),
        (list, None),
        (type("Money", (Decimal,), {}), "decimal"),
    ],
    ids=str,
)
def test_a_type_counts_as_what_its_values_equal(key_type: type, kind: Kind | None) -> None:
    assert kind_of(key_type) == kind


def test_fields_that_do_not_take_part_in_equality_are_left_out() -> None:
    assert compared_fields(Seat) == ("row", "letter")


def test_classes_made_at_run_time_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_types, "_TYPES_MAX", 3)
    kinds = [kind_of(type(f"Made{i}", (str,), {})) for i in range(10)]
    assert kinds == ["str"] * 10
    assert len(key_types._KINDS) <= 3
