"""``Pinned``: what every source does whose input is fixed when a job starts. A subclass finds, checks and releases it.

Rules:
- The program that starts a job finds the pin; copies in other processes have it, and never look again.
- Snapshots hold the record of the pin. A resumed job pins what its record says, or fails: it takes no other rows.
- Jobs that read a source at the same time share its pin, and what it needs is released once, after the last.
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

from malstrom_py.errors import SourceError
from malstrom_py.sources.pinned.shared import SharedPin


class Pin(Protocol):
    """What a job reads, as plain data that is compared by value."""

    def record(self) -> dict[str, Any]:
        """Return the pin as plain JSON."""
        ...


P = TypeVar("P", bound=Pin)


class Pinned(ABC, Generic[P]):
    """A `PinnedSource`, but for its partitions."""

    def __init__(self) -> None:
        self._pin = SharedPin[P]()

    @abstractmethod
    def _find(self, job: str) -> P:
        """Return what ``job`` reads if it starts now, and hold it. Called in the program that starts the job only."""

    @abstractmethod
    def _pin_of(self, record: Mapping[str, Any]) -> P:
        """Return the pin of a `Pin.record`. LookupError, TypeError, ValueError or AttributeError: it is damaged."""

    def _hold(self, pin: P, *, is_resumed: bool) -> None:
        """Hold what a ``pin`` that was found before needs. `SourceError`: its rows do not exist any more.

        ``is_resumed``: an earlier run has found it, not the program that has started this one.
        """

    def _release(self, *, keep: bool) -> None:
        """Release what the pin needs. ``keep``: a resumed job will read the same rows."""

    def _described(self) -> str:
        """Return what a record calls the source. A record of another one is refused."""
        return repr(self)

    def pin(self, job: str, record: Any = None) -> None:
        """Fix what ``job`` reads: what ``record`` says, else what is found now. See `PinnedSource`."""
        known = None if record is None else self._recorded(record)

        def find() -> P:
            earlier = known or (self._pin.known if self._pin.is_copy else None)
            if earlier is None:
                return self._find(job)
            self._hold(earlier, is_resumed=known is not None)
            return earlier

        self._pin.take(self, find, lambda pin: known is None or known == pin)

    def pin_record(self) -> dict[str, Any]:
        """Return the pin as plain JSON."""
        return {**self._pin.of(self).record(), "source": self._described()}

    def unpin(self, *, keep: bool = False) -> None:
        """Release the pin once no job reads it."""
        self._pin.leave(lambda keep: self._release(keep=keep), keep=keep)

    def _recorded(self, record: Any) -> P:
        """Return the pin in ``record``; `SourceError` if it is damaged, or that of another source."""
        self._check_source(record)
        try:
            return self._pin_of(record)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise SourceError(f"the record of what was pinned is damaged ({type(error).__name__})") from error

    def _check_source(self, record: Any) -> None:
        source = record.get("source") if isinstance(record, Mapping) else None
        if source != self._described():
            raise SourceError(
                f"the snapshot to resume from reads {source}, and the job now reads {self!r}: give the job its former "
                f"source, or start from the beginning under another job name"
            )


def packed_text(packed: bytes) -> str:
    """Return the bytes of a packed schema as text, for a record."""
    return base64.b64encode(packed).decode()


def packed_bytes(text: str) -> bytes:
    """Return the bytes of a `packed_text`. ValueError: it is damaged."""
    return base64.b64decode(text, validate=True)
