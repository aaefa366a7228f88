"""The fields of a JSON object, each asked for by name and type, and none left over.

Rule: nothing is guessed: a field that is missing, of another type or unknown is a ValueError that names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class Fields:
    """The fields of ``stored``, which is said to be ``what``.

    >>> fields = Fields({"slots": 1024}, "a plan")
    >>> fields.whole("slots")
    1024
    >>> Fields({"slots": True}, "a plan").whole("slots")
    Traceback (most recent call last):
        ...
    ValueError: a plan: 'slots' is no whole number
    """

    def __init__(self, stored: object, what: str) -> None:
        if not isinstance(stored, dict):
            raise ValueError(f"{what} is no JSON object")
        self._left: dict[str, Any] = dict(stored)
        self._what = what

    def any(self, name: str) -> Any:
        """A field of any type."""
        try:
            return self._left.pop(name)
        except KeyError:
            raise ValueError(f"{self._what}: {name!r} is missing") from None

    def text(self, name: str) -> str:
        """A str."""
        found = self.any(name)
        if not isinstance(found, str):
            raise ValueError(f"{self._what}: {name!r} is no text")
        return found

    def text_or_none(self, name: str) -> str | None:
        """A str, or None."""
        if self._left.get(name, "") is None:
            del self._left[name]
            return None
        return self.text(name)

    def whole(self, name: str) -> int:
        """An int."""
        found = self.any(name)
        if type(found) is not int:
            raise ValueError(f"{self._what}: {name!r} is no whole number")
        return found

    def flag(self, name: str) -> bool:
        """A bool."""
        found = self.any(name)
        if type(found) is not bool:
            raise ValueError(f"{self._what}: {name!r} is neither true nor false")
        return found

    def items(self, name: str) -> list[Any]:
        """A list."""
        found = self.any(name)
        if not isinstance(found, list):
            raise ValueError(f"{self._what}: {name!r} is no list")
        return found

    def table(self, name: str) -> Mapping[str, Any]:
        """An object of any fields."""
        found = self.any(name)
        if not isinstance(found, dict):
            raise ValueError(f"{self._what}: {name!r} is no JSON object")
        return found

    def tables(self, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """An object whose fields are objects."""
        for key, inner in self.table(name).items():
            if not isinstance(inner, dict):
                raise ValueError(f"{self._what}: {key!r} of {name!r} is no JSON object")
            yield key, inner

    def end(self) -> None:
        """Nothing else is there. ValueError: a field that nobody knows."""
        if self._left:
            raise ValueError(f"{self._what}: {min(self._left)!r} is unknown")
