"""Reads stored values whose classes are not there: for tools that look at the state of a job they do not run.

Rule: what is stored says how its classes are called and what their fields are; that is all that is told of it. Nothing
is imported, and what is read this way cannot be stored again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from malstrom_py.codec.job_codec import Codec
from malstrom_py.codec.refusal import Malformed, Refused
from malstrom_py.codec.types import Registered, Shape, TypeTable


class StoredObject(dict[str, Any]):
    """A dataclass or named tuple as it is stored: field -> value. It hashes, for it may be a key; leave it as it is."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


class AnyClass(TypeTable):
    """A type table that knows every class by what the data says of it.

    Dataclasses and named tuples come as dicts of their fields, members of an Enum by their names, flags as their bits.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Stats:
    ...     count: int
    ...     total: float
    >>> types = TypeTable()
    >>> stored = Codec(types).encode_at_rest(types.register(Stats)(2, 7.5), step="stats")
    >>> without_classes().decode_at_rest(stored)
    {'count': 2, 'total': 7.5}
    """

    def of_stored(self, name: str, shape: Shape) -> Registered | None:
        """Whatever the shape says."""
        return _Told(name, shape)


class _Told:
    """A class of which no more is known than its name and shape."""

    def __init__(self, name: str, shape: Shape) -> None:
        self.name = name
        self.shape = shape
        self._kind, *self._fields = shape or ("",)

    def take_apart(self, value: Any) -> Iterable[Any]:
        raise Refused(type(value), "its class is not known here")

    def put_together(self, parts: Sequence[Any]) -> Any:
        if self._kind in ("dataclass", "namedtuple"):
            return StoredObject(zip(self._fields, parts, strict=True))
        if self._kind in ("enum", "flag") and len(parts) == 1 and type(parts[0]) in (str, int):
            return parts[0]
        raise Malformed(f"class {self.name[:200]} is of a kind that this version does not know")


def without_classes() -> Codec:
    """A codec that reads what any job has stored, and knows none of its classes."""
    return Codec(AnyClass())
