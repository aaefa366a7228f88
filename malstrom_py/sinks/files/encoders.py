"""What an encoder is: it makes pieces of batches, which are held back until many are worth writing, and writes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from malstrom_py.batches import Batch

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Piece(Generic[C]):
    """What one batch puts into one folder (relative to the root, empty for the root itself)."""

    folder: str
    content: C
    rows: int
    bytes: int


class Encoder(Protocol[C]):
    """Writes into the rolling files it was made with."""

    @property
    def group_bytes(self) -> int:
        """How many bytes of pieces of one folder are worth a write."""
        ...

    def pieces(self, batch: Batch) -> Iterable[Piece[C]]:
        """What ``batch`` puts into each folder. Nothing is written yet."""
        ...

    def merged(self, folder: str, contents: Sequence[C]) -> Piece[C]:
        """Several pieces of one folder as one, which takes less room."""
        ...

    def write(self, folder: str, contents: Sequence[C]) -> None:
        """Write pieces of one folder, in order."""
        ...

    def finish(self) -> None:
        """Everything is written: finish the files."""
        ...
