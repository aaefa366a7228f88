"""Sources that get more to read: whose parts appear while the job runs, how often they are listed, and where new parts
begin (R13); and sources whose new data a job reads after it has finished.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from malstrom_py.sources.base import BaseSource, Part


def is_read(source: BaseSource[Any], position: Any) -> bool:
    """Whether a part of ``source`` that ended at ``position`` was read to its end.

    A drain ends parts early. A source that reads new data reads the rest of them in the next run.
    """
    return source.has_read(position) if source.reads_new else True


def parts_of(source: BaseSource[Any], known: Mapping[Part, Any] | None) -> list[Part]:
    """Return the parts of ``source``. ``known``: the parts and positions of the snapshot that the job resumes from."""
    return list(source.list_parts_after(known) if known is not None and source.reads_new else source.list_parts())


def grown_positions(
    source: BaseSource[Any], listed: Sequence[Part], known: Mapping[Part, Any] | None
) -> dict[Part, Any]:
    """Return where those ``known`` parts continue that an earlier run has read, and that have more now."""
    known = known or {}
    return {part: known[part] for part in listed if part in known and source.has_more(part, known[part])}


def with_known(listed: Sequence[Part], known: Collection[Part]) -> list[Part]:
    """Return the ``listed`` parts and those ``known`` parts of a snapshot that are no longer listed.

    >>> with_known([Part("b")], [Part("a"), Part("b")])
    ['b', 'a']
    """
    there = set(listed)
    return [*listed, *(part for part in known if part not in there)]


def new_positions(source: BaseSource[Any], listed: Sequence[Part], known: Mapping[Part, Any] | None) -> dict[Part, Any]:
    """Return where the parts begin that appeared after the snapshot with the ``known`` parts; None without one."""
    if known is None:
        return {}
    return {part: source.new_part_position(part) for part in listed if part not in known}
