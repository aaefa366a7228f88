"""Finds what msgpack would pack without asking and give back as something else, before it is packed.

msgpack packs bytearray and memoryview as bytes, and its own ExtType and Timestamp as extensions. The search goes
through lists and dicts, at the speed of C (the garbage collector knows what a container refers to); everything else
that is not plain comes to the encoder by itself, and its contents are then searched in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from gc import get_referents
from itertools import islice
from typing import Any, Final

from msgpack import ExtType, Timestamp

from malstrom_py.codec.refusal import Refused, refusal_of

PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes})
"""Types that msgpack takes and gives back, in one piece. Of ints those of 64 bits; it asks about the others."""

_MISTAKEN: Final = frozenset({bytearray, memoryview, ExtType, Timestamp})
_LEVELS_MAX: Final = 1024
_AT_ONCE: Final = 4096


def sweep(items: Sequence[Any], items_max: int) -> int:
    """How many values are in ``items``, at any depth of lists and dicts.

    Raises:
        Refused: one is of a type that msgpack mistakes for another, or there are more than ``items_max``, which a
            list inside itself has, too.
    """
    count = len(items)
    kinds = set(map(type, items))
    level = _containers(items, kinds)
    for _ in range(_LEVELS_MAX):
        if not level:
            break
        count += sum(map(len, level))
        if count > items_max:
            raise too_many(type(level[0]), items_max)
        below: list[Any] = []
        containers = iter(level)
        while chunk := list(islice(containers, _AT_ONCE)):
            contents = get_referents(*chunk)
            below += _containers(contents, set(map(type, contents)))
        level = below
    if level:
        raise too_deep(type(level[0]))
    return count


def too_deep(kind: type) -> Refused:
    """How nesting without end is refused."""
    return Refused(kind, "it is nested too deep, or contains itself. Store it flat")


def too_many(kind: type, items_max: int) -> Refused:
    """How a value of too many parts is refused."""
    return Refused(kind, f"there are more than {items_max:,} values in it. Split it into several keys")


def _refusal(kind: type) -> Refused:
    if kind is ExtType or kind is Timestamp:
        return Refused(kind, "it belongs to msgpack itself. Store its parts, or a datetime")
    return refusal_of(kind)


def _containers(items: Sequence[Any], kinds: set[type]) -> list[Any]:
    if kinds <= PLAIN:
        return []
    mistaken = kinds & _MISTAKEN
    if mistaken:
        raise _refusal(mistaken.pop())
    if list not in kinds and dict not in kinds:
        return []
    return [item for item in items if type(item) is list or type(item) is dict]
