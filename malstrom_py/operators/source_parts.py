"""Which parts a source has, which of them have been read, and what is pinned of it.

Rule: a source that reads what is new (`GrowingSource`) is asked with what the snapshot knows of it; every other one as
if there were no snapshot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from malstrom_py.errors import SourceError
from malstrom_py.operators.failures import describe_function
from malstrom_py.sources.base import GrowingSource, Part, PartitionedSource, PinnedGrowingSource, PinnedSource, Source


def reads_new(source: object) -> bool:
    """Whether a finished job goes on with what is new in ``source``."""
    return isinstance(source, GrowingSource) and source.reads_new is True


def is_read(source: object, position: Any) -> bool:
    """Whether nothing is left of a part of ``source`` that ended at ``position``.

    A drain ends parts where they are. A source that reads what is new reads the rest of them in the next run.
    """
    return source.has_read(position) if isinstance(source, GrowingSource) and source.reads_new else True


def pin(source: object, job: str, record: Any, *, was_read: bool) -> None:
    """Have ``source`` hold still what ``job`` is to read, if it can.

    ``record``: what an earlier run had pinned, or None. ``was_read``: that run has read all of it.
    """
    if was_read and record is not None and reads_new(source) and isinstance(source, PinnedGrowingSource):
        source.pin_next(job, record)
    elif isinstance(source, PinnedSource):
        source.pin(job, record)


def parts_of(source: PartitionedSource[Any], known: Mapping[Part, Any] | None) -> list[Part]:
    """The parts of ``source``. ``known``: those of the snapshot that the job goes on from, with their positions."""
    if known is not None and isinstance(source, GrowingSource) and source.reads_new:
        return list(source.list_parts_after(known))
    return list(source.list_parts())


def check_parts(parts: Sequence[object], source: Source[Any], step: str) -> None:
    """`SourceError` unless ``parts`` are names of parts, each there once."""
    for part in parts:
        if not isinstance(part, str):
            raise SourceError(
                f"source {step!r} lists a part of type {type(part).__name__}: the name of a part is a str, such as a "
                f"path (in {describe_function(getattr(source, 'list_parts', source))})"
            )
    for part, times in Counter(parts).items():
        if times > 1:
            raise SourceError(f"source {step!r} lists part {part!r} twice: parts go by their names")
