"""The commit of files: renames of staged files to visible names, ``<root>/<partition>/…/<step>-<snapshot>-<n>.<ext>``.

Rules:
- A commit is idempotent: files that were moved before stay, also those that another process moves at the same time.
- A commit only goes forwards. A process that was paused in its commit cannot know whether another one has finished
  that commit, so after an error it leaves what it has moved. The commit is repeated (S3), or `abort` takes it back,
  which no other process can be committing then.
- `publish` with ``undo`` takes back what it has moved. The caller excludes other processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from malstrom_py.errors import InternalError, SinkError
from malstrom_py.local_files import RunLock
from malstrom_py.sinks.base import CommitContext
from malstrom_py.sinks.files.staging import (
    ATTEMPTS,
    STAGED,
    checked,
    remove_empty,
    sink_errors,
    staging_folder,
    sync,
)


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A pre-committed file, and its target folder, relative to the root."""

    path: Path
    folder: str


def staged_files(root: Path, context: CommitContext, payloads: Sequence[bytes]) -> list[StagedFile]:
    """Return the staged files that ``payloads`` name, in an order that does not depend on that of the payloads.

    The files of one writer are in the order in which it wrote them.
    """
    folders = named_files(context, payloads, STAGED)
    staging_folder(root, context.job, context.step)
    files = [StagedFile(root / name, folder) for name, folder in folders.items()]
    # Files of several snapshots may be published together: order them by snapshot first.
    return sorted(files, key=lambda file: (file.path.name.rpartition("-")[0], file.path.parent))


def named_files(context: CommitContext, payloads: Sequence[bytes], form: re.Pattern[str]) -> dict[str, str]:
    """Return the staged files that ``payloads`` name, with their target folders.

    `SinkError`: a payload is damaged, or a name is not of ``form``, whose groups are job, step and possibly snapshot.
    """
    folders: dict[str, str] = {}
    for payload in payloads:
        try:
            named = json.loads(payload)
            folders.update(zip(named["files"], named["folders"], strict=True))
        except (ValueError, KeyError, TypeError):
            raise SinkError(
                f"a pre-commit payload of step {context.step!r} is damaged: resume from an older snapshot"
            ) from None
    owner = (context.job, context.step, context.snapshot)[: form.groups]
    for name, folder in folders.items():
        match = form.fullmatch(name) if isinstance(name, str) else None
        if match is None or match.groups() != owner or not is_beneath(folder):
            raise SinkError(
                f"a pre-commit payload of step {context.step!r} names a file of another job, step or snapshot"
            )
    return folders


def is_beneath(folder: object) -> bool:
    """Return whether ``folder`` consists of partition names: a ``=`` in each rules out ``..`` and empty names."""
    return isinstance(folder, str) and (
        not folder or all("=" in name and "\0" not in name for name in folder.split("/"))
    )


def visible_names(prefix: str, staged: Sequence[StagedFile]) -> list[str]:
    """Return the visible name of each of the ``staged`` files."""
    return [f"{prefix}-{number:05d}{file.path.suffix}" for number, file in enumerate(staged)]


def publish(
    root: Path,
    context: CommitContext,
    staged: Sequence[StagedFile],
    *,
    prefix: str | None = None,
    record: Callable[[list[str]], None] | None = None,
    done: Container[str] = (),
    undo: bool = True,
) -> None:
    """Rename ``staged`` files to their visible names. Idempotent: files that were moved before stay.

    ``prefix``: the prefix of the names, by default step and snapshot. ``record`` is called with the visible paths,
    relative to ``root``, after all renames. ``done``: the paths of earlier commits, whose files may have been removed
    since. ``undo``: whether an error takes back the renames, and the folders made for them.
    """
    names = visible_names(prefix or f"{checked(context.step)}-{checked(context.snapshot)}", staged)
    moves = [(file, name) for file, name in zip(staged, names, strict=True) if _is_to_move(root, file, name, done)]
    with sink_errors("cannot commit to", root):
        with _begun(root, undo=undo) as commit:
            for file, name in moves:
                commit.move(file, name)
            for folder in _with_parents(root, {file.folder for file in staged}):
                sync(folder)
            if record is not None:
                record([_visible_path(file, name) for file, name in zip(staged, names, strict=True)])
        remove_empty(*{file.path.parent for file in staged}, root)


def take_back(root: Path, context: CommitContext, staged: Sequence[StagedFile], *, done: Container[str]) -> None:
    """Remove what an interrupted commit of all ``staged`` files has made visible. ``done``: files that stay."""
    names = visible_names(f"{checked(context.step)}-{checked(context.snapshot)}", staged)
    with sink_errors("cannot remove uncommitted files in", root):
        for file, name in zip(staged, names, strict=True):
            target = root / file.folder / name
            # A file of that name that this commit has not moved belongs to someone else.
            if not os.path.lexists(file.path) and _visible_path(file, name) not in done:
                target.unlink(missing_ok=True)
            remove_empty(target.parent, root)


def discard(root: Path, staged: Sequence[StagedFile]) -> None:
    """Remove ``staged`` files, and their folders if empty."""
    with sink_errors("cannot remove uncommitted files in", root):
        for file in staged:
            file.path.unlink(missing_ok=True)
        remove_empty(*{file.path.parent for file in staged}, root)


def hold(staged: Sequence[StagedFile]) -> Callable[[], None]:
    """Lock the folders of ``staged`` files (a shared lock), until the returned function is called."""
    locks = contextlib.ExitStack()
    for folder in {file.path.parent for file in staged}:
        lock = RunLock(folder)
        locks.callback(lock.release)
        with contextlib.suppress(OSError):  # The folder is missing: the commit reports it.
            lock.hold(shared=True)
    return locks.close


def _visible_path(file: StagedFile, name: str) -> str:
    return f"{file.folder}/{name}".lstrip("/")


def _is_to_move(root: Path, staged: StagedFile, name: str, done: Container[str]) -> bool:
    """Return whether ``staged`` is still to be moved; `SinkError` if the target exists too, or both are missing."""
    target = root / staged.folder / name
    # In this order: another process may move the file in between.
    is_there, is_staged = os.path.lexists(target), os.path.lexists(staged.path)
    if is_staged and is_there:
        raise SinkError(f"{name} already exists in {root}, but was never committed: move it away and run the job again")
    if not is_staged and not os.path.lexists(target) and _visible_path(staged, name) not in done:
        raise SinkError(f"{staged.path} was removed before its commit. Run the job again")
    return is_staged


class _Commit:
    """The changes of one commit, so that they can be undone."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._moved: list[tuple[Path, Path]] = []
        self._made: list[Path] = []
        self._names: dict[Path, set[str]] = {}

    def move(self, staged: StagedFile, name: str) -> None:
        """Rename one file; create its folder if missing."""
        target = self._root / staged.folder / name
        for attempts_left in reversed(range(ATTEMPTS)):
            try:
                self._make_folder(staged.folder)
                staged.path.replace(target)
            except FileNotFoundError:
                if not os.path.lexists(staged.path) and os.path.lexists(target):
                    return  # Another process has moved it.
                # Another commit that is undone may remove the empty folder in between.
                if not attempts_left or not staged.path.exists():
                    raise
            else:
                self._moved.append((staged.path, target))
                return
        raise InternalError("every attempt returns or raises")

    def take_back(self) -> None:
        """Undo all changes, in reverse order."""
        for path, target in reversed(self._moved):
            target.replace(path)
        for folder in reversed(self._made):
            with contextlib.suppress(OSError):  # Another commit has files in it.
                folder.rmdir()

    def _make_folder(self, name: str) -> None:
        folder = self._root
        for part in name.split("/") if name else ():
            parent, folder = folder, folder / part
            try:
                folder.mkdir()
                self._made.append(folder)
                self._names.setdefault(parent, set()).add(part)
            except FileExistsError:
                if folder.is_symlink():
                    raise SinkError(
                        f"a folder of a partition in {self._root} is a symbolic link: remove it, or write elsewhere"
                    ) from None
                if not folder.is_dir():
                    raise
                self._check_name(parent, part)

    def _check_name(self, parent: Path, name: str) -> None:
        """Raise `SinkError` if the file system ignores case: rows of ``A`` would be read as rows of ``a``."""
        known = self._names.setdefault(parent, set())
        if name not in known:
            known.update(path.name for path in parent.iterdir())
        if name not in known:
            raise SinkError(
                f"the file system of {self._root} treats two partitions as one (it ignores case, for example): "
                f"make their values differ in more than case, or write elsewhere"
            )


@contextlib.contextmanager
def _begun(root: Path, *, undo: bool) -> Iterator[_Commit]:
    commit = _Commit(root)
    try:
        yield commit
    except Exception:
        if undo:
            commit.take_back()
        raise


def _with_parents(root: Path, folders: set[str]) -> list[Path]:
    """Return ``folders`` below ``root`` with their parents up to ``root``, each once, inner ones first."""
    found = {root / folder for folder in folders}
    for folder in tuple(found):
        found.update(parent for parent in folder.parents if root in (parent, *parent.parents))
    return sorted(found, key=lambda folder: len(folder.parts), reverse=True)
