"""Which positions a source is asked to acknowledge, and when. Pure.

Rule: one call at a time, and only the newest positions matter: those that were committed during a call replace each
other. A failed call is not repeated, because the next snapshot has newer positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

P = TypeVar("P", bound=str)


class Acknowledgements(Generic[P]):
    """The acknowledgements of one source.

    >>> acknowledgements = Acknowledgements()
    >>> acknowledgements.committed({"a": 1})
    >>> acknowledgements.next(), acknowledgements.next()
    ({'a': 1}, None)
    >>> acknowledgements.committed({"a": 2}); acknowledgements.committed({"a": 3})
    >>> acknowledgements.next() is None, acknowledgements.ended(), acknowledgements.next()
    (True, None, {'a': 3})
    """

    def __init__(self) -> None:
        self._newest: Mapping[P, Any] | None = None
        self._runs = False

    @property
    def is_open(self) -> bool:
        """Whether a call is in progress or follows."""
        return self._runs or self._newest is not None

    def committed(self, positions: Mapping[P, Any]) -> None:
        """Note that all output up to ``positions`` is committed."""
        self._newest = positions

    def next(self) -> Mapping[P, Any] | None:
        """Return the positions of the call that begins now; None for no call."""
        if self._runs or self._newest is None:
            return None
        positions, self._newest, self._runs = self._newest, None, True
        return positions

    def ended(self) -> None:
        """Note that the call has ended, with or without success."""
        self._runs = False
