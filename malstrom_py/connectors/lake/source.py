"""What the sources of both table formats do; a subclass finds the files of a version."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from malstrom_py.connectors.lake.pinning import TableFilePin, TableFiles, TableVersion, narrow_pin, pin_version
from malstrom_py.errors import SourceError
from malstrom_py.object_stores import is_object_url
from malstrom_py.sources.base import Part, SourcePart
from malstrom_py.sources.files import OBJECTS_OPEN_MAX
from malstrom_py.sources.files.footers import Footers
from malstrom_py.sources.files.objects import ObjectPath
from malstrom_py.sources.files.reading import LazyPart
from malstrom_py.sources.shared_pin import SharedPin
from malstrom_py.sources.spark.pin import Pin, pin_of
from malstrom_py.sources.spark.pinned_part import PinnedPart, open_pinned, position_at, read_ahead

_OPEN_MAX: Final = 2
"""Row groups read in turn: as many as Polars reads whole at a time."""


class LakeSource:
    """A pinned source over the row groups of the files of one version of a table."""

    is_narrowing: Final = True

    def __init__(self, columns: tuple[str, ...] | None, keep: Any, store_options: Mapping[str, str]) -> None:
        self._columns = columns
        self._base = TableFiles(store_options)
        self._keep = keep
        self._footers = Footers()
        self._pin = SharedPin[Pin]()

    def _find(self) -> TableVersion:
        """Return the version to read, and its files."""
        raise NotImplementedError

    def _described(self) -> str:
        asked = [] if self._columns is None else [f", columns={list(self._columns)!r}"]
        if self._keep is not None:
            asked.append(f", filter={self._keep}")
        return "".join(asked)

    def pin(self, job: str, record: Any = None) -> None:
        """Pin the version that ``job`` reads: that of ``record``, else the one that was asked for, else the newest."""
        known = None if record is None else self._recorded(record)
        there = self._pin.known if self._pin.is_copy else None
        self._pin.take(
            self,
            lambda: known or there or pin_version(self._find(), self._columns, self._keep, self._base),
            lambda pin: known is None or known == pin,
        )

    def pin_record(self) -> dict[str, Any]:
        """Return the pin as plain JSON."""
        return {**self._pin.of(self).record(), "source": repr(self)}

    def unpin(self, *, keep: bool = False) -> None:
        """Forget the pin once no job reads it. Nothing is kept for a job: the files are the table's."""
        self._pin.leave(lambda keep: None)

    @property
    def parts_open_max(self) -> int:
        """How many row groups a worker reads in turn."""
        files = () if self._pin.known is None else self._pin.known.files
        return OBJECTS_OPEN_MAX if any(is_object_url(file.path) for file in files) else _OPEN_MAX

    def list_parts(self) -> Sequence[Part]:
        return self._pin.of(self).parts

    def build_part(self, part: Part, state: Any) -> SourcePart[dict[str, Any]]:
        return self._part(self._pin.of(self), part, state)

    def build_narrow_part(self, part: Part, state: Any, columns: Collection[str]) -> SourcePart[dict[str, Any]]:
        """Build a partition that reads ``columns`` only."""
        return self._part(narrow_pin(self._pin.of(self), self._keep, tuple(columns)), part, state)

    def _part(self, pin: Pin, part: Part, state: Any) -> LazyPart | PinnedPart:
        file, group = pin.find(part)
        if state is not None and (state["file"], state["row_group"]) != (file.path, group):
            raise SourceError(
                f"{part} cannot resume at row group {state['row_group']} of {state['file']}: start the job from the "
                f"beginning"
            )
        path = self._base / file.path
        if isinstance(path, ObjectPath):
            return read_ahead(pin, file, group, self._footers, state or position_at(file, group), self._keep, path)

        def open_at(position: dict[str, Any]) -> PinnedPart:
            return open_pinned(pin, file, group, self._footers, position, self._keep)

        return LazyPart(position_at(file, group) if state is None else state, open_at)

    def _recorded(self, record: Mapping[str, Any]) -> Pin:
        """Return the pin in ``record``; `SourceError` if it is of another source, or files are missing."""
        found = pin_of(record)
        if record.get("source") != repr(self):
            raise SourceError(
                f"the snapshot to resume from reads {record.get('source')}, and the job now reads {self!r}: give the "
                f"job its former source, or start from the beginning under another job name"
            )
        files = tuple(TableFilePin(one.path, one.size, one.mtime_ns, one.groups, one.values) for one in found.files)
        pin = Pin(found.id, found.schema, found.names, files, None)
        pin.check(self._base)
        return pin
