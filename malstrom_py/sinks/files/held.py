"""Pieces that wait until enough of them have come together for their folder to be worth a write. Bounded in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, TypeVar

from malstrom_py.sinks.files.encoders import Piece

C = TypeVar("C")

GROUP_ROWS: Final = 1 << 17
"""Rows of one folder that are worth a write: also the largest row group."""

GROUP_BYTES: Final = 1 << 22
"""Bytes of one folder that are worth a write, if nothing asks for more."""

HELD_BYTES_MAX: Final = 1 << 25
"""Bytes that wait for all folders together; for more, the folder that has most is written."""

_MERGED_AT: Final = 64


class HeldPieces(Generic[C]):
    """The pieces of each folder in order; `HELD_BYTES_MAX` in all.

    ``merge`` makes one piece of several: small ones take far more room than their bytes.
    """

    def __init__(self, merge: Callable[[str, Sequence[C]], Piece[C]]) -> None:
        self._merge = merge
        self._folders: dict[str, _Folder[C]] = {}
        self._bytes = 0

    def __iter__(self) -> Iterator[str]:
        """The folders that something is held for."""
        return iter(tuple(self._folders))

    def add(self, piece: Piece[C], *, group_bytes: int) -> str | None:
        """Hold ``piece`` back; the folder to write now, if there is one: ``group_bytes`` are worth a write."""
        held = self._folders.get(piece.folder)
        if held is None:
            held = self._folders[piece.folder] = _Folder()
        before = held.bytes
        held.add(piece, self._merge)
        self._bytes += held.bytes - before
        if held.rows >= GROUP_ROWS or held.bytes >= group_bytes:
            return piece.folder
        if self._bytes >= HELD_BYTES_MAX:
            return max(self._folders, key=lambda folder: self._folders[folder].bytes)
        return None

    def take(self, folder: str) -> list[C]:
        """The pieces of ``folder``, which are not held any more."""
        held = self._folders.pop(folder)
        self._bytes -= held.bytes
        return [piece.content for piece in (*held.merged, *held.fresh)]

    def clear(self) -> None:
        """Forget everything."""
        self._folders, self._bytes = {}, 0


class _Folder(Generic[C]):
    """Merges in two steps, so that a row is copied twice and not once per piece that comes after it."""

    def __init__(self) -> None:
        self.fresh: list[Piece[C]] = []
        self.merged: list[Piece[C]] = []
        self.rows = 0
        self.bytes = 0

    def add(self, piece: Piece[C], merge: Callable[[str, Sequence[C]], Piece[C]]) -> None:
        self.fresh.append(piece)
        self.rows += piece.rows
        self.bytes += piece.bytes
        if len(self.fresh) >= _MERGED_AT:
            self.merged.append(merge(piece.folder, [one.content for one in self.fresh]))
            self.fresh = []
            if len(self.merged) >= _MERGED_AT:
                self.merged = [merge(piece.folder, [one.content for one in self.merged])]
            self.bytes = sum(one.bytes for one in self.merged)
