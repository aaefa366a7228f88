"""What Spark's sink notes in ``_staging/<job>/`` besides staged files: commits that began, that wait, that are done.

``<snapshot>.<step>/commit.json`` is the intent of a commit. ``<step>~waiting/<snapshot>.json`` has the payloads of a
snapshot that the last commit publishes. ``<step>~committed`` lists the snapshots that Spark has published.

Rules:
- The intent is written before any row is visible, and removed when all rows are visible or none will be. What has an
  intent at a start is repeated to its end, also in a job without snapshots, whose payloads are nowhere else.
- The folder of an intent is locked by the process that commits. It has what Spark has written and is not in its place.
- What waits, or is published, is of a snapshot that has or had a manifest; a recovery removes all else.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from malstrom_py.errors import SinkError
from malstrom_py.local_files import RunLock, locked, sync
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.sinks.output_record import write_durably
from malstrom_py.sinks.staged.folder import ATTEMPTS, make_private, remove_empty, staging_folder
from malstrom_py.sinks.staged.payloads import STAGING, checked
from malstrom_py.sinks.staged.problems import sink_errors

NAME: Final = "commit.json"
_FORMAT: Final = 1
_PUBLISHED_MAX: Final = 1000
"""More snapshots than a job keeps."""


@dataclass(frozen=True, slots=True)
class Intent:
    """The intent to publish ``payloads`` to ``target``; with ``is_aborted``, to take back what is visible of them."""

    context: CommitContext
    target: Mapping[str, Any]
    payloads: Sequence[bytes]
    is_aborted: bool


class Journal:
    """The notes of the step of ``context``, in the staging folder below ``root``."""

    def __init__(self, root: Path, context: CommitContext) -> None:
        staging = staging_folder(root, context.job, context.step)
        self._root = root
        self.context = context
        # The name has a dot, so it is never that of a step.
        self.work = staging.with_name(f"{checked(context.snapshot)}.{staging.name}")
        self.path = self.work / NAME
        self._waiting = staging.with_name(f"{staging.name}~waiting")
        self._published = staging.with_name(f"{staging.name}~committed")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the commit; `SinkError` if another program has locked it. Without an intent its folder is removed."""
        lock = RunLock(self.work)
        with sink_errors("cannot make", self.work):
            for attempts_left in reversed(range(ATTEMPTS)):
                try:
                    make_private(self.work, self._root)
                    lock.hold(shared=False)
                    break
                except BlockingIOError:
                    raise SinkError(
                        f"another program is publishing {self.work.name}: wait until it has finished, and run again"
                    ) from None
                except FileNotFoundError:
                    # Another run's recovery may remove the empty folder in between.
                    if not attempts_left:
                        raise
        try:
            yield
        finally:
            try:
                with contextlib.suppress(OSError):  # The next start clears it.
                    self.tidy()
            finally:
                lock.release()

    def intent(self) -> Intent | None:
        """Return the intent; None if the commit has not begun, or is finished."""
        with sink_errors("cannot read", self.path):
            return _read(self.path) if self.path.exists() else None

    def begin(self, target: Mapping[str, Any], payloads: Sequence[bytes], *, is_aborted: bool = False) -> None:
        """Write the intent durably."""
        context = self.context
        record = {
            "format": _FORMAT,
            "job": context.job,
            "step": context.step,
            "snapshot": context.snapshot,
            "incarnation": context.incarnation,
            "result": context.result,
            "final": context.final,
            "target": target,
            "payloads": [payload.decode() for payload in payloads],
            "aborted": is_aborted,
        }
        with sink_errors("cannot write", self.path):
            self._sync_above(self.work)
            write_durably(self.path, json.dumps(record).encode())

    def end(self) -> None:
        """Remove the intent: all rows are visible, or none will be."""
        with sink_errors("cannot remove", self.path):
            self.path.unlink(missing_ok=True)
            if self.work.exists():
                sync(self.work)

    def tidy(self) -> None:
        """Remove the folder of a commit without an intent.

        Raises:
            SinkError: it has what malstrom-py 0.1, which swapped folders, moved there from the target.
        """
        if self.path.exists():
            return
        if (self.work / "new").exists():
            raise SinkError(
                f"{self.work} has the old and the new contents of a folder whose overwrite an earlier malstrom-py did "
                f"not finish: move those that you need to their place, remove {self.work}, and start again"
            )
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.work)
        remove_empty([self.work.parent], self._root)

    def snapshots(self) -> list[SnapshotId]:
        """Return the snapshots whose commits have a folder, the oldest first."""
        with sink_errors("cannot read", self.work.parent):
            found = self.work.parent.glob(f"*.{self.context.step}")
            return sorted(SnapshotId(path.stem) for path in found if path.is_dir() and not path.is_symlink())

    def wait(self, payloads: Sequence[bytes]) -> None:
        """Store the payloads of this snapshot for the last commit. Idempotent."""
        with sink_errors("cannot write to", self._waiting):
            make_private(self._waiting, self._root)
            texts = json.dumps([payload.decode() for payload in payloads]).encode()
            write_durably(self._waiting / f"{checked(self.context.snapshot)}.json", texts)
            self._sync_above(self._waiting)

    def waiting(self) -> dict[str, list[bytes]]:
        """Return the payloads that wait, by snapshot, the oldest first."""
        with sink_errors("cannot read", self._waiting):
            return {path.stem: _payloads(path) for path in sorted(self._waiting.glob("*.json"))}

    def clear_waiting(self, *, after: str = "", before: str | None = None) -> None:
        """Remove the payloads that wait, of snapshots ``after`` one and ``before`` another."""
        with sink_errors("cannot clear", self._waiting):
            for path in self._waiting.glob("*.json"):
                if after < path.stem and (before is None or path.stem < before):
                    path.unlink(missing_ok=True)
            remove_empty([self._waiting], self._root)

    def mark_published(self) -> None:
        """Note that this snapshot is published."""
        self._write_published([*self.published(), self.context.snapshot])

    def published(self) -> list[str]:
        """Return the snapshots that are noted as published."""
        with sink_errors("cannot read", self._published):
            return self._published.read_text().split() if self._published.exists() else []

    def recover(self, committed: Sequence[str]) -> None:
        """Remove what belongs neither to a ``committed`` snapshot nor to an older one whose manifest is deleted.

        Snapshots that are not before this one are of later starts, and stay.
        """
        self.clear_waiting(after=max(committed, default=""), before=self.context.snapshot)
        published = self.published()
        kept = [snapshot for snapshot in published if snapshot in committed or snapshot >= self.context.snapshot]
        if kept != published:
            self._write_published(kept)

    def _write_published(self, snapshots: Sequence[str]) -> None:
        with sink_errors("cannot write", self._published):
            if snapshots:
                make_private(self._published.parent, self._root)
                write_durably(self._published, "\n".join(snapshots[-_PUBLISHED_MAX:]).encode())
                self._sync_above(self._published)
            else:
                self._published.unlink(missing_ok=True)
                remove_empty([self._published.parent], self._root)

    def _sync_above(self, path: Path) -> None:
        for folder in (*[parent for parent in path.parents if self._root in parent.parents], self._root):
            sync(folder)


def check_others(path: Path, *, replaces: bool) -> None:
    """Raise `SinkError` if an interrupted commit of another job replaces the folder ``path``, or would be replaced."""
    place = os.path.realpath(path)
    for found in (one for root in (path, path.parent) for one in sorted(root.glob(f"{STAGING}/*/*.*/{NAME}"))):
        try:
            intent = _read(found)
        except (SinkError, OSError):
            continue  # Its own job reports that.
        where, mode = intent.target.get("path"), intent.target.get("mode")
        if not isinstance(where, str) or os.path.realpath(where) != place or (mode == "append" and not replaces):
            continue
        with locked(found.parent) as is_over:
            if is_over and found.exists():
                raise SinkError(
                    f"step {intent.context.step!r} of job {intent.context.job!r} was interrupted while publishing to "
                    f"{where} with mode {mode!r}. Start that job once, unchanged, which finishes the publication. Or "
                    f"remove {found}, which abandons its rows"
                )


def _read(path: Path) -> Intent:
    """Read an intent, also one of malstrom-py 0.1."""
    text = path.read_bytes()
    try:
        found = json.loads(text)
        if found["format"] != _FORMAT:
            raise ValueError
        job, step, snapshot = (str(found[name]) for name in ("job", "step", "snapshot"))
        context = CommitContext(
            job, step, SnapshotId(snapshot), found["incarnation"], found["result"], found.get("final", True)
        )
        payloads = [payload.encode() for payload in found["payloads"]]
        return Intent(context, dict(found["target"]), payloads, found.get("aborted", False))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise SinkError(
            f"{path}, which records an interrupted publication, is damaged or of a later malstrom-py: check which of "
            f"its rows are visible, then remove the file"
        ) from None


def _payloads(path: Path) -> list[bytes]:
    try:
        return [text.encode() for text in json.loads(path.read_bytes())]
    except (ValueError, TypeError, AttributeError):
        raise SinkError(f"{path}, which lists rows to publish at the end of the job, is damaged: restore it") from None
