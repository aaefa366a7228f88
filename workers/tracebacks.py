"""Tracebacks for users: an error they caused is shown from their code, without frames of this package."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import malstrom_py
from malstrom_py.errors import InternalError, MalstromError

_OURS = tuple(
    str(folder)
    for package in (Path(malstrom_py.__file__).parent,)
    for folder in (package, (package / "workers").resolve(), (package / "rescale").resolve())
)


def without_internals(error: MalstromError) -> MalstromError:
    """``error``, its causes shown from the user's first frame on. An `InternalError` keeps everything."""
    if isinstance(error, InternalError):
        return error
    cause = error.__cause__
    while cause is not None:
        cause.__traceback__ = _users(cause.__traceback__)
        cause = cause.__cause__
    return error.with_traceback(None)


def _users(frames: TracebackType | None) -> TracebackType | None:
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OURS):
        frames = frames.tb_next
    return frames
