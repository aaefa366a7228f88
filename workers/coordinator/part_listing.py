"""When the parts of a source are listed again, and which of them are new (R13). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

P = TypeVar("P", bound=str)


class PartListing(Generic[P]):
    """The listings of one source, every ``every_s`` seconds, one at a time. ``known``: the parts of the job so far.

    The pause counts from the end of a listing, so that a slow one leaves time for others.

    >>> listing = PartListing(5.0, ["a"], now_s=0.0)
    >>> listing.is_due(4.9), listing.is_due(5.0)
    (False, True)
    >>> listing.begin()
    >>> listing.due_s, listing.ended([("b", None)], now_s=6.0), listing.due_s
    (None, [('b', None)], 11.0)
    """

    def __init__(self, every_s: float, known: Iterable[P], *, now_s: float) -> None:
        self.known = set(known)
        self.in_vain = 0
        """The number of listings since the last one that has found a part."""
        self._every_s = every_s
        self._due_s: float | None = now_s + every_s

    @property
    def due_s(self) -> float | None:
        """When the next listing begins, in monotonic time; None during a listing."""
        return self._due_s

    def is_due(self, now_s: float) -> bool:
        """Return whether a listing should begin now."""
        return self._due_s is not None and now_s >= self._due_s

    def begin(self) -> None:
        """Note that a listing begins."""
        self._due_s = None

    def ended(self, found: Sequence[tuple[P, Any]], *, now_s: float) -> list[tuple[P, Any]]:
        """Return those of the parts ``found`` that are new, with their positions: from now on they are known."""
        self._due_s = now_s + self._every_s
        new = [(part, position) for part, position in found if part not in self.known]
        self.known.update(part for part, _ in new)
        self.in_vain = 0 if new else self.in_vain + 1
        return new

    def failed(self, *, now_s: float) -> None:
        """Note that a listing has failed: the next one is the next try."""
        self._due_s = now_s + self._every_s
        self.in_vain += 1
