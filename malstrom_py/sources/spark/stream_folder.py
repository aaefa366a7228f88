"""The batches of a query between Spark and a job: ``<staging>/<job>/stream/``, with the query's checkpoint.

Rules:
- A batch is written as ``batches/.tmp-<id>-<random>`` and renamed to ``batches/<id>`` once it is whole and durable. Ids
  are consecutive.
- Spark repeats the last batch if it has not noted its end, with the same rows: one that has its name is not written
  again. So the last batch is never removed.
- Why a query has ended is a note for its readers. A run that begins removes the note, and the program of the query,
  which waits for that, starts it again.
- Batches are removed from the first one on, each by a rename and then its removal: what has a name is whole.

The query and the readers may be in different processes, and share no more than this folder.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from malstrom_py.errors import SourceError, lasting
from malstrom_py.local_files import locked, sync
from malstrom_py.sources.files.options import pack_schema, unpack_schema
from malstrom_py.sources.files.reading import source_errors
from malstrom_py.sources.pinned.folder import RECORD, ROWS, PinFolder
from malstrom_py.sources.pinned.row_groups import PinnedFile
from malstrom_py.sources.pinned.source import packed_bytes, packed_text

if TYPE_CHECKING:
    import pyarrow as pa

_ID: Final = re.compile(r"[0-9]{12,}")
_READ: Final = "read"
"""An empty file in a batch of which a reader has read all rows, for the query to know."""

_PATIENCE_S: Final = 2.0
_RETRY_S: Final = 0.05
"""How long a start waits for a run that is ending, and how often it looks."""

_LOOKS: Final = 20
"""How many looks for a batch, of which one also checks the folder."""


class StreamFolder(PinFolder):
    """What one source has staged for one job, over all runs. Batches that no run needs again are removed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.checkpoint = path / "checkpoint"
        self._batches = path / "batches"
        self._failure = path / "failed"
        self._synced_ns = 0

    def batch(self, id: int) -> Path:
        """Return the folder of a whole batch."""
        return self._batches / f"{id:012d}"

    def ids(self) -> list[int]:
        """Return the ids of the whole batches, in order."""
        with source_errors(str(self._batches)):
            return sorted(int(one.name) for one in self._batches.iterdir() if _ID.fullmatch(one.name))

    def name(self) -> str | None:
        """Return the random name, which another folder in its place does not have; None if it was never prepared."""
        try:
            return str(json.loads((self.path / RECORD).read_text())["id"])
        except (OSError, ValueError, LookupError, TypeError):
            return None

    @contextmanager
    def alone(self) -> Iterator[str]:
        """Lock the folder for its query, and yield its name for ever; create it if it is missing.

        `SourceError`: it cannot be made, a source is using it, or its batches are without their query's checkpoint.
        """
        try:
            self._batches.mkdir(parents=True, exist_ok=True)
            with self._locked():
                yield self._begin()
        except OSError as error:
            raise SourceError(f"rows cannot be staged in {self.path}: {error.strerror}. Correct staging=") from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the batches against other queries, once no run holds the folder; wait a little for one that is ending.

        Who has locked the batches can `hold` the folder before another start begins.
        """
        ends_s = time.monotonic() + _PATIENCE_S
        while True:
            with locked(self._batches) as is_first:
                if is_first and self._is_free():
                    yield
                    return
            if time.monotonic() >= ends_s:
                raise SourceError(
                    f"another source or job is using the batches in {self.path}: give each source its own staging="
                )
            time.sleep(_RETRY_S)

    def _is_free(self) -> bool:
        with locked(self.path) as is_free:
            return is_free

    def _begin(self) -> str:
        self._failure.unlink(missing_ok=True)
        self.clear()
        if self.ids() and not (self.checkpoint / "offsets").is_dir():
            # Spark would count from 0 again, and new batches would have the names of those that are there.
            raise self._refusal("has batches, and the checkpoint of their query is gone")
        name = self.name()
        if name is None:
            name = secrets.token_hex(8)
            self.note({"id": name})
            for one in (self.path / RECORD, self._batches, self.path, *self.path.parents[:2]):
                sync(one)
        return name

    def clear(self) -> None:
        """Remove what a query or a removal that has ended has left unfinished."""
        for kind in (".old-*", ".tmp-*"):
            for left in self._batches.glob(kind):
                shutil.rmtree(left, ignore_errors=True)

    def stage(self, id: int, write: Callable[[PinFolder], None]) -> None:
        """Let ``write`` write a batch into a new folder, unless it is there: then Spark repeats it."""
        last = max(self.ids(), default=-1)
        if id == last:
            return
        if id != last + 1:
            raise self._refusal(f"has batches up to {last}, and the query continues with {id}: one of both was changed")
        # The query before may still be writing this batch: each has its own folder.
        path = self._batches / f".tmp-{id}-{secrets.token_hex(4)}"
        path.mkdir()
        write(PinFolder(path))
        self._sync_checkpoint()
        for one in (*path.rglob("*"), path):
            sync(one)
        try:
            path.rename(self.batch(id))
        except OSError:
            if not self.batch(id).exists():
                raise
            shutil.rmtree(path, ignore_errors=True)  # the query before has ended its own, which has the same rows
        sync(self._batches)

    def _sync_checkpoint(self) -> None:
        """Make durable what Spark has planned: with the plan of a batch lost, it would plan other rows for its id."""
        last_ns = self._synced_ns
        for one in (path for kind in ("offsets", "sources") for path in (self.checkpoint / kind).rglob("*")):
            with suppress(FileNotFoundError):  # Spark removes old ones
                changed_ns = one.stat().st_mtime_ns
                if changed_ns >= last_ns:
                    sync(one)
                    self._synced_ns = max(self._synced_ns, changed_ns)

    def files(self, id: int) -> list[PinnedFile] | None:
        """Return the files of a batch; None if it is not there."""
        rows = self.batch(id) / ROWS
        with source_errors(str(rows)):
            if not rows.is_dir():
                return None
            found = [(path, path.stat()) for path in sorted(rows.glob("*.parquet"))]
            return [PinnedFile(str(path), status.st_size, status.st_mtime_ns, (), {}) for path, status in found]

    def check_there(self, id: int) -> None:
        """Raise `SourceError` if a batch was removed, as later ones are there, or those before it are not there."""
        ids = self.ids()
        if self.batch(id).exists():  # asked after the listing, which may show a later batch first
            return
        first = next((one for one in ids if one > id), None)
        if first is not None:
            raise self._refusal(f"has no batches before {first} any more, which an earlier run has read")
        last = max(ids, default=-1)
        if id > last + 1:
            raise self._refusal(f"has batches up to {last}, and the job continues with {id}: it is an older copy")

    def note_columns(self, unfinished: PinFolder, schema: pa.Schema) -> None:
        """Note the columns of a batch that is being written."""
        unfinished.note({"schema": packed_text(pack_schema(schema))})

    def check_columns(self, id: int, schema: pa.Schema) -> None:
        """Raise `SourceError` unless the batches from ``id`` on have the columns of ``schema``."""
        for one in (batch for batch in self.ids() if batch >= id):
            had = self._columns_of(one)
            if had is None:
                continue
            if any(field.name not in had.names or had.field(field.name).type != field.type for field in schema):
                columns = ", ".join(f"{field.name}: {field.type}" for field in had)
                raise lasting(
                    SourceError(
                        f"{self.path} has batches of a stream with other columns ({columns}): select these, or start "
                        f"the job from the beginning with another staging="
                    )
                )

    def _columns_of(self, id: int) -> pa.Schema | None:
        record = self.batch(id) / RECORD
        with source_errors(str(record)), suppress(FileNotFoundError):
            return unpack_schema(packed_bytes(json.loads(record.read_text())["schema"]))
        return None  # it is of an earlier malstrom-py

    def check_name(self, name: str) -> None:
        """Raise `SourceError` unless this is the folder with that ``name``."""
        if self.name() != name:
            raise self._refusal("is not the folder that the job reads any more: it was removed or replaced")

    def unread(self) -> int:
        """Return how many batches no reader has read to the end."""
        count = 0
        for id in reversed(self.ids()):
            if (self.batch(id) / _READ).exists():
                break
            count += 1
        return count

    def note_read(self, id: int) -> None:
        """Note that all rows of a batch were read, though perhaps in no snapshot yet."""
        with source_errors(str(self.path)), suppress(FileNotFoundError):  # it was removed: an earlier run has read it
            (self.batch(id) / _READ).touch()

    def remove_before(self, id: int) -> None:
        """Remove the batches before one, but the last, which Spark may repeat. OSError: it cannot be done now."""
        for one in self.ids()[:-1]:
            if one < id:
                old = self._batches / f".old-{one}"
                self.batch(one).rename(old)
                shutil.rmtree(old)

    def note_failure(self, text: str) -> None:
        """Note that the query has ended, for its readers."""
        new = self._failure.with_suffix(".new")
        new.write_text(text)
        new.replace(self._failure)

    def failure(self) -> str | None:
        """Return why the query has ended; None if it runs."""
        with source_errors(str(self.path)), suppress(FileNotFoundError):
            return self._failure.read_text()
        return None

    def ask_again(self) -> None:
        """Ask the program of a query that has ended to start it again: a run begins in another process."""
        with source_errors(str(self.path)):
            self._failure.unlink(missing_ok=True)

    def _refusal(self, what: str) -> SourceError:
        return lasting(
            SourceError(
                f"{self.path} {what}. Restore the folder, or remove it as a whole and start the job from the "
                f"beginning, which starts the query from its beginning"
            )
        )


class BatchLog:
    """The batches of the folder with that ``name``, in order; a place is the id of a batch."""

    def __init__(self, folder: StreamFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._looks = 0
        self._read = -1

    def read(self, place: int) -> tuple[list[PinnedFile], int] | None:
        """See `VersionLog`. `SourceError`: the query has ended, or the batch or its folder was removed."""
        folder = self._folder
        if self._read < place - 1:
            self._read = place - 1
            folder.note_read(self._read)
        failure = folder.failure()  # asked before the last batch is
        files = folder.files(place)
        if files is not None:
            folder.check_name(self._name)  # now, as then these are files of it
            self._looks = 0
            return files, place + 1
        if self._looks % _LOOKS == 0:
            folder.check_name(self._name)
            folder.check_there(place)
        self._looks += 1
        if failure is not None:
            raise SourceError(f"{failure}. Start the job again: it continues after the rows it has read")
        return None
