"""Values of users in a manifest are restored exactly, and are plain where JSON can represent them."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.errors import CodecError
from malstrom_py.snapshot.manifest import DEPTH_MAX, as_json, from_json
from malstrom_py.testing.exact import same


class Level(IntEnum):
    LOW = 1


def back(value: Any) -> Any:
    return from_json(json.loads(json.dumps(as_json(value, step="s"))), step="s")


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


PLAIN = [
    None,
    True,
    0,
    -(2**63),
    2**63 - 1,
    -0.0,
    1.5,
    1e300,
    "",
    "\ud800 ä",
    [],
    {},
    {"a": [1, {"b": None}]},
    nested(30),
]
PACKED = [
    2**63, math.inf, (1, 2), {1: 2}, {"$": 1}, {"a": {"$": "x"}}, b"x", {1, 2}, Decimal("1.50"), [(1,)],
    dt.datetime(2013, 1, 1, tzinfo=dt.UTC), nested(DEPTH_MAX + 1), -(2**80),
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_what_json_can_tell_is_plain(value: Any) -> None:
    assert as_json(value, step="s") is value
    assert same(back(value), value)


@pytest.mark.parametrize("value", PACKED, ids=repr)
def test_what_json_cannot_tell_is_packed(value: Any) -> None:
    assert list(as_json(value, step="s")) == ["$"]
    assert same(back(value), value)


PARTS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
VALUES = st.recursive(
    PARTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.just("$") | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_any_value_comes_back_as_it_was(value: Any) -> None:
    assert same(back(value), value)


@pytest.mark.parametrize(
    "value", [object(), lambda: None, Level.LOW, {"a": object()}], ids=lambda value: type(value).__name__
)
def test_what_cannot_be_stored_names_the_step(value: Any) -> None:
    with pytest.raises(CodecError, match="step 'orders'"):
        as_json(value, step="orders")


@pytest.mark.parametrize(
    "stored",
    [
        {"$": 1},
        {"$": "?"},
        {"$": "ä"},
        {"$": ""},
        {"$": "AAAA"},
        {"$": "x", "b": 1},
        nested(40),
        2**70,
        {"a": {"$": "x"}},
    ],
    ids=repr,
)
def test_what_as_json_never_gives_is_refused(stored: Any) -> None:
    with pytest.raises((CodecError, ValueError)):
        from_json(stored, step="s")
