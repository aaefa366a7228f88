"""Tracebacks for users: an error they caused is shown from their code, without frames of this package."""

from __future__ import annotations

import sysconfig
from traceback import FrameSummary, extract_tb
from types import TracebackType
from typing import Final

from malstrom_py.errors import InternalError, MalstromError
from malstrom_py.operators.tellable import OURS

_LIBRARIES: Final = ("<frozen ", *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))


def without_internals(error: MalstromError) -> MalstromError:
    """``error``, its causes shown from the user's first frame on. An `InternalError` keeps everything."""
    if isinstance(error, InternalError):
        return error
    cause, seen = error.__cause__, set[int]()
    while cause is not None and id(cause) not in seen:  # causes may go in a circle: `raise error from error`
        seen.add(id(cause))
        cause.__traceback__ = _users(cause.__traceback__)
        cause = cause.__cause__
    return error.with_traceback(None)


def outermost(error: MalstromError | KeyboardInterrupt) -> MalstromError | KeyboardInterrupt:
    """``error`` for a public function to raise. Raised again by each on the way out, it shows the last one's frame."""
    return interrupted(error) if isinstance(error, KeyboardInterrupt) else without_internals(error)


def interrupted(error: KeyboardInterrupt) -> KeyboardInterrupt:
    """A Ctrl-C as the user sees it: where their code was, if it was running, and the notes on ``error``."""
    return error.with_traceback(_users(error.__traceback__))


def users_frame(error: BaseException) -> FrameSummary | None:
    """The user's innermost line that was running when ``error`` was raised; None if none was."""
    for frame in reversed(extract_tb(error.__traceback__)):
        if not frame.filename.startswith(OURS + _LIBRARIES):
            return frame
    return None


def _users(frames: TracebackType | None) -> TracebackType | None:
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(OURS):
        frames = frames.tb_next
    return frames
