"""The base of polled sources: where partitions begin and end, and what is new for a job that has finished.

Rules:
- Where partitions begin and, with ``follow=False``, end is pinned when a job starts, and recorded in its snapshots, so
  that a resumed job ends at the same place. A job that has finished, started again, pins the ends of then, and its
  partitions continue at their positions.
- A partition whose position is after its end is opened: something was lost, and its reader finds what.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from malstrom_py.data.batch import ColumnBatch
from malstrom_py.errors import PlanError
from malstrom_py.sources.base import BaseSource, Part, V_co
from malstrom_py.sources.pinned.shared import SharedPin
from malstrom_py.sources.polled import problems
from malstrom_py.sources.polled.part import PolledPart, UpTo, has_finished, position_in
from malstrom_py.sources.polled.reading import Feed, PolledReader, ReaderFeed
from malstrom_py.validation import checked_flag


class PolledSource(BaseSource[V_co]):
    """A source that is asked for more records again and again. For connectors; a subclass is a whole source.

    Implement `list_parts` and `open`, and `find_ends` for ``follow=False``. Positions and ends are in plain types. They
    are numbers that grow; for others, implement `order` too.

    ``name``: the source in errors. ``follow``: whether the partitions are read for ever. False: up to the ends that
    they have when the job starts; a job with snapshots that has finished reads, when it is started again, what is new.

    docs/connectors.md has an example, of a service that is polled by HTTP.
    """

    parts_open_max: int = 64
    """Each partition that is open has a thread and a connection."""

    def __init__(self, name: str, *, follow: bool = True) -> None:
        self._what: Final = name
        self._follow: Final = checked_flag(follow, f"{name}: follow")
        self.reads_new = not follow
        # A job without snapshots reads everything up to the end, as its user expects: no warning.
        self.reads_new_with = "follow=False" if follow else None
        self._pin = SharedPin[Mapping[str, Any]]()

    @abstractmethod
    def open(self, part: Part, position: Any, end: Any) -> PolledReader[Any] | Feed[Any]:
        """Return what reads ``part`` after ``position``, None for its first record. Must not connect yet.

        ``end``: up to where it is read; None for ever. Records after it are left out by the caller.
        """

    def find_ends(self) -> Mapping[str, Any]:
        """Return the position that is the end of each partition now."""
        raise PlanError(f"{self._what}: follow=False needs a method find_ends")

    def find_start(self, part: Part) -> Any:
        """Return the position at which a job begins that does not resume; None for the first record."""
        return None

    def order(self, position: Any) -> Any:
        """Return what orders positions and ends. ``position`` is None at the first record."""
        return 0 if position is None else position

    def is_at(self, position: Any, end: Any) -> bool:
        """Return whether a partition at ``position`` has nothing new up to ``end``."""
        return bool(self.order(position) == self.order(end))

    def values(self, records: Sequence[Any]) -> Iterable[V_co]:
        """Return an iterator of one value per record. What it raises makes the record malformed that it is at."""
        return records

    def describe(self, part: Part, record: Any) -> tuple[str, Any]:
        """Return what a malformed record is called, and what is shown of it."""
        return f"a record of {part!r}", record

    def build_part(self, part: Part, state: Any) -> PolledPart[Any, V_co]:
        """See `PartitionedSource.build_part`."""
        return self._built(part, state, None)

    def _built(
        self, part: Part, state: Any, columns: Callable[[Sequence[Any]], ColumnBatch | None] | None
    ) -> PolledPart[Any, V_co]:
        """Build a part; ``columns`` as of `PolledPart`."""
        position = self._start_of(part) if state is None else position_in(state)
        up_to = None if self._follow else UpTo(self.order, self._end_for(part))
        is_finished = up_to is not None and self._begins_finished(state, position, up_to)
        return PolledPart(
            self._feed_of(part, position, None if up_to is None else up_to.end),
            position,
            values=self.values,
            describe=partial(self.describe, part),
            up_to=up_to,
            is_finished=is_finished,
            columns=columns,
        )

    def _feed_of(self, part: Part, position: Any, end: Any) -> Feed[Any]:
        opened = self.open(part, position, end)
        return ReaderFeed(opened, f"{self._what}-{part}") if isinstance(opened, PolledReader) else opened

    def _begins_finished(self, state: Any, position: Any, up_to: UpTo) -> bool:
        if state is None:
            return up_to.is_reached(position)
        is_read_outside_a_job = self._pin.known is None and has_finished(state)
        return is_read_outside_a_job or self.is_at(position, up_to.end)

    def _start_of(self, part: Part) -> Any:
        pin = self._pin.known
        start = None if pin is None else pin.get("starts", {}).get(part)
        return self.find_start(part) if start is None else start

    def _end_for(self, part: Part) -> Any:
        """Return the pinned end of ``part``, or that of now if none is."""
        end = self._end_of(part)
        return self.find_ends().get(part) if end is None else end

    def _end_of(self, part: Part) -> Any:
        pin = self._pin.known
        return None if pin is None or pin["stops"] is None else pin["stops"].get(part)

    def _pin_now(self, record: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return a new pin. ``record``: that of an earlier run, which has begun; None if the job has not begun."""
        stops = None if self._follow else dict(self.find_ends())
        return {"stops": stops, **(self._starts_now() if record is None else {**record, "stops": stops})}

    def _starts_now(self) -> dict[str, Any]:
        """Return the item of a pin that says where partitions begin, if not all do at their first record."""
        if type(self).find_start is PolledSource.find_start:
            return {}
        starts = {part: self.find_start(part) for part in self.list_parts()}
        found = {str(part): start for part, start in starts.items() if start is not None}
        return {"starts": found} if found else {}

    def pin(self, job: str, record: Any = None) -> None:
        """Determine where partitions begin and end; or take it from ``record``."""
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

        self._pin.take(self, find, lambda present: pin is None or pin == present)

    def pin_record(self) -> dict[str, Any]:
        """Return where the partitions begin and end, in plain types."""
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
        return end is not None and not self.is_at(position_in(position), end)

    def _recorded(self, record: Any, job: str) -> Mapping[str, Any]:
        if not isinstance(record, dict) or "stops" not in record:
            raise problems.foreign_record(self._what, job)
        return record
