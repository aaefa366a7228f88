"""Stored values are decoded to exactly their types, or rejected with step, key and type."""

from __future__ import annotations

import contextlib
import enum
import re
import tracemalloc
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from malstrom_py.codec import Codec
from malstrom_py.codec.at_rest import AtRestEncoder, decode_at_rest, decode_each
from malstrom_py.codec.encoding_errors import DEPTH_MAX, Limits
from malstrom_py.codec.types import TypeTable
from malstrom_py.errors import CodecError
from tests.fuzz.codec import BYTES_MAX, BYTES_PER_BYTE_MAX, VALUES, bytes_allocated, fuzz
from tests.fuzz.codec_values import Access, Colour, Computed, Pair, Stats, Word, canonical, table, values

TYPES = table()
LIMITS = Limits()
ENCODER = AtRestEncoder(TYPES, LIMITS)


def there_and_back(value: Any) -> Any:
    return decode_at_rest(ENCODER.encode(value, step="s"), TYPES, LIMITS)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(values)
@example([float("nan"), -0.0, float("inf"), True, 1, 1.0])
@example({(1, (2, "x")): {1: None, "1": ()}, None: [], b"": "\ud800", 2**70: -(2**70)})
@example([Stats(1, [Stats(2, Colour.ROUGE)]), Pair(1, (2,)), Access.READ | Access.WRITE, Word.YES])
def test_s8_a_value_comes_back_as_exactly_what_it_was(value: Any) -> None:
    assert canonical(there_and_back(value)) == canonical(value)


def test_the_order_of_a_dict_is_kept() -> None:
    assert list(there_and_back({"z": 1, "a": 2, 3: 4})) == ["z", "a", 3]


def test_an_array_comes_back_writable() -> None:
    back = there_and_back(np.arange(3))
    back[0] = 9
    assert back.tolist() == [9, 1, 2]


def test_a_generic_dataclass_that_was_made_by_its_alias_is_stored() -> None:
    value = Computed[int](3)
    assert canonical(there_and_back(value)) == canonical(value)


def test_many_values_of_one_class_name_it_once() -> None:
    one, hundred = (len(ENCODER.encode([Stats()] * n, step="s")) for n in (1, 100))
    assert hundred < one + 100 * 10


def test_s8_nothing_at_rest_is_pickle() -> None:
    data = ENCODER.encode({"a": (1, Stats())}, step="s")
    assert data[0] & 0xF0 == 0x10
    assert msgpack.unpackb(data[5 + int.from_bytes(data[1:5], "little") :], ext_hook=lambda *_: None)


class Number(int):
    pass


class Text(str):
    __slots__ = ()


class Plain:
    pass


class Unregistered(enum.Enum):
    ONE = 1


@dataclass
class NotRegistered:
    one: int = 1


class Somewhere(tzinfo):
    def utcoffset(self, _: datetime | None) -> timedelta:
        return timedelta(0)

    def dst(self, _: datetime | None) -> None:
        return None

    def tzname(self, _: datetime | None) -> str:
        return "somewhere"


REFUSED = [
    (OrderedDict(a=1), "OrderedDict", "dict(...)"),
    (defaultdict(int), "defaultdict", "dict(...)"),
    (Counter("ab"), "Counter", "dict(...)"),
    (Number(3), "Number", "int(...)"),
    (Text("x"), "Text", "str(...)"),
    (deque([1]), "deque", "dataclass"),
    (bytearray(b"x"), "bytearray", "bytes(...)"),
    (memoryview(b"x"), "memoryview", "bytes(...)"),
    (msgpack.ExtType(1, b""), "ExtType", "Store its parts"),
    (msgpack.Timestamp(1), "Timestamp", "a datetime"),
    (Plain(), "Plain", "job.register_type"),
    (Unregistered.ONE, "Unregistered", "job.register_type(Unregistered)"),
    (NotRegistered(), "NotRegistered", "job.register_type(NotRegistered)"),
    (lambda: 1, "function", "dataclass"),
    (int, "type", "dataclass"),
    (datetime(2024, 1, 1, tzinfo=Somewhere()), "datetime", "zoneinfo.ZoneInfo"),
    (np.array([None]), "ndarray", "dtype"),
    (np.array(["x"]), "ndarray", "dtype"),
    (np.longdouble(1), "longdouble", "dtype"),
]


@pytest.mark.parametrize(("value", "name", "remedy"), REFUSED, ids=[name for _, name, _ in REFUSED])
def test_what_would_not_come_back_is_refused_wherever_it_stands(value: Any, name: str, remedy: str) -> None:
    places = [
        value,
        [value],
        {"a": [value]},
        (value,),
        ((1, [value]),),
        Stats(1, value),
        Pair({"x": value}, 0),
        [[[value]]],
    ]
    for place in places:
        with pytest.raises(CodecError, match=re.escape(remedy)) as caught:
            ENCODER.encode(place, step="running-sum", key="UA")
        assert caught.value.step == "running-sum"
        assert caught.value.key == "UA"
        assert caught.value.type_name.endswith(name)
        assert "'running-sum'" in str(caught.value)
        assert "'UA'" in str(caught.value)
        assert name in str(caught.value)


@pytest.mark.parametrize("key", [memoryview(b"x"), msgpack.ExtType(1, b"x"), Number(1), Unregistered.ONE])
def test_what_would_not_come_back_is_refused_as_a_key_too(key: Any) -> None:
    for place in ({key: 1}, {1: {key: 2}}, {("a", key): 1}, {key}, frozenset({(key,)})):
        with pytest.raises(CodecError):
            ENCODER.encode(place, step="s")


def test_an_attribute_that_is_no_field_is_refused_rather_than_lost() -> None:
    value = Stats()
    value.more = 1  # type: ignore[attr-defined]  # that is the point
    with pytest.raises(CodecError, match="attributes that are not fields"):
        ENCODER.encode(value, step="s")


def test_a_field_without_a_value_is_refused() -> None:
    value = Computed(1)
    del value.doubled
    with pytest.raises(CodecError, match="has no value"):
        ENCODER.encode(value, step="s")


def test_an_error_names_no_value() -> None:
    with pytest.raises(CodecError) as caught:
        ENCODER.encode({"password": ["hunter2", Plain()]}, step="s")
    assert "hunter2" not in str(caught.value)
    assert "password" not in str(caught.value)


def nested(depth: int, wrap: Any) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = wrap(value)
    return value


WRAPS = [lambda v: [v], lambda v: (v,), lambda v: {"a": v}, lambda v: Stats(0, v), lambda v: [(v,)]]
WRAP_NAMES = ["list", "tuple", "dict", "dataclass", "list of tuples"]


def levels(value: Any) -> int:
    count = 0
    while value != 1:
        value = value["a"] if isinstance(value, dict) else value.extra if isinstance(value, Stats) else value[0]
        count += 1
    return count


@pytest.mark.parametrize("wrap", WRAPS, ids=WRAP_NAMES)
@pytest.mark.parametrize("depth", [509, 510, 511, 512, 513, 1021, 1022, 1023, 1024, 1025, 1026, 5000])
def test_deeper_values_are_refused_or_stored_so_that_they_can_be_read(depth: int, wrap: Any) -> None:
    value = nested(depth, wrap)
    stored = None
    with contextlib.suppress(CodecError):
        stored = ENCODER.encode(value, step="s")
    assert stored is not None or levels(value) > DEPTH_MAX
    assert stored is None or levels(decode_at_rest(stored, TYPES, LIMITS)) == levels(value) <= 1024


def test_what_is_too_deep_is_refused_with_a_remedy() -> None:
    with pytest.raises(CodecError, match=r"nested too deep, or contains itself\. Store it flat"):
        ENCODER.encode(nested(5000, WRAPS[0]), step="s")


@pytest.mark.parametrize("wrap", WRAPS[:4], ids=WRAP_NAMES[:4])
def test_the_depth_that_is_promised_is_stored(wrap: Any) -> None:
    assert levels(there_and_back(nested(DEPTH_MAX, wrap))) == DEPTH_MAX


def test_a_value_that_contains_itself_is_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    twice: list[Any] = []
    twice += [twice, (twice,)]
    cyclic: dict[str, Any] = {}
    cyclic["me"] = (cyclic,)
    itself = Stats()
    itself.extra = itself
    encoder = AtRestEncoder(TYPES, Limits(items_max=100_000))
    for value in (ring, twice, cyclic, itself):
        with pytest.raises(CodecError, match=r"contains itself|Split it"):
            encoder.encode(value, step="s")
    assert decode_at_rest(encoder.encode([1], step="s"), TYPES, LIMITS) == [1]


def test_a_bomb_of_shared_lists_is_refused_before_it_is_packed() -> None:
    bomb: Any = [0]
    for _ in range(60):
        bomb = [bomb, bomb]
    with pytest.raises(CodecError, match="more than 1,000 values"):
        AtRestEncoder(TYPES, Limits(items_max=1000)).encode(bomb, step="s")
    bomb = (0,)
    for _ in range(60):
        bomb = (bomb, bomb)
    with pytest.raises(CodecError, match="more than 1,000 values"):
        AtRestEncoder(TYPES, Limits(items_max=1000)).encode(bomb, step="s")


def test_a_value_over_the_limit_of_bytes_is_refused_on_both_sides() -> None:
    small = Limits(bytes_max=100)
    with pytest.raises(CodecError, match="the limit is 100"):
        AtRestEncoder(TYPES, small).encode("x" * 100, step="s")
    with pytest.raises(CodecError, match="the limit is 100"):
        decode_at_rest(ENCODER.encode("x" * 100, step="s"), TYPES, small)


def test_a_container_over_the_limit_of_items_is_refused_on_both_sides() -> None:
    small = Limits(items_max=20)
    for value in (list(range(21)), dict.fromkeys(range(21)), tuple(range(21))):
        with pytest.raises(CodecError, match="more than 20 values"):
            AtRestEncoder(TYPES, small).encode(value, step="s")
        with pytest.raises(CodecError, match="damaged"):
            decode_at_rest(ENCODER.encode(value, step="s"), TYPES, small)


def test_a_class_that_is_not_registered_is_never_looked_for() -> None:
    data = ENCODER.encode(Stats(), step="s")
    with pytest.raises(CodecError, match=r"codec_values:Stats.*not registered\. Call job\.register_type") as caught:
        decode_at_rest(data, TypeTable(), LIMITS, step="running", key=7)
    assert caught.value.step == "running"
    assert caught.value.key == 7
    evil = data.replace(b"tests.fuzz.codec_values:Stats", b"subprocess:Popen".ljust(29))
    with pytest.raises(CodecError, match="not registered"):
        decode_at_rest(evil, TYPES, LIMITS)


def test_a_class_whose_fields_have_changed_is_refused() -> None:
    data = ENCODER.encode(Stats(), step="s").replace(b"count", b"kount")
    with pytest.raises(CodecError, match=r"stored as dataclass, kount, extra and is now dataclass, count, extra"):
        decode_at_rest(data, TYPES, LIMITS)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\xc0",
        b"\x20\xc0",
        b"\x18\xc0",
        b"\x10",
        b"\x10\xc0\xc0",
        b"\x10\xd4\x01\x00",
        b"\x11\xd4\x01\x00",
        b"\x11\xc7\x00\x01",
        b"\x11\x92\xc0\xc7\x00\x01",
        b"\x11\x81\xc7\x00\x01\xc0",
        b"\x11\x92\xc7\x00\x04\x00",
        b"\x14\xff\xff\xff\xff\xc0",
        b"\x14\x01\x00\x00\x00\xc0\xc0",
        b"\x11\xd4\x63\x00",
        b"\x10\xd4\x63\x00",
        b"\x14\x05\x00\x00\x00\x91\x91\xa1a\xc0\xc0\xc0",
        b"\x11\xd5\x12\x78\x78",
        b"\x10\x81\x90\xc0",
        b"\x10" + b"\x91" * 3000,
        b"\x10" + b"\xdd\x00\xff\xff\xff" * 200,
        b"\x11\xc7\x0b\x19../../etc/x",
    ],
    ids=lambda data: data[:8].hex(),
)
def test_bytes_that_nobody_wrote_are_refused(data: bytes) -> None:
    with pytest.raises(CodecError, match="cannot be read"):
        decode_at_rest(data, TYPES, LIMITS)


def test_the_encoder_is_fit_for_use_after_an_error() -> None:
    with pytest.raises(CodecError):
        ENCODER.encode([1, "x", (2, Plain())], step="s")
    assert there_and_back((1, Stats())) == (1, Stats())


def test_a_large_value_leaves_no_large_buffer_behind() -> None:
    assert len(there_and_back("x" * (3 << 20))) == 3 << 20
    assert there_and_back("x") == "x"


def test_the_stored_form_is_the_one_that_was_stored_yesterday() -> None:
    """These bytes are in snapshots. A change needs another version byte and a reader for both versions."""
    yesterday = {
        "10 82 a1 61 01 a1 62 c0": {"a": 1, "b": None},
        "11 93 c7 00 01 01 02": (1, 2),
        "11 92 c7 00 02 05": {5},
        "11 c7 09 10 00 00 00 00 00 00 00 00 01": 2**64,
        "11 c7 03 12 31 2e 35": Decimal("1.5"),
        "11 d6 14 dd 07 01 02": date(2013, 1, 2),
    }
    for stored, value in yesterday.items():
        assert ENCODER.encode(value, step="s").hex(" ") == stored
        assert there_and_back(value) == value


# Many values


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
