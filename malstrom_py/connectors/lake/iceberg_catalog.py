"""Catalogs of Iceberg tables: opened for one operation and closed again, without secrets in errors.

A catalog is given by its name in pyiceberg's configuration, or by its properties, so that each worker can open it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from malstrom_py.errors import MalstromError, PlanError, pip_install

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

DEFAULT_NAME: Final = "default"
"""The name of a catalog whose properties have no ``name``; catalogs of type ``sql`` keep tables apart by it."""

_FORMAT_MAX: Final = 2

_RACES_OF_SQL: Final = {"OperationalError", "IntegrityError"}
"""Errors of SQLAlchemy: SQLite's answer to a second writer ("database is locked"), and an entry that exists already."""


def require_pyiceberg(asked_by: str) -> None:
    """Raise `PlanError` if pyiceberg is not installed."""
    try:
        import pyiceberg  # noqa: F401
    except ImportError:
        raise PlanError(f"{asked_by} needs pyiceberg, which is not installed: {pip_install('iceberg')}") from None


def checked_catalog(catalog: object, asked_by: str) -> str | dict[str, str]:
    """Return the name or the properties of a catalog; `PlanError` if the argument is neither."""
    if isinstance(catalog, str) and catalog:
        return catalog
    if isinstance(catalog, Mapping) and all(isinstance(one, str) for item in catalog.items() for one in item):
        return dict(catalog)
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
def opened(catalog: str | Mapping[str, str], error: type[MalstromError]) -> Iterator[Catalog]:
    """Open ``catalog``; raise ``error`` if that fails."""
    from pyiceberg.catalog import load_catalog

    try:
        if isinstance(catalog, str):
            found = load_catalog(catalog)
        else:
            properties = dict(catalog)
            found = load_catalog(properties.pop("name", DEFAULT_NAME), **properties)
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


def said(error: BaseException, catalog: str | Mapping[str, str]) -> str:
    """Return kind and first line of ``error``, without the values of the catalog's properties.

    >>> said(ValueError("no such host: db:secret@host"), {"type": "sql", "uri": "db:secret@host"})
    'ValueError: no such host: …'
    """
    text = next(iter(str(error).splitlines()), "")
    for value in () if isinstance(catalog, str) else sorted(catalog.values(), key=len, reverse=True):
        if len(value) > len("sql"):
            text = text.replace(value, "…")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def local_folder(table: Table) -> tuple[Path, str] | None:
    """Return the folder of the data files as a path and as the table writes it; None if it is not on this machine."""
    configured = table.properties.get("write.data.path")
    uri = (configured or f"{table.location().rstrip('/')}/data").rstrip("/")
    path = uri.removeprefix("file://") if uri.startswith("file://") else uri.removeprefix("file:")
    return (Path(path), uri) if path.startswith("/") else None


def why_not_known(table: Table) -> str | None:
    """Return why ``table`` is of a kind that is neither read nor written; None if it is not."""
    if table.format_version > _FORMAT_MAX:
        return f"it has format version {table.format_version}, and up to {_FORMAT_MAX} are known"
    return None
