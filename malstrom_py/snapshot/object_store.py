"""Snapshots in an object store: S3, Google Cloud Storage, Azure, and stores with the same protocol.

Rule: the store writes an object wholly or not at all, and creates one only if it does not exist. A store without such
conditional writes is rejected at the first start of a job.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import PlanError, SnapshotError, pip_install
from malstrom_py.snapshot.store import Range, Store, check_path

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Opened

OF_CONNECTIONS: Final = frozenset(
    (
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "http1_only",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    )
)
"""Options of the connection; obstore takes them separately from those of the store."""


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
                self._opened = _open(self._url, self._options)
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
            if not isinstance(error, (BaseError, OSError)) and not _is_panic(error):
                raise
            raise SnapshotError(
                f"{self._url}/{path} cannot be {what}: {_first_line(error)}. Complete snapshots are unchanged. Check "
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


def _open(url: str, options: Mapping[str, str]) -> Opened:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        raise PlanError(f"snapshots at {url} need obstore, which is not installed: {pip_install('objects')}") from None
    connection = {name: value for name, value in options.items() if name in OF_CONNECTIONS}
    rest = {name: value for name, value in options.items() if name not in OF_CONNECTIONS}
    try:
        # Each kind of store has its own options, so their types cannot be checked here.
        return from_url(url, config=rest or None, client_options=connection or None)  # type: ignore[arg-type]
    except BaseException as error:
        if not isinstance(error, (BaseError, ValueError, OSError)) and not _is_panic(error):
            raise
        raise PlanError(f"snapshots at {url}: the store cannot be opened: {_first_line(error)}") from error


def _is_panic(error: BaseException) -> bool:
    """Return whether obstore has panicked where an error was due, such as for an endpoint with a space."""
    return type(error).__name__ == "PanicException"


def _first_line(error: BaseException) -> str:
    """Return the first line of an error of obstore; the inner errors that follow may contain a whole request."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
