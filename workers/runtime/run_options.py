"""The options of a job, once for all runtimes and the command line: types, defaults, meaning, checks and errors.

A runtime takes them as ``options=``, or each as a keyword. Type checkers know the keywords from the types of keywords
below, which a test compares with the fields of `RunOptions`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from types import NoneType
from typing import Any, Final, Literal, TypedDict

from malstrom_py.builder.plan import Plan
from malstrom_py.errors import PlanError, shown
from malstrom_py.errors.text import instead_of
from malstrom_py.logs import log
from malstrom_py.metrics import Metrics
from malstrom_py.rescale.autoscaling import Autoscale
from malstrom_py.snapshot.ids import is_snapshot_id
from malstrom_py.snapshot.snapshots import Snapshots
from malstrom_py.sources.base import as_source
from malstrom_py.state.memory import State
from malstrom_py.validation import checked_flag
from malstrom_py.workers.coordinator.autoscaler import check_autoscale
from malstrom_py.workers.coordinator.recovery import LATEST, NONE, SnapshotUse
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.monitoring.dashboard import Dashboard
from malstrom_py.workers.monitoring.observers import Observers
from malstrom_py.workers.reports.event_log import OnEvent
from malstrom_py.workers.runtime.supervisor import NEVER, Restart

_LOG: Final = logging.getLogger("malstrom_py.coordinator")


class SimulatedKeywords(TypedDict, total=False):
    """The options of a job that `Simulation` takes as keywords, too."""

    batch: Batching | None
    resume: str
    allow_dropped_state: bool
    on_event: OnEvent | None
    autoscale: Autoscale | None
    redact_errors: bool
    state: State | None


class RunKeywords(SimulatedKeywords, total=False):
    """The options of `RunOptions` as keywords."""

    progress: bool | None
    checks: bool
    snapshots: Snapshots | None
    restart: Restart | Literal["never"] | None
    metrics: Metrics | None
    dashboard: Dashboard | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a job runs, wherever its workers are: ``options=`` of a runtime, which takes each as a keyword, too.

    ``batch``: how batches are cut. ``progress``: True to show it on standard error, None where that is a terminal.
    ``checks``: test mode, in which a value or state that is changed in place, what cannot be encoded at an exchange or
    as state, and a partitioner that would fail on several workers are errors.

    ``snapshots``: where the job keeps them and how often it makes them; None: none. ``resume``: the one it resumes
    from: "latest", the newest if there is one; "none": a start from the beginning; or an id. ``restart``: the policy
    after a failure; None: `Restart()` with snapshots. ``allow_dropped_state``: of steps that the job no longer has.

    ``on_event``: a function that is called with each event (`malstrom_py.events`), in a thread; the end of the job
    waits for it for at most ten seconds. ``metrics``: where they are served. ``dashboard``: True, or a `Dashboard`, for
    a browser; standard error has the address. ``autoscale``: changes the number of workers by load; ``workers`` is then
    that at the start. ``redact_errors``: errors, logs and events have the type and the place of an exception that a
    function raises, but not its text, which may hold values of records. ``state``: how much keyed state each worker
    keeps in memory, while the rest is on disk; None: all.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sinks, sources
    >>> job, out = mp.Job("docs"), sinks.Memory()
    >>> job.source("in", sources.Memory(range(3))).sink("out", out)
    >>> options = mp.RunOptions(batch=mp.Batching(rows_max=2), progress=False)
    >>> mp.InProcess(2, options=options, checks=True).run(job).written
    3
    """

    batch: Batching | None = None
    progress: bool | None = None
    checks: bool = False
    snapshots: Snapshots | None = None
    resume: str = LATEST
    restart: Restart | Literal["never"] | None = None
    allow_dropped_state: bool = False
    on_event: OnEvent | None = None
    metrics: Metrics | None = None
    dashboard: Dashboard | bool = False
    autoscale: Autoscale | None = None
    redact_errors: bool = False
    state: State | None = None

    @property
    def batching(self) -> Batching:
        """How batches are cut: as ``batch`` says, or by default."""
        return self.batch or Batching()

    def __post_init__(self) -> None:
        for name in ("checks", "allow_dropped_state", "redact_errors"):
            checked_flag(getattr(self, name), name)
        if self.progress is not None:
            checked_flag(self.progress, "progress")
        for name, kind, wanted in _KINDS:
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise PlanError(f"{name} must be {wanted}, got {type(value).__name__}")
        if not (self.restart in (None, "never") or isinstance(self.restart, Restart)):
            raise PlanError(f'restart must be "never" or mp.Restart(max_restarts=…, when=…), got {shown(self.restart)}')
        if not isinstance(self.resume, str) or not (self.resume in {LATEST, NONE} or is_snapshot_id(self.resume)):
            raise PlanError(f'resume must be "latest", "none" or the id of a snapshot, got {shown(self.resume)}')
        check_autoscale(self.autoscale)
        if self.snapshots is not None:
            return
        if self.resume not in {LATEST, NONE}:
            raise PlanError(f"resume={self.resume!r} names a snapshot, but the job has no snapshots: give snapshots=")
        if isinstance(self.restart, Restart) and self.restart.max_restarts:
            raise PlanError(
                "restart needs a snapshot to resume from: give snapshots=mp.Snapshots(uri) as well, or omit restart"
            )


_KINDS: Final[tuple[tuple[str, Any, str], ...]] = (
    ("batch", Batching | None, "an mp.Batching(rows_max=…)"),
    ("snapshots", Snapshots | None, "mp.Snapshots(uri)"),
    ("state", State | None, 'an mp.State("4GB")'),
    ("on_event", (Callable, NoneType), "a function of one event"),
    ("metrics", Metrics | None, "an mp.Metrics(port=…)"),
    ("dashboard", bool | Dashboard, "True or an mp.Dashboard(port=…)"),
)


def options_of(
    runtime: Callable[..., Any],
    given: RunOptions | None,
    keywords: Mapping[str, Any],
    known: Collection[str] = tuple(RunKeywords.__annotations__),
) -> RunOptions:
    """Return the options that ``runtime`` was ``given``, replaced by those of ``keywords``, which must be ``known``.

    >>> options_of(dict, RunOptions(checks=True), {"progress": False}).checks
    True
    """
    if given is not None and not isinstance(given, RunOptions):
        raise PlanError(f"options must be an mp.RunOptions(…), got {type(given).__name__}")
    for name in keywords:
        if name not in known:
            own = [each for each in signature(runtime).parameters if each != "keywords"]
            raise PlanError(f"{runtime.__name__} has no option {name!r}{instead_of(name, [*own, *known])}")
    return replace(given or RunOptions(), **keywords)


def observers_of(options: RunOptions) -> Observers:
    """Return who watches each job. `PlanError` if a package for that is missing."""
    dashboard = options.dashboard
    shown = (Dashboard() if dashboard else None) if isinstance(dashboard, bool) else dashboard
    return Observers(options.on_event, options.metrics, shown)


def restart_of(options: RunOptions) -> Restart:
    """Return the restart policy."""
    if isinstance(options.restart, Restart):
        return options.restart
    return NEVER if options.restart == "never" or options.snapshots is None else Restart()


def snapshot_use_of(options: RunOptions) -> SnapshotUse | None:
    """Return the snapshots of a job and where it resumes from; None for a job without snapshots."""
    if options.snapshots is None:
        return None
    return SnapshotUse(options.snapshots, options.resume, options.allow_dropped_state)


def warn_of_reading_again(plan: Plan, snapshot_use: SnapshotUse | None) -> None:
    """Warn of sources that should read new input only but read all, because the job has no snapshots."""
    for step in plan.steps:
        read = step.factory.keywords.get("source") if isinstance(step.factory, partial) else None
        source = None if read is None or snapshot_use is not None else as_source(read)
        if source is not None and source.reads_new and (asked := source.reads_new_with) is not None:
            text = (
                "should read only new input since the last run in source %r (%s), but has no snapshots: each run reads "
                "everything. Give the runtime snapshots=mp.Snapshots(uri)"
            )
            given = (plan.job, step.name, asked or "reads_new")
            log(_LOG, logging.WARNING, f"job %s {text}", *given, job=plan.job, step=step.name)
