"""Where a Delta table is, and how the library opens it: in a folder, or in an object store.

Rules:
- The library takes the options of a store under the names that obstore has for them.
- On S3 each commit is an object that is written only if it is absent, and that is asked for by name: the environment
  may have switched it off.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from malstrom_py.errors import PlanError, pip_install
from malstrom_py.errors.text import text_of
from malstrom_py.local_files import local_path
from malstrom_py.object_stores import Bucket, checked_options, hidden_logins, is_object_url, object_url
from malstrom_py.sinks.staged.folder import FolderPlace
from malstrom_py.sinks.staged.objects import ObjectPlace

if TYPE_CHECKING:
    from deltalake import DeltaTable

_NAME: Final = re.compile(r"[A-Za-z0-9._=+/-]+")
_CONDITIONS: Final = {"conditional_put": "etag"}
_TRACE: Final = re.compile(r"\x1b\[[0-9;]*m|↳")
_TEXT_MAX: Final = 300


def require_deltalake(asked_by: str) -> None:
    """Raise `PlanError` if deltalake is not installed."""
    try:
        import deltalake  # noqa: F401
    except ImportError:
        raise PlanError(f"{asked_by} needs deltalake, which is not installed: {pip_install('delta')}") from None


def said(error: BaseException) -> str:
    """Return what ``error`` of the library says in one line, without passwords in URLs."""
    text = " ".join(_TRACE.sub("", hidden_logins(text_of(error))).split())
    return text[:_TEXT_MAX] or type(error).__name__


@dataclass(frozen=True)
class Location:
    """The folder ``root`` of a table: a path, or a URL with the ``options`` of its store, which may be secrets."""

    root: Path | str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return str(self.root)

    @property
    def place(self) -> FolderPlace | ObjectPlace:
        """Where the data files are."""
        return FolderPlace(self.root) if isinstance(self.root, Path) else ObjectPlace(self.root, self.options)

    @property
    def storage_options(self) -> dict[str, str] | None:
        """The options of the store, as the library takes them."""
        if isinstance(self.root, Path):
            return None
        return {**self.options, **(_CONDITIONS if self.root.startswith("s3") else {})}

    def file(self, path: str) -> str:
        """Return the path, or URL, of a file by its ``path`` in the table."""
        return f"{self.root}/{path}"

    def open(self, version: int | None = None) -> DeltaTable | None:
        """Open the table; None if there is none. Errors are those of the library, and OSError of a store."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        if isinstance(self.root, Path) and not (self.root / "_delta_log").is_dir():
            return None
        try:
            return DeltaTable(str(self.root), version=version, storage_options=self.storage_options)
        except TableNotFoundError:
            return None


def location_of(uri: str | os.PathLike[str], options: object, asked_by: str) -> Location:
    """Return the location that a user has given; `PlanError` if it cannot be one."""
    require_deltalake(asked_by)
    if not is_object_url(uri):
        if options is not None:
            raise PlanError(f"{asked_by}: store_options are for object stores, and {os.fspath(uri)!r} is a folder")
        return Location(local_path(uri, asked_by))
    place = object_url(str(uri))
    if not _NAME.fullmatch(place.key) or place.bucket.startswith("memory"):
        raise PlanError(
            f"{asked_by} takes a URL such as s3://bucket/folder/table, with letters, digits and . _ = + - / after the "
            f"bucket, got {str(uri)!r}"
        )
    Bucket(place.bucket).require_extra()
    return Location(f"{place.bucket}/{place.key}", checked_options(options, asked_by))
