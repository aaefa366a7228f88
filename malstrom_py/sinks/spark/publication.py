"""What is about to be published, written down before it begins: ``_staging/<job>/<snapshot>.<step>/commit.json``.

Rule: as long as that file is there, its publication may have been done in part, and is done again, to its end. It is
there before anything is visible, and goes once all is, or nothing will be. Its folder is locked by who works on it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from malstrom_py.errors import InternalError, SinkError
from malstrom_py.run_lock import RunLock
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
from malstrom_py.sinks.output_record import write_durably
from malstrom_py.sinks.spark.swapping import remove_work

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


def is_intended(root: Path, context: CommitContext) -> bool:
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
