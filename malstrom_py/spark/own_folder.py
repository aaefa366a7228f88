"""The folder under the temporary one in which a user's rows wait, on one machine, where no other folder is given."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from malstrom_py.errors import MalstromError


def own_folder() -> Path:
    """Where it is, or would be made."""
    return Path(tempfile.gettempdir()).absolute() / f"malstrom-spark-{os.getuid()}"


def make_own(folder: Path, error: type[MalstromError]) -> None:
    """Make it, if it is not there; ``error`` if it is not this user's alone: another may have taken its name."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as failure:
        raise error(f"rows cannot be staged in {folder}: {failure.strerror}. Give staging=") from failure
    if folder.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise error(f"rows cannot be staged in {folder}: it is not this user's alone. Remove it, or give staging=")
