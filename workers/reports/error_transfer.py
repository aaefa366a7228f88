"""Errors sent between processes, with causes and notes, and tracebacks for users, without frames of this package.

Rule: no link of a chain of causes is lost. An error whose class cannot be sent becomes a note on the error that it
caused: its type, its text and the user's line. While texts are redacted, so does every cause, without its text, and an
error that is not of this package is replaced by one that is.
"""

from __future__ import annotations

import pickle
from traceback import format_tb
from types import TracebackType
from typing import Final, TypeVar

from malstrom_py.errors import InternalError, MalstromError, OperatorError, PeerError
from malstrom_py.errors.text import PACKAGE_FOLDERS, describe_error, public_text, redacts, text_of, users_frame

_E = TypeVar("_E", bound=BaseException)

_CAUSES_MAX: Final = 5


def pack_error(error: BaseException) -> bytes:
    """Encode ``error``. Parts that cannot be pickled are described in words; one that ends processes becomes ours."""
    if not isinstance(error, Exception):
        error = _ended_by(error)
    keep_trace(error)
    error = redacted(error)
    public = error if isinstance(error, MalstromError) else InternalError(public_text(error))
    chain: list[tuple[bytes | None, str]] = []
    link: BaseException | None = error
    while link is not None and len(chain) < _CAUSES_MAX:
        chain.append((_pickled(link), _in_words(link)))
        link = link.__cause__
    packed: bytes = pickle.dumps((chain, _pickled(public), f"{type(error).__name__}: {text_of(public)}"))
    return packed


def unpack_error(packed: bytes) -> BaseException:
    """Decode an error with its causes, as far as their classes are known here."""
    chain, public, text = pickle.loads(packed)
    links = [(_loaded(link), words) for link, words in chain]
    error = links[0][0] or _loaded(public) or InternalError(text)
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
    words, frame = describe_error(error), users_frame(error)
    return words if frame is None else f"{words}, raised at {frame.filename}:{frame.lineno}, in {frame.name}"


def _pickled(error: BaseException) -> bytes | None:
    import cloudpickle

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


def without_internals(error: MalstromError) -> MalstromError:
    """``error``, its causes shown from the user's first frame on. An `InternalError` keeps everything."""
    error = redacted(error)
    if isinstance(error, InternalError):
        return error
    cause, seen = error.__cause__, set[int]()
    while cause is not None and id(cause) not in seen:  # causes may go in a circle: `raise error from error`
        seen.add(id(cause))
        cause.__traceback__ = _users(cause.__traceback__)
        cause = cause.__cause__
    return error.with_traceback(None)


def redacted(error: _E) -> _E | InternalError:
    """Return ``error`` as others may see it: unchanged, or without its causes while texts are redacted."""
    if not redacts() or isinstance(error, KeyboardInterrupt | SystemExit):
        return error
    if isinstance(error, MalstromError) and (text_of(error) or not str(error)):
        public: _E | InternalError = error
    else:
        public = InternalError(public_text(error))
    cause, seen = error.__cause__, set[int]()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if not isinstance(cause, MalstromError):
            public.add_note(f"caused by {_in_words(cause)}; its text is hidden: redact_errors")
        cause = cause.__cause__
    public.__cause__ = public.__context__ = None
    return public


def outermost(error: MalstromError | KeyboardInterrupt) -> MalstromError | KeyboardInterrupt:
    """``error`` for a public function to raise. Raised again by each on the way out, it shows the last one's frame."""
    return interrupted(error) if isinstance(error, KeyboardInterrupt) else without_internals(error)


def interrupted(error: KeyboardInterrupt) -> KeyboardInterrupt:
    """A Ctrl-C as the user sees it: where their code was, if it was running, and the notes on ``error``."""
    return error.with_traceback(_users(error.__traceback__))


def _users(frames: TracebackType | None) -> TracebackType | None:
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(PACKAGE_FOLDERS):
        frames = frames.tb_next
    return frames


def failure_of(worker: int, packed: bytes) -> MalstromError:
    """Return the error that ``worker`` has sent, as one of ours."""
    failure = unpack_error(packed)
    if not isinstance(failure, MalstromError):
        unexpected = InternalError(f"worker {worker} failed by {public_text(failure)}")
        unexpected.__cause__ = failure
        failure = unexpected
    blame(failure, worker)
    return failure


_WORKER: Final = "_malstrom_worker"
_TRACE: Final = "_malstrom_trace"
_FRAMES_MAX: Final = 20


def blame(error: BaseException, worker: int) -> None:
    """Record that ``error`` was raised on ``worker``, unless a worker is recorded."""
    if getattr(error, _WORKER, None) is None:
        setattr(error, _WORKER, worker)


def failed_worker(error: BaseException) -> int | None:
    """Return the worker on which ``error`` was raised, or whose loss it reports; None if it is not one worker."""
    if isinstance(error, PeerError) and error.peer is not None:
        return error.peer
    worker: int | None = getattr(error, _WORKER, None)
    return worker


def keep_trace(error: BaseException) -> None:
    """Record the frames of the user's code in which ``error`` began: tracebacks are not sent between processes."""
    if not hasattr(error, _TRACE) and (trace := trace_of(error)):
        setattr(error, _TRACE, trace)


def trace_of(error: BaseException) -> str:
    """Return the frames of the user's code in which ``error`` began, as Python prints them, the innermost last.

    Empty without such frames, and while texts are redacted.
    """
    if redacts():
        return ""
    kept: str | None = getattr(error, _TRACE, None)
    if kept is not None:
        return kept
    origin, seen = error, {id(error)}
    while (cause := origin.__cause__) is not None and id(cause) not in seen:
        seen.add(id(cause))
        origin = cause
    return "".join(format_tb(_users(origin.__traceback__))[-_FRAMES_MAX:])
