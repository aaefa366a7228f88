"""Catalogs of Iceberg tables: opened for one operation and closed again, without secrets in errors.

A catalog is given by its name in pyiceberg's configuration, or by its properties, so that each worker can open it. The
options of a store, which have the names of obstore, are added to them under the names of pyiceberg.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from malstrom_py.errors import MalstromError, PlanError, pip_install
from malstrom_py.errors.text import text_of
from malstrom_py.object_stores import checked_options, hidden_logins
from malstrom_py.sinks.staged import Place
from malstrom_py.sinks.staged.folder import FolderPlace
from malstrom_py.sinks.staged.objects import ObjectPlace

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

DEFAULT_NAME: Final = "default"
"""The name of a catalog whose properties have no ``name``; catalogs of type ``sql`` keep tables apart by it."""

_FORMAT_MAX: Final = 2
S3: Final = ("s3://", "s3a://")
_REGION: Final = "us-east-1"

_TEXT_OF: Final = {
    "access_key_id": "s3.access-key-id",
    "endpoint": "s3.endpoint",
    "proxy_url": "s3.proxy-uri",
    "region": "s3.region",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
    "skip_signature": "s3.anonymous",
    "virtual_hosted_style_request": "s3.force-virtual-addressing",
}
"""Option of a store -> property of pyiceberg."""

_SECONDS_OF: Final = {"connect_timeout": "s3.connect-timeout", "timeout": "s3.request-timeout"}
_OF_ADDRESS: Final = {"allow_http"}
"""Options that the address of the endpoint has in itself."""

_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(ms|s|m)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0}

_RACES_OF_SQL: Final = {"OperationalError", "IntegrityError"}
"""Errors of SQLAlchemy: SQLite's answer to a second writer ("database is locked"), and an entry that exists already."""


def require_pyiceberg(asked_by: str) -> None:
    """Raise `PlanError` if pyiceberg is not installed."""
    try:
        import pyiceberg  # noqa: F401
    except ImportError:
        raise PlanError(f"{asked_by} needs pyiceberg, which is not installed: {pip_install('iceberg')}") from None


@dataclass(frozen=True)
class CatalogAccess:
    """What opens a catalog, and the store that its tables may be in. All but ``name`` may be secret."""

    name: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    store_options: Mapping[str, str] = field(default_factory=dict, repr=False)


def checked_catalog(catalog: object, store_options: object, asked_by: str) -> CatalogAccess:
    """Return how to open a catalog; `PlanError` if it is neither a name nor properties, or an option is not known."""
    options = checked_options(store_options, asked_by)
    of_store = _of_pyiceberg(options, asked_by)
    if isinstance(catalog, str) and catalog:
        return CatalogAccess(catalog, of_store, options)
    if isinstance(catalog, Mapping) and all(isinstance(one, str) for item in catalog.items() for one in item):
        properties = {**of_store, **catalog}
        return CatalogAccess(properties.pop("name", DEFAULT_NAME), properties, options)
    raise PlanError(
        f"{asked_by}: catalog must be the name of a catalog in pyiceberg's configuration, or its properties, such as "
        f"{{'type': 'sql', 'uri': …, 'warehouse': …}}, all of them str; an open catalog cannot go to workers"
    )


def checked_table(table: object, asked_by: str) -> str:
    """Return the id of a table; `PlanError` if it is not ``namespace.name``."""
    if not isinstance(table, str) or len(parts := table.split(".")) < 2 or not all(parts):
        raise PlanError(f"{asked_by}: the table is named 'namespace.table', got {table!r}")
    return table


@contextlib.contextmanager
def opened(catalog: CatalogAccess, error: type[MalstromError]) -> Iterator[Catalog]:
    """Open ``catalog``; raise ``error`` if that fails."""
    from pyiceberg.catalog import load_catalog

    try:
        found = load_catalog(catalog.name, **catalog.properties)
    except Exception as cause:  # each kind of catalog has errors of its libraries
        raise error(f"the Iceberg catalog cannot be opened: {said(cause, catalog)}") from None
    try:
        yield found
    except MalstromError:
        raise
    except Exception as cause:
        raise error(f"the Iceberg catalog, or a table in it, failed: {said(cause, catalog)}") from None
    finally:
        found.close()


def is_to_repeat(error: BaseException) -> bool:
    """Return whether an operation on a catalog lost a race, or may have: it is repeated after reading again."""
    from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, TableAlreadyExistsError

    races = CommitFailedException | CommitStateUnknownException | TableAlreadyExistsError
    return isinstance(error, races) or type(error).__name__ in _RACES_OF_SQL


def said(error: BaseException, catalog: CatalogAccess) -> str:
    """Return kind and first line of ``error``, without the values of the catalog's properties and logins in URLs.

    >>> said(ValueError("no such host: db:secret@host"), CatalogAccess("docs", {"uri": "db:secret@host"}))
    'ValueError: no such host: …'
    >>> said(ValueError("no answer: http://me:secret@host"), CatalogAccess("name in pyiceberg's configuration"))
    'ValueError: no answer: http://…@host'
    """
    text = next(iter(text_of(error).splitlines()), "")
    for value in sorted(catalog.properties.values(), key=len, reverse=True):
        if len(value) > len("sql"):
            text = text.replace(value, "…")
    text = hidden_logins(text)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def data_place(table: Table, store_options: Mapping[str, str]) -> tuple[Place, str] | None:
    """Return where the data files are, and how the table writes that; None: neither in a local folder nor in S3."""
    configured = table.properties.get("write.data.path")
    uri = (configured or f"{table.location().rstrip('/')}/data").rstrip("/")
    if uri.startswith(S3):
        return ObjectPlace(uri, store_options), uri
    path = uri.removeprefix("file://") if uri.startswith("file://") else uri.removeprefix("file:")
    return (FolderPlace(Path(path)), uri) if path.startswith("/") else None


def _of_pyiceberg(options: Mapping[str, str], asked_by: str) -> dict[str, str]:
    """Return the options of an S3 as properties of pyiceberg; `PlanError` if it has none for one of them.

    >>> _of_pyiceberg({"aws_region": "eu-central-1", "timeout": "1m"}, "sinks.Iceberg")
    {'s3.region': 'eu-central-1', 's3.request-timeout': '60.0'}
    """
    found: dict[str, str] = {}
    for name, value in options.items():
        plain = name.lower().removeprefix("aws_")
        if plain in _SECONDS_OF:
            found[_SECONDS_OF[plain]] = str(_seconds(name, value, asked_by))
        elif plain in _TEXT_OF:
            found[_TEXT_OF[plain]] = value
        elif plain not in _OF_ADDRESS:
            raise PlanError(
                f"{asked_by}: pyiceberg has nothing like the store option {name!r}. Those of both are "
                f"{', '.join(sorted({*_TEXT_OF, *_SECONDS_OF, *_OF_ADDRESS}))}"
            )
    if "s3.endpoint" in found:
        found.setdefault("s3.region", _REGION)  # as of obstore; pyiceberg would ask Amazon for the region
    return found


def _seconds(name: str, value: str, asked_by: str) -> float:
    match = _DURATION.fullmatch(value)
    if match is None:
        raise PlanError(f"{asked_by}: the store option {name!r} is a time such as '60s' or '2m'")
    return float(match[1]) * _UNITS[match[2]]


def why_not_known(table: Table) -> str | None:
    """Return why ``table`` is of a kind that is neither read nor written; None if it is not."""
    if table.format_version > _FORMAT_MAX:
        return f"it has format version {table.format_version}, and up to {_FORMAT_MAX} are known"
    return None
