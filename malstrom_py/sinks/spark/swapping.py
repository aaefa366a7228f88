"""Overwriting a folder: the new one is filled beside it, then the two are swapped by two renames.

What stands in the folder of the publication tells how far it is, wherever it was interrupted: nothing, or ``building``
(being filled), ``new`` (filled), ``new`` and ``old`` (the target is away), ``old`` alone (swapped). Where there was no
target, an empty ``old`` stands for it. ``target`` says whose folder it is.

Rule: as long as ``new`` is there, ``old`` is the only copy of what was in the target, and nobody removes it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from malstrom_py.errors import SinkError
from malstrom_py.sinks.files.staging import sink_errors, sync
from malstrom_py.sinks.output_record import write_durably


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
            write_durably(work / "target", os.fsencode(target))
            building.rename(new)
            sync(work)
        if not old.exists():
            _put_away(target, old, replace=replace)
        if new.exists():
            _put_in_place(new, target, old)
    _make_durable(work, target)


def give_up(work: Path) -> None:
    """Put back what a swap that is not to be finished had put away; what then is in ``work`` nobody needs.

    Raises:
        SinkError: the target is there again, so that nobody knows which of the two is to stay.
    """
    old = work / "old"
    if not (work / "new").exists() or not holds_something(old):
        return
    target = target_of(work)
    if target is None:
        raise SinkError(
            f"{old} holds all that was in a folder before an overwrite that was interrupted: move it back to where it "
            f"was, remove {work}, and start again"
        )
    if target.is_symlink() or target.is_file() or holds_something(target):
        raise SinkError(
            f"{old} holds all that was in {target} before an overwrite that was interrupted, and {target} is there "
            f"again: keep what you need of the two elsewhere, remove {work}, and start again"
        )
    old.rename(target)
    sync(target.parent)
    sync(work)


def target_of(work: Path) -> Path | None:
    """What a swap in ``work`` puts away; None if none has come so far."""
    try:
        return Path(os.fsdecode((work / "target").read_bytes()))
    except FileNotFoundError:
        return None


def holds_something(folder: Path) -> bool:
    """Whether ``folder`` is one, and not empty."""
    return folder.is_dir() and any(folder.iterdir())


def check_folder(target: Path, *, replace: bool) -> None:
    """`SinkError` if ``target`` is no folder of its own, or is not to be replaced and holds something."""
    if target.is_symlink():
        raise SinkError(f"{target} is a symbolic link, which cannot be swapped for a folder: give the folder it names")
    if not replace and holds_something(target):
        raise SinkError(f"{target} holds something already, and mode is 'error': remove it, or use another mode")
    if target.exists() and not target.is_dir():
        raise NotADirectoryError(target)
    if os.path.ismount(target):
        raise SinkError(f"a file system is mounted at {target}, so it cannot be swapped: give a folder in it")


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
    if holds_something(old) and holds_something(target):
        raise OutcomeUnknown(
            f"another program has made {target} again, while what it held was put away to be overwritten: that is in "
            f"{old}, and what is to come in {new}. Move {target} elsewhere"
        )
    try:
        sync(old.parent)
        new.rename(target)
    except OSError:
        try:
            if holds_something(old):
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
    """Remove what is left of a publication that is over, or that was given up."""
    give_up(work)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(work)
