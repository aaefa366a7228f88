"""The data files of a sink: their description in payloads, and their way from the staging folder into the table.

Rules:
- A file is staged in the hidden folder ``_staging`` of the table, where readers and clean-ups of tables do not look. It
  is moved next to the table's other files right before the commit that adds it to the table.
- A move is never taken back: another process may be committing the same files. A moved file that is in no commit is
  invisible, and the table's own clean-up (vacuum, removal of orphan files) deletes it.
- Clearing looks at the staging folder alone, so it cannot delete a file that the table refers to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import msgpack

from malstrom_py.errors import SinkError
from malstrom_py.local_files import locked
from malstrom_py.sinks.base import CommitContext, SnapshotId, is_left_over
from malstrom_py.sinks.files.staging import STAGED, remove_empty, sink_errors, staging_folder, sync

_OPEN: Final = re.compile(r"open-[0-9]+")


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A pre-committed file. ``staged``: its path, and ``folder`` its target, relative to the folder of the table's
    files. ``values``: those of the partition columns, as texts. ``stats`` and ``spec``: see the table.
    """

    staged: str
    folder: str
    size: int
    rows: int
    values: Sequence[str | None]
    stats: Any
    spec: int

    @property
    def path(self) -> str:
        """The path of the file in the table. It depends on the staged path alone, so each process finds the same."""
        _, _, step, run, name = self.staged.split("/")
        return f"{self.folder}/{step}-{run}-{name}".lstrip("/")


def pack_files(files: Iterable[LakeFile]) -> bytes:
    """Return the payload that names ``files``."""
    packed: bytes = msgpack.packb([asdict(file) for file in files])
    return packed


def unpack_files(context: CommitContext, payloads: Sequence[bytes]) -> list[LakeFile]:
    """Return the files that ``payloads`` name; `SinkError` if one is damaged or names files of another step."""
    files = []
    for payload in payloads:
        try:
            files += [LakeFile(**named) for named in msgpack.unpackb(payload, strict_map_key=False)]
        except (ValueError, TypeError, msgpack.exceptions.UnpackException):
            raise SinkError(
                f"a pre-commit payload of step {context.step!r} is damaged: resume from an older snapshot"
            ) from None
    for file in files:
        match = STAGED.fullmatch(file.staged)
        if match is None or match.groups() != (context.job, context.step):
            raise SinkError(f"a pre-commit payload of step {context.step!r} names a file of another job or step")
        if file.folder and not all("=" in name and "\0" not in name for name in file.folder.split("/")):
            raise SinkError(f"a pre-commit payload of step {context.step!r} names a folder that is no partition")
    return sorted(files, key=lambda file: file.staged)


def move_into_place(root: Path, files: Sequence[LakeFile]) -> None:
    """Move staged ``files`` to their paths in the table, durably. Files that were moved before stay."""
    with sink_errors("cannot commit to", root):
        for file in files:
            _move(root, root / file.staged, root / file.path)
        folders = {(root / file.path).parent for file in files}
        folders |= {parent for folder in folders for parent in folder.parents if root in (parent, *parent.parents)}
        for folder in sorted(folders, key=lambda one: len(one.parts), reverse=True):
            sync(folder)


def _move(root: Path, staged: Path, target: Path) -> None:
    for folder in target.parents:
        if folder == root:
            break
        if folder.is_symlink():
            raise SinkError(f"a partition folder in {root} is a symbolic link: remove it, or write elsewhere")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        staged.replace(target)
    except FileNotFoundError:
        if not target.exists():
            raise SinkError(
                f"{staged} was removed before its commit: let no program clear _staging. Resume from an older snapshot"
            ) from None


def discard(root: Path, files: Sequence[LakeFile]) -> None:
    """Remove staged ``files``."""
    with sink_errors("cannot remove uncommitted files in", root):
        for file in files:
            (root / file.staged).unlink(missing_ok=True)
    remove_folders(root, files)


def remove_folders(root: Path, files: Sequence[LakeFile]) -> None:
    """Remove the staging folders of ``files`` that are empty."""
    if files:
        remove_empty(*{(root / file.staged).parent for file in files}, root)


def clear_left_over(root: Path, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
    """Remove the staged files of earlier starts, except those of ``committed`` snapshots and of active writers."""
    folder = staging_folder(root, context.job, context.step)
    with sink_errors("cannot clear", folder):
        for run in list(folder.iterdir()) if folder.is_dir() else []:
            with locked(run) as is_over:
                if is_over:
                    _clear(run, context, committed)
                    remove_empty(run, root)
        remove_empty(folder, root)


def _clear(run: Path, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
    for path in run.iterdir():
        if _OPEN.fullmatch(path.stem) or is_left_over(path.stem.rpartition("-")[0], context, committed):
            path.unlink()
