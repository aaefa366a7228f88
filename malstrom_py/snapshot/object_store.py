"""Snapshots in an object store: S3, Google Cloud Storage, Azure, and stores with the same protocol.

Rule: the store writes an object wholly or not at all, and creates one only if it does not exist. A store without such
conditional writes is rejected at the first start of a job.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from malstrom_py.errors import SnapshotError
from malstrom_py.object_stores import first_line, is_panic, open_store
from malstrom_py.snapshot.store import Range, Store, check_path

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Opened


class ObjectStore(Store):
    """A `Store` at ``url``, such as ``s3://bucket/folder``, ``gs://bucket/folder`` or ``az://container/folder``.

    ``options``: the options of obstore for that kind of store and for its connections, as text, such as
    ``{"region": "eu-central-1", "timeout": "60s"}``; other options come from the environment. Each process opens the
    store on first use.

    >>> store = ObjectStore("memory:///")
    >>> store.create("log/1.json", b"one"), store.create("log/1.json", b"two"), store.get("log/1.json")
    (True, False, b'one')
    """

    def __init__(self, url: str, *, options: Mapping[str, str] | None = None) -> None:
        self._url = url
        self._options = dict(options or {})
        self._lock = threading.Lock()
        self._opened: Opened | None = None

    def put(self, path: str, data: bytes) -> None:
        with self._naming_path(check_path(path), "written"):
            self._store().put(path, data)

    def create(self, path: str, data: bytes) -> bool:
        with self._naming_path(check_path(path), "written"):
            from obstore.exceptions import AlreadyExistsError, PreconditionError

            try:
                self._store().put(path, data, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
            return True

    def get(self, path: str) -> bytes:
        with self._naming_path(check_path(path), "read"):
            return bytes(self._store().get(path).bytes())

    def get_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        """Return ranges of the contents of ``path``."""
        wanted = [(start, end) for start, end in ranges if start < end]  # the store refuses an empty range
        starts, ends = [start for start, _ in wanted], [end for _, end in wanted]
        with self._naming_path(check_path(path), "read"):
            read = iter(self._store().get_ranges(path, starts=starts, ends=ends) if wanted else ())
            return [bytes(next(read)) if start < end else b"" for start, end in ranges]

    def list(self, folder: str) -> list[str]:
        if folder:
            check_path(folder)
        with self._naming_path(folder, "listed"):
            return sorted(found["path"] for page in self._store().list(folder or None) for found in page)

    def rename(self, path: str, new: str) -> None:
        """Copy ``path`` to ``new``, then remove it. FileNotFoundError: it does not exist."""
        with self._naming_path(check_path(path), "renamed"):
            self._store().copy(path, check_path(new))
        self.delete(path)

    def delete(self, path: str) -> None:
        with self._naming_path(check_path(path), "removed"), contextlib.suppress(FileNotFoundError):
            self._store().delete(path)

    def _store(self) -> Opened:
        with self._lock:
            if self._opened is None:
                self._opened = open_store(self._url, self._options, what="snapshots at")
            return self._opened

    @contextlib.contextmanager
    def _naming_path(self, path: str, what: str) -> Iterator[None]:
        self._store()
        from obstore.exceptions import BaseError

        try:
            yield
        except FileNotFoundError:
            raise
        except BaseException as error:
            if not isinstance(error, (BaseError, OSError)) and not is_panic(error):
                raise
            raise SnapshotError(
                f"{self._url}/{path} cannot be {what}: {first_line(error)}. Complete snapshots are unchanged. Check "
                f"that the store can be reached and that the credentials allow it"
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        return {"_url": self._url, "_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_url"], options=state["_options"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"ObjectStore({self._url!r})"  # the options may hold secrets

    def __str__(self) -> str:
        return self._url
