"""Keys and state as columns of Arrow, where they have a schema; as JSON where they have none.

Rule: a column has a type of its own only if all its values are of one kind, and come back as they are; what differs, or
is made of others, is text in JSON. So the schema depends on what is there, and not on the order in which it comes.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from malstrom_py.value_kinds import is_unicode

if TYPE_CHECKING:
    import pyarrow as pa

KEY: Final = "key"
STATE: Final = "state"
JSON: Final = "json"

_KINDS: Final = {
    bool: "bool",
    int: "int64",
    float: "float64",
    str: "string",
    bytes: "binary",
    dt.date: "date32",
}
"""Kinds of values that have a type of Arrow, which gives them back as they are."""

_INT64: Final = range(-(2**63), 2**63)


@dataclass(slots=True)
class Kinds:
    """Which kinds of values a column has been seen to have. They are of one, or the column is text in JSON."""

    seen: set[str] = field(default_factory=set)

    def add(self, value: object) -> None:
        """There is such a value."""
        if value is not None:
            self.seen.add(_kind_of(value))

    @property
    def kind(self) -> str:
        """The name of a type of Arrow, or "json"; "string" if there is no value."""
        return next(iter(self.seen)) if len(self.seen) == 1 else JSON if self.seen else "string"


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a step's state. ``fields``: field -> kind, if each state is a dict; else one column, ``state``."""

    key: str
    fields: Mapping[str, str] | None
    state: str = JSON

    @property
    def kinds(self) -> dict[str, str]:
        """Column -> kind."""
        return {KEY: self.key, **({STATE: self.state} if self.fields is None else self.fields)}


def columns_of(entries: Iterable[tuple[Any, Any]]) -> Columns:
    """The columns for ``entries`` of key and state, all of which are looked at.

    >>> columns_of([("ant", {"n": 1, "mean": 0.5}), ("bee", {"n": 2, "mean": None})]).kinds
    {'key': 'string', 'n': 'int64', 'mean': 'float64'}
    >>> columns_of([(("ant", 1), 5), (("bee", 2), 6)]).kinds, columns_of([(1, {"n": 1}), (2, 7)]).kinds
    ({'key': 'json', 'state': 'int64'}, {'key': 'int64', 'state': 'json'})
    """
    key, state, fields = Kinds(), Kinds(), dict[str, Kinds]()
    are_dicts: bool | None = None
    for one, value in entries:
        key.add(one)
        if value is None:
            continue
        is_dict = isinstance(value, Mapping) and all(type(name) is str and name != KEY for name in value)
        are_dicts = is_dict if are_dicts is None else are_dicts and is_dict
        if are_dicts:
            for name, part in value.items():
                fields.setdefault(name, Kinds()).add(part)
        state.add(value)
    if are_dicts and fields:
        return Columns(key.kind, {name: kinds.kind for name, kinds in fields.items()})
    return Columns(key.kind, None, state.kind)


def batch_of(entries: Sequence[tuple[Any, Any]], columns: Columns) -> pa.RecordBatch:
    """``entries`` of key and state as ``columns``."""
    import pyarrow as pa

    found: dict[str, list[Any]] = {KEY: [key for key, _ in entries]}
    if columns.fields is None:
        found[STATE] = [state for _, state in entries]
    else:
        for name in columns.fields:
            found[name] = [None if state is None else state.get(name) for _, state in entries]
    schema = arrow_schema(columns)
    arrays = [
        pa.array([None if value is None else _in_kind(value, kind) for value in found[name]], schema.field(name).type)
        for name, kind in columns.kinds.items()
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def arrow_schema(columns: Columns) -> pa.Schema:
    """The schema of `batch_of`."""
    import pyarrow as pa

    types = {
        "bool": pa.bool_(),
        "int64": pa.int64(),
        "float64": pa.float64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date32": pa.date32(),
        "moment": pa.timestamp("us", "UTC"),
        "local": pa.timestamp("us"),
        JSON: pa.string(),
    }
    return pa.schema([(name, types[kind]) for name, kind in columns.kinds.items()])


def json_text(value: Any) -> str:
    """Any value that can be stored as text in JSON, for people and for ``from_json`` of Spark.

    What JSON lacks is told by what comes nearest: tuples and sets are lists (sets in order), dates and times ISO 8601,
    durations seconds, decimals and UUIDs text, bytes base64, NaN and infinities text; a dict whose keys are not all
    text is a list of pairs.

    >>> json_text({"at": dt.date(2026, 1, 2), "seen": {2, 1}}), json_text({1: (2.5, None)}), json_text(float("nan"))
    ('{"at": "2026-01-02", "seen": [1, 2]}', '[[1, [2.5, null]]]', '"nan"')
    """
    return json.dumps(_plain(value))


def _kind_of(value: object) -> str:
    kind = type(value)
    if kind is dt.datetime:
        return "local" if value.tzinfo is None else "moment"  # type: ignore[attr-defined]
    if kind is int and value not in _INT64:
        return JSON
    if kind is str and not is_unicode(value):  # type: ignore[arg-type]
        return JSON
    return _KINDS.get(kind, JSON)


def _in_kind(value: Any, kind: str) -> Any:
    return json_text(value) if kind == JSON else value


def _plain(value: Any) -> Any:
    """``value`` in what JSON has."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, dict):
        if all(type(name) is str for name in value):
            return {name: _plain(part) for name, part in value.items()}
        return [[_plain(name), _plain(part)] for name, part in value.items()]
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    if isinstance(value, set | frozenset):
        return sorted(map(_plain, value), key=json.dumps)
    for kinds, told in _AS_JSON:
        if isinstance(value, kinds):
            return told(value)
    return _plain(value.tolist())  # of numpy


_AS_JSON: Final[tuple[tuple[tuple[type, ...], Callable[[Any], Any]], ...]] = (
    ((float,), lambda value: float(value) if math.isfinite(value) else str(float(value))),
    ((dt.date, dt.time), lambda value: value.isoformat()),
    ((dt.timedelta,), lambda value: value.total_seconds()),
    ((bytes, bytearray), lambda value: base64.b64encode(value).decode("ascii")),
    ((complex,), lambda value: [_plain(value.real), _plain(value.imag)]),
    ((Decimal, UUID, dt.tzinfo), str),
)
"""Kinds of values, and what stands for one in JSON. A datetime is a date."""
