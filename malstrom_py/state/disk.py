"""Where states are that memory has no room for: a RocksDB of one worker, in a folder of this machine.

Rule: nothing on this disk outlives the worker. A job is restored from its snapshots, so a disk that is lost, full or
damaged is a lost worker, and no write is waited for.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final, Protocol

from malstrom_py.errors import PlanError, StateError, imported
from malstrom_py.errors.text import describe_error

if sys.platform == "win32":
    fcntl = None  # what a killed process has left there stays
else:
    import fcntl

Written = Sequence[tuple[bytes, bytes]]
"""Keys, and what is stored for them."""

_PREFIX: Final = "malstrom-state-"
_LOCK: Final = "in-use"

_CACHE_BYTES: Final = 32 << 20
_BUFFER_BYTES: Final = 16 << 20
"""RocksDB keeps blocks that were read, and up to three buffers of what was written: about 80 MB."""


PER_KEY: Final = 4
"""About so many bytes of memory find a key on disk."""


class Disk(Protocol):
    """An ordered store of bytes by key, of one worker.

    Each call raises `StateError` if the disk fails.
    """

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """Return what is stored for each key, None for nothing."""
        ...

    def write(self, put: Written, dropped: Sequence[bytes] = ()) -> None:
        """Store ``put``, and forget the ``dropped`` keys."""
        ...

    def scan(self, *prefixes: bytes, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield what is stored at the time of the call for the keys with each of ``prefixes``, in their order, from
        ``first``.
        """
        ...

    def close(self) -> None:
        """Forget everything."""
        ...


class RocksDisk:
    """A `Disk` in a new folder inside ``folder``; the folders of processes that were killed are removed.

    Raises:
        PlanError: the package is missing.
        StateError: there can be no such folder.
    """

    def __init__(self, folder: Path) -> None:
        self._library = require_rocksdb()
        with Failing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            _remove_left_over(folder)
            self._path, self._lock = _own_folder(folder)
            self._db: Any = self._opened()

    def _opened(self) -> Any:
        rocks = self._library
        blocks = rocks.BlockBasedOptions()
        blocks.set_block_cache(rocks.Cache(_CACHE_BYTES))
        # In a cache that has no room for all of them each look-up reads megabytes; here they take `PER_KEY`.
        blocks.set_cache_index_and_filter_blocks(False)
        blocks.set_bloom_filter(10, False)  # most keys of a batch that are not found are new ones
        options = rocks.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(blocks)
        options.set_write_buffer_size(_BUFFER_BYTES)
        options.set_max_write_buffer_number(3)
        options.set_compression_type(rocks.DBCompressionType.lz4())
        options.set_max_open_files(256)
        options.set_target_file_size_multiplier(2)  # so that 256 files are enough
        database = rocks.Rdict(str(self._path), options)
        without_log = rocks.WriteOptions()
        without_log.disable_wal = True
        database.set_write_options(without_log)
        return database

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        with Failing(self._path):
            found: list[bytes | None] = self._db.get(keys)
            return found

    def write(self, put: Written, dropped: Sequence[bytes] = ()) -> None:
        batch = self._library.WriteBatch(raw_mode=True)
        for key, value in put:
            batch.put(key, value)
        for key in dropped:
            batch.delete(key)
        with Failing(self._path):
            self._db.write(batch)

    def scan(self, *prefixes: bytes, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        with Failing(self._path):
            return self._entries(self._db.iter(), prefixes, first)  # what it finds does not change

    def _entries(self, view: Any, prefixes: Sequence[bytes], first: bytes) -> Iterator[tuple[bytes, bytes]]:
        with Failing(self._path):
            for prefix in prefixes:
                view.seek(max(prefix, first))
                while view.valid() and (key := view.key()).startswith(prefix):
                    yield key, view.value()
                    view.next()
                view.status()  # raises what has ended it

    def close(self) -> None:
        with suppress(Exception):  # nothing in it is needed
            self._db.close()
        shutil.rmtree(self._path, ignore_errors=True)
        os.close(self._lock)
        _remove_left_over(self._path.parent)


def require_rocksdb() -> Any:
    """Return the module `rocksdict`. `PlanError` if it is not installed."""
    return imported("rocksdict", "mp.State keeps state on disk with rocksdict", "state")


class Failing:
    """A context in which errors of the disk at ``path`` become `StateError`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, PlanError | StateError):
            raise StateError(
                f"{self._path}: the states that memory has no room for cannot be kept there ({describe_error(error)}). "
                "Make room, or name another folder: mp.State(folder=…). The job resumes from its last snapshot"
            ) from error


def _own_folder(folder: Path) -> tuple[Path, int]:
    """Return a new folder inside ``folder`` and its lock, which the system drops when this process has ended."""
    made = Path(mkdtemp(prefix=".new", dir=folder))
    lock = os.open(made / _LOCK, os.O_CREAT | os.O_RDWR)
    if fcntl is not None:
        fcntl.flock(lock, fcntl.LOCK_EX)
    return made.rename(folder / (_PREFIX + made.name.removeprefix(".new"))), lock


def _remove_left_over(folder: Path) -> None:
    """Remove the folders inside ``folder`` whose locks are free: their processes were killed."""
    for path in folder.glob(f"{_PREFIX}*") if fcntl is not None else ():
        with suppress(OSError):  # it is in use, or another process removes it
            lock = os.open(path / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
