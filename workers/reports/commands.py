"""The commands to a running job: one table for the handle, the control socket, Ray and the command line."""

from __future__ import annotations

from typing import Annotated, Any, Final, Protocol

import msgspec

from malstrom_py.metrics import JobMetrics
from malstrom_py.rescale.autoscaling import Autoscale
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.workers.reports.event_log import EventPage
from malstrom_py.workers.reports.job_state import JobState
from malstrom_py.workers.reports.job_status import WORKERS_MAX, JobStatus, ReloadAction, ReloadReport, RescaleReport
from malstrom_py.workers.reports.result import RunResult
from malstrom_py.workers.reports.shadows import ShadowReport
from malstrom_py.workers.reports.taps import TapPage

TIMEOUT_S_MAX: Final = 1e8

URI_MAX: Final = 2_000
"""The largest number of characters in the URI of a savepoint."""

Seconds = Annotated[float, msgspec.Meta(ge=0, le=TIMEOUT_S_MAX)]
Size = Annotated[int, msgspec.Meta(ge=1, le=WORKERS_MAX)]
StoredKey = Annotated[bytes, msgspec.Meta(max_length=1_000)]
Uri = Annotated[str, msgspec.Meta(min_length=1, max_length=URI_MAX)]


class StatusCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="status"):
    """Return the status: the last known one if the job's thread does not answer within ``timeout_s``."""

    timeout_s: Seconds

    operation = "status"
    what = "asked for its status"


class RescaleCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="rescale"):
    """Rescale to ``size`` workers; None: move slots by load between those that are there. The result follows when that
    is complete, or without ``wait`` when it starts.
    """

    size: Size | None
    wait: bool
    timeout_s: Seconds

    @property
    def operation(self) -> str:
        """The command as a noun, for errors."""
        return "rebalance" if self.size is None else "rescale"

    @property
    def what(self) -> str:
        """The command as a participle, for errors."""
        return "rebalanced" if self.size is None else f"rescaled to {self.size}"


class SnapshotCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="snapshot"):
    """Make a snapshot, or with ``uri`` a savepoint there. The result follows when it is committed."""

    uri: Uri | None
    timeout_s: Seconds

    @property
    def operation(self) -> str:
        """The command as a noun, for errors."""
        return "snapshot" if self.uri is None else "savepoint"

    @property
    def what(self) -> str:
        """The command as a participle, for errors."""
        return "saved in a snapshot" if self.uri is None else f"saved to {self.uri}"


class StopCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="stop"):
    """Stop, with ``drain`` or without; None: the job's default. The result, the id of the last snapshot, follows when
    the job has ended, or without ``wait`` immediately.
    """

    drain: bool | None
    wait: bool
    timeout_s: Seconds

    operation = "stop"
    what = "stopped"


class WaitCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="wait"):
    """Wait for the result of the run, without limit if ``timeout_s`` is None."""

    timeout_s: Seconds | None

    operation = "run"
    what = "waited for"


class EventsCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="events"):
    """Return the events after number ``after`` of log ``log``, as soon as there are any, else none."""

    after: Annotated[int, msgspec.Meta(ge=0)]
    log: Annotated[str, msgspec.Meta(max_length=64)]
    timeout_s: Seconds

    operation = "events"
    what = "asked for its events"


class MetricsCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="metrics"):
    """Return the metrics, of the last known moment if the run does not answer within ``timeout_s``; with the rates
    after ``since``, in seconds since 1970, if that is given.
    """

    timeout_s: Seconds
    since: float | None = None

    operation = "metrics"
    what = "asked for its metrics"


class ReloadCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="reload"):
    """Import the module of ``step`` again, and give it back if the job fails within ``probation_s``. ``texts``: the
    content of its files, by path, where the job cannot read them. The result follows when that time is over.
    ``action``: what the new code is for, or what the code of the shadow of ``step`` becomes.
    """

    step: Annotated[str, msgspec.Meta(max_length=64)]
    probation_s: Seconds
    timeout_s: Seconds
    texts: dict[str, str] = {}
    action: ReloadAction = "reload"

    operation = "reload"

    @property
    def what(self) -> str:
        """The command as a participle, for errors."""
        return f"given new code for step {self.step!r}"


class ShadowCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="shadow"):
    """Return what the comparison of ``step`` with its shadow has found so far."""

    step: Annotated[str, msgspec.Meta(max_length=64)]
    timeout_s: Seconds

    operation = "shadow"
    what = "asked for its shadow"


class StateCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="state"):
    """Return where the snapshots of the job are, and how the state of each step is read."""

    timeout_s: Seconds

    operation = "state"
    what = "asked for its state"


class SetCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="set"):
    """Let parameter ``name`` have ``value`` from the cut of a snapshot on. The result, its id, follows when the next
    run begins from it.
    """

    name: Annotated[str, msgspec.Meta(max_length=64)]
    value: Any
    timeout_s: Seconds

    operation = "set"

    @property
    def what(self) -> str:
        """The command as a participle, for errors."""
        return f"given another value for parameter {self.name!r}"


class AutoscaleCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="autoscale"):
    """Change the number of workers by load with these ``options`` from now on; None: no longer."""

    options: Autoscale | None
    timeout_s: Seconds

    operation = "autoscale"
    what = "given another autoscaler"


class TapCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="tap"):
    """Sample the records that ``step`` emits, of ``keys`` in their stored form, and return those after number ``after``
    of tap ``log`` as soon as there are any, else none. A request without ``log`` begins, and is answered immediately.
    """

    step: Annotated[str, msgspec.Meta(max_length=64)]
    timeout_s: Seconds
    keys: tuple[StoredKey, ...] | None = None
    after: Annotated[int, msgspec.Meta(ge=0)] = 0
    log: Annotated[str, msgspec.Meta(max_length=64)] = ""

    operation = "tap"
    what = "tapped"


Command = (
    StatusCommand
    | RescaleCommand
    | SnapshotCommand
    | StopCommand
    | WaitCommand
    | EventsCommand
    | MetricsCommand
    | ReloadCommand
    | SetCommand
    | AutoscaleCommand
    | StateCommand
    | TapCommand
    | ShadowCommand
)

Result = (
    JobStatus
    | JobMetrics
    | RescaleReport
    | ReloadReport
    | SnapshotId
    | RunResult
    | EventPage
    | JobState
    | TapPage
    | ShadowReport
    | None
)
"""The result of a command. None: it was executed and has no result."""


class RunningJob(Protocol):
    """A running job, wherever it runs, as a handle and as those who watch it call it."""

    @property
    def name(self) -> str: ...

    def ask(self, command: Command) -> Any:
        """Return the result of ``command`` within its ``timeout_s``, or raise its error."""
        ...
