"""Many values, each in its own stored form, which is that of a single value; and damaged forms of them."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from malstrom_py.codec import Codec
from malstrom_py.codec.at_rest import AtRestEncoder, decode_at_rest, decode_each
from malstrom_py.codec.encoding_errors import Limits
from malstrom_py.codec.types import TypeTable
from malstrom_py.errors import CodecError
from tests.fuzz.codec import BYTES_MAX, BYTES_PER_BYTE_MAX, VALUES, bytes_allocated, fuzz
from tests.fuzz.codec_values import Pair, Stats, canonical, table, values

TYPES = table()
LIMITS = Limits()
ENCODER = AtRestEncoder(TYPES, LIMITS)

SMALL = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3)
ALIKE = st.one_of(
    st.lists(SMALL),
    st.lists(st.lists(SMALL, max_size=3)),
    st.lists(st.lists(SMALL, max_size=3).map(tuple)),
    st.lists(values, max_size=5),
)


def each(given_values: list[Any], limits: Limits = LIMITS) -> list[bytes]:
    encoder = ENCODER if limits is LIMITS else AtRestEncoder(TYPES, limits)
    return encoder.encode_each(given_values, step="s", keys=[f"key-{place}" for place in range(len(given_values))])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ALIKE)
@example([1, 2**70])
@example(["a", "\ud800", "b"])
@example([(1, "\ud800"), (2, 2**70), ()])
@example([[1], [(2,)], [[3]]])
@example([("a",), ("a", ("b",))])
@example([Pair(1, 2), Pair(3, 4)])
@example([Pair(1, 2), None, Stats(1, []), (1,), Pair(3, Pair(1, "\ud800")), Stats(2, [])])
@example([1, None, 2.5, b"", True])
@example([bytes(70_000), b"\xdc\xdd"])
@example([list(range(20)), list(range(20))])
def test_s8_each_has_the_form_that_it_has_alone_and_comes_back(given_values: list[Any]) -> None:
    forms = each(given_values)
    assert forms == [ENCODER.encode(value, step="s") for value in given_values]
    back = decode_each(forms, TYPES, LIMITS, step="s")
    assert canonical(back) == canonical(given_values)
    assert [canonical(decode_at_rest(form, TYPES, LIMITS)) for form in forms] == list(map(canonical, given_values))


@pytest.mark.parametrize("culprit", [len, bytearray(b"a"), (1, bytearray(b"a")), [memoryview(b"a")], object()])
@pytest.mark.parametrize("other", [1, (1, 2), [1, 2]])
def test_one_that_cannot_be_stored_is_named_by_its_key(culprit: Any, other: Any) -> None:
    with pytest.raises(CodecError, match="step 's' for key 'key-2'"):
        each([other, other, culprit, other])


@pytest.mark.parametrize("large", ["x" * 50, ("x" * 50,), ["x" * 50], tuple(range(11)), list(range(11))])
def test_limits_are_those_of_each_and_not_of_all(large: Any) -> None:
    limits = Limits(bytes_max=40, items_max=10)
    small: Any = type(large)("ab")
    assert len(each([small] * 100, limits)) == 100
    with pytest.raises(CodecError, match="for key 'key-1'"):
        each([small, large], limits)


@pytest.mark.parametrize("kind", [lambda n: n, lambda n: (n, "a"), lambda n: [n, None]])
def test_damage_of_one_is_told_of_its_key(kind: Any) -> None:
    forms = each([kind(number) for number in range(3)])
    for damaged in (b"", forms[1][:-1], forms[1] + b"\x01", b"\x99" + forms[1][1:], forms[1][:1] + b"\xc1"):
        with pytest.raises(CodecError, match="for key 'b' cannot be read"):
            decode_each([forms[0], damaged, forms[2]], TypeTable(), LIMITS, step="s", keys=["a", "b", "c"])


def test_a_value_that_begins_in_one_and_ends_in_the_next_is_none() -> None:
    with pytest.raises(CodecError, match="for key 'a' cannot be read"):
        decode_each([b"\x10\x92\x01", b"\x10\x02\x03"], TYPES, LIMITS, keys="ab")


def test_claims_of_length_are_not_believed() -> None:
    claims = [b"\x10" + b"\xdd\x00\xff\xff\xff" * 20 + b"\x01", b"\x10\x01"]
    with pytest.raises(CodecError, match="cannot be read"):
        decode_each(claims, TYPES, LIMITS)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=12).map(lambda data: b"\x11" + data) | st.binary(max_size=12), max_size=4))
def test_bytes_that_nobody_wrote_are_read_as_one_by_one_or_refused(forms: list[bytes]) -> None:
    def alone() -> Any:
        return [decode_at_rest(form, TYPES, LIMITS) for form in forms]

    try:
        expected = canonical(alone())
    except CodecError:
        with pytest.raises(CodecError):
            decode_each(forms, TYPES, LIMITS)
    else:
        assert canonical(decode_each(forms, TYPES, LIMITS)) == expected


CODEC = Codec(table())


def test_s8_damaged_bytes_give_a_typed_error_or_a_legal_value() -> None:
    outcome = fuzz(20_000, seed=8, measure_every=4)
    assert outcome.refused > outcome.legal > 0


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_no_truncation_is_read(value: object) -> None:
    data = CODEC.encode_at_rest(value, step="s")
    for end in range(len(data)):
        with pytest.raises(CodecError):
            CODEC.decode_at_rest(data[:end])


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x10" + b"\xdd\x00\x00\x27\x10" * 1000,
        b"\x10" + b"\xdc\xff\xff" * 1000 + b"\xc0" * 65535,
        b"\x10" + b"\x9f" * 1024,
        b"\x10" + b"\xdf\xff\xff\xff\xff\xc0",
        b"\x10\xdc\x07\xd0" + b"\x81\xc0\x90" * 2000,
        b"\x11\xdc\x07\xd0" + b"\x91\xc7\x00\x02" * 2000,
        b"\x11\xc9\xff\xff\xff\xff\x10",
        b"\x10\xdb\xff\xff\xff\xff",
        b"\x14\xff\xff\xff\xff",
        b"\x14\x05\x00\x00\x00\xdd\xff\xff\xff\xff\xc0",
    ],
    ids=lambda bomb: bomb[:8].hex(),
)
def test_what_bytes_claim_is_not_allocated(bomb: bytes) -> None:
    bytes_allocated(CODEC, bomb)
    tracemalloc.start()
    try:
        used = bytes_allocated(CODEC, bomb)
    finally:
        tracemalloc.stop()
    assert used <= BYTES_PER_BYTE_MAX * len(bomb) + BYTES_MAX
