"""Which functions are traced, why others are not, and that a fault of the tracer does not pass the law."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pytest

from malstrom_py.traced import evaluation, proxies, tracing, vectors
from malstrom_py.traced.in_python import kinds_of
from malstrom_py.traced.tracing import Traced, trace
from malstrom_py.traced.vectors import Vector
from tests.unit.traced import test_traced_law
from tests.unit.traced.test_traced_law import holds

BATCH = pa.RecordBatch.from_pydict({"i": [1, 2], "s": ["a", "b"], "f": [0.5, 1.5]})
KINDS = kinds_of(BATCH.schema)
LIMIT = 3
SEEN: list[int] = []
RATES = {"a": 1, "b": 2}


def changed_by_name(row: Any) -> Any:
    global LIMIT  # noqa: PLW0603
    LIMIT = 4
    return row["i"]


def append_to(seen: Any) -> Any:
    return seen.append


def rebound(row: Any) -> Any:
    row = SEEN
    return row.append


def looped(row: Any) -> Any:
    total = 0
    for _ in range(3):
        total += row["i"]
    return total


def handled(row: Any) -> Any:
    try:
        return row["i"] / 0
    except ZeroDivisionError:
        return 0


def mutated(row: Any) -> Any:
    row["i"] = 1
    return row


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda row: print(row), "calls print"),  # noqa: PLW0108
        (lambda row: SEEN.append(row["i"]), "calls SEEN.append"),
        (lambda row: random.random() < row["i"], "calls random.random"),
        (lambda row: datetime.now(), "calls datetime.now"),  # noqa: DTZ005
        (lambda row: row["s"].split(",")[0], "calls .split"),
        (lambda row: row.pop("s"), "calls row.pop"),
        (lambda row: row._names, "uses row._names"),
        (lambda row, seen=SEEN: seen.append, "uses seen.append"),
        (lambda row: append_to(SEEN), "uses seen.append"),
        (rebound, "uses row.append"),
        (lambda row: (SEEN if row["i"] else row).append, "uses "),
        (lambda row: row.price, "raises, or does what is not compiled, for each row"),
        (lambda row: sys.version_info.major, "uses sys.version_info.major"),
        (lambda row: datetime(row["i"], 1, 1).year, "reads datetime, of type type"),  # noqa: DTZ001
        (changed_by_name, "changes or imports something"),
        (looped, "has a loop"),
        (handled, "handles exceptions"),
        (mutated, "changes or imports something"),
        (lambda row: f"{row['i']}", "makes text of values"),
        (lambda row: [*SEEN, row["i"]], "makes a list or a set of another, or a function"),
        (lambda row: SEEN, "returns a list or a set from outside"),
        (lambda row: row["i"] is True, "compares with is"),
        (lambda *rows: 1, "is not a function of a row that returns a value"),
        (str.lower, "is a method_descriptor, not a plain function"),
        (lambda row: int(row["s"]), "reads a number from text"),
        (lambda row: row["s"][0], "takes one character"),
        (lambda row: {row["s"]: 1}, "asks for a value"),
        (lambda row: row["i"] in {1 + len(row): 0}, "asks for a value"),
        (lambda row: row["i"] is (True if row["s"] else None), "compares with is"),
        (lambda row: "text" % row["i"], "raises, or does what is not compiled"),  # noqa: F507, UP031
        (lambda row: 1 if row["i"].lower else 2, "raises, or does what is not compiled"),
        (lambda row: row["i"] == 2**70, "uses an integer beyond 64 bits"),
    ],
)
def test_what_is_not_traced_is_said_in_a_line(function: Callable[[Any], Any], why: str) -> None:
    found = trace(function, KINDS)
    assert isinstance(found, str)
    assert found.startswith(why), found
    assert not SEEN


def test_a_function_is_the_same_only_while_what_it_reads_is() -> None:
    names: dict[str, Any] = {"LIMIT": 3, "RATES": {"a": 1}}
    function = eval("lambda row: RATES.get(row['s'], 0) > LIMIT", names)
    traced = trace(function, KINDS)
    assert isinstance(traced, Traced)
    assert traced.outside.is_same
    names["RATES"]["a"] = 2
    assert not traced.outside.is_same
    names["RATES"]["a"] = 1
    assert traced.outside.is_same
    names["LIMIT"] = 4
    assert not traced.outside.is_same


def test_a_table_is_the_same_only_while_its_types_are() -> None:
    table: dict[str, Any] = {"a": 1}

    def by_default(row: Any, rates: dict[str, Any] = table) -> Any:
        return rates.get(row["s"])

    traced = trace(by_default, KINDS)
    assert isinstance(traced, Traced)
    assert traced.outside.is_same
    table["a"] = True
    assert not traced.outside.is_same


def test_a_function_that_calls_another_is_traced_through_it() -> None:
    def double(value: Any) -> Any:
        return value * 2

    traced = trace(lambda row: double(row["i"]), KINDS)
    assert isinstance(traced, Traced)
    assert [*evaluation.truths(traced.tree, BATCH)] == [True, True]
    assert traced.fields == {"i"}


def _batch(**columns: Any) -> pa.RecordBatch:
    given = {"i": [3], "j": [2], "f": [0.5], "s": ["a"], "b": [True], "t": [datetime(2026, 1, 1)], **columns}  # noqa: DTZ001
    return pa.RecordBatch.from_pydict(given)


def _unchecked(data: Any, *_: int) -> Vector:
    with np.errstate(all="ignore"):
        return Vector("int", data(), -(2**62), 2**62)


WRONG = {
    "whole numbers that leave 64 bits": (
        (vectors, "_ints", _unchecked),
        'r["i"] + 1',
        _batch(i=[2**63 - 1]),
    ),
    "a division by zero is infinite": (
        (vectors, "_nonzero", lambda divisor: None),
        'r["f"] / r["i"]',
        _batch(i=[0]),
    ),
    "// rounds to zero": (
        (
            vectors.BINARY,
            "floordiv",
            lambda left, right: Vector("int", np.trunc(left.data / right.data).astype(int), -9, 9),
        ),
        'r["i"] // r["j"]',
        _batch(i=[-3]),
    ),
    "% has the sign of the dividend": (
        (vectors.BINARY, "mod", lambda left, right: Vector("int", np.fmod(left.data, right.data), -9, 9)),
        'r["i"] % r["j"]',
        _batch(i=[-3]),
    ),
    "large whole numbers are floats": (
        (vectors, "_EXACT", 2**64),
        'r["i"] == r["f"]',
        _batch(i=[2**53 + 1], f=[2.0**53]),
    ),
    "what is not used is not computed": (
        (tracing, "_RISKY", frozenset()),
        '1 if (1 // r["i"]) is not None else 2',
        _batch(i=[0]),
    ),
    "text of any kind is lowered as ASCII": (
        (vectors.OTHER, "lower", lambda one: Vector("str", pa.compute.utf8_lower(one.data))),
        'r["s"].lower()',
        _batch(s=["İ"]),
    ),
    "strip removes what Arrow takes for spaces": (
        (vectors.OTHER, "strip", lambda one: Vector("str", pa.compute.ascii_trim_whitespace(one.data))),
        'r["s"].strip()',
        _batch(s=["a\x1f"]),
    ),
    "weeks begin on Sunday": (
        (
            vectors.OTHER,
            "weekday",
            lambda one: Vector(
                "int",
                pa.compute.day_of_week(pa.array(one.data).cast(pa.timestamp("us")), week_start=7).to_numpy(),
                0,
                6,
            ),
        ),
        'r["t"].weekday()',
        _batch(),
    ),
    "streams are numbered from 1": (
        (evaluation, "whole", lambda one: Vector("int", one.data - 1)),
        '[r["i"]]',
        _batch(i=[1]),
    ),
    "all rows go where one path goes": (
        (evaluation._Rows, "where", lambda rows, flags: evaluation._Rows(rows._columns)),
        '(0,) if r["b"] else [1, r["j"]]',
        _batch(i=[3, 4], j=[2, 2], f=[0.5] * 2, s=["a"] * 2, b=[True, False], t=[datetime(2026, 1, 1)] * 2),  # noqa: DTZ001
    ),
    "the places of a tuple are exchanged": (
        (
            test_traced_law,
            "by_place",
            lambda tree: replace(tree, value={str(place): value for place, value in enumerate(tree.value[::-1])}),
        ),
        '(r["i"], r["s"])',
        _batch(),
    ),
    "places are counted from 1": (
        (proxies.Places, "__getitem__", lambda row, place: proxies.field_of(row._names()[place + 1], row._paths)),
        'r["i"]',
        _batch(),
    ),
    "attributes of objects are looked up elsewhere": (
        (proxies.Instance, "__getattr__", lambda row, name: proxies.field_of("j", row._paths)),
        'r["i"]',
        _batch(),
    ),
    "lookups find nothing": (
        (proxies, "_is_among", lambda *_: False),
        'r["s"] in NUMBERS or r["s"] in TABLE',
        _batch(s=["a"]),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_law_sees_wrong_tracers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (where, what, wrong), source, batch = WRONG[name]
    form = "an object" if where is proxies.Instance else "a tuple" if where is proxies.Places else "a row"
    assert holds(source, batch, form)
    if isinstance(where, dict):
        monkeypatch.setitem(where, what, wrong)
    else:
        monkeypatch.setattr(where, what, wrong)
    assert not holds(source, batch, form)


SMALL = {1, 2}
THINNED = set(range(200)) - {number for number in range(200) if number not in (33, 64)}


def one() -> int:
    return 1


@pytest.mark.parametrize(
    "function",
    [
        lambda row: {"x": str(SMALL)},
        lambda row: {"x": str(int)},
        lambda row: {"x": "%s" % int},  # noqa: UP031
        lambda row: {"x": str(one)},
        lambda row: {"x": "%s" % one},  # noqa: UP031
        lambda row: {"x": {one: 1}.get(one)},
        lambda row: {"x": max(THINNED, key=bool)},
        lambda row: {"x": max(SMALL | THINNED)},
    ],
)
def test_a_function_that_shows_what_stands_in_for_another_value_is_refused(function: Callable[[Any], Any]) -> None:
    """Sets are copied, which may change their order, and functions are replaced: they may be searched and called."""
    assert trace(function, KINDS) == "shows or combines a set or a function from outside"


def test_a_function_that_returns_a_dict_from_outside_is_refused() -> None:
    """A later step that changes it would change it for all rows."""
    for function in (lambda row: RATES, lambda row, rates={"a": 1}: {"x": rates}):
        assert "returns a dict from outside" in str(trace(function, KINDS))
    assert isinstance(trace(lambda row: {**RATES, "i": row["i"]}, KINDS), Traced)
    assert isinstance(trace(lambda row: {"x": one() if row["i"] in SMALL else max(1, 2, key=bool)}, KINDS), Traced)
