"""What comes after the pinned version of a table: the files that each later version adds, in order.

Rule: a version is read only if it adds rows, or rewrites files with the same rows. One that changes or deletes rows is
an error: steps have counted these rows already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from malstrom_py.errors import SourceError, lasting
from malstrom_py.sources.pinned.later import VersionLog
from malstrom_py.sources.pinned.row_groups import PinnedFile


class TableLog(VersionLog, Protocol):
    """The versions of a table."""

    def place_after(self, version: int) -> int:
        """Return the place after ``version``."""
        ...


class FromPinned:
    """A ``log`` whose first version has the pinned ``files``; ``after`` is the place of the version that follows."""

    FIRST: Final = -1
    """The place of the pinned files."""

    def __init__(self, log: VersionLog, files: Sequence[PinnedFile], after: int) -> None:
        self._log = log
        self._files = files
        self._after = after

    def read(self, place: int) -> tuple[list[PinnedFile], int] | None:
        """See `VersionLog`."""
        return ([*self._files], self._after) if place == self.FIRST else self._log.read(place)


def not_followed(why: str) -> SourceError:
    """Return the error for a version that cannot be read, with ``why``."""
    return lasting(SourceError(f"{why}, and start the job from the beginning under another job name"))


def changes_rows(where: str, kind: str) -> SourceError:
    """Return the error for a version that changes or deletes rows."""
    return lasting(
        SourceError(
            f"{where} changes or deletes rows, and sources.{kind}(follow=True) reads what is added: let writers append "
            f"only, or start the job from the beginning under another job name, which reads the table after it"
        )
    )
