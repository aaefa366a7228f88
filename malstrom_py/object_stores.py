"""Object stores through obstore: S3, Google Cloud Storage, Azure, and stores with the same protocol.

Rules:
- A URL is ``<kind>://<bucket>/<key>``. Keys are not decoded: ``%``, ``?`` and ``#`` mean themselves.
- Errors of a store are OSErrors here: FileNotFoundError, PermissionError, `ObjectChanged`, else `StoreError`. Their
  texts hold no options, which may be secrets.
- Each process opens a store on first use, so that what holds one can be copied to workers.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import PlanError, pip_install
from malstrom_py.errors.text import text_of

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Opened

KINDS: Final = ("s3", "s3a", "gs", "az", "abfs", "abfss", "memory")
"""The schemes of URLs of object stores. ``memory`` is for tests: a store of this process."""

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

_LOGIN: Final = re.compile(r"//[^/@\s]*@")
"""Name and password in a URL, such as one of an endpoint or a proxy."""

_BAD_KEY: Final = re.compile(r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f]")
"""What obstore takes in no key: an empty name, ``.``, ``..``, control characters."""

_PART_BYTES: Final = 8 << 20
_PARTS_AT_ONCE: Final = 4


class StoreError(OSError):
    """A store cannot be reached, or refuses a request."""


class ObjectChanged(OSError):
    """An object is no longer the one that was opened."""


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """What a store says of an object; named as in `os.stat_result`."""

    st_size: int
    st_mtime_ns: int
    etag: str


@dataclass(frozen=True, slots=True)
class ObjectUrl:
    """A URL, as its bucket (such as ``s3://bucket``) and the key in it.

    >>> object_url("s3://bucket/in/*.csv")
    ObjectUrl(bucket='s3://bucket', key='in/*.csv')
    """

    bucket: str
    key: str


def is_object_url(text: object) -> bool:
    """Return whether ``text`` is the URL of an object store.

    >>> is_object_url("s3://bucket/in"), is_object_url("file:///in"), is_object_url("in")
    (True, False, False)
    """
    return isinstance(text, str) and text.partition("://")[0] in KINDS and "://" in text


def object_url(text: str) -> ObjectUrl:
    """Return the parts of a URL for which `is_object_url` is true. `PlanError` if it names no bucket, or no key."""
    kind, _, rest = text.partition("://")
    bucket, _, key = rest.partition("/")
    if ":" in bucket.partition("@")[0] and "@" in bucket:
        raise PlanError(f"a URL {kind}://… has a password: give it in store_options, which are never shown")
    if not bucket and kind != "memory":
        raise PlanError(f"{text!r} names no bucket: write {kind}://bucket/folder")
    key = key.strip("/")
    if key and _BAD_KEY.search(key):
        raise PlanError(f"{text!r} has an empty name between two /, '.', '..' or a control character: rename it")
    return ObjectUrl(f"{kind}://{bucket}", key)


def checked_options(options: object, asked_by: str) -> dict[str, str]:
    """Return the options of a store as a dict; `PlanError` if they are not texts."""
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(type(one) is str for pair in options.items() for one in pair):
        raise PlanError(
            f'{asked_by}: store_options maps names to texts, such as {{"region": "eu-central-1", "timeout": "60s"}}'
        )
    return dict(options)


def open_store(url: str, options: Mapping[str, str], *, what: str) -> Opened:
    """Open the store at ``url``. ``what``: begins the error, such as "snapshots at". `PlanError` if it cannot be."""
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        raise PlanError(f"{what} {url} need obstore, which is not installed: {pip_install('objects')}") from None
    connection = {name: value for name, value in options.items() if name in OF_CONNECTIONS}
    rest = {name: value for name, value in options.items() if name not in OF_CONNECTIONS}
    try:
        # Each kind of store has its own options, so their types cannot be checked here.
        return from_url(url, config=rest or None, client_options=connection or None)  # type: ignore[arg-type]
    except BaseException as error:
        if not isinstance(error, (BaseError, ValueError, OSError)) and not is_panic(error):
            raise
        raise PlanError(f"{what} {url}: the store cannot be opened: {first_line(error)}") from None


def is_panic(error: BaseException) -> bool:
    """Return whether obstore has panicked where an error was due, such as for an endpoint with a space."""
    return type(error).__name__ == "PanicException"


def first_line(error: BaseException) -> str:
    """Return the first line of an error of obstore, without passwords in URLs; what follows may be a whole request.

    >>> first_line(ValueError("cannot reach http://me:hush@host/a"))
    'cannot reach http://…@host/a'
    """
    return hidden_logins((text_of(error).strip().splitlines() or [type(error).__name__])[0])


def hidden_logins(text: str) -> str:
    """Return ``text`` without names and passwords in URLs.

    >>> hidden_logins("https://me:hush@host/a")
    'https://…@host/a'
    """
    return _LOGIN.sub("//…@", text)


class Bucket:
    """The objects at ``root``, such as ``s3://bucket``.

    >>> bucket = Bucket("memory://docs")
    >>> bucket.create("a/b", b"one"), bucket.create("a/b", b"two"), bucket.read("a/b", 0, 3)
    (True, False, b'one')
    >>> [key for key, _ in bucket.list("a/")], bucket.delete(["a/b"])
    (['a/b'], None)
    """

    def __init__(self, root: str, options: Mapping[str, str] | None = None) -> None:
        self.root = root
        self._options = dict(options or {})
        self._lock = threading.Lock()
        self._opened: Opened | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Bucket, (self.root, self._options)

    def __repr__(self) -> str:
        return f"Bucket({self.root!r})"  # the options may hold secrets

    def require_extra(self) -> None:
        """Raise `PlanError` unless obstore is installed."""
        if importlib.util.find_spec("obstore") is None:
            raise PlanError(f"files at {self.root} need obstore, which is not installed: {pip_install('objects')}")

    def stat(self, key: str) -> ObjectStat:
        """Return size, time of change and tag of an object."""
        with self._errors(key):
            return _stat(self._store().head(key))

    def exists(self, key: str) -> bool:
        """Return whether there is an object ``key``."""
        try:
            self.stat(key)
        except FileNotFoundError:
            return False
        return True

    def read(self, key: str, start: int, stop: int, *, etag: str = "") -> bytes:
        """Return the bytes from ``start`` to ``stop``. `ObjectChanged`: its tag is no longer ``etag``."""
        if start >= stop:
            return b""
        asked: dict[str, Any] = {"range": (start, stop)}
        if etag:
            asked["if_match"] = etag
        with self._errors(key):
            found = self._store().get(key, options=asked)  # type: ignore[arg-type]
            if etag and _tag(found.meta) != etag:
                raise ObjectChanged(errno.ESTALE, "the object has changed")
            data = bytes(found.bytes())
        if len(data) != stop - start:
            raise ObjectChanged(errno.ESTALE, "the object has another size")
        return data

    def get(self, key: str) -> bytes:
        """Return the whole of a small object."""
        with self._errors(key):
            return bytes(self._store().get(key).bytes())

    def list(self, prefix: str) -> list[tuple[str, ObjectStat]]:
        """Return the objects whose keys begin with ``prefix``, a folder with its ``/`` or empty, sorted by key."""
        with self._errors(prefix):
            pages = self._store().list(prefix.rstrip("/") or None)
            return sorted((str(one["path"]), _stat(one)) for page in pages for one in page)

    def first_names(self, folder: str) -> Sequence[str]:
        """Return the names of some objects in ``folder``: of the first page, where there are many."""
        with self._errors(folder):
            page = next(iter(self._store().list(folder)), ())
            return [str(one["path"]).rpartition("/")[2] for one in page]

    def put(self, key: str, data: bytes) -> None:
        """Write an object as a whole."""
        with self._errors(key):
            self._store().put(key, data)

    def create(self, key: str, data: bytes) -> bool:
        """Write an object if there is none; return whether it was written."""
        with self._errors(key):
            from obstore.exceptions import AlreadyExistsError, PreconditionError

            try:
                self._store().put(key, data, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
            return True

    def upload(self, key: str, file: Path) -> None:
        """Write a file as an object: a large one in parts, of which few are in memory."""
        with self._errors(key):
            self._store().put(key, file, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)

    def copy(self, key: str, new: str) -> None:
        """Copy an object within the store."""
        with self._errors(key):
            self._store().copy(key, new)

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; those that do not exist are no error."""
        for key in keys:
            with contextlib.suppress(FileNotFoundError), self._errors(key):
                self._store().delete(key)

    def _store(self) -> Opened:
        with self._lock:
            if self._opened is None:
                self._opened = (
                    _in_memory(self.root)
                    if self.root.startswith("memory:")
                    else open_store(self.root, self._options, what="files at")
                )
            return self._opened

    @contextlib.contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        self._store()
        from obstore.exceptions import (
            BaseError,
            InvalidPathError,
            PermissionDeniedError,
            PreconditionError,
            UnauthenticatedError,
        )

        # The errors of obstore show whole requests, so they are no causes.
        try:
            yield
        except ObjectChanged:
            raise
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "there is no such object, or bucket", f"{self.root}/{key}") from None
        except PreconditionError:
            raise ObjectChanged(errno.ESTALE, "the object has changed") from None
        except (PermissionDeniedError, UnauthenticatedError):
            raise PermissionError(errno.EACCES, f"the credentials do not allow it for {self.root}/{key}") from None
        except InvalidPathError as error:
            raise StoreError(
                errno.EIO,
                f"{self.root}/{key}: {first_line(error)}: obstore lists no folder with such a key. Rename that object, "
                f"or begin the pattern with a folder that does not hold it",
            ) from None
        except BaseException as error:
            if not isinstance(error, (BaseError, OSError)) and not is_panic(error):
                raise
            raise StoreError(errno.EIO, f"{self.root}/{key}: {first_line(error)}") from None


@cache
def _in_memory(root: str) -> Opened:
    """Return the one store in memory of that name in this process."""
    return open_store("memory:///", {}, what="files at")


def _stat(meta: Any) -> ObjectStat:
    return ObjectStat(int(meta["size"]), int(meta["last_modified"].timestamp() * 1_000) * 1_000_000, _tag(meta))


def _tag(meta: Any) -> str:
    tag = str(meta["e_tag"] or "")
    return f'"{tag}"' if tag.startswith("0x") else tag  # the lists of Azure leave out the quotes
