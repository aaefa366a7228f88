"""Rough sizes of values: what may be called for samples of rows and keys, and calls no code of users."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

_PLAIN_BYTES: Final = 32
_SIZED_ITEMS: Final = 16

_SMALL: Final = frozenset({int, float, bool, complex, type(None)})
_TEXTS: Final = frozenset({str, bytes, bytearray})
_COLLECTIONS: Final = frozenset({list, tuple, dict, set, frozenset})


def rough_size(value: Any, *, depth: int = 1, other: int = _PLAIN_BYTES) -> int:
    """Return about how many bytes ``value`` has: of a collection by some of its items, without calls of user code.

    ``depth``: how many collections within each other are looked into; ``other``: the size of what is not plain.

    >>> rough_size(b"x" * 500), rough_size([b"x" * 500] * 100)
    (532, 53232)
    """
    kind = type(value)
    if kind in _TEXTS:
        return _PLAIN_BYTES + len(value)
    if kind not in _COLLECTIONS:
        return _PLAIN_BYTES if kind in _SMALL else other
    if not value or not depth:
        return _PLAIN_BYTES
    some = list(islice(value.values() if kind is dict else value, _SIZED_ITEMS))
    sizes = sum(rough_size(item, depth=depth - 1, other=other) for item in some)
    return _PLAIN_BYTES + sizes * len(value) // len(some)
