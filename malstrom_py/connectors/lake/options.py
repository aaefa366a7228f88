"""Arguments that sinks and sources of both table formats share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from malstrom_py.errors import PlanError
from malstrom_py.sinks.staged.objects import FILE_BYTES_MAX
from malstrom_py.validation import checked_whole


def checked_new_columns(new_columns: object, asked_by: str) -> bool:
    """Return whether columns are added to a table; `PlanError` if the argument is wrong."""
    if new_columns not in {"add", "error"}:
        raise PlanError(f"{asked_by}: new_columns must be 'add' or 'error', got {new_columns!r}")
    return new_columns == "add"


def checked_file_bytes(file_bytes_max: object, asked_by: str) -> int:
    """Return the limit of a file; `PlanError` if the argument is wrong."""
    return checked_whole(file_bytes_max, f"{asked_by}: file_bytes_max", most=FILE_BYTES_MAX)


def checked_names(columns: Iterable[str] | None, asked_by: str) -> tuple[str, ...] | None:
    """Return the names of the columns to read, None for all; `PlanError` if the argument is wrong."""
    if columns is None:
        return None
    names = [] if isinstance(columns, str) else list(columns)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise PlanError(f"{asked_by}: columns must be a list of different names of columns")
    return tuple(names)


def checked_filter(filter: object, asked_by: str) -> Any:
    """Return ``filter``; `PlanError` if it is not an expression of Arrow."""
    import pyarrow.compute as pc

    if filter is not None and not isinstance(filter, pc.Expression):
        raise PlanError(
            f"{asked_by}: filter must be an expression of pyarrow.compute, such as pc.field('delay') > 10, "
            f"got {type(filter).__name__}"
        )
    return filter


def checked_version(version: object, what: str) -> int | None:
    """Return the version of a table to read, None for the newest; `PlanError` if the argument is wrong."""
    if version is not None and (type(version) is not int or version < 0):
        raise PlanError(f"{what} must be a whole number, or None for the newest, got {version!r}")
    return version
