"""Sources whose parts appear while the job runs: how often they are listed, and where new parts begin (R13)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import isfinite
from typing import Any

from malstrom_py.errors import SourceError, shown
from malstrom_py.sources.base import Part, PartitionedSource


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
            f"source {step!r}: lists_again_every_s must be a number of seconds above 0, or None to list the parts "
            f"only once, got {shown(every_s)}"
        )
    return float(every_s)


def new_part_position(source: object, part: Part) -> Any:
    """Return the position at which ``part``, which was not there when the job started, begins; None for its start."""
    position = getattr(source, "new_part_position", None)
    return None if position is None else position(part)


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
