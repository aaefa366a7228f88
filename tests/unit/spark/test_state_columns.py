"""State as columns: a type where all values of a column are of one kind, else JSON; no value is ever another."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.snapshot.typed_columns import json_text, row_table
from malstrom_py.spark.snapshot_source import StateColumns, batch_of, columns_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def read(entries: list[tuple[Any, Any]]) -> tuple[dict[str, str], list[dict[str, Any]]]:
    columns = columns_of(entries)
    return columns.kinds, batch_of(entries, columns).to_pylist()


def test_states_that_are_dicts_are_columns_by_field() -> None:
    kinds, rows = read([("a", {"n": 1, "at": NOON}), ("b", {"n": 2, "more": [1, 2]}), ("c", None)])
    assert kinds == {"key": "str", "n": "int", "at": "datetime with a zone", "more": "json"}
    assert rows == [
        {"key": "a", "n": 1, "at": NOON, "more": None},
        {"key": "b", "n": 2, "at": None, "more": "[1, 2]"},
        {"key": "c", "n": None, "at": None, "more": None},
    ]


@pytest.mark.parametrize(
    ("states", "kind"),
    [
        ([1, 2**63 - 1, None], "int"),
        ([1.5, math.inf], "float"),
        ([True, False], "bool"),
        (["a"], "str"),
        ([b"a"], "bytes"),
        ([date(2026, 1, 1)], "date"),
        ([NOON], "datetime with a zone"),
        ([NOON.replace(tzinfo=None)], "datetime without a zone"),
        ([1, 2**63], "json"),
        ([1, 1.5], "json"),
        ([1, True], "json"),
        (["a", "\ud800"], "json"),
        ([(1, 2)], "json"),
        ([Decimal(1)], "json"),
        ([{"n": 1}, 7], "json"),
        ([{1: 2}], "json"),
        ([{"key": 1}], "json"),
        ([{}], "json"),
        ([None], "str"),
        ([], "str"),
    ],
    ids=str,
)
def test_a_state_of_one_kind_has_its_type(states: list[Any], kind: str) -> None:
    entries = list(enumerate(states))
    kinds, rows = read(entries)
    assert kinds.get("state") == kind
    shown = [state if kind != "json" or state is None else json_text(state) for state in states]
    assert [row["state"] for row in rows] == shown


def test_keys_are_told_by_the_same_rule() -> None:
    assert read([(("a", 1), 1), (("b", 2), 2)])[1] == [{"key": '["a", 1]', "state": 1}, {"key": '["b", 2]', "state": 2}]
    assert columns_of([("a", 1), (2, 2)]) == StateColumns("json", None, "int")


@pytest.mark.parametrize(
    ("value", "reported"),
    [
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        ((1, [2, (3,)]), [1, [2, [3]]]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({(1,), (2,)}), [[1], [2]]),
        ({"a": NOON}, {"a": "2026-01-01T12:00:00+00:00"}),
        ({1: "a", None: "b"}, [[1, "a"], [None, "b"]]),
        (timedelta(minutes=1.5), 90.0),
        (time(12, 30), "12:30:00"),
        (Decimal("1.10"), "1.10"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (b"\x00\xff", "AP8="),
        (1 + 2j, [1.0, 2.0]),
        (UTC, "UTC"),
        (2**80, 2**80),
    ],
    ids=str,
)
def test_json_tells_what_it_lacks_by_what_comes_nearest(value: Any, reported: Any) -> None:
    assert json.loads(json_text(value)) == reported


def test_arrays_of_numpy_are_lists() -> None:
    numpy = pytest.importorskip("numpy")
    assert (
        json_text({"a": numpy.array([[1, 2], [3, 4]]), "b": numpy.float32(1.5)}) == '{"a": [[1, 2], [3, 4]], "b": 1.5}'
    )


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3)
STATES = VALUES | st.dictionaries(st.text(max_size=2), VALUES, max_size=3) | st.tuples(VALUES)


@given(states=st.lists(STATES, max_size=6), data=st.data())
def test_columns_do_not_depend_on_order_and_always_hold_what_is_there(states: list[Any], data: st.DataObject) -> None:
    entries = list(enumerate(states))
    shuffled = data.draw(st.permutations(entries))
    columns = columns_of(entries)
    assert columns_of(shuffled).kinds == columns.kinds
    assert len(batch_of(entries, columns)) == len(entries)


@pytest.mark.parametrize(
    ("early", "late", "shown"),
    [("a", 1, ['"a"', "1"]), (None, 7, [None, 7]), (1, 2**70, ["1", str(2**70)]), (1, None, [1, None])],
)
def test_a_kind_that_shows_late_is_that_of_all_rows(early: Any, late: Any, shown: list[Any]) -> None:
    rows = [{"key": n, "value": early} for n in range(40_000)]
    table = row_table(lambda: [*rows, {"key": -1, "value": late, "more": "b"}], ["key"])
    assert table.num_rows == 40_001
    assert [table["value"][0].as_py(), table["value"][-1].as_py()] == shown
    assert table["more"].null_count == 40_000
    assert table.schema.names == ["key", "value", "more"]
