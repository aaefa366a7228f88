"""The data files that a commit adds to a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from malstrom_py.errors import SinkError
from malstrom_py.sinks.base import CommitContext
from malstrom_py.sinks.staged.payloads import StagedFile


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A file at ``path`` in the table. ``values``: those of the partition columns, as texts.

    ``stats`` and ``spec``: see the table.
    """

    path: str
    size: int
    rows: int
    values: Sequence[str | None]
    stats: Any
    spec: int


def lake_file(context: CommitContext, file: StagedFile, path: str) -> LakeFile:
    """Return a staged file at its ``path``; `SinkError` if its payload does not have the details of a table's file."""
    try:
        return LakeFile(path, **(file.details or {}))
    except TypeError:
        raise SinkError(
            f"a pre-commit payload of step {context.step!r} is damaged: resume from an older snapshot"
        ) from None
