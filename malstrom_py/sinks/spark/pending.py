"""Publications to a folder that were interrupted, by whatever job, step or mode: they stage in it, or beside it.

Rule: what replaces a folder, and what adds to it, is never done while the other stands half done.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from malstrom_py.errors import SinkError
from malstrom_py.run_lock import locked
from malstrom_py.sinks.files.staging import STAGING, sink_errors
from malstrom_py.sinks.spark.publication import Publication
from malstrom_py.sinks.spark.swapping import target_of
from malstrom_py.sinks.targets import Target


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
                if (put_away := target_of(folder)) is not None and os.path.realpath(put_away) == place:
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
