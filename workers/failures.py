"""Errors on their way between processes: with their cause and notes, and told in words where they cannot be carried.

Rule: no link of a chain vanishes. One whose class does not come through is a note on the error that it caused: its type
and the user's line, never its text, which may hold values of records.
"""

from __future__ import annotations

import pickle
from typing import Final

import cloudpickle

from malstrom_py.errors import InternalError, MalstromError, OperatorError
from malstrom_py.workers.tracebacks import users_frame

_CAUSES_MAX: Final = 5


def pack(error: BaseException) -> bytes:
    """``error`` as bytes. What of it cannot be pickled is told in words; what would end the process, as our error."""
    if not isinstance(error, Exception):
        error = _ended_by(error)
    # The text of a foreign error may hold values of records, so only its type is told.
    ours = isinstance(error, MalstromError)
    told = error if ours else InternalError(f"an unexpected {type(error).__name__}")
    chain: list[tuple[bytes | None, str]] = []
    link: BaseException | None = error
    while link is not None and len(chain) < _CAUSES_MAX:
        chain.append((_pickled(link), _in_words(link)))
        link = link.__cause__
    packed: bytes = pickle.dumps((chain, _pickled(told), f"{type(error).__name__}: {told}"))
    return packed


def unpack(packed: bytes) -> BaseException:
    """The error again, with its cause, as far as its classes are known here."""
    chain, told, text = pickle.loads(packed)
    links = [(_loaded(link), words) for link, words in chain]
    error = links[0][0] or _loaded(told) or InternalError(text)
    at = error
    for cause, words in links[1:]:
        if cause is None:
            at.add_note(f"caused by {words}, which could not be brought from its process")
        else:
            at.__cause__ = cause
            at = cause
    return error


def _ended_by(error: BaseException) -> OperatorError:
    ended = OperatorError(
        f"a function of the job ended its process: {_in_words(error)}. Raise an exception to have the job fail, or "
        f"call JobHandle.stop in the program that started it"
    )
    ended.__cause__ = error
    return ended


def _in_words(error: BaseException) -> str:
    name, frame = type(error).__name__, users_frame(error)
    return name if frame is None else f"{name} raised at {frame.filename}:{frame.lineno}, in {frame.name}"


def _pickled(error: BaseException) -> bytes | None:
    try:
        pickled: bytes = cloudpickle.dumps(error, protocol=5)
        pickle.loads(pickled)  # some classes of errors go in and do not come out
    except Exception:
        return None
    return pickled


def _loaded(pickled: bytes | None) -> BaseException | None:
    try:
        error = pickle.loads(pickled or b"")
    except Exception:
        return None
    return error if isinstance(error, BaseException) else None
