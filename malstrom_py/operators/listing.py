"""Sources that get more to read: whose parts appear while the job runs, how often they are listed, and where new parts
begin (R13); and sources whose new data a job reads after it has finished.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import isfinite
from typing import Any

from malstrom_py.errors import SourceError, shown
from malstrom_py.sources.base import GrowingSource, Part, PartitionedSource


def reads_new(source: object) -> bool:
    """Whether a finished job, started again, reads the new data of ``source``."""
    return isinstance(source, GrowingSource) and source.reads_new is True


def reads_new_with(source: object) -> str | None:
    """The argument with which ``source`` reads new data; None if there is none, or if no message names it.

    >>> from malstrom_py import sources
    >>> reads_new_with(sources.Files("in/*.csv")), reads_new_with(sources.Memory([1]))
    ('new_files=True', None)
    """
    default = "reads_new" if reads_new(source) else None
    found: str | None = getattr(source, "reads_new_with", default)
    return found


def is_read(source: object, position: Any) -> bool:
    """Whether a part of ``source`` that ended at ``position`` was read to its end.

    A drain ends parts early. A source that reads new data reads the rest of them in the next run.
    """
    return source.has_read(position) if isinstance(source, GrowingSource) and source.reads_new else True


def parts_of(source: PartitionedSource[Any], known: Mapping[Part, Any] | None) -> list[Part]:
    """Return the parts of ``source``. ``known``: the parts and positions of the snapshot that the job resumes from."""
    if known is not None and isinstance(source, GrowingSource) and source.reads_new:
        return list(source.list_parts_after(known))
    return list(source.list_parts())


def lists_again_every_s(source: object, step: str) -> float | None:
    """Return how often the parts of ``source`` are listed again, in seconds; None for a source that is listed once.

    Raises:
        SourceError: the interval is not a number above 0.
    """
    every_s = getattr(source, "lists_again_every_s", None)
    if every_s is None or not isinstance(source, PartitionedSource):
        return None
    is_number = isinstance(every_s, int | float) and not isinstance(every_s, bool)
    if not is_number or not isfinite(every_s) or every_s <= 0:
        raise SourceError(
            f"source {step!r}: lists_again_every_s must be a number of seconds above 0, or None to list the partitions "
            f"only once, got {shown(every_s)}"
        )
    return float(every_s)


def new_part_position(source: object, part: Part) -> Any:
    """Return the position at which ``part``, which was not there when the job started, begins; None for its start."""
    position = getattr(source, "new_part_position", None)
    return None if position is None else position(part)


def grown_positions(source: object, listed: Sequence[Part], known: Mapping[Part, Any] | None) -> dict[Part, Any]:
    """Return where those ``known`` parts continue that an earlier run has read, and that have more now."""
    has_more = getattr(source, "has_more", None)
    if has_more is None or known is None:
        return {}
    return {part: known[part] for part in listed if part in known and has_more(part, known[part])}


def with_known(listed: Sequence[Part], known: Collection[Part]) -> list[Part]:
    """Return the ``listed`` parts and those ``known`` parts of a snapshot that are no longer listed.

    >>> with_known([Part("b")], [Part("a"), Part("b")])
    ['b', 'a']
    """
    there = set(listed)
    return [*listed, *(part for part in known if part not in there)]


def new_positions(source: object, listed: Sequence[Part], known: Mapping[Part, Any] | None) -> dict[Part, Any]:
    """Return where the parts begin that appeared after the snapshot with the ``known`` parts; None without one."""
    if known is None:
        return {}
    return {part: new_part_position(source, part) for part in listed if part not in known}
