"""Positions in a stream of Redis, and whether entries are missing between a position and what is there.

A position is the id of an entry and the number of entries that had ever been added up to it. Redis keeps how many were
ever added to a stream, so an entry that was removed before it was read shows as a difference of numbers. A stream that
was deleted and made again shows as a number that is too small.

The number is None where it cannot be known yet: before the first entry is read, and from an id that the user has chosen
until the newest entry is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

EntryId = tuple[int, int]
ZERO: Final[EntryId] = (0, 0)
_NUMBER_MAX: Final = (1 << 64) - 1
_ID: Final = re.compile(r"(\d{1,20})(?:-(\d{1,20}))?", re.ASCII)


def parse_id(text: str | bytes) -> EntryId | None:
    """Return the id that ``text`` is, None if it is none. A number alone is a time in milliseconds.

    >>> parse_id("1526919030474-55"), parse_id(b"1526919030474"), parse_id("new")
    ((1526919030474, 55), (1526919030474, 0), None)
    """
    found = _ID.fullmatch(text.decode() if isinstance(text, bytes) else text)
    if found is None:
        return None
    id = int(found[1]), int(found[2] or 0)
    return id if max(id) <= _NUMBER_MAX else None


def show_id(id: EntryId) -> str:
    """Return ``id`` as Redis writes it.

    >>> show_id((1526919030474, 55))
    '1526919030474-55'
    """
    return f"{id[0]}-{id[1]}"


def before(id: EntryId) -> EntryId:
    """Return the largest id that is smaller.

    >>> before((7, 1)), before((7, 0)), before((0, 0))
    ((7, 0), (6, 18446744073709551615), (0, 0))
    """
    if id == ZERO:
        return ZERO
    return (id[0], id[1] - 1) if id[1] else (id[0] - 1, _NUMBER_MAX)


@dataclass(frozen=True, slots=True)
class Position:
    """The ``id`` of the last entry that was read, and how many had been ``added`` up to it."""

    id: EntryId = ZERO
    added: int | None = None

    def plain(self) -> dict[str, Any]:
        """Return the position in plain types."""
        return {"id": show_id(self.id), "added": self.added}


def position_of(state: Mapping[str, Any] | None) -> Position:
    """Return what `Position.plain` made ``state`` of; None is the first entry.

    >>> position_of(Position((7, 1), 3).plain())
    Position(id=(7, 1), added=3)
    """
    return Position() if state is None else Position(parse_id(state["id"]) or ZERO, state["added"])


@dataclass(frozen=True, slots=True)
class StreamState:
    """What Redis says of a stream: ``first`` and ``last`` id (the last one ever given), entries ever ``added``,
    entries there (``length``), and the largest id that was removed singly (``removed``).
    """

    first: EntryId
    last: EntryId
    added: int
    length: int
    removed: EntryId = ZERO


def state_of(info: Mapping[str, Any]) -> StreamState | None:
    """Return the state in an answer to ``XINFO STREAM``; None if Redis is too old to count what was added."""
    if "entries-added" not in info:
        return None
    ids = [
        parse_id(info[name]) or ZERO
        for name in ("recorded-first-entry-id", "last-generated-id", "max-deleted-entry-id")
    ]
    return StreamState(ids[0], ids[1], info["entries-added"], info["length"], ids[2])


def is_another(position: Position, stream: StreamState | None) -> bool:
    """Return whether the stream cannot be the one in which ``position`` was.

    >>> is_another(Position((7, 0), 3), StreamState((1, 0), (6, 0), 5, 5))
    True
    """
    if stream is None:
        return position.id != ZERO or bool(position.added)
    return stream.last < position.id or stream.added < (position.added or 0)


def count_before(position: Position, stream: StreamState, read: int, *, is_end: bool) -> int | None:
    """Return how many entries had been added before the ``read`` ones that follow ``position``; None if unknown.

    More than ``position.added``: entries were removed before they were read. Fewer: it is another stream.
    ``is_end``: the ``read`` entries are all that follow.

    >>> stream = StreamState(first=(5, 0), last=(9, 0), added=9, length=5)
    >>> count_before(Position((4, 0), 4), stream, 2, is_end=False)
    4
    >>> count_before(Position((2, 0), 2), stream, 5, is_end=True)
    4
    """
    if is_end:
        return stream.added - read
    has_holes = stream.removed >= stream.first
    if position.added is None:
        return stream.added - stream.length if position.id == ZERO else None
    if stream.first > position.id and not has_holes:
        return stream.added - stream.length
    return position.added
