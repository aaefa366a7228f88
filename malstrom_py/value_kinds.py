"""Kinds of values that Arrow would quietly turn into each other, told apart before it sees them.

Arrow makes dates of datetimes, drops or invents zones, and makes bytes of text, or refuses, depending on which value
of a batch comes first. So a column holds one of these kinds from its first value on, and refuses the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from itertools import chain
from typing import Any

from malstrom_py.errors import MalstromError


class Kinds:
    """The kind of each column, and of each field and list inside it, as far as it matters.

    ``error`` makes the error that is raised of its message.
    """

    def __init__(self, error: Callable[[str], MalstromError]) -> None:
        self._error = error
        self._known: dict[str, str] = {}

    def check(self, name: str, values: Sequence[Any]) -> None:
        """The error, naming the column, if ``values`` hold two kinds, or another one than came before.

        >>> from malstrom_py.errors import SinkError
        >>> kinds = Kinds(SinkError)
        >>> kinds.check("day", [date(2013, 1, 1), None])
        >>> kinds.check("day", [datetime(2013, 1, 1)])
        Traceback (most recent call last):
        malstrom_py.errors.SinkError: column 'day' holds date and datetime without a zone: make them alike in a map step
        """
        types = set(map(type, values))
        kinds: set[str] = set()
        for kind in types:
            if issubclass(kind, datetime):
                kinds |= {_zone(value) for value in values if isinstance(value, datetime)}
            elif issubclass(kind, date):
                kinds.add("date")
            elif issubclass(kind, str):
                kinds.add("str")
            elif issubclass(kind, bytes | bytearray | memoryview):
                kinds.add("bytes")
        kinds |= {self._known[name]} if name in self._known else set()
        if len(kinds) > 1:
            raise self._error(f"column {name!r} holds {' and '.join(sorted(kinds))}: make them alike in a map step")
        if kinds:
            self._known[name] = kinds.pop()
        if any(issubclass(kind, dict) for kind in types):
            self._check_fields(name, [value for value in values if isinstance(value, dict)])
        if any(issubclass(kind, list | tuple) for kind in types):
            inner = chain.from_iterable(value for value in values if isinstance(value, list | tuple))
            self.check(f"{name}[]", list(inner))

    def _check_fields(self, name: str, rows: Iterable[dict[Any, Any]]) -> None:
        fields: dict[Any, list[Any]] = {}
        for row in rows:
            for field, value in row.items():
                fields.setdefault(field, []).append(value)
        for field, values in fields.items():
            self.check(f"{name}.{field}", values)


def _zone(value: datetime) -> str:
    return "datetime without a zone" if value.tzinfo is None else "datetime with a zone"
