"""Schemas are compared where possible, and match in doubt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypedDict

import pyarrow as pa
import pytest

from malstrom_py.dag.graph import check_schema, is_schema, mismatch
from malstrom_py.errors import PlanError


class Row(TypedDict):
    n: int


class Point(NamedTuple):
    x: int


class Named(Protocol):
    name: str


FIELDS = pa.schema([("n", pa.int64()), ("s", pa.string())])


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (None, int),
        (int, None),
        (int, int),
        (bool, int),
        (int, float),
        (int, complex),
        (float, complex),
        (Any, int),
        (int, Any),
        (object, int),
        (int, object),
        (int, int | None),
        (int | None, int | str | None),
        (bool, int | str),
        (list[int], list),
        (list, list[int]),
        (list[bool], list[int]),
        (dict[str, int], Mapping),
        (list[int], Sequence[str]),  # not compared: the relation of a list to a sequence is unknown here
        (tuple[int, str], tuple[int, str]),
        (Point, tuple),
        (Point, Named),
        (Row, dict),
        (int, Row),
        (FIELDS, FIELDS),
        (FIELDS, FIELDS.with_metadata({"made": "by a test"})),
        (FIELDS, dict),
        (FIELDS, Mapping),
        (FIELDS, dict[str, Any]),
        (dict, FIELDS),
        (pa.schema([pa.field("n", pa.int64(), nullable=False)]), pa.schema([("n", pa.int64())])),
        (pa.schema([]), pa.schema([])),
        (pa.schema([]), FIELDS),
        (FIELDS, pa.schema([])),
        (pa.schema([], metadata={"made": "by a test"}), FIELDS),
        (int, pa.schema([])),
        (pa.schema([]), list[str]),
    ],
    ids=str,
)
def test_what_fits_or_cannot_be_told_goes(given: Any, taken: Any) -> None:
    assert mismatch(given, taken) is None


@pytest.mark.parametrize(
    ("given", "taken", "why"),
    [
        (str, int, "str is not int"),
        (float, int, "float is not int"),
        (int | None, int, "int | None is not int"),
        (str, int | None, "str is not int | None"),
        (list[str], list[int], "list[str] is not list[int]"),
        (list, dict, "list is not dict"),
        (FIELDS, int, "dict is not int"),
        (str, FIELDS, "str is not dict"),
        (FIELDS, pa.schema([("n", pa.int32()), ("s", pa.binary())]), "'n' is int64, not int32; 's' is string, not bin"),
        (FIELDS, pa.schema([("n", pa.int64())]), "'s' is not expected"),
        (FIELDS, pa.schema([("n", pa.int64()), ("x", pa.int8())]), "'x' is missing; 's' is not expected"),
        (
            FIELDS,
            pa.schema([("s", pa.string()), ("n", pa.int64())]),
            "the fields come as ['n', 's'], not as ['s', 'n']",
        ),
        (pa.schema([("n", pa.int64())]), pa.schema([pa.field("n", pa.int64(), nullable=False)]), "'n' may be null"),
        (
            pa.schema([("n", pa.int64())] * 2),
            pa.schema([("n", pa.int64()), ("n", pa.int8())]),
            "'n' is int64, not int8",
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_is_told_with_the_reason(given: Any, taken: Any, why: str) -> None:
    assert (mismatch(given, taken) or "").startswith(why)


@pytest.mark.parametrize("schema", [None, int, list[int], int | None, Any, FIELDS, Row, Named, type(None)])
def test_what_is_a_schema_is_taken(schema: Any) -> None:
    assert check_schema(schema, "a") is schema


@pytest.mark.parametrize("schema", ["int", 1, [int], (int, str), len, pa.int64(), pa.field("n", pa.int64())])
def test_what_is_none_is_refused_with_its_type_but_not_its_value(schema: Any) -> None:
    with pytest.raises(PlanError, match=f"node 'a': a schema must be .*, got {type(schema).__name__}"):
        check_schema(schema, "a")


def test_a_schema_of_another_library_is_none() -> None:
    assert not is_schema(type("Schema", (), {})())
    assert is_schema(FIELDS)
