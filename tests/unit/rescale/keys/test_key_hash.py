"""The hash of a key: as published, the same for all that is equal, and even."""

from __future__ import annotations

import decimal
import random
from collections import Counter
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import xxhash
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from malstrom_py.data.equality import settled
from malstrom_py.errors import InternalError
from malstrom_py.rescale.keys.key_hash import PRIME, encode_key, hash_key, int64_of, mix64
from tests.tree import ROOT
from tests.vectors.key_hash_keys import Color, Level, Point, Seat, key_of, published, row_of
from tests.vectors.xxh64 import xxh64_intdigest

VECTORS = published()


@pytest.mark.parametrize("row", VECTORS, ids=lambda row: row["key"][:40])
def test_f3_the_hash_is_as_published(row: dict[str, Any]) -> None:
    assert row_of(row["key"], row["equal"]) == row


@pytest.mark.parametrize("row", [row for row in VECTORS if row["equal"]], ids=lambda row: row["key"][:40])
def test_f4_published_equals_have_one_hash(row: dict[str, Any]) -> None:
    for expression in row["equal"]:
        assert key_of(expression) == key_of(row["key"])
        assert row_of(expression, row["equal"]) | {"key": row["key"]} == row


@pytest.mark.parametrize("row", VECTORS, ids=lambda row: row["key"][:40])
def test_a_published_hash_follows_from_its_encoding(row: dict[str, Any]) -> None:
    encoding = bytes.fromhex(row["encoding"])
    if encoding[0] == 1:
        expected = mix64(int.from_bytes(encoding[1:], "little", signed=True))
    else:
        expected = xxh64_intdigest(encoding)
    assert (int(row["hash"], 16), row["slot_of_1024"]) == (expected, expected % 1024)


def test_there_are_vectors_of_every_tag() -> None:
    assert len(VECTORS) >= 40
    assert {bytes.fromhex(row["encoding"])[0] for row in VECTORS} == set(range(0x12))
    assert len({row["hash"] for row in VECTORS}) == len(VECTORS)


def test_the_page_shows_the_vectors_as_they_are() -> None:
    page = (ROOT / "docs" / "key-hash.md").read_text()
    shown = [line for line in page.splitlines() if line.startswith("| `") and line.count("`") == 6]
    lines = {f"| `{row['key']}` | `{row['encoding']}` | `{row['hash']}` | {row['slot_of_1024']} |" for row in VECTORS}
    assert shown
    assert [line for line in shown if line not in lines] == []


def test_mix_is_splitmix64() -> None:
    """The first three outputs of the generator with seed 1234567, as its authors' program prints them."""
    golden = 0x9E3779B97F4A7C15
    state = [(1234567 + i * golden) & (1 << 64) - 1 for i in range(3)]
    signed = [number - (1 << 64) if number >> 63 else number for number in state]
    assert [mix64(number) for number in signed] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_the_second_opinion_agrees_on_any_bytes(data: bytes) -> None:
    assert xxhash.xxh64_intdigest(data) == xxh64_intdigest(data)


def forms_of(number: int | float | Decimal) -> list[Any]:
    """All the ways to write a number as a key."""
    candidates: list[Any] = [number]
    kinds: list[Any] = [bool, int, float, Decimal, Level, np.int8, np.int64, np.uint64, np.float16, np.float32]
    for kind in kinds:
        try:
            candidates.append(kind(number))
        except (ValueError, OverflowError, decimal.InvalidOperation):
            continue
    if isinstance(number, Decimal):
        candidates.append(number.normalize(decimal.Context(prec=2000)))
    # numpy compares its small floats by rounding the other number, so by what they are in Python.
    return [other for other in candidates if _plain(other) == number and hash(other) == hash(number)]


def _plain(number: Any) -> Any:
    return number.item() if isinstance(number, np.generic) else number


NUMBERS = (
    st.integers()
    | st.integers(-(2**65), 2**65)
    | st.integers(-3, 3)
    | st.floats(allow_nan=False)
    | st.integers(-(2**60), 2**60).map(float)
    | st.decimals(allow_nan=False)
    | st.floats(allow_nan=False, allow_infinity=False).map(Decimal)
)


@given(NUMBERS)
@settings(deadline=None, max_examples=500)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_f4_a_number_has_one_hash_however_it_is_written(number: int | float | Decimal) -> None:
    forms = forms_of(number)
    assert len({encode_key(form) for form in forms}) == 1, [type(form) for form in forms]
    assert len({hash_key((form, "a")) for form in forms}) == 1


ZONES: list[tzinfo | None] = [
    None,
    UTC,
    timezone(timedelta(hours=-5)),
    timezone(timedelta(hours=5, minutes=30, seconds=7, microseconds=9)),
    ZoneInfo("America/New_York"),
    ZoneInfo("Europe/Berlin"),
]
DAYS = [
    datetime.combine(day, time())
    for day in (date(2013, 3, 10), date(2013, 11, 3), date(2013, 10, 27), date.min, date(9999, 12, 30))
]
"""Clocks change on three of them."""

MOMENTS = st.builds(
    lambda day, minutes, zone, fold: (day + timedelta(minutes=minutes)).replace(tzinfo=zone, fold=fold),
    st.sampled_from(DAYS),
    st.sampled_from(range(0, 1440, 30)),
    st.sampled_from(ZONES),
    st.sampled_from((0, 1)),
)
SMALL_KEYS: list[Any] = [
    *(None, False, True, 0, 1, 2, 0.0, -0.0, 1.0, 0.5, Decimal(1), Decimal("0.50"), Decimal("-0")),
    *(2**64, float(2**64), Decimal(2**64), float("inf"), Decimal("inf"), -float("inf"), Level.LOW),
    *(np.int64(1), np.float32(0.5), np.bool_(True), np.str_("a"), np.bytes_(b"a")),
    *("", "a", "red", Color.RED, b"", b"a", b"red"),
    *((), ((),), (1, 2), Point(1, 2), (1.0, True), (1, "A"), Seat(1, "A"), Seat(True, "A", "x")),
    *(date.min, timedelta(hours=24), timedelta(days=1), timedelta(0)),
    *(time(12), time(12, fold=1), time(12, tzinfo=UTC), time(7, tzinfo=timezone(timedelta(hours=-5)))),
    time(12, tzinfo=ZoneInfo("Europe/Berlin")),
]
SMALL = st.sampled_from(SMALL_KEYS) | MOMENTS
ANY_KEY = st.recursive(SMALL, lambda inner: st.tuples(inner) | st.tuples(inner, inner), max_leaves=4)


@pytest.mark.long
@given(st.lists(ANY_KEY, min_size=2, max_size=12))
@settings(deadline=None, max_examples=400)
def test_f4_keys_that_are_one_key_of_a_dict_have_one_hash(keys: list[Any]) -> None:
    first: dict[Any, Any] = {}
    for key in keys:
        try:
            same = first.setdefault(settled(key), key)
        except TypeError:
            assume(False)  # Decimal(1) == numpy.int64(1) raises, and so no dict takes both
        assert hash_key(same) == hash_key(key)
        assert encode_key(first[settled(key)]) == encode_key(settled(key)) == encode_key(key)


def test_f4_every_pair_of_equal_moments_has_one_hash() -> None:
    moments = [
        (day + timedelta(minutes=minutes)).replace(tzinfo=zone, fold=fold)
        for day in DAYS
        for minutes in range(0, 600, 30)
        for zone in ZONES
        for fold in (0, 1)
    ]
    first: dict[Any, Any] = {}
    shared = 0
    for moment in moments:
        other = first.setdefault(settled(moment), moment)
        shared += other is not moment
        assert encode_key(other) == encode_key(settled(moment)) == encode_key(moment)
    assert shared > len(moments) / 4


def test_different_keys_have_different_encodings() -> None:
    keys = [key_of(row["key"]) for row in VECTORS]
    keys += [("a", "b"), ("ab",), ("", "ab"), (b"a", "b"), ((), ()), ((),), Seat(1, "A"), ("Seat", 1, "A")]
    assert len({encode_key(key) for key in keys}) == len(set(keys)) == len(keys)


def test_a_decimal_of_any_exponent_and_length_is_hashed_without_being_written_out() -> None:
    assert encode_key(Decimal("1E+999999999999999999"))[:1] == b"\x02"
    assert encode_key(Decimal("1E-999999999999999999"))[:1] == b"\x02"
    assert encode_key(Decimal("0E+999999999999999999")) == encode_key(0)
    assert encode_key(Decimal("7" * 10_000)) == b"\x02" + (7 * (10**10_000 - 1) // 9 % PRIME).to_bytes(16, "little")
    assert encode_key(Decimal("1E+1000000")) == encode_key(10**1_000_000)


def test_the_hash_does_not_hang_on_the_decimal_context() -> None:
    keys = [Decimal("1.23456789E+30"), Decimal("0.1234567890123456789"), Decimal(2**63 - 1), Decimal("5.0")]
    before = [hash_key(key) for key in keys]
    with decimal.localcontext(decimal.Context(prec=2, Emax=5, Emin=-5, traps=[decimal.Inexact, decimal.Rounded])):
        assert [hash_key(key) for key in keys] == before


@pytest.mark.parametrize(
    ("key", "integer"),
    [
        (True, 1),
        (Decimal("5.00"), 5),
        (np.uint8(7), 7),
        (-(2.0**63), -(2**63)),
        (2**63, None),
        (np.uint64(2**63), None),
        (0.5, None),
        (Decimal("0.5"), None),
        (float("inf"), None),
        (Decimal("-inf"), None),
        ("1", None),
        (None, None),
    ],
)
def test_a_number_is_an_integer_if_it_equals_one_of_64_bits(key: Any, integer: int | None) -> None:
    assert int64_of(key) == integer


def test_overridden_methods_of_a_subclass_are_not_asked() -> None:
    class Tricky(int):
        def __int__(self) -> int:
            return 99

        def __index__(self) -> int:
            return 98

    class Shout(Enum):
        A = 1

        @property
        def name(self) -> str:
            return "B"

    assert hash_key(Tricky(1)) == hash_key(1)
    assert encode_key(Shout.A).endswith(b"A")


def test_what_was_never_checked_is_not_encoded() -> None:
    with pytest.raises(InternalError, match="list"):
        encode_key(([],))


def chi_square(slots: list[int], of: int) -> float:
    expected = len(slots) / of
    counts = Counter(slots)
    return sum((counts[slot] - expected) ** 2 / expected for slot in range(of))


@pytest.mark.parametrize("of", [7, 64, 1000, 1024])
@pytest.mark.parametrize("keys", ["successive", "strided", "random", "floats", "names", "uuids"])
def test_f3_keys_fall_evenly_on_the_slots(keys: str, of: int) -> None:
    source = random.Random(20130101)
    many: dict[str, list[Any]] = {
        "successive": list(range(100_000)),
        "strided": [i * 4096 for i in range(100_000)],
        "random": [source.getrandbits(63) for _ in range(100_000)],
        "floats": [i / 8 + 0.0625 for i in range(20_000)],
        "names": [f"user-{i:05d}" for i in range(100_000)],
        "uuids": [f"{source.getrandbits(128):032x}" for _ in range(100_000)],
    }
    value = chi_square([hash_key(key) % of for key in many[keys]], of)
    freedom = of - 1
    assert abs(value - freedom) < 5 * (2 * freedom) ** 0.5  # five standard deviations of the chi-square
