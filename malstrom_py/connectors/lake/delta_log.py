"""The log of a Delta table, as its source reads it: which files each version adds, and what it needs of readers.

The format is https://github.com/delta-io/delta/blob/master/PROTOCOL.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from malstrom_py.connectors.lake.delta_location import Location, said
from malstrom_py.connectors.lake.follow import changes_rows, not_followed
from malstrom_py.errors import SourceError
from malstrom_py.sources.pinned.row_groups import PinnedFile, TableFiles

_READER_MAX: Final = 3
_READER_FEATURES: Final = {"timestampNtz", "columnMapping", "deletionVectors", "v2Checkpoint", "vacuumProtocolCheck"}
"""What a table may need of its readers."""


CHANGE_TYPE: Final = "_change_type"
"""The column of the change feed that says what has become of a row."""

FEED: Final = "delta.enableChangeDataFeed"


class DeltaLog:
    """The log of a table. ``path_of``: returns the path or URL of a file, by its path in the log.

    ``table_id``: the id of the table; "" if it is not known. ``changes``: versions may change and delete rows, and each
    file has or gets the column `CHANGE_TYPE`.
    """

    def __init__(
        self,
        location: Location,
        files: TableFiles,
        path_of: Callable[[str], str],
        *,
        table_id: str = "",
        changes: bool = False,
    ) -> None:
        self._location = location
        self._unchecked_id = table_id
        self._last: tuple[int, str] | None = None  # the version that was read last
        self._files = files
        self._path_of = path_of
        self._changes = changes

    def place_after(self, version: int) -> int:
        """See `TableLog`."""
        return version + 1

    def read(self, place: int) -> tuple[list[PinnedFile], int] | None:
        """See `TableLog`."""
        self._check_table(place)
        name = f"{place:020}.json"
        content = self._content(name)
        if content is None:
            last = self._content("_last_checkpoint")
            if last is None or json.loads(last)["version"] < place:
                return None
            content = self._content(name)  # it may have been written since
        if content is None:
            raise not_followed(
                f"the log of the Delta table {self._location} does not have version {place} any more: keep it for "
                f"longer (delta.logRetentionDuration)"
            )
        before = None if self._last is None else self._content(f"{self._last[0]:020}.json")
        if self._last is not None and before not in {None, self._last[1]}:
            raise self._made_again()
        where = f"version {place} of the Delta table {self._location}"
        added = self._added(_actions_of(content, where), where)
        self._last = place, content
        return added, place + 1

    def _check_table(self, place: int) -> None:
        """Raise `SourceError` if the table, which may be another one since an earlier run, is not that of the pin."""
        from deltalake.exceptions import DeltaError

        if not self._unchecked_id:
            return
        try:
            table = self._location.open()
        except (DeltaError, OSError) as error:
            raise SourceError(
                f"the Delta table {self._location} cannot be read: {said(error)}. Check its store and the credentials"
            ) from None
        if table is None or str(table.metadata().id) != self._unchecked_id:
            raise self._made_again()
        if (content := self._content(f"{place - 1:020}.json")) is not None:
            self._last = place - 1, content
        self._unchecked_id = ""

    def _made_again(self) -> SourceError:
        """Return the error for another table in the place of the one that was read."""
        return not_followed(
            f"the Delta table {self._location} was removed, or made again, since the job has started: read the new one"
        )

    def _added(self, actions: Sequence[Mapping[str, Any]], where: str) -> list[PinnedFile]:
        """Return the files of a version that have its changes, those with deleted rows first."""
        for action in actions:
            wrong = _why_not_followed(action)
            if self._changes and action.get("metaData", {}).get("configuration", {FEED: "true"}).get(FEED) != "true":
                wrong = "its change feed is off"
            if wrong is not None:
                raise not_followed(f"{where} cannot be followed, because {wrong}: rewrite the table without it")
        feed = [action["cdc"] for action in actions if "cdc" in action]
        adds, removes = (
            [action[kind] for action in actions if action.get(kind, {}).get("dataChange", False)]
            for kind in ("add", "remove")
        )
        if not self._changes:
            if removes:  # else the feed has the rows of the added files
                raise changes_rows(where, "Delta")
            return [self._file(add) for add in adds]
        if feed:  # what else the version adds and removes has these changes, and rows that did not change
            return [self._file(one) for one in feed]
        return [*(self._file(one, "delete") for one in removes), *(self._file(one, "insert") for one in adds)]

    def _file(self, action: Mapping[str, Any], change: str | None = None) -> PinnedFile:
        """Return the file of an ``action``; ``change``: what has become of all rows in it."""
        values = {name: text or None for name, text in (action.get("partitionValues") or {}).items()}
        if change is not None:
            values[CHANGE_TYPE] = change
        if not action.get("size"):
            raise not_followed(
                f"the log of the Delta table {self._location} does not have the size of {action['path']}"
            )
        return PinnedFile(self._path_of(action["path"]), action["size"], 0, (), values)

    def _content(self, name: str) -> str | None:
        path = self._files / self._location.file(f"_delta_log/{name}")
        try:
            with path.open("rb") as file:
                return file.read().decode()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SourceError(f"{path} cannot be read: {said(error)}. Check its store and the credentials") from None


def _actions_of(content: str, where: str) -> list[dict[str, Any]]:
    """Return the actions of a version, each without members that are null."""
    try:
        lines = [json.loads(line) for line in content.splitlines() if line.strip()]
        actions = [{name: member for name, member in line.items() if member is not None} for line in lines]
    except (ValueError, AttributeError):
        actions = []
    if not actions:
        raise SourceError(f"the log of {where} is damaged, or another program still writes it: try again")
    return actions


def why_not_read(reader: int, features: Iterable[str], configuration: Mapping[str, Any]) -> str | None:
    """Return why files of a table with this protocol are not its rows, besides deletion vectors; None if they are."""
    if unknown := sorted(set(features) - _READER_FEATURES):
        return f"it uses {', '.join(unknown)}"
    if reader > _READER_MAX:
        return f"it needs reader version {reader}"
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        return "its columns have other names in files (column mapping)"
    return None


def _why_not_followed(action: Mapping[str, Any]) -> str | None:
    """Return what an ``action`` of a log does that would change how files are read; None if nothing."""
    if any(action.get(kind, {}).get("deletionVector") is not None for kind in ("add", "remove")):
        return "rows of it are deleted by deletion vectors"
    protocol = action.get("protocol", {})
    configuration = action.get("metaData", {}).get("configuration", {})
    return why_not_read(protocol.get("minReaderVersion", 1), protocol.get("readerFeatures") or (), configuration)
