"""The messages of a control socket. A frame is its length in four bytes, then a msgpack map.

Rule: no input is trusted. The length of a frame is checked before its content is read, msgspec checks every field
against its type and its limits, and a mismatch is a `ControlError`. A client sends one request; the answers are any
number of `Reply` with ``waiting`` and then the actual one.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace as replaced

from malstrom_py import errors
from malstrom_py.errors import ControlError, InternalError, MalstromError, PlanError
from malstrom_py.errors.text import describe_error
from malstrom_py.events import AnyEvent
from malstrom_py.metrics import JobMetrics
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.workers.reports.commands import (
    AutoscaleCommand,
    Command,
    EventsCommand,
    MetricsCommand,
    ReloadCommand,
    RescaleCommand,
    Result,
    SetCommand,
    ShadowCommand,
    SnapshotCommand,
    StateCommand,
    StatusCommand,
    StopCommand,
    TapCommand,
    WaitCommand,
)
from malstrom_py.workers.reports.event_log import EventPage
from malstrom_py.workers.reports.job_state import JobState, StateShape
from malstrom_py.workers.reports.job_status import JobStatus, ReloadReport, RescaleReport
from malstrom_py.workers.reports.result import RunResult
from malstrom_py.workers.reports.shadows import ShadowReport
from malstrom_py.workers.reports.taps import TapPage

PROTOCOL: Final = 2
LENGTH_BYTES: Final = 4
REQUEST_BYTES_MAX: Final = 20_000
"""Enough for the value of a parameter."""

ANSWER_BYTES_MAX: Final = 8 << 20
"""Enough for the counts of some ten thousand steps."""

_TEXT_MAX: Final = 10_000

T = TypeVar("T")


class _Version(msgspec.Struct):
    protocol: int


class ControlRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A client's command, with the token that authorizes it."""

    token: str
    command: Command
    protocol: int = PROTOCOL


class _Error(msgspec.Struct):
    """An error of ours, without its cause and without attributes that may hold user data."""

    type: str
    text: str
    notes: list[str] = []
    attributes: dict[str, str | float | list[str] | None] = {}


class _Events(msgspec.Struct):
    """A page of events, each decoded for itself: a kind of a later version is ignored."""

    log: str
    after: int
    events: list[msgspec.Raw]
    missed: int
    ended: bool
    times: list[float] = []

    @classmethod
    def of(cls, page: EventPage) -> _Events:
        encoded = [msgspec.Raw(msgspec.msgpack.encode(event)) for event in page.events]
        return cls(page.log, page.after, encoded, page.missed, page.ended, page.times)

    def page(self) -> EventPage:
        events: list[AnyEvent] = []
        times: list[float] = []
        for event, at in zip(self.events, self.times, strict=False):
            with suppress(msgspec.ValidationError):
                events.append(msgspec.msgpack.decode(event, type=AnyEvent))
                times.append(at)
        return EventPage(self.log, self.after, events, self.missed, ended=self.ended, times=times)


class _State(msgspec.Struct):
    """A `JobState` for other processes, which open the snapshots by themselves."""

    job: str
    shapes: dict[str, StateShape]
    uri: str | None = None
    keeper: str = ""


class Reply(msgspec.Struct, omit_defaults=True):
    """The answer to a command: at most one of the fields is set, none if the command has no result.

    ``waiting``: the answer follows later. Sent at intervals, so that a client can distinguish a slow job from a lost
    one. Fields of a later version are ignored.
    """

    waiting: bool = False
    status: JobStatus | None = None
    report: RescaleReport | None = None
    run: RunResult | None = None
    snapshot: str | None = None
    events: _Events | None = None
    reload: ReloadReport | None = None
    metrics: JobMetrics | None = None
    state: _State | None = None
    tap: TapPage | None = None
    shadow: ShadowReport | None = None
    error: _Error | None = None

    def result(self, command: Command, job: str) -> Result:
        """Return the result of ``command`` to ``job``, or raise the error."""
        found = {
            "status": self.status,
            "run": self.run,
            "reload": self.reload,
            "metrics": self.metrics,
            "tap": self.tap,
            "shadow": self.shadow,
        }.get(command.operation)
        match command:
            case _ if self.error is not None:
                raise _as_error(self.error)
            case RescaleCommand() if self.report is not None or not command.wait:
                return self.report
            case SnapshotCommand() | SetCommand() | StopCommand() if self.snapshot is not None:
                return SnapshotId(self.snapshot)
            case StopCommand() | AutoscaleCommand():
                return None
            case EventsCommand() if self.events is not None:
                return self.events.page()
            case (
                StatusCommand() | WaitCommand() | ReloadCommand() | MetricsCommand() | TapCommand() | ShadowCommand()
            ) if found is not None:
                return found
            case StateCommand() if (state := self.state) is not None:
                return JobState(state.job, state.shapes, state.uri, state.keeper)
        raise ControlError(f"job {job!r} did not answer what it was asked ({command.operation})", job=job)


_FIELD_OF: Final[Mapping[type, str]] = {
    RescaleReport: "report",
    RunResult: "run",
    ReloadReport: "reload",
    TapPage: "tap",
    ShadowReport: "shadow",
}
"""The field of a `Reply` for a result that is sent unchanged."""

_ERROR_ATTRIBUTES: Final = (
    *("step", "function", "rule", "type_name", "wait", "deadline_s", "node", "reason"),
    *("job", "how", "snapshot", "running", "operation"),
)
"""Attributes of errors that hold no user data."""


def encode_request(command: Command, token: str = "") -> bytes:
    """Encode a request as a frame. `ControlError` if it holds a text that is not unicode."""
    try:
        return _frame(msgspec.msgpack.encode(ControlRequest(token, command)))
    except UnicodeEncodeError as error:
        raise ControlError("a command has a text that is not unicode: rename the file or folder") from error


def decode_request(payload: bytes) -> ControlRequest:
    """Decode the request of a frame without its length; else `ControlError`.

    >>> from malstrom_py.workers.reports.commands import WaitCommand
    >>> decode_request(encode_request(WaitCommand(None), "secret")[LENGTH_BYTES:]).command
    WaitCommand(timeout_s=None)
    """
    if _decoded(payload, _Version).protocol != PROTOCOL:
        raise ControlError(
            f"the other side uses another version of this protocol, not {PROTOCOL}: run the command with the "
            f"malstrom-py that runs the job"
        )
    return _decoded(payload, ControlRequest)


def encode_answer(answer: Result | MalstromError) -> bytes:
    """Encode the answer to a command as a frame. An answer that is too large becomes an error."""
    match answer:
        case MalstromError():
            reply = Reply(error=_describe_error(answer))
        case JobStatus():
            # A path in an error may have characters that are not unicode.
            reply = Reply(status=replace(answer, error=None if answer.error is None else _unicode(answer.error)))
        case RescaleReport() | RunResult() | ReloadReport() | TapPage() | ShadowReport():
            unchanged: Any = {_FIELD_OF[type(answer)]: answer}
            reply = Reply(**unchanged)
        case JobMetrics():
            reply = Reply(metrics=replaced(answer, error=None if answer.error is None else _unicode(answer.error)))
        case JobState():
            reply = Reply(state=_State(answer.job, dict(answer.shapes), answer.uri, answer.keeper))
        case EventPage():
            reply = Reply(events=_Events.of(answer))
        case _:  # the id of a snapshot, or None
            reply = Reply(snapshot=answer)
    frame = _frame(msgspec.msgpack.encode(reply))
    if len(frame) > ANSWER_BYTES_MAX:
        return encode_answer(ControlError(f"the answer is larger than {ANSWER_BYTES_MAX:,} bytes"))
    return frame


def error_of(failure: Exception) -> MalstromError:
    """Return what another process gets of ``failure``: an error of ours, without its cause.

    >>> error_of(ValueError("no"))
    InternalError('the command failed with ValueError: no')
    """
    if isinstance(failure, MalstromError):
        return _as_error(_describe_error(failure))
    return InternalError(f"the command failed with {describe_error(failure)}")


def decode_answer(payload: bytes) -> Reply:
    """Decode the answer of a frame without its length; else `ControlError`.

    >>> decode_answer(encode_answer(errors.JobEnded("it has", how="failed"))[LENGTH_BYTES:]).error.text
    'it has'
    """
    return _decoded(payload, Reply)


def _frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(LENGTH_BYTES, "big") + payload


WAITING: Final = _frame(msgspec.msgpack.encode(Reply(waiting=True)))


def length_of(head: bytes, bytes_max: int) -> int:
    """Return the length in a frame's head if it is at most ``bytes_max``; else `ControlError`."""
    length = int.from_bytes(head, "big")
    if not 0 < length <= bytes_max:
        raise ControlError(f"a message has {length:,} bytes, and 1 to {bytes_max:,} are allowed")
    return length


def _decoded(payload: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except (msgspec.MsgspecError, PlanError, UnicodeDecodeError, RecursionError) as error:
        raise ControlError(f"a message of the control socket is not valid: {describe_error(error)}") from error


def _describe_error(error: MalstromError) -> _Error:
    notes = [_unicode(note)[:_TEXT_MAX] for note in getattr(error, "__notes__", ())][:10]
    attributes: dict[str, Any] = {name: value for name, value in vars(error).items() if name in _ERROR_ATTRIBUTES}
    known = {name: _unicode(value) if isinstance(value, str) else value for name, value in attributes.items()}
    return _Error(type(error).__name__, _unicode(error)[:_TEXT_MAX], notes, known)


def _unicode(text: object) -> str:
    return str(text).encode(errors="replace").decode()


def _as_error(given: _Error) -> MalstromError:
    kind = getattr(errors, given.type, None)
    known = isinstance(kind, type) and issubclass(kind, MalstromError)
    error: MalstromError = kind(given.text) if known else ControlError(given.text)  # type: ignore[misc]
    for name, value in given.attributes.items():
        own = tuple(value) if isinstance(value, list) else value
        if name in _ERROR_ATTRIBUTES and type(own) is type(vars(error).get(name)):
            setattr(error, name, own)
    for note in given.notes:
        error.add_note(note)
    return error
