"""The messages of a control socket. A frame is its length in four bytes, then a msgpack map.

Rule: no input is trusted. The length of a frame is checked before its content is read, only plain types are decoded,
every field is checked against its type here, and a mismatch is a `ControlError`. A client sends one request; the
answers are any number of `Waiting` and then the actual one.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgpack

from malstrom_py import errors
from malstrom_py.errors import ControlError, MalstromError
from malstrom_py.workers.reports.job_status import JobStatus, RescaleReport
from malstrom_py.workers.reports.result import RunResult

PROTOCOL: Final = 1
LENGTH_BYTES: Final = 4
REQUEST_BYTES_MAX: Final = 4096
ANSWER_BYTES_MAX: Final = 8 << 20
"""Enough for the counts of some ten thousand steps."""

TIMEOUT_S_MAX: Final = 1e8
_TEXT_MAX: Final = 10_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StatusCommand:
    """Return the status: the last known one if the job's thread does not answer within ``timeout_s``."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class RescaleCommand:
    """Rescale to ``size`` workers. The answer follows when that is complete, or without ``wait`` when it starts."""

    size: int
    wait: bool
    timeout_s: float


@dataclass(frozen=True, slots=True)
class SnapshotCommand:
    """Make a snapshot, or with ``uri`` a savepoint there. The answer follows when it is committed."""

    uri: str | None
    timeout_s: float


@dataclass(frozen=True, slots=True)
class StopCommand:
    """Stop, with ``drain`` or without; None: the job's default. The answer follows when the job has ended, or without
    ``wait`` immediately: `SnapshotMade` if the job ended with a snapshot, else `Accepted`.
    """

    drain: bool | None
    wait: bool
    timeout_s: float


@dataclass(frozen=True, slots=True)
class WaitCommand:
    """Wait for the result of the run, without limit if ``timeout_s`` is None."""

    timeout_s: float | None


Command = StatusCommand | RescaleCommand | SnapshotCommand | StopCommand | WaitCommand


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """A client's command, with the token that authorizes it."""

    token: str
    ask: Command


@dataclass(frozen=True, slots=True)
class Waiting:
    """The answer follows later. Sent at intervals, so that a client can distinguish a slow job from a lost one."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The command was executed and has no result."""


@dataclass(frozen=True, slots=True)
class SnapshotMade:
    """The snapshot ``id`` is committed."""

    id: str


Answer = Waiting | Accepted | SnapshotMade | JobStatus | RescaleReport | RunResult | MalstromError

_ASKS: Final[Mapping[str, type[Any]]] = {
    "status": StatusCommand,
    "rescale": RescaleCommand,
    "snapshot": SnapshotCommand,
    "stop": StopCommand,
    "wait": WaitCommand,
}
_ANSWERS: Final[Mapping[str, type[Any]]] = {
    "waiting": Waiting,
    "done": Accepted,
    "snapshot": SnapshotMade,
    "status": JobStatus,
    "report": RescaleReport,
    "result": RunResult,
}
_ERROR_ATTRIBUTES: Final = (
    *("step", "function", "rule", "type_name", "wait", "deadline_s", "node", "reason"),
    *("job", "how", "snapshot", "running", "operation"),
)
"""Attributes of errors that hold no user data."""


def encode_request(request: ControlRequest) -> bytes:
    """Encode a request as a frame."""
    name = next(name for name, kind in _ASKS.items() if isinstance(request.ask, kind))
    return _frame({"protocol": PROTOCOL, "token": request.token, "ask": name, "with": asdict(request.ask)})


def decode_request(payload: bytes) -> ControlRequest:
    """Decode the request of a frame without its length; else `ControlError`.

    >>> decode_request(encode_request(ControlRequest("secret", WaitCommand(None)))[LENGTH_BYTES:])
    ControlRequest(token='secret', ask=WaitCommand(timeout_s=None))
    """
    message = _unpacked(payload)
    if message.get("protocol") != PROTOCOL:
        raise ControlError(
            f"the other side uses another version of this protocol, not {PROTOCOL}: run the command with the "
            f"malstrom-py that runs the job"
        )
    token, name = message.get("token"), message.get("ask")
    kind = _ASKS.get(name) if isinstance(name, str) else None
    if not isinstance(token, str) or kind is None:
        raise ControlError("a request must have a token and one of the commands " + ", ".join(_ASKS))
    ask: Command = _made(kind, message.get("with"))
    timeout_s = ask.timeout_s
    if timeout_s is not None and not 0 <= timeout_s <= TIMEOUT_S_MAX:
        raise ControlError(f"a timeout must be from 0 to {TIMEOUT_S_MAX:g} s")
    return ControlRequest(token, ask)


def encode_answer(answer: Answer) -> bytes:
    """Encode an answer as a frame. An answer that is too large becomes an error."""
    if isinstance(answer, MalstromError):
        return _frame({"error": _describe_error(answer)})
    name = next(name for name, kind in _ANSWERS.items() if isinstance(answer, kind))
    frame = _frame({name: asdict(answer)})
    if len(frame) > ANSWER_BYTES_MAX:
        return encode_answer(ControlError(f"the answer is larger than {ANSWER_BYTES_MAX:,} bytes"))
    return frame


def decode_answer(payload: bytes) -> Answer:
    """Decode the answer of a frame without its length; else `ControlError`.

    >>> decode_answer(encode_answer(errors.JobEnded("it has", how="failed"))[LENGTH_BYTES:])
    JobEnded('it has')
    """
    message = _unpacked(payload)
    if "error" in message:
        return _error(message["error"])
    for name, kind in _ANSWERS.items():
        if name in message:
            answer: Answer = _made(kind, message[name])
            return answer
    raise ControlError("an answer is of an unknown kind; the kinds are " + ", ".join(_ANSWERS))


def length_of(head: bytes, bytes_max: int) -> int:
    """Return the length in a frame's head if it is at most ``bytes_max``; else `ControlError`."""
    length = int.from_bytes(head, "big")
    if not 0 < length <= bytes_max:
        raise ControlError(f"a message has {length:,} bytes, and 1 to {bytes_max:,} are allowed")
    return length


def _frame(message: Mapping[str, object]) -> bytes:
    # A path in an error may have bytes that are not text.
    payload: bytes = msgpack.Packer(unicode_errors="replace").pack(message) or b""
    return len(payload).to_bytes(LENGTH_BYTES, "big") + payload


def _unpacked(payload: bytes) -> dict[str, Any]:
    try:
        message = msgpack.unpackb(payload, strict_map_key=False)
    except Exception as error:  # msgpack raises many kinds
        raise ControlError(f"a message is not msgpack ({type(error).__name__})") from error
    if not isinstance(message, dict):
        raise ControlError(f"a message must be a map, got {type(message).__name__}")
    return message


def _made(kind: type[T], given: object) -> T:
    """Build an instance of the dataclass ``kind``. Unknown fields, of a later version, are ignored."""
    if not isinstance(given, dict):
        raise ControlError(f"{kind.__name__} must be a map, got {type(given).__name__}")
    fields_of: Any = kind
    hints = _hints(fields_of)
    named = [field.name for field in fields(fields_of)]
    arguments = {name: _checked(hints[name], given[name], f"{kind.__name__}.{name}") for name in named if name in given}
    try:
        return kind(**arguments)
    except TypeError as error:
        raise ControlError(f"{kind.__name__} lacks a field") from error


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _checked(hint: Any, value: Any, what: str) -> Any:
    """Return ``value`` converted for a field of type ``hint``."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in {Union, types.UnionType}:
        inner = next(argument for argument in arguments if argument is not type(None))
        return None if value is None else _checked(inner, value, what)
    if origin is Literal:
        return _of(value in arguments if isinstance(value, str) else False, value, what)
    if origin is tuple:
        _of(isinstance(value, list), value, what)
        return tuple(_checked(arguments[0], item, what) for item in value)
    if origin is not None and issubclass(origin, Mapping):
        _of(isinstance(value, dict), value, what)
        return {_checked(arguments[0], key, what): _checked(arguments[1], item, what) for key, item in value.items()}
    if hasattr(hint, "__dataclass_fields__"):
        return _made(hint, value)
    if hint is float:
        _of(isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value), value, what)
        return float(value)
    return _of(isinstance(value, hint) and not (hint is int and isinstance(value, bool)), value, what)


def _of(holds: bool, value: T, what: str) -> T:
    if not holds:
        raise ControlError(f"{what} is of the wrong type, {type(value).__name__}")
    return value


def _describe_error(error: MalstromError) -> dict[str, object]:
    notes = [str(note)[:_TEXT_MAX] for note in getattr(error, "__notes__", ())]
    attributes = {name: value for name, value in vars(error).items() if name in _ERROR_ATTRIBUTES}
    return {"type": type(error).__name__, "text": str(error)[:_TEXT_MAX], "notes": notes[:10], "attributes": attributes}


def _error(given: object) -> MalstromError:
    """Rebuild an error of ours, without its cause and without attributes that may hold user data."""
    if not isinstance(given, dict) or not isinstance(given.get("text"), str):
        raise ControlError("an error must be a map with a text")
    kind = getattr(errors, given["type"], None) if isinstance(given.get("type"), str) else None
    known = isinstance(kind, type) and issubclass(kind, MalstromError)
    error: MalstromError = kind(given["text"]) if known else ControlError(given["text"])  # type: ignore[misc]
    attributes, notes = given.get("attributes"), given.get("notes")
    for name, value in attributes.items() if isinstance(attributes, dict) else ():
        own = tuple(value) if isinstance(value, list) else value
        if name in _ERROR_ATTRIBUTES and type(own) is type(vars(error).get(name)):
            setattr(error, name, own)
    for note in notes if isinstance(notes, list) else ():
        if isinstance(note, str):
            error.add_note(note)
    return error
