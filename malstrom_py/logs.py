"""The logs of jobs: one tree of loggers below ``malstrom_py``, as text or as lines of JSON on standard error.

A program that configures `logging` itself does not need this module: without `configure` no handler is attached.

>>> from malstrom_py import logs
>>> logs.configure("json", level="warning")
>>> logs.reset()

Rule: this package writes no values of records. The text of an error of another's code may hold one: both formats write
it, with the place in the user's code, unless texts are redacted (`malstrom_py.errors.text`).
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, get_args

from malstrom_py.errors import MalstromError, PlanError
from malstrom_py.errors.text import describe_error, text_of, users_frame

__all__ = ["Format", "LogSettings", "configure", "reset"]

Format = Literal["text", "json"]
"""How lines are written."""

ROOT: Final = "malstrom_py"
"""The name of the logger above all others of this package."""

IDENTITY: Final = ("job", "worker", "step", "incarnation")
"""The fields that say where an event happened, in the order of a line of text."""

_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
_EXTRA: Final = "malstrom"


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The format and the least level of the lines. Checked: `PlanError` for an unknown one.

    >>> LogSettings("json", "info")
    LogSettings(format='json', level='INFO')
    """

    format: Format = "text"
    level: str = "INFO"

    def __post_init__(self) -> None:
        if self.format not in get_args(Format):
            raise PlanError(f'logs: format must be "text" or "json", got {self.format!r}')
        level = self.level.upper() if isinstance(self.level, str) else self.level
        if level not in _LEVELS:
            raise PlanError(f"logs: level must be one of {', '.join(_LEVELS)}, got {self.level!r}")
        object.__setattr__(self, "level", level)


def configure(format: Format = "text", level: str = "INFO") -> None:
    """Write the logs of this package on standard error; a second call replaces the first.

    ``format``: "text", or "json" for one object per line, with ``time`` (ISO, UTC), ``level``, ``logger``, ``message``,
    where known ``job``, ``worker``, ``step`` and ``incarnation``, and the figures of the event, such as ``duration_s``.
    ``level``: "debug", "info", "warning" or "error". Jobs on Ray that this program starts later use the same settings.

    Raises:
        PlanError: the format or the level is unknown.
    """
    attach(LogSettings(format, level))


def reset() -> None:
    """Undo `configure`."""
    logger = logging.getLogger(ROOT)
    for handler in [handler for handler in logger.handlers if isinstance(handler, _Handler)]:
        logger.removeHandler(handler)
        logger.propagate = True
        logger.setLevel(logging.NOTSET)


def configured() -> LogSettings | None:
    """Return the settings of `configure`; None if it was not called."""
    found = [handler for handler in logging.getLogger(ROOT).handlers if isinstance(handler, _Handler)]
    return found[0].settings if found else None


def attach(settings: LogSettings, **identity: object) -> None:
    """Write the logs as ``settings`` say. Each line has the fields of ``identity``, unless its event has others."""
    reset()
    logger = logging.getLogger(ROOT)
    handler = _Handler(settings)
    handler.setFormatter(_Json(identity) if settings.format == "json" else _Text(identity))
    logger.addHandler(handler)
    # Handlers of the root logger would write the same lines again.
    logger.propagate = False
    logger.setLevel(settings.level)


def log(
    logger: logging.Logger,
    level: int,
    message: str,
    *args: object,
    error: BaseException | None = None,
    **fields: object,
) -> None:
    """Log an event. ``message`` is for people, with its figures; ``fields`` are for programs.

    A field is a number, a text, None, or a list of these, and never the value of a record. ``error``: what was raised;
    its type, text and place follow the message, also where the program formats lines in another way.
    """
    if error is not None:
        fields["error"] = described_error(error)
        message, args = f"{message}: %s", (*args, fields["error"])
    logger.log(level, message, *args, extra={_EXTRA: fields}, stacklevel=2)


class _Handler(logging.Handler):
    """Writes to what is standard error at that time, which a progress display replaces."""

    def __init__(self, settings: LogSettings) -> None:
        super().__init__()
        self.settings = settings

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except Exception:
            """Standard error is closed or full, or a user's function logs what has no text; the job matters more."""


class _Formatter(logging.Formatter):
    """What both formats have in common: the fields of a line, and the text of errors."""

    def __init__(self, identity: Mapping[str, object]) -> None:
        super().__init__()
        self._identity = identity

    def fields_of(self, record: logging.LogRecord) -> dict[str, object]:
        fields = {**self._identity, **getattr(record, _EXTRA, {})}
        known = {name: fields.pop(name) for name in IDENTITY if name in fields}
        return {name: value for name, value in (known | fields).items() if value is not None}

    def message_of(self, record: logging.LogRecord) -> str:
        args: Any = record.args
        if isinstance(args, tuple):
            args = tuple(_words(arg) if isinstance(arg, BaseException) else arg for arg in args)
        message = str(record.msg) if not isinstance(record.msg, BaseException) else _words(record.msg)
        return message % args if args else message

    def error_of(self, record: logging.LogRecord) -> str | None:
        error = record.exc_info[1] if record.exc_info else None
        return None if error is None else described_error(error)


class _Json(_Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": self.message_of(record),
            **self.fields_of(record),
        }
        if (error := self.error_of(record)) is not None:
            line["error"] = error
        return json.dumps(line, ensure_ascii=False, default=str)


class _Text(_Formatter):
    """Time, level, the known fields of `IDENTITY`, and the message, which has the figures."""

    def format(self, record: logging.LogRecord) -> str:
        fields = self.fields_of(record)
        where = "".join(f" {name}={fields[name]}" for name in IDENTITY if name in fields)
        role = record.name.removeprefix(ROOT).removeprefix(".")
        who = f" {role}" if role and "worker" not in fields else ""
        error = self.error_of(record)
        ending = "" if error is None else f": {error}"
        return f"{self.formatTime(record)} {record.levelname}{where}{who}: {self.message_of(record)}{ending}"


def described_error(error: BaseException) -> str:
    """Return what ``error`` says, with its type if it is not of this package, and the place in the user's code."""
    frame = users_frame(error)
    return _words(error) + (f" at {frame.filename}:{frame.lineno}" if frame is not None else "")


def _words(error: BaseException) -> str:
    ours = isinstance(error, MalstromError) and text_of(error)
    return ours or describe_error(error)
