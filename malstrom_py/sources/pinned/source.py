"""``Pinned``: what every source does whose input is fixed when a job starts. A subclass finds, checks and releases it.

Rules:
- The program that starts a job finds the pin; copies in other processes have it, and never look again.
- Snapshots hold the record of the pin. A resumed job pins what its record says, or fails: it takes no other rows.
- Jobs that read a source at the same time share its pin, and what it needs is released once, after the last.
"""

from __future__ import annotations

import base64
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from malstrom_py.errors import SourceError
from malstrom_py.sources.base import BaseSource
from malstrom_py.sources.pinned.folder import PinFolder
from malstrom_py.sources.pinned.shared import SharedPin


class Pin(Protocol):
    """What a job reads, as plain data that is compared by value."""

    @property
    def staged(self) -> str | None:
        """The folder that was written for this job alone; None if the rows are others', or in no folder."""
        ...

    def record(self) -> dict[str, Any]:
        """Return the pin as plain JSON."""
        ...


P = TypeVar("P", bound=Pin)
V_co = TypeVar("V_co", covariant=True)


class Pinned(BaseSource[V_co], Generic[V_co, P]):
    """A pinned source, but for its partitions. ``keeps_staging``: staged rows stay when a job has ended."""

    def __init__(self, *, keeps_staging: bool = False) -> None:
        self._pin = SharedPin[P]()
        self._keeps_staging = keeps_staging
        self._folder: PinFolder | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy for another process, which holds no folder."""
        return {**self.__dict__, "_folder": None}

    @abstractmethod
    def _find(self, job: str) -> P:
        """Return what ``job`` reads if it starts now. Called in the program that starts the job only.

        Rows that it stages are in a new ``self._folder``.
        """

    @abstractmethod
    def _pin_of(self, record: Mapping[str, Any]) -> P:
        """Return the pin of a `Pin.record`. LookupError, TypeError, ValueError or AttributeError: it is damaged."""

    @abstractmethod
    def _check(self, pin: P) -> None:
        """Raise `SourceError` unless the rows of ``pin``, which an earlier run has found, still exist."""

    def _hold(self, pin: P, *, is_resumed: bool) -> None:
        """Lock the folder of a ``pin`` that was found before. `SourceError`: its rows do not exist any more.

        ``is_resumed``: an earlier run has found it, not the program that has started this one.
        """
        folder = None if pin.staged is None else PinFolder(Path(pin.staged))
        try:
            if folder is not None:
                folder.hold()
            if is_resumed:
                self._check(pin)
        except SourceError as error:
            if folder is not None:
                folder.leave(keep=True)
            if not is_resumed:
                raise
            raise SourceError(
                f"the job resumes from a snapshot whose rows no longer exist: {error}. Restore them, or start from the "
                f"beginning under another job name"
            ) from error
        self._folder = folder

    def _release(self, *, keep: bool) -> None:
        """Remove the staged rows. ``keep``: a resumed job will read them."""
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.leave(keep=keep or self._keeps_staging)

    def _described(self) -> str:
        """Return what a record calls the source. A record of another one is refused."""
        return repr(self)

    def pin(self, job: str, record: Any = None) -> None:
        """Fix what ``job`` reads: what ``record`` says, else what is found now. See `BaseSource`."""
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
