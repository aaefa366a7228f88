"""Folders of pinned rows: each start of a job has its own, ``<staging>/<job>/pin-<time>-<random>/``.

Rule: only folders made here are removed: they have a name of this form and hold our record. While a job reads a folder
it is locked, so that no other job removes it.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from malstrom_py.errors import InternalError, SourceError
from malstrom_py.local_files import RunLock, locked

RECORD: Final = "malstrom-pin.json"
ROWS: Final = "rows"
_NAME: Final = re.compile(r"pin-[0-9]{8}T[0-9]{12}Z-[0-9a-f]{8}")
_ATTEMPTS: Final = 5
_LOG: Final = logging.getLogger("malstrom_py.sources")


class PinFolder:
    """The folder of one pin, created by `new_folder`, or known by its path in another process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = RunLock(path)

    @property
    def rows(self) -> Path:
        """The folder of the rows, which its writer creates."""
        return self.path / ROWS

    def hold(self) -> None:
        """Lock the folder against removal. `SourceError` if it is gone."""
        try:
            self._lock.hold(shared=True)
        except OSError as error:
            raise SourceError(
                f"the rows staged in {self.path} are gone ({error.strerror}): start the job again. With workers on "
                f"several machines staging= is a folder that all of them share"
            ) from error

    def note(self, record: Mapping[str, Any]) -> None:
        """Write ``record`` into the folder, replacing the last one."""
        new = self.path / f"{RECORD}.new"
        new.write_text(json.dumps(record, indent=1))
        new.replace(self.path / RECORD)

    def leave(self, *, keep: bool) -> None:
        """Unlock the folder, and remove it unless ``keep`` is true or another job holds it.

        A failed removal is only logged: it does not change how the job has ended.
        """
        self._lock.release()
        if not keep:
            try:
                _remove(self.path)
            except OSError as error:
                _LOG.warning("the rows staged in %s could not be removed: %s", self.path, error.strerror)


@contextmanager
def staging_folder(staging: Path, job: str, *, keep: bool) -> Iterator[PinFolder]:
    """Yield a `new_folder`, to stage rows in. It is removed if that fails; else it stays locked."""
    folder = new_folder(staging, job, keep=keep)
    try:
        yield folder
    except BaseException:
        folder.leave(keep=False)
        raise


def new_folder(staging: Path, job: str, *, keep: bool) -> PinFolder:
    """Create and lock a folder for a start of ``job``; remove folders that its earlier starts left, unless kept.

    SourceError: the folder cannot be created.
    """
    here = staging / job
    try:
        here.mkdir(parents=True, exist_ok=True)
        if here.is_symlink():
            raise SourceError(f"rows cannot be staged in {here}: it is a symbolic link, remove it")
        for left in here.iterdir():
            if _NAME.fullmatch(left.name):
                _remove(left)
        for _ in range(_ATTEMPTS):
            try:
                return _made(here, job, keep=keep)
            except (FileNotFoundError, FileExistsError, BlockingIOError):
                continue  # another start of the job removed the folder as an old one
    except OSError as error:
        raise SourceError(
            f"rows cannot be staged in {here}: {error.strerror}. Give staging= a folder that this user may write to"
        ) from error
    raise InternalError(f"no folder could be made in {here}")


def _made(here: Path, job: str, *, keep: bool) -> PinFolder:
    here.mkdir(parents=True, exist_ok=True)
    path = here / f"pin-{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}-{secrets.token_hex(4)}"
    path.mkdir()
    folder = PinFolder(path)
    folder._lock.hold(shared=True)
    folder.note({"job": job, "keep": keep})
    return folder


def _remove(folder: Path) -> None:
    """Remove ``folder`` if it was made here, is not locked and is not to be kept."""
    if folder.is_symlink() or not folder.is_dir():
        return
    with locked(folder) as is_free:
        if is_free and _is_left(folder):
            # Rows first: the record stays until they are gone, so that an interrupted removal is found again.
            shutil.rmtree(folder / ROWS, ignore_errors=True)
            shutil.rmtree(folder)
    try:
        folder.parent.rmdir()
    except OSError:
        """Other folders exist in it."""


def _is_left(folder: Path) -> bool:
    record = folder / RECORD
    try:
        return not json.loads(record.read_text())["keep"]
    except FileNotFoundError:
        # A start that failed before its first record, or its writer wrote on for a while after the removal.
        return {path.name for path in folder.iterdir()} <= {ROWS}
    except (OSError, ValueError, LookupError, TypeError):
        return False
