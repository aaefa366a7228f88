"""What comes after the pinned version of a Delta table: the files that each later version adds, in order.

Rule: a version is read only if it adds rows, or rewrites files with the same rows. One that changes or deletes rows is
an error: steps have counted these rows already. The format of the log is
https://github.com/delta-io/delta/blob/master/PROTOCOL.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from malstrom_py.connectors.lake.delta_location import Location, said
from malstrom_py.errors import SourceError, lasting
from malstrom_py.sources.base import BasePart
from malstrom_py.sources.files.objects import ObjectPath
from malstrom_py.sources.pinned.row_groups import PinnedFile, TableFiles

READER_MAX: Final = 3
READER_FEATURES: Final = {"timestampNtz", "columnMapping", "deletionVectors", "v2Checkpoint", "vacuumProtocolCheck"}
"""What a table may need of its readers."""

_WAIT_S: Final = 0.5
"""How long a poll without a new version takes. It runs in a thread that reads ahead."""


def start_after(location: Location, version: int) -> dict[str, Any]:
    """Return the position before the first row that is added after ``version``."""
    here = {"version": version + 1, "index": 0, "row_group": 0, "records": 0}
    return {"file": str(location), **here, "rows": 0, "finished": False}


class DeltaVersions(BasePart[Any]):
    """The rows of the versions from ``position`` on, which never end: those of one file after the other.

    ``open_file`` opens a file of a version; its positions are those of this part.
    """

    def __init__(
        self,
        log: DeltaLog,
        open_file: Callable[[PinnedFile, dict[str, Any]], BasePart[Any]],
        position: dict[str, Any],
    ) -> None:
        self._log = log
        self._open_file = open_file
        self._position = position
        self._files: list[PinnedFile] | None = None
        self._opened: BasePart[Any] | None = None
        log.check_kept(position["version"])

    def poll(self, rows_max: int) -> Any:
        while self._opened is not None or self._open_next():
            assert self._opened is not None
            rows = self._opened.poll(rows_max)
            if rows is not None:
                return rows
            done = self._opened.snapshot()
            self.close()
            self._position = {**done, "index": done["index"] + 1, "row_group": 0, "records": 0, "finished": False}
        time.sleep(_WAIT_S)
        return None

    def is_finished(self) -> bool:
        return False

    def snapshot(self) -> dict[str, Any]:
        return dict(self._position) if self._opened is None else self._opened.snapshot()

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _open_next(self) -> bool:
        """Open the next file; return False if no version has one yet."""
        while True:
            if self._files is None:
                self._files = self._log.added(self._position["version"])
            if self._files is None:
                return False
            if self._position["index"] < len(self._files):
                self._opened = self._open_file(self._files[self._position["index"]], self._position)
                return True
            self._files = None
            self._position = {**self._position, "version": self._position["version"] + 1, "index": 0}


class DeltaLog:
    """The log of a table. ``path_of``: returns the path or URL of a file, by its path in the log."""

    def __init__(self, location: Location, files: TableFiles, path_of: Callable[[str], str]) -> None:
        self._location = location
        self._files = files
        self._path_of = path_of

    def added(self, version: int) -> list[PinnedFile] | None:
        """Return the files that ``version`` adds; None if there is no such version yet.

        SourceError: it changes or deletes rows, or the log cannot be read.
        """
        content = self._read(f"{version:020}.json")
        if content is None:
            return None
        where = f"version {version} of the Delta table {self._location}"
        added = []
        for line in content.splitlines():
            action = json.loads(line) if line.strip() else {}
            if "cdc" in action or action.get("remove", {}).get("dataChange", False):
                raise lasting(
                    SourceError(
                        f"{where} changes or deletes rows, and sources.Delta(follow=True) reads what is added: let "
                        f"writers append only, or start the job from the beginning under another job name, which reads "
                        f"the table after this version"
                    )
                )
            wrong = _why_not_read(action)
            if wrong is not None:
                raise lasting(
                    SourceError(
                        f"{where} {wrong}, which sources.Delta(follow=True) does not read: start the job from the "
                        f"beginning under another job name"
                    )
                )
            if action.get("add", {}).get("dataChange", False):
                added.append(self._file(action["add"]))
        return added

    def check_kept(self, version: int) -> None:
        """Raise `SourceError` if the log does not have ``version`` any more: a job was stopped for too long."""
        last = self._read("_last_checkpoint")
        if last is None or json.loads(last)["version"] < version or self._read(f"{version:020}.json") is not None:
            return
        raise lasting(
            SourceError(
                f"the log of the Delta table {self._location} does not have version {version} any more: keep it for "
                f"longer (delta.logRetentionDuration), and start the job from the beginning under another job name"
            )
        )

    def _file(self, add: Mapping[str, Any]) -> PinnedFile:
        values = {name: text or None for name, text in add["partitionValues"].items()}
        return PinnedFile(self._path_of(add["path"]), add["size"], 0, (), values)

    def _read(self, name: str) -> str | None:
        path: Path | ObjectPath = self._files / self._location.file(f"_delta_log/{name}")
        try:
            with path.open("rb") as file:
                return file.read().decode()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SourceError(f"{path} cannot be read: {said(error)}. Check its store and the credentials") from None


def _why_not_read(action: Mapping[str, Any]) -> str | None:
    """Return what an ``action`` of a log does that would change how files are read; None if nothing."""
    if action.get("add", {}).get("deletionVector") is not None:
        return "has rows that are deleted by a deletion vector"
    configuration = action.get("metaData", {}).get("configuration", {})
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        return "gives columns other names in files (column mapping)"
    protocol = action.get("protocol", {})
    unknown = set(protocol.get("readerFeatures") or ()) - READER_FEATURES
    if unknown or protocol.get("minReaderVersion", 1) > READER_MAX:
        return f"needs {', '.join(sorted(unknown)) or 'a later reader'}"
    return None
