"""The errors of staged files, each with what to do."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from malstrom_py.errors import SinkError
from malstrom_py.sinks.staged.payloads import STAGING

_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextlib.contextmanager
def sink_errors(what: str, path: Path | str) -> Iterator[None]:
    """Turn every OSError inside into a `SinkError` with a remedy."""
    try:
        yield
    except OSError as error:
        raise SinkError(f"{what} {path}: {_why(error)}") from error


def removed(staged: Path | str) -> SinkError:
    """Return the error for a file that is neither staged nor published."""
    return SinkError(
        f"{staged} was removed before its commit: let no program clear {STAGING}, and let one start of a job write "
        f"there at a time. Run the job again, or resume from an older snapshot"
    )


def unknown_file(path: Path, root: Path) -> SinkError:
    """Return the error for a file that has the name of a file to be published."""
    return SinkError(
        f"{path.name} already exists in {root}, but was never committed: move it away and run the job again"
    )


def committed_elsewhere(step: str, root: Path) -> SinkError:
    """Return the error for files that another process is about to move."""
    return SinkError(
        f"another process commits step {step!r} to {root} at this moment: let one run of a job write there at a time"
    )


def link_above(folder: Path) -> SinkError:
    """Return the error for a symbolic link in the place of a staging folder."""
    return SinkError(f"{folder} is a symbolic link: files are not staged through links, remove it")


def link_of_partition(root: Path) -> SinkError:
    """Return the error for a symbolic link in the place of a partition; its name is a value, so it is not shown."""
    return SinkError(f"a folder of a partition in {root} is a symbolic link: remove it, or write elsewhere")


def partitions_alike(root: Path) -> SinkError:
    """Return the error for a file system that ignores case: rows of ``A`` would be read as rows of ``a``."""
    return SinkError(
        f"the file system of {root} treats two partitions as one (it ignores case, for example): make their values "
        f"differ in more than case, or write elsewhere"
    )


def no_root(root: Path) -> SinkError:
    """Return the error for a root that cannot be made, such as one on /proc."""
    above = next(folder for folder in root.parents if folder.exists())
    return SinkError(f"cannot make the folder {root}: no folder can be made in {above}. Write elsewhere.")


def no_target(sink: object) -> SinkError:
    """Return the error for a target that was removed after rows were written for it."""
    return SinkError(f"the table of {sink!r} is not there, but rows were written for it: restore it")


def unconditional_store(url: str) -> SinkError:
    """Return the error for a store without conditional writes."""
    return SinkError(
        f"the store of {url} overwrites an object that was to be created only if absent, so two starts of a job could "
        f"both commit. Use a store that has conditional writes"
    )


def store_failed(what: str, url: str, error: OSError) -> SinkError:
    """Return the error for a request that an object store has refused, or not answered."""
    return SinkError(
        f"{what} {url}: {error.strerror or 'an object is missing'}. Check that the store can be reached, that the "
        f"bucket exists and that the credentials allow it; then run the job again"
    )


def _why(error: OSError) -> str:
    if error.errno in _FULL:
        return f"{os.strerror(error.errno)}. Free some space, or write elsewhere, and run again."
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return f"{error.strerror}. Give this user the right to write there, or write elsewhere."
    if isinstance(error, FileNotFoundError):
        return f"another program removed a file or folder. Let no program clear {STAGING}, and run the job again."
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "a file is in the place of a folder. Move it away, or write elsewhere."
    return f"{error.strerror or type(error).__name__}. Check the path and its disk."
