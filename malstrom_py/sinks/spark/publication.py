"""Write-ahead record of publications, and the log of published and deferred snapshots, all in ``_staging/<job>/``.

``<snapshot>.<step>/commit.json`` is the intent of a publication. ``<step>~waiting/<snapshot>.json`` has the payloads of
a committed snapshot that are deferred to the final commit, which replaces the target. ``<step>~committed`` lists the
snapshots that were published through Spark.

Rules:
- The intent is written before any row is visible, and removed when all rows are visible or none will be. While it
  exists, the publication may be incomplete and is repeated to its end. Its folder is locked by the process that
  publishes.
- A publication that replaces a folder never runs while one that appends to it is incomplete, nor the other way round,
  for any jobs and steps.
- The log contains only snapshots that have or had a manifest; a recovery removes all others.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from malstrom_py.errors import InternalError, SinkError
from malstrom_py.local_files import RunLock, locked
from malstrom_py.sinks.base import CommitContext, SnapshotId, Target
from malstrom_py.sinks.output_record import write_durably
from malstrom_py.sinks.staged.folder import ATTEMPTS, make_private, remove_empty, staging_folder, sync
from malstrom_py.sinks.staged.payloads import STAGING, checked
from malstrom_py.sinks.staged.problems import sink_errors

NAME: Final = "commit.json"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Intent:
    """The intent to publish ``payloads`` to ``target``. ``schema``: the schema of all staged files."""

    job: str
    step: str
    snapshot: str
    incarnation: int
    result: Mapping[str, Any] | None
    target: Mapping[str, Any]
    payloads: Sequence[str]
    schema: str | None
    final: bool = True

    @property
    def payload_bytes(self) -> list[bytes]:
        """The payloads as bytes."""
        return [payload.encode() for payload in self.payloads]

    @property
    def context(self) -> CommitContext:
        """The context of the commit."""
        snapshot = SnapshotId(self.snapshot)
        return CommitContext(self.job, self.step, snapshot, self.incarnation, self.result, self.final)


class Publication:
    """The folder of one publication, locked by this process."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self.folder = folder
        self.path = folder / NAME

    def begin(self, intent: Intent) -> None:
        """Write the ``intent`` durably."""
        with sink_errors("cannot write", self.path):
            for folder in (*[parent for parent in self.folder.parents if self._root in parent.parents], self._root):
                sync(folder)
            write_durably(self.path, json.dumps({"format": _FORMAT, **asdict(intent)}).encode())

    def intent(self) -> Intent | None:
        """Read the intent; None if the publication has not begun or is finished."""
        with sink_errors("cannot read", self.path):
            try:
                text = self.path.read_bytes()
            except FileNotFoundError:
                return None
        try:
            record = json.loads(text)
            if record.pop("format") != _FORMAT:
                raise ValueError
            return Intent(**record)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise SinkError(
                f"{self.path}, which records an interrupted publication, is damaged or of a later malstrom-py: "
                f"check which of its rows are visible, then remove the file"
            ) from None

    def end(self) -> None:
        """Remove the intent after all rows are visible. The next start clears what stays in the folder."""
        with sink_errors("cannot remove", self.path):
            self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            sync(self.folder)
            self.clear()

    def withdraw(self) -> None:
        """Remove the intent because no row is or will be visible. `clear` removes the other files."""
        with sink_errors("cannot remove", self.path):
            self.path.unlink(missing_ok=True)
            sync(self.folder)
            if not any(self.folder.iterdir()):
                self.clear()

    def clear(self) -> None:
        """Remove the folder of a publication that will not run again; `SinkError` if the user may need its contents."""
        remove_work(self.folder)
        remove_empty([self.folder.parent], self._root)


def folder_of(root: Path, context: CommitContext) -> Path:
    """Return the folder of a publication. Its name has a dot, so it is never the name of a step."""
    staging_folder(root, context.job, context.step)
    return root / STAGING / checked(context.job) / f"{checked(context.snapshot)}.{checked(context.step)}"


@contextlib.contextmanager
def locked_publication(root: Path, context: CommitContext) -> Iterator[Publication]:
    """Create and lock the folder of ``context``'s publication; `SinkError` if another program has locked it."""
    folder = folder_of(root, context)
    lock = RunLock(folder)
    with sink_errors("cannot make", folder):
        for attempts_left in reversed(range(ATTEMPTS)):
            try:
                make_private(folder, root)
                lock.hold(shared=False)
                break
            except BlockingIOError:
                raise SinkError(
                    f"another program is publishing {folder.name}: wait until it has finished, and run again"
                ) from None
            except FileNotFoundError:
                # Another run's recovery may remove the empty folder in between.
                if not attempts_left:
                    raise
        else:
            raise InternalError("every attempt breaks or raises")
    try:
        yield Publication(root, folder)
    finally:
        lock.release()


def is_begun(root: Path, context: CommitContext) -> bool:
    """Return whether the intent of ``context``'s publication exists."""
    return (folder_of(root, context) / NAME).exists()


def publications(root: Path, context: CommitContext) -> Iterator[tuple[str, Publication | None]]:
    """Iterate over the publications of ``context``'s step, with their snapshots.

    Each is locked during its iteration; it is None if another program has locked it.
    """
    folder = root / STAGING / checked(context.job)
    with sink_errors("cannot read", folder):
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    for name in names:
        snapshot, dot, step = name.partition(".")
        path = folder / name
        if not dot or step != context.step or path.is_symlink() or not path.is_dir():
            continue
        lock = RunLock(path)
        try:
            lock.hold(shared=False)
        except FileNotFoundError:
            continue
        except BlockingIOError:
            yield snapshot, None
            continue
        try:
            yield snapshot, Publication(root, path)
        finally:
            lock.release()


def remove_work(work: Path) -> None:
    """Remove the folder of a publication that is finished or abandoned.

    Raises:
        SinkError: it has what malstrom-py 0.1, which swapped folders, moved there from the target.
    """
    if (work / "new").exists():
        raise SinkError(
            f"{work} has the old and the new contents of a folder whose overwrite an earlier malstrom-py did not "
            f"finish: move those that you need to their place, remove {work}, and start again"
        )
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(work)


def check_pending(target: Target) -> None:
    """Raise `SinkError` if a publication of another job to ``target`` is incomplete: only that job can finish it."""
    if not isinstance(target.place, Path):
        return
    place = os.path.realpath(target.place)
    for root in (target.place, target.place.parent):
        for folder in _publications_in(root):
            publication = Publication(root, folder)
            if publication.path.exists() and (message := _describe_conflict(publication, target, place)) is not None:
                with locked(folder) as is_over:
                    if is_over and publication.path.exists():
                        raise SinkError(message)


def _describe_conflict(publication: Publication, target: Target, place: str) -> str | None:
    """Describe an incomplete publication that conflicts with ``target``, which is at ``place``; None if it does not."""
    try:
        intent = publication.intent()
    except SinkError:
        return None  # It is damaged: its own job reports that.
    path = None if intent is None else intent.target.get("path")
    if intent is None or not isinstance(path, str) or os.path.realpath(path) != place:
        return None
    if not target.replaces and intent.target.get("mode") == "append":
        return None
    return (
        f"step {intent.step!r} of job {intent.job!r} was interrupted while publishing to {path} with mode "
        f"{intent.target.get('mode')!r}. Start that job once, unchanged, which finishes the publication. Or remove "
        f"{publication.path}, which abandons its rows"
    )


def _publications_in(root: Path) -> Iterator[Path]:
    """Iterate over the folders of publications that stage in ``root``, of all jobs that this user may read."""
    for job in _folders_in(root / STAGING):
        yield from (folder for folder in _folders_in(job) if "." in folder.name)


def _folders_in(folder: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        if not folder.is_symlink():
            return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    return []


_PUBLISHED_MAX: Final = 1000
"""More snapshots than a job keeps."""


class PublicationLog:
    """The published and deferred snapshots of ``context``'s step, below ``root``."""

    def __init__(self, root: Path, context: CommitContext) -> None:
        staging = staging_folder(root, context.job, context.step)
        self._root = root
        self._deferred = staging.with_name(f"{staging.name}~waiting")
        self._published = staging.with_name(f"{staging.name}~committed")

    def defer(self, snapshot: str, payloads: Sequence[bytes]) -> None:
        """Store ``payloads`` for the final commit. Idempotent."""
        with sink_errors("cannot write to", self._deferred):
            make_private(self._deferred, self._root)
            texts = json.dumps([payload.decode() for payload in payloads]).encode()
            write_durably(self._deferred / f"{checked(snapshot)}.json", texts)
            self._sync_above(self._deferred)

    def deferred(self) -> dict[str, list[bytes]]:
        """Return the deferred payloads by snapshot, the oldest first."""
        with sink_errors("cannot read", self._deferred):
            return {path.stem: _payloads(path) for path in sorted(self._deferred.glob("*.json"))}

    def clear_deferred(self) -> None:
        """Remove the deferred payloads after the final commit."""
        self._forget([*self._deferred.glob("*.json")])

    def mark_published(self, snapshot: str) -> None:
        """Record that ``snapshot`` is published."""
        with sink_errors("cannot write", self._published):
            make_private(self._published.parent, self._root)
            write_durably(self._published, "\n".join([*self.published(), snapshot][-_PUBLISHED_MAX:]).encode())
            self._sync_above(self._published)

    def published(self) -> list[str]:
        """Return the snapshots that were recorded as published."""
        with sink_errors("cannot read", self._published):
            try:
                return self._published.read_text().split()
            except FileNotFoundError:
                return []

    def recover(self, before: str, committed: Sequence[str]) -> None:
        """Remove what belongs neither to a ``committed`` snapshot nor to an older one whose manifest is deleted.

        Snapshots that are not ``before`` this one are of later starts, and stay.
        """
        newest = max(committed, default="")
        self._forget([path for path in self._deferred.glob("*.json") if newest < path.stem < before])
        published = self.published()
        kept = [snapshot for snapshot in published if snapshot in committed or snapshot >= before]
        if kept == published:
            return
        with sink_errors("cannot clear", self._published):
            if kept:
                write_durably(self._published, "\n".join(kept).encode())
            elif self._published.exists():
                self._published.unlink()
                remove_empty([self._published.parent], self._root)

    def _forget(self, paths: Sequence[Path]) -> None:
        with sink_errors("cannot clear", self._deferred):
            for path in paths:
                path.unlink(missing_ok=True)
            remove_empty([self._deferred], self._root)

    def _sync_above(self, path: Path) -> None:
        for folder in (*[parent for parent in path.parents if self._root in parent.parents], self._root):
            sync(folder)


def _payloads(path: Path) -> list[bytes]:
    try:
        return [text.encode() for text in json.loads(path.read_bytes())]
    except (ValueError, TypeError, AttributeError):
        raise SinkError(f"{path}, which lists rows to publish at the end of the job, is damaged: restore it") from None
