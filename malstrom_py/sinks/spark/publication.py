"""What is about to be published, written down before it begins: ``_staging/<job>/<snapshot>.<step>/commit.json``

Rule: as long as that file is there, its publication may have been done in part, and is done again, to its end. It is
there before anything is visible, and goes once all is, or nothing will be. Its folder is locked by who works on it.

Publications to a folder that were interrupted, by whatever job, step or mode: they stage in it, or beside it.

Rule: what replaces a folder, and what adds to it, is never done while the other stands half done.

What one step remembers from snapshot to snapshot, in ``_staging/<job>/``.

``<step>~waiting/<snapshot>.json``: payloads that are committed, and shown by the final commit alone, because that
replaces what is there. ``<step>~committed``: what has been published through Spark, which nobody could tell otherwise.

Rule: what is noted here belongs to snapshots whose manifests stand, or stood; the rest goes at a recovery.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from malstrom_py.errors import InternalError, SinkError
from malstrom_py.local_files import RunLock, locked
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.sinks.files.staging import (
    ATTEMPTS,
    STAGING,
    checked,
    make_private,
    remove_empty,
    sink_errors,
    staging_folder,
    sync,
)
from malstrom_py.sinks.output_record import Target, write_durably
from malstrom_py.sinks.spark.folders import remove_work, swapped_target

NAME: Final = "commit.json"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Intent:
    """What is to be published. ``target`` says where and how; ``schema`` is that of all staged files."""

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
    def given(self) -> list[bytes]:
        """The payloads, as they were."""
        return [payload.encode() for payload in self.payloads]

    @property
    def context(self) -> CommitContext:
        """What it is committed under."""
        snapshot = SnapshotId(self.snapshot)
        return CommitContext(self.job, self.step, snapshot, self.incarnation, self.result, self.final)


class Publication:
    """The folder of one publication, which this process has locked."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self.folder = folder
        self.path = folder / NAME

    def begin(self, intent: Intent) -> None:
        """Write ``intent`` down, durably."""
        with sink_errors("cannot write", self.path):
            for folder in (*[parent for parent in self.folder.parents if self._root in parent.parents], self._root):
                sync(folder)
            write_durably(self.path, json.dumps({"format": _FORMAT, **asdict(intent)}).encode())

    def intent(self) -> Intent | None:
        """What was to be published; None if nothing was, or all of it is."""
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
                f"{self.path} is damaged, or of a later malstrom-py: it says what an earlier run was about to publish. "
                f"See what of it is visible, then remove that file"
            ) from None

    def end(self) -> None:
        """All of it is visible: forget it. What stays in its folder is for the next start to clear."""
        with sink_errors("cannot remove", self.path):
            self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            sync(self.folder)
            self.clear()

    def withdraw(self) -> None:
        """Nothing of it is visible, or will be: forget it. What was made for it is for `clear`."""
        with sink_errors("cannot remove", self.path):
            self.path.unlink(missing_ok=True)
            sync(self.folder)
            if not any(self.folder.iterdir()):
                self.clear()

    def clear(self) -> None:
        """Remove what is left of a publication that is not to be done any more; `SinkError` if somebody may need it."""
        remove_work(self.folder)
        remove_empty(self.folder.parent, self._root)


def folder_of(root: Path, context: CommitContext) -> Path:
    """The folder of a publication. No step is called so, for it has a dot in its name."""
    staging_folder(root, context.job, context.step)
    return root / STAGING / checked(context.job) / f"{checked(context.snapshot)}.{checked(context.step)}"


@contextlib.contextmanager
def locked_publication(root: Path, context: CommitContext) -> Iterator[Publication]:
    """The folder of ``context``'s publication, made if it is not there; `SinkError` if another program has it."""
    folder = folder_of(root, context)
    lock = RunLock(folder)
    with sink_errors("cannot make", folder):
        for attempts_left in reversed(range(ATTEMPTS)):
            try:
                make_private(folder, root)
                lock.hold(shared=False)
                break
            except BlockingIOError:
                raise SinkError(f"another program publishes {folder.name} right now: let it, and run again") from None
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
    """Whether ``context``'s publication is written down."""
    return (folder_of(root, context) / NAME).exists()


def publications(root: Path, context: CommitContext) -> Iterator[tuple[str, Publication | None]]:
    """The publications of ``context``'s step that are there: snapshot, and the folder, locked as long as it is looked
    at; None where another program works on it."""
    folder = root / STAGING / checked(context.job)
    with sink_errors("cannot look into", folder):
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


def settle_pending(target: Target) -> None:
    """Put back what an overwrite of ``target`` that was given up had put away.

    Raises:
        SinkError: another publication to it was interrupted, and only the job that began it can finish it.
    """
    if not isinstance(target.place, Path):
        return
    place = os.path.realpath(target.place)
    for root in (target.place, target.place.parent):
        for folder in _publications_in(root):
            publication = Publication(root, folder)
            if not publication.path.exists():
                if (put_away := swapped_target(folder)) is not None and os.path.realpath(put_away) == place:
                    _clear(publication)
            elif (told := _interrupted(publication, target, place)) is not None:
                with locked(folder) as is_over:
                    if is_over and publication.path.exists():
                        raise SinkError(told)


def _interrupted(publication: Publication, target: Target, place: str) -> str | None:
    """What to say of a publication that is in the way of ``target``, which is at ``place``."""
    try:
        intent = publication.intent()
    except SinkError:
        return None  # damaged: its own job tells
    path = None if intent is None else intent.target.get("path")
    if intent is None or not isinstance(path, str) or os.path.realpath(path) != place:
        return None
    if not target.replaces and intent.target.get("mode") == "append":
        return None
    return (
        f"step {intent.step!r} of job {intent.job!r} was publishing to {path} with mode {intent.target.get('mode')!r}, "
        f"and was interrupted. Start that job once as it was, which finishes it. Or remove {publication.path}: then "
        f"what it wrote is given up, and what {path} held before is put back if it was being overwritten"
    )


def _clear(publication: Publication) -> None:
    with (
        locked(publication.folder) as is_over,
        sink_errors("cannot put back what is in", publication.folder),
    ):
        if is_over and not publication.path.exists():
            publication.clear()


def _publications_in(root: Path) -> Iterator[Path]:
    """The folders of publications that stage in ``root``, of all jobs that this user may look at."""
    for job in _folders_in(root / STAGING):
        yield from (folder for folder in _folders_in(job) if "." in folder.name)


def _folders_in(folder: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        if not folder.is_symlink():
            return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    return []


_NOTED_MAX: Final = 1000
"""More manifests than anybody keeps."""


class PublicationLog:
    """The memory of ``context``'s step, below ``root``."""

    def __init__(self, root: Path, context: CommitContext) -> None:
        staging = staging_folder(root, context.job, context.step)
        self._root = root
        self._waiting = staging.with_name(f"{staging.name}~waiting")
        self._noted = staging.with_name(f"{staging.name}~committed")

    def wait(self, snapshot: str, payloads: Sequence[bytes]) -> None:
        """Keep ``payloads`` for the final commit; again at will."""
        with sink_errors("cannot write to", self._waiting):
            make_private(self._waiting, self._root)
            texts = json.dumps([payload.decode() for payload in payloads]).encode()
            write_durably(self._waiting / f"{checked(snapshot)}.json", texts)
            self._sync_above(self._waiting)

    def waiting(self) -> dict[str, list[bytes]]:
        """What waits for the final commit, by snapshot, the oldest first."""
        with sink_errors("cannot read", self._waiting):
            return {path.stem: _payloads(path) for path in sorted(self._waiting.glob("*.json"))}

    def shown(self) -> None:
        """The final commit is done: nothing waits any more."""
        self._forget([*self._waiting.glob("*.json")])

    def note(self, snapshot: str) -> None:
        """``snapshot`` has been published."""
        with sink_errors("cannot write", self._noted):
            make_private(self._noted.parent, self._root)
            write_durably(self._noted, "\n".join([*self.noted(), snapshot][-_NOTED_MAX:]).encode())
            self._sync_above(self._noted)

    def noted(self) -> list[str]:
        """The snapshots that have been published, as far as that is not known otherwise."""
        with sink_errors("cannot read", self._noted):
            try:
                return self._noted.read_text().split()
            except FileNotFoundError:
                return []

    def recover(self, committed: Sequence[str]) -> None:
        """Forget what belongs to none of the ``committed`` snapshots, or to an earlier one that has no manifest now."""
        newest = max(committed, default="")
        self._forget([path for path in self._waiting.glob("*.json") if path.stem > newest])
        kept = [snapshot for snapshot in self.noted() if snapshot in committed]
        with sink_errors("cannot clear", self._noted):
            if kept:
                write_durably(self._noted, "\n".join(kept).encode())
            elif self._noted.exists():
                self._noted.unlink()
                remove_empty(self._noted.parent, self._root)

    def _forget(self, paths: Sequence[Path]) -> None:
        with sink_errors("cannot clear", self._waiting):
            for path in paths:
                path.unlink(missing_ok=True)
            remove_empty(self._waiting, self._root)

    def _sync_above(self, path: Path) -> None:
        for folder in (*[parent for parent in path.parents if self._root in parent.parents], self._root):
            sync(folder)


def _payloads(path: Path) -> list[bytes]:
    try:
        return [text.encode() for text in json.loads(path.read_bytes())]
    except (ValueError, TypeError, AttributeError):
        raise SinkError(f"{path} is damaged: it says what of a snapshot is to be shown at the job's end") from None
