"""The control sockets and tokens of jobs: two files per job in a private folder of the user.

Rule: the folder is used only if it belongs to this user and is closed to all others. A lock on the token's file
reserves a job's name while the job runs: the system releases the lock when the process ends, in any way, and the next
job of that name takes over the files of a dead process. Only the holder of a name removes its files.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import stat
import tempfile
from pathlib import Path
from typing import Final, Self

from malstrom_py.errors import ControlError, JobRunning
from malstrom_py.validation import NAME_MAX

SOCKET_PATH_BYTES_MAX: Final = 103
"""The longest path of a socket that all systems accept; Linux accepts four bytes more."""

_TOKEN_BYTES_MAX: Final = 256
_TOKEN: Final = re.compile(r"([A-Za-z0-9_-]{16,128})\n([0-9]{1,20})\n")
_NAME: Final = re.compile(rf"([A-Za-z0-9_-]{{1,{NAME_MAX}}})\.token")
_ATTEMPTS: Final = 100


def server_directory() -> Path:
    """Return the folder for the jobs of this process, and create it if it does not exist.

    Raises:
        ControlError: it belongs to another user, or others may look into it.
    """
    directory = places()[0]
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ControlError(_unsafe(directory, f"cannot be made ({error.strerror})")) from error
    check_directory(directory)
    return directory


def places() -> list[Path]:
    """Return the folders for jobs of this user, which need not exist; the first one is for new jobs."""
    found = []
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    # After `su` the environment still names the folder of another user.
    if runtime.is_absolute() and _owner(runtime) == os.geteuid():
        found.append(runtime / "malstrom")
    return [*found, Path(tempfile.gettempdir()) / f"malstrom-{os.geteuid()}"]


def check_directory(directory: Path) -> None:
    """Raise `ControlError` unless ``directory`` is a folder of this user, and closed to all others."""
    try:
        status = directory.lstat()
    except OSError as error:
        raise ControlError(_unsafe(directory, f"cannot be read ({error.strerror})")) from error
    if not stat.S_ISDIR(status.st_mode):
        raise ControlError(_unsafe(directory, "is not a folder"))
    if status.st_uid != os.geteuid():
        raise ControlError(_unsafe(directory, f"belongs to user {status.st_uid}"))
    if status.st_mode & 0o077:
        raise ControlError(_unsafe(directory, f"is open to others (rights {stat.S_IMODE(status.st_mode):o})"))


def socket_path(directory: Path, job: str) -> Path:
    """Return the path of the socket of ``job``: named by the job, or by a digest if that would be too long.

    Raises:
        ControlError: the folder's own path leaves no room for either.
    """
    # No job's name begins with a dot.
    digest = hashlib.sha256(job.encode()).hexdigest()[:16]
    for name in (f"{job}.sock", f".{digest}.sock"):
        if len(os.fsencode(directory / name)) <= SOCKET_PATH_BYTES_MAX:
            return directory / name
    raise ControlError(_unsafe(directory, "has too long a path for a socket"), job=job)


def token_path(directory: Path, job: str) -> Path:
    """Return the path of the token of ``job``."""
    return directory / f"{job}.token"


def read_token(directory: Path, job: str) -> str | None:
    """Return the token of ``job``; None if there is none yet."""
    try:
        descriptor = os.open(token_path(directory, job), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = _TOKEN.fullmatch(file.read(_TOKEN_BYTES_MAX).decode("ascii", "replace"))
    return found[1] if found else None


def names_in(directory: Path) -> list[str]:
    """Return the jobs that have a token in ``directory``, running or not."""
    try:
        found = [_NAME.fullmatch(name) for name in os.listdir(directory)]  # noqa: PTH208  only names are needed
    except OSError:
        return []
    return sorted(name[1] for name in found if name)


def check_name(job: str) -> None:
    """Raise `JobRunning` if a job of that name runs on this machine: a cheap check before a job is set up."""
    NameClaim.of(server_directory(), job).release()


class NameClaim:
    """Holds the name of a job, with its two files. Made by `of`; ends with `release`.

    ``token`` is the secret of the clients. `publish` writes it into the file.
    """

    def __init__(self, directory: Path, job: str, descriptor: int) -> None:
        self.socket_path = socket_path(directory, job)
        self.token = secrets.token_urlsafe(32)
        self._path = token_path(directory, job)
        self._descriptor: int | None = descriptor

    @classmethod
    def of(cls, directory: Path, job: str) -> Self:
        """Take the name, and clear away the files of a dead process.

        Raises:
            JobRunning: it is taken.
            ControlError: there is no room for the path of the socket, or the files cannot be made.
        """
        socket_path(directory, job)
        descriptor = _locked(token_path(directory, job), job)
        claim = cls(directory, job, descriptor)
        try:
            os.fchmod(descriptor, 0o600)
            os.ftruncate(descriptor, 0)
            claim.socket_path.unlink(missing_ok=True)
        except OSError as error:
            claim.release()
            raise ControlError(_unsafe(directory, f"cannot be cleared ({error.strerror})"), job=job) from error
        return claim

    def publish(self) -> None:
        """Write the token, so that clients find it."""
        if self._descriptor is not None:
            os.pwrite(self._descriptor, f"{self.token}\n{os.getpid()}\n".encode("ascii"), 0)

    def release(self) -> None:
        """Remove the files and release the name. A second call does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        if _is_at(descriptor, self._path):
            for path in (self.socket_path, self._path):
                with contextlib.suppress(OSError):
                    path.unlink()
        os.close(descriptor)

    def forget(self) -> None:
        """Release the descriptor in a forked process, whose parent keeps the name."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _locked(path: Path, job: str) -> int:
    """Open the file at ``path``, create it if it does not exist, and return its descriptor with an exclusive lock."""
    for _ in range(_ATTEMPTS):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ControlError(_unsafe(path, f"cannot be opened ({error.strerror})"), job=job) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _holder(descriptor)
            os.close(descriptor)
            if not isinstance(error, BlockingIOError):
                raise ControlError(_unsafe(path, f"cannot be locked ({error.strerror})"), job=job) from error
            raise JobRunning(
                f"a job {job!r} runs already{holder}: wait for it, stop it (malstrom stop {job}), or give this one "
                f"another name",
                job=job,
            ) from None
        # If its holder removed it between the two calls, the lock is on a file without a path.
        if _is_at(descriptor, path):
            return descriptor
        os.close(descriptor)
    raise ControlError(_unsafe(path, f"was removed {_ATTEMPTS} times while it was taken"), job=job)


def _holder(descriptor: int) -> str:
    found = _TOKEN.fullmatch(os.pread(descriptor, _TOKEN_BYTES_MAX, 0).decode("ascii", "replace"))
    return f" in process {found[2]}" if found else ""


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    own = os.fstat(descriptor)
    return (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino)


def _owner(path: Path) -> int | None:
    try:
        return path.stat().st_uid
    except OSError:
        return None


def _unsafe(path: Path, why: str) -> str:
    return (
        f"jobs are reached through {path}, which {why}: set XDG_RUNTIME_DIR to a folder of yours with a short path, or "
        f"run without control (control=False, on the command line --no-control)"
    )
