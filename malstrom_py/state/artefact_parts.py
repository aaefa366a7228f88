"""Artefacts that are read, merged and written a part at a time, so that only a part of them is in memory.

Rules. A part is an artefact of some slots of another; a slot is never divided. What is made goes to a file first, as an
artefact begins with the index of all its blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Final
from weakref import finalize

from malstrom_py.errors import SnapshotError
from malstrom_py.state.artefact import Indexed, Opened, StoredArtefact, Written, framed, indexed

PART_BYTES: Final = 8 << 20
"""So many bytes of a chain are in memory together, and more only of a slot that has more."""

_PIECE_BYTES: Final = 1 << 20


def in_parts(
    chain: Sequence[StoredArtefact], slots: Collection[int] | None, bytes_max: int | None
) -> Iterator[list[bytes]]:
    """Yield ``chain`` as chains of some slots each, ascending, of about ``bytes_max``; None: as one chain. At least one
    is yielded, without blocks if there are none. ``slots``: only these.
    """
    there = {slot for one in chain for slot in one.blocks}
    some, size = set[int](), 0
    for slot in sorted(there if slots is None else there.intersection(slots)):
        added = sum(block.end - block.start for one in chain if (block := one.blocks.get(slot)) is not None)
        if some and bytes_max is not None and size + added > bytes_max:
            yield [one.part(some) for one in chain]
            some, size = set(), 0
        some.add(slot)
        size += added
    yield [one.part(some) for one in chain]


def as_stored(data: bytes) -> StoredArtefact:
    """Return ``data`` as an artefact that is stored."""
    return StoredArtefact(lambda ranges: [data[start:end] for start, end in ranges], len(data))


def all_or_none(chain: Sequence[StoredArtefact], slots: Collection[int], *, owned: bool) -> bool:
    """Return whether ``slots`` have all state of ``chain``, if it is ``owned``, or else none."""
    return all((slot in slots) is owned for one in chain for slot in one.blocks)


class BlockFile:
    """The blocks of an artefact that is being made, slots ascending: in memory while they are few, then in a file.

    ``folder``: of the file, which has no name; None: that for temporary files.

    >>> from malstrom_py.state.artefact import contents, row_block
    >>> blocks = BlockFile(delta=False)
    >>> blocks.add([row_block(1, [b"a"], [b"1"])])
    >>> list(contents(b"".join(blocks.pieces())))
    [(1, ([b'a'], [b'1']))]
    """

    def __init__(self, *, delta: bool, note: bytes = b"", folder: str | None = None) -> None:
        self.delta = delta
        self.note = note
        self.folder = folder
        self._index: list[Indexed] = []
        self._file = SpooledTemporaryFile(_PIECE_BYTES, dir=folder)  # noqa: SIM115  closed with this object
        finalize(self, self._file.close)

    def add(self, blocks: Iterable[Written]) -> None:
        """Write the next blocks. `SnapshotError` if there is no room."""
        for block in blocks:
            self._index.append(indexed(block))
            try:
                self._file.write(block[2])
            except OSError as error:
                raise SnapshotError(
                    f"a part of a snapshot cannot be written to a temporary file in {self.folder or gettempdir()}: "
                    f"{error.strerror or type(error).__name__}. Make room there"
                ) from error

    def stored(self) -> StoredArtefact:
        """Return the artefact as one that is stored."""
        head = b"".join(self._head())

        def read(ranges: Sequence[tuple[int, int]]) -> list[bytes]:
            return [head[start:end] + self._read(max(0, start - len(head)), end - len(head)) for start, end in ranges]

        return StoredArtefact(read, len(head) + sum(length for _, _, length, _, _ in self._index))

    def _read(self, start: int, end: int) -> bytes:
        self._file.seek(start)
        return self._file.read(max(0, end - start))

    def _head(self) -> list[bytes]:
        return framed(self._index, (), delta=self.delta, note=self.note)

    def pieces(self) -> Iterator[bytes]:
        """Yield the artefact, each piece once it is wanted. May be called again, but not while one call is used."""
        yield from self._head()
        self._file.seek(0)
        while piece := self._file.read(_PIECE_BYTES):
            yield piece


def merged_in_parts(
    merge: Callable[[Sequence[bytes]], bytes],
    chain: Sequence[StoredArtefact],
    *,
    folder: str | None = None,
    bytes_max: int = PART_BYTES,
) -> BlockFile:
    """Return what ``merge`` makes of ``chain``, merged a part at a time: see `merged` and `merged_deltas`.

    ``folder``: as of `BlockFile`.
    """
    made = BlockFile(delta=chain[0].delta, note=chain[-1].note, folder=folder)
    for part in in_parts(chain, None, bytes_max):
        opened = Opened(merge(part))
        made.add(map(opened.written, opened.blocks.values()))
    return made
