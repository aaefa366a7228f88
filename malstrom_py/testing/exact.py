"""Exact comparison and deep copies of users' values, and the watch on batches that must not change.

Rule: two values are the same if their types and contents are equal at every depth: 1 is not 1.0, and a tuple is not a
list. In test mode, a batch that a step has received or sent must not change afterwards.
"""

from __future__ import annotations

import copy
import struct
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from numbers import Number
from typing import Any

from malstrom_py.data.batch import Batch
from malstrom_py.testing.law_error import LawError


def same(one: Any, other: Any) -> bool:
    """Return whether ``one`` and ``other`` have the same types and contents, at every depth.

    >>> same({"a": (1, 2)}, {"a": (1, 2)}), same(1, True), same(float("nan"), float("nan")), same(0.0, -0.0)
    (True, False, True, False)
    """
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is float:
        return struct.pack("<d", one) == struct.pack("<d", other)
    if isinstance(one, datetime) and (one.fold, one.utcoffset()) != (other.fold, other.utcoffset()):
        return False  # Python takes the two readings of an hour that comes twice for equal
    if isinstance(one, Mapping):
        return _same_items(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other)) and _same_attributes(one, other)
    if isinstance(one, set | frozenset):
        return _same_members(one, other)
    compares: object = kind.__eq__
    if compares is object.__eq__ or hasattr(kind, "__dataclass_fields__"):
        return _same_attributes(one, other)
    return _equal(one, other)


def same_batch(one: Batch, other: Batch) -> bool:
    """Return whether two batches have the same rows."""
    return one.part == other.part and all(same(a, b) for a, b in zip(_columns(one), _columns(other), strict=True))


def copy_batch(batch: Batch) -> Batch:
    """Return a deep copy of ``batch``."""
    values, keys, timestamps = copy.deepcopy(_columns(batch))
    return Batch(values, keys=keys, timestamps=timestamps, part=batch.part)


def _columns(batch: Batch) -> tuple[Any, Any, Any]:
    return batch.values, batch.keys, batch.timestamps


def _same_items(one: list[tuple[Any, Any]], other: list[tuple[Any, Any]]) -> bool:
    # The order counts: iteration over a dict shows it.
    return len(one) == len(other) and all(
        same(key, other_key) and same(value, other_value)
        for (key, value), (other_key, other_value) in zip(one, other, strict=True)
    )


def _same_members(one: set[Any] | frozenset[Any], other: set[Any] | frozenset[Any]) -> bool:
    if one != other:
        return False
    twins = {member: member for member in other}
    return all(same(member, twins[member]) for member in one)


def _same_attributes(one: Any, other: Any) -> bool:
    names = [*getattr(one, "__dict__", ())]
    if names != [*getattr(other, "__dict__", ())]:
        return False
    for kind in type(one).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names.extend([slots] if isinstance(slots, str) else slots)
    missing = object()
    return all(
        same(getattr(one, name, missing), getattr(other, name, missing))
        for name in names
        if name not in ("__dict__", "__weakref__")
    )


def _equal(one: Any, other: Any) -> bool:
    answer = one == other
    try:
        return bool(answer) or (isinstance(one, Number) and one != one and other != other)  # NaN is the same as NaN
    except ValueError:  # arrays compare element by element
        return bool(answer.all())


NO_MUTATION = "no mutation of inputs"


class MutationWatch:
    """Detects changes of batches by comparing them with deep copies."""

    def __init__(self) -> None:
        self._watched: list[tuple[str, Batch, Batch]] = []

    def add(self, what: str, batch: Batch) -> None:
        """Watch ``batch``; ``what`` describes it in an error."""
        with suppress(Exception):  # what cannot be copied cannot be compared
            self._watched.append((what, batch, copy_batch(batch)))

    def check(self) -> None:
        """`LawError` if a batch has changed since it was added."""
        for what, batch, before in self._watched:
            if not same_batch(batch, before):
                raise LawError(
                    NO_MUTATION,
                    f"values are shared between branches and must not be changed, but {what} was",
                    case=f"  before  {shown(before)}\n  after   {shown(batch)}",
                )

    def clear(self) -> None:
        """Stop watching all batches."""
        self._watched.clear()


def shown(batch: Batch) -> str:
    """Return the rows of a batch as text."""
    columns = [column for column in (batch.keys, batch.values, batch.timestamps) if column is not None]
    return repr(batch.values if len(columns) == 1 else list(zip(*columns, strict=True)))
