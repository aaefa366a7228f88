"""Sources to which others keep adding: with ``follow=False`` a run reads each partition up to its end at the start.

Rule: the ends are pinned when a job starts, and recorded in its snapshots, so that a resumed job ends at the same
place. A job that has finished, started again, pins the ends of then, and its partitions continue at their positions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from malstrom_py.errors import PlanError, SourceError, shown
from malstrom_py.sources.base import BaseSource, Part, V_co
from malstrom_py.sources.pinned.shared import SharedPin

FINISHED: Final = "finished"
"""The item of a position that says that its partition was read up to the pinned end."""


def has_finished(position: Any) -> bool:
    """Whether ``position`` is one at the end of a partition.

    >>> has_finished({"offset": 3, "finished": True}), has_finished({"offset": 3}), has_finished(None)
    (True, False, False)
    """
    return isinstance(position, Mapping) and position.get(FINISHED) is True


class UpToEnds(BaseSource[V_co]):
    """The pin of such a source, and what is new for a job that has finished.

    Each of these sources is pinned and growing with ``follow=False``. A pin is ``{"stops": {part: end}}`` in plain
    types; the ends are None with ``follow=True``.
    """

    def __init__(self, what: str, *, follow: bool) -> None:
        """``what``: the name of the source in errors."""
        if not isinstance(follow, bool):
            raise PlanError(f"{what}: follow is True or False, got {shown(follow)}")
        self._what: Final = what
        self._follow: Final = follow
        self.reads_new = not follow
        # A job without snapshots reads everything up to the end, as its user expects: no warning.
        self.reads_new_with = "follow=False" if follow else None
        self._pin = SharedPin[Mapping[str, Any]]()

    @abstractmethod
    def _find_ends(self) -> dict[str, Any]:
        """Return the end that each partition has now, in plain types."""

    @abstractmethod
    def _is_at(self, position: Any, end: Any) -> bool:
        """Return whether ``position`` is that at ``end``. A later one is not: then something was lost."""

    def _pin_now(self, record: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return a new pin. ``record``: the one before; None if the job starts from the beginning."""
        return {"stops": None if self._follow else self._find_ends()}

    def pin(self, job: str, record: Any = None) -> None:
        """Determine where each partition ends; or take it from ``record``."""
        known = None if record is None else self._recorded(record, job)
        pin = known
        if known is not None and self._follow:
            pin = {**known, "stops": None}
        elif known is not None and known["stops"] is None:  # the earlier run followed
            pin = None
        self._take(known, pin)

    def pin_next(self, job: str, record: Any) -> None:
        """Determine where each partition ends now: an earlier run has read all of ``record``."""
        self._take(self._recorded(record, job), None)

    def _take(self, known: Mapping[str, Any] | None, pin: Mapping[str, Any] | None) -> None:
        """Pin ``pin``, if given, or the ends of now."""

        def find() -> Mapping[str, Any]:
            return self._pin.of(self) if self._pin.is_copy else pin or self._pin_now(known)

        self._pin.take(self, find, lambda there: pin is None or pin == there)

    def pin_record(self) -> dict[str, Any]:
        """Return where the partitions end, in plain types."""
        return dict(self._pin.of(self))

    def unpin(self, *, keep: bool = False) -> None:
        """Forget the ends. ``keep`` changes nothing: nothing is stored."""
        self._pin.leave(lambda keep: None)

    def list_parts_after(self, known: Mapping[Part, Any]) -> list[Part]:
        """Return all partitions. Those that are not listed any more are kept if they were read: they may return."""
        listed = list(self.list_parts())
        return [*listed, *(part for part, at in known.items() if has_finished(at) and part not in listed)]

    def has_read(self, position: Any) -> bool:
        """Return whether a partition at ``position`` was read to its end."""
        return has_finished(position)

    def has_more(self, part: Part, position: Any) -> bool:
        """Return whether ``part``, which an earlier run has read up to ``position``, has more now."""
        end = self._end_of(part)
        return end is not None and not self._is_at(position, end)

    @property
    def _is_pinned(self) -> bool:
        """Whether a job reads the source."""
        return self._pin.known is not None

    def _end_of(self, part: Part) -> Any:
        """Return the pinned end of ``part``; None if none is."""
        pin = self._pin.known
        return None if pin is None or pin["stops"] is None else pin["stops"].get(part)

    def _recorded(self, record: Any, job: str) -> Mapping[str, Any]:
        if not isinstance(record, dict) or "stops" not in record:
            raise SourceError(
                f"{self._what}: the snapshot of job {job!r} has a record of another source for this step: name the "
                f"step otherwise, or start the job without its snapshots"
            )
        return record
