"""Overwriting a folder: the new one is filled beside it, then the two are swapped by two renames.

What stands in the folder of the publication tells how far it is, wherever it was interrupted: nothing, or ``building``
(being filled), ``new`` (filled), ``new`` and ``old`` (the target is away), ``old`` alone (swapped). Where there was no
target, an empty ``old`` stands for it.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

from malstrom_py.errors import SinkError
from malstrom_py.sinks.files.staging import sink_errors, sync


class OutcomeUnknown(Exception):
    """Nobody can tell what of a publication is visible: it is kept, to be finished by the next start of its job."""


def swap(work: Path, target: Path, fill: Callable[[Path], None], *, replace: bool) -> None:
    """Put a folder that ``fill`` fills in the place of ``target``; call it again to finish what was interrupted.

    ``work``: the folder of the publication, on the file system of ``target``. ``replace``: whether a target that holds
    something is replaced, else a `SinkError`.

    Raises:
        SinkError: it cannot be, and ``target`` is as it was.
        OutcomeUnknown: the target could neither be replaced nor put back.
    """
    building, new, old = work / "building", work / "new", work / "old"
    with sink_errors("cannot overwrite", target):
        if not new.exists() and not old.exists():
            check_folder(target, replace=replace)
            building.mkdir(exist_ok=True)
            if target.exists():
                shutil.copymode(target, building)
            fill(building)
            building.rename(new)
            sync(work)
        if not old.exists():
            _put_away(target, old, replace=replace)
        if new.exists():
            _put_in_place(new, target, old)
    _make_durable(work, target)


def check_folder(target: Path, *, replace: bool) -> None:
    """`SinkError` if ``target`` is no folder of its own, or is not to be replaced and holds something."""
    if target.is_symlink():
        raise SinkError(f"{target} is a symbolic link, which cannot be swapped for a folder: give the folder it names")
    if not replace and target.is_dir() and any(target.iterdir()):
        raise SinkError(f"{target} holds something already, and mode is 'error': remove it, or use another mode")
    if target.exists() and not target.is_dir():
        raise NotADirectoryError(target)


def _put_away(target: Path, old: Path, *, replace: bool) -> None:
    check_folder(target, replace=replace)
    if not target.exists():
        old.mkdir()
    elif replace:
        target.rename(old)
    else:
        target.rmdir()  # it is empty, or this fails
        old.mkdir()


def _put_in_place(new: Path, target: Path, old: Path) -> None:
    try:
        sync(old.parent)
        new.rename(target)
    except OSError:
        try:
            if any(old.iterdir()):
                old.rename(target)
            else:
                old.rmdir()
        except OSError as error:
            raise OutcomeUnknown(f"{target} could be neither overwritten nor put back ({error.strerror})") from error
        raise


def _make_durable(work: Path, target: Path) -> None:
    try:
        sync(target.parent)
        sync(work)
    except OSError as error:
        raise OutcomeUnknown(f"{target} is overwritten, but perhaps not durably ({error.strerror})") from error


def remove_work(work: Path) -> None:
    """Remove what a swap that was given up has left."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(work)
