"""The user's handle on a running job, with the same methods for a job of this process and of another one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, overload

from malstrom_py.errors import JobNotFound, MalstromError, PlanError
from malstrom_py.events import AnyEvent
from malstrom_py.metrics import JobMetrics
from malstrom_py.rescale.autoscaling import Autoscale
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.validation import check_name, checked_flag, checked_seconds
from malstrom_py.worker_context import plain_value
from malstrom_py.workers.control.client import find
from malstrom_py.workers.control.tap import Tap, stored_keys
from malstrom_py.workers.coordinator.autoscaler import check_autoscale
from malstrom_py.workers.reports.commands import (
    TIMEOUT_S_MAX,
    URI_MAX,
    AutoscaleCommand,
    Command,
    EventsCommand,
    MetricsCommand,
    ReloadCommand,
    RescaleCommand,
    RunningJob,
    SetCommand,
    ShadowCommand,
    SnapshotCommand,
    StatusCommand,
    StopCommand,
    WaitCommand,
)
from malstrom_py.workers.reports.error_transfer import outermost
from malstrom_py.workers.reports.event_log import EventPage, read_events
from malstrom_py.workers.reports.job_status import JobStatus, ReloadAction, ReloadReport, RescaleReport, check_size
from malstrom_py.workers.reports.result import RunResult, as_html
from malstrom_py.workers.reports.shadows import ShadowReport

if TYPE_CHECKING:
    import pyarrow as pa

    from malstrom_py.workers.control.state_changes import StateChanges
    from malstrom_py.workers.control.step_state import SnapshotReader, StepState

__tracebackhide__ = True  # pytest shows the line of the user

TIMEOUT_S: Final = 120.0

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


class ClusterJobs(Protocol):
    """The interface that finds jobs on a cluster."""

    def attach(self, name: str, address: str) -> RunningJob: ...

    def attach_nearby(self, name: str) -> RunningJob | None: ...


class JobHandle:
    """A running job. Runtimes return one from ``start``; `attach` gives one on a job of another process.

    Any thread may call the methods; functions of the job itself may call `status`, and `stop` without waiting. Ctrl-C
    during a method stops the waiting, never the job. A job that still runs when its program exits is stopped without
    drain.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sinks, sources
    >>> job, out = mp.Job("docs-handle"), sinks.Memory()
    >>> job.source("in", sources.Memory(range(3))).sink("out", out)
    >>> handle = mp.InProcess().start(job, control=False)
    >>> handle.wait(timeout_s=60).written, out.items, handle.status().state
    (3, [0, 1, 2], 'finished')
    """

    def __init__(self, job: RunningJob) -> None:
        self._job = job

    def __repr__(self) -> str:
        return f"JobHandle({self.name!r})"

    def _repr_html_(self) -> str:
        """The status with a table of the steps, for a notebook: each time the handle is shown, it is asked again."""
        try:
            status = self.status(timeout_s=1.0)
        except MalstromError as error:
            return as_html(f"job {self.name}: {error}", {})
        return as_html(str(status), status.counts.steps)

    @property
    def name(self) -> str:
        """The name of the job."""
        return self._job.name

    @classmethod
    def attach(cls, name: str, *, address: str | None = None) -> JobHandle:
        """Return a handle on the job ``name``, which any program may have started.

        Without ``address`` this finds a job of this machine that the same user started with ``control``, or else a job
        on the Ray cluster that this program is connected to, that ``RAY_ADDRESS`` names, or that runs on this machine.
        With ``address`` it finds a job on that Ray cluster. Errors of the methods have no ``__cause__``: the cause
        stays in the job's process.

        Raises:
            JobNotFound: there is no such job; the message lists the jobs that can be reached.
            ControlError: other users can write to the folder of control files; or there is no such cluster.
        """
        try:
            return cls(find_job(name, address))
        except (MalstromError, KeyboardInterrupt) as error:
            raise outermost(error) from error.__cause__

    def _ask(self, command: Command) -> Any:
        try:
            return self._job.ask(command)
        except (MalstromError, KeyboardInterrupt) as error:
            raise outermost(error) from error.__cause__

    @overload
    def rescale(self, workers: int, *, wait: Literal[True] = True, timeout_s: float = TIMEOUT_S) -> RescaleReport: ...

    @overload
    def rescale(self, workers: int, *, wait: bool, timeout_s: float = TIMEOUT_S) -> RescaleReport | None: ...

    def rescale(self, workers: int, *, wait: bool = True, timeout_s: float = TIMEOUT_S) -> RescaleReport | None:
        """Change the number of workers to ``workers`` while the job runs.

        Blocks until the rescale is complete. A later request supersedes this one: then both return when the later one
        is complete, and ``superseded_by`` of this report is set. Without ``wait`` it returns None as soon as the job
        has started the rescale.

        Raises:
            PlanError: the job cannot run on that many workers; nothing has changed.
            OperationInProgress: the rescale takes longer than ``timeout_s`` and continues.
            JobEnded: the job has ended, before or during the call.
        """
        check_size(workers)
        report: RescaleReport | None = self._ask(
            RescaleCommand(workers, checked_flag(wait, "wait"), _seconds(timeout_s))
        )
        return report

    def autoscale(self, options: Autoscale | None, *, timeout_s: float = TIMEOUT_S) -> None:
        """Change the number of workers by load from now on, with these ``options``; None: no longer.

        What was learnt about the job is forgotten. A `rescale` still wins, and is left alone for ``cool_down_s``.

        >>> import malstrom_py as mp
        >>> from itertools import count
        >>> from malstrom_py import sinks, sources
        >>> job = mp.Job("docs-autoscale")
        >>> job.source("in", sources.Generator(lambda part, start: count(start))).sink("out", sinks.Memory())
        >>> handle = mp.InProcess().start(job, control=False)
        >>> handle.autoscale(mp.Autoscale(max=4, target=0.6))
        >>> handle.metrics().autoscale.max
        4
        >>> handle.stop()

        Raises:
            PlanError: an option is out of range.
            JobEnded: the job has ended.
        """
        self._ask(AutoscaleCommand(check_autoscale(options), _seconds(timeout_s)))

    @overload
    def rebalance(self, *, wait: Literal[True] = True, timeout_s: float = TIMEOUT_S) -> RescaleReport: ...

    @overload
    def rebalance(self, *, wait: bool, timeout_s: float = TIMEOUT_S) -> RescaleReport | None: ...

    def rebalance(self, *, wait: bool = True, timeout_s: float = TIMEOUT_S) -> RescaleReport | None:
        """Move key groups (slots) from loaded workers to others while the job runs, without a change of their number.

        Slots are weighed by the rows and bytes that have arrived for them lately. If the most loaded worker has more
        than 1.1 times the mean load, few key groups move, until all are within a tenth of it, as far as they allow
        that: a key cannot be divided (``metrics().hot_keys``). Else nothing moves, and ``slots`` of the report is 0.
        ``imbalance_before`` and ``imbalance_after`` give the reason; they are None if too few rows have arrived to
        weigh key groups. Requests are merged with those of `rescale`: after both the job has the size asked for last.

        Raises:
            OperationInProgress: it takes longer than ``timeout_s`` and continues.
            JobEnded: the job has ended, before or during the call.
        """
        report: RescaleReport | None = self._ask(RescaleCommand(None, checked_flag(wait, "wait"), _seconds(timeout_s)))
        return report

    def snapshot(self, *, timeout_s: float = TIMEOUT_S) -> SnapshotId:
        """Make a snapshot now, in addition to those by interval, and return its id once it is committed.

        Raises: SnapshotError: the job runs without ``snapshots=``, or the snapshot could not be made.
        OperationInProgress: the snapshot takes longer than ``timeout_s`` and continues; or the job is being stopped.
        JobEnded: the job has ended, before or during the call.
        """
        snapshot: SnapshotId = self._ask(SnapshotCommand(None, _seconds(timeout_s)))
        return snapshot

    def savepoint(self, uri: str, *, timeout_s: float = TIMEOUT_S) -> SnapshotId:
        """Make a self-contained snapshot in the store ``uri``, which is never pruned, and return its id.

        A job started with ``snapshots=mp.Snapshots(uri)`` resumes from it. ``uri`` is as in `Snapshots`; a path is on
        this machine, or in a folder that all machines share. An object store of the same kind as that of the job's
        snapshots is opened with the same ``options``.

        Raises: SnapshotError: the job runs without ``snapshots=``, or the savepoint could not be made.
        OperationInProgress: the savepoint takes longer than ``timeout_s`` and continues; or the job is being stopped,
        or makes another savepoint. JobEnded: the job has ended, before or during the call.
        """
        if not isinstance(uri, str) or not 0 < len(uri) <= URI_MAX or "\0" in uri:
            raise PlanError(f"uri must be the place of the savepoint: 1 to {URI_MAX:,} characters without NUL")
        # The job may run elsewhere, and in another folder.
        place = uri if _SCHEME.match(uri) else str(Path(uri).expanduser().resolve())
        snapshot: SnapshotId = self._ask(SnapshotCommand(place, _seconds(timeout_s)))
        return snapshot

    def reload(
        self, step: str, *, shadow: bool = False, probation_s: float = 2.0, timeout_s: float = TIMEOUT_S
    ) -> ReloadReport:
        """Replace the code of ``step`` in the running job: import its module again.

        The module is imported first. Then the job makes a snapshot, which is the cut on all workers, and continues from
        it with the new code; ``migrate=`` of the new step is applied to its state. If the job fails within
        ``probation_s``, all workers go back to that snapshot and the code before. Records are processed exactly once
        in either case. All steps with functions of the module get the new code; sources and sinks stay.

        ``shadow``: the new code of the step runs beside the code that the job continues with, from a copy of its state.
        It gets the same input, and its output is compared and not sent: see `shadow`. An error in it ends only the
        comparison. `promote` then replaces the code of the step, and `drop` ends the shadow.

        Raises:
            ReloadError: the code was not replaced: the module cannot be imported, or copied to other processes, the
                graph of the job has changed, a migration or the new code has failed. The job continues with the code
                that it had.
            SnapshotError: the job runs without ``snapshots=``.
            OperationInProgress: it takes longer than ``timeout_s`` and continues; or the job is being stopped, or is
                reloading a step.
            JobEnded: the job has ended, before or during the call.
        """
        if shadow:
            return self._reload(step, "shadow", 0.0, timeout_s)
        return self._reload(step, "reload", probation_s, timeout_s)

    def shadow(self, step: str, *, timeout_s: float = 5.0) -> ShadowReport:
        """Return what the comparison of ``step`` with its shadow has found since it began: counts, and the last pairs.

        Each record counts once, also after a failure.

        Raises: PlanError: the step has no shadow.
        """
        check_name(step, "step")
        report: ShadowReport = self._ask(ShadowCommand(step, _seconds(timeout_s)))
        return report

    def promote(self, step: str, *, probation_s: float = 2.0, timeout_s: float = TIMEOUT_S) -> ReloadReport:
        """Let ``step`` have the code of its shadow, and the state that the shadow has, from a snapshot on. Returns once
        another snapshot has that state, with which a job that is started again continues.

        Otherwise as `reload`: if the job fails within ``probation_s``, it goes back to that snapshot and the code
        before, with its shadow. All steps with functions of the module get its code.
        """
        return self._reload(step, "promote", probation_s, timeout_s)

    def drop(self, step: str, *, timeout_s: float = TIMEOUT_S) -> ReloadReport:
        """End the shadow of ``step`` at a snapshot, and forget its state and what was compared."""
        return self._reload(step, "drop", 0.0, timeout_s)

    def _reload(self, step: str, action: ReloadAction, probation_s: float, timeout_s: float) -> ReloadReport:
        check_name(step, "step")
        command = ReloadCommand(step, _seconds(probation_s), _seconds(timeout_s), action=action)
        report: ReloadReport = self._ask(command)
        return report

    def set(
        self, name: str, value: bool | float | str | bytes | list[Any] | dict[str, Any], *, timeout_s: float = TIMEOUT_S
    ) -> SnapshotId:
        """Give parameter ``name`` of the job another ``value``, and return the id of the snapshot at which it changes.

        The job makes a snapshot, which is the cut on all workers, and continues from it: each record before the cut is
        processed with the former value, each one after it with the new one. A job that resumes from this snapshot or a
        later one has the new value. The pause is that of a `reload`.

        Raises:
            PlanError: the job has no such parameter, or the value is not of the type of its default.
            SnapshotError: the job runs without ``snapshots=``.
            OperationInProgress: it takes longer than ``timeout_s`` and continues; or the job is being stopped.
            JobEnded: the job has ended.
        """
        check_name(name, "parameter")
        own = plain_value(f"parameter {name!r}", value)
        snapshot: SnapshotId = self._ask(SetCommand(name, own, _seconds(timeout_s)))
        return snapshot

    def status(self, *, timeout_s: float = 5.0) -> JobStatus:
        """Return the status of the job, immediately unless a function of the job keeps its thread busy.

        After ``timeout_s`` it returns the last known status, with its age in ``age_s``. Of a job that has ended it
        returns the final status, or raises `JobEnded` if another process ran the job.
        """
        status: JobStatus = self._ask(StatusCommand(_seconds(timeout_s)))
        return status

    def state(self, step: str, *, fresh: bool = False, timeout_s: float = TIMEOUT_S) -> StepState:
        """Return the state of all keys of ``step`` as of one snapshot: the last one, or with ``fresh`` one made now.

        It is that of one cut on all workers, also while the job is rescaled or recovers, and no worker waits for the
        query. ``uri`` of the job's ``snapshots=`` is opened by this program, in another process than the job with the
        credentials of its environment.

        >>> import malstrom_py as mp
        >>> from malstrom_py import sinks, sources
        >>> from malstrom_py.snapshot.store import MemoryStore
        >>> job, words = mp.Job("docs-state"), ["ant", "bee", "ant"]
        >>> job.source("words", sources.Memory(words)).key_by("word", str).count("n").sink("out", sinks.Memory())
        >>> handle = mp.InProcess(snapshots=mp.Snapshots(MemoryStore())).start(job, control=False)
        >>> _ = handle.wait()
        >>> handle.state("n")["ant"], handle.state("n").get("cat"), "bee" in handle.state("n")
        (2, None, True)

        Raises:
            PlanError: the job has no such step, or one without state that can be read.
            SnapshotError: the job runs without ``snapshots=``, has none yet, or they cannot be opened here.
            OperationInProgress: the snapshot takes longer than ``timeout_s`` and continues.
            JobEnded: the job has ended, in another process, or before a fresh snapshot.
        """
        from malstrom_py.workers.control.step_state import StepState  # loaded when someone asks

        return StepState(self._reader(fresh=fresh, timeout_s=timeout_s), check_name(step, "step"))

    def changes(self, step: str, *, since: SnapshotId | None = None) -> Iterator[StateChanges]:
        """Iterate over what changes in the state of ``step`` from each snapshot to the next, until the job has ended.

        ``since``: the snapshot to begin from, such as `StepState.snapshot`; by default the last one. Each is as of one
        cut on all workers. Snapshots that follow each other faster than they are read are taken together, so what is in
        memory is the changes of one. Nothing is lost if one is removed before it was read: then all keys come.

        Raises:
            MalstromError: as of `state`.
        """
        from malstrom_py.workers.control.state_changes import changes  # loaded when someone asks

        reader = self._reader(fresh=False, timeout_s=TIMEOUT_S)
        reader.step(check_name(step, "step"), reader.manifest)
        return changes(self._ask, reader, step, since)

    def query(self, sql: str, *, fresh: bool = False, timeout_s: float = TIMEOUT_S) -> pa.Table:
        """Return the result of a query over the state of steps, each a table as of `StepState.to_arrow`, by its name.

        All are as of one snapshot, whose id is the metadata ``b"snapshot"`` of the schema: see `state`. DuckDB computes
        the result, and reads nothing else.

        >>> import malstrom_py as mp
        >>> from malstrom_py import sinks, sources
        >>> from malstrom_py.snapshot.store import MemoryStore
        >>> job, words = mp.Job("docs-query"), ["ant", "bee", "ant"]
        >>> job.source("words", sources.Memory(words)).key_by("word", str).count("n").sink("out", sinks.Memory())
        >>> handle = mp.InProcess(snapshots=mp.Snapshots(MemoryStore())).start(job, control=False)
        >>> _ = handle.wait()
        >>> handle.query("select key, value from n where value > 1").to_pylist()
        [{'key': 'ant', 'value': 2}]

        Raises:
            PlanError: the query is wrong, or fails; or DuckDB is missing.
            MalstromError: as of `state`.
        """
        from malstrom_py.workers.control.state_query import query  # loaded when someone asks

        return query(self._reader(fresh=fresh, timeout_s=timeout_s), sql)

    def _reader(self, *, fresh: bool, timeout_s: float) -> SnapshotReader:
        """Return what reads the last snapshot, or a ``fresh`` one."""
        from malstrom_py.workers.control.step_state import SnapshotReader

        return SnapshotReader.of_job(self._ask, fresh=checked_flag(fresh, "fresh"), timeout_s=_seconds(timeout_s))

    def metrics(self, *, timeout_s: float = 5.0, since: float | None = None) -> JobMetrics:
        """Return the metrics of the job: of its steps, exchanges, sources, workers, snapshots and rescales.

        After ``timeout_s`` it returns the last known ones, with their age in ``age_s``. Of a job that has ended it
        returns the final ones, or raises `JobEnded` if another process ran the job.

        ``since``: a time in seconds since 1970; the result then has the rates after it, in ``rates``: one a second,
        of at most the last ten minutes.

        >>> import malstrom_py as mp
        >>> from malstrom_py import sinks, sources
        >>> job = mp.Job("docs-metrics")
        >>> job.source("in", sources.Memory(range(3))).sink("out", sinks.Memory())
        >>> handle = mp.InProcess().start(job, control=False)
        >>> _ = handle.wait()
        >>> handle.metrics().steps["out"].rows_in
        3
        """
        if since is not None and (not isinstance(since, int | float) or isinstance(since, bool)):
            raise PlanError(f"since must be a time in seconds since 1970, or None, got {since!r}")
        metrics: JobMetrics = self._ask(MetricsCommand(_seconds(timeout_s), since))
        return metrics

    def events(self, *, follow: bool = True) -> Iterator[AnyEvent]:
        """Iterate over the events of the job, from its start on (`malstrom_py.events`): until its end or, without
        ``follow``, those so far. Each call reads for itself, at its own pace, also after the end.

        The job keeps the last 10,000 events; `EventsMissed` comes in place of those that were dropped. `Ended` is the
        last one. Events of a job of another process end with that process.

        >>> import malstrom_py as mp
        >>> from malstrom_py import events, sinks, sources
        >>> job = mp.Job("docs-events")
        >>> job.source("in", sources.Memory(range(3))).sink("out", sinks.Memory())
        >>> for event in mp.InProcess().start(job, control=False).events():
        ...     if isinstance(event, events.InputClosed | events.Stop | events.Ended):
        ...         print(event)
        InputClosed(id='in')
        Stop(cause=<StopCause.ALL_INPUTS_CLOSED: 'all-inputs-closed'>, worker=0)
        Ended(how='finished')

        Raises:
            JobEnded: the job has ended, in another process.
        """
        return read_events(self._page, follow=checked_flag(follow, "follow"))

    def _page(self, after: int, log: str, wait_s: float) -> EventPage:
        page: EventPage = self._ask(EventsCommand(after, log, wait_s))
        return page

    def tap(self, step: str, *, key: Any = None, count: int | None = None, timeout_s: float | None = None) -> Tap:
        """Iterate over a sample of the records that ``step`` emits from now on, of a sink those that it gets.

        Ends after ``count`` records, after ``timeout_s`` seconds, or when the job ends. ``key``: of this key only. Few
        records are all there; of many each worker shows some, 500 a second at most, and ``passed`` of the result
        counts the others too. Records are copied as they pass: the job never waits for who reads them, and a tap that
        is not read any more ends by itself. It continues through rescales and recoveries.

        >>> import malstrom_py as mp
        >>> from itertools import count
        >>> from malstrom_py import sinks, sources
        >>> job = mp.Job("docs-tap")
        >>> numbers = job.source("in", sources.Generator(lambda part, start: count(start)))
        >>> numbers.map("even", lambda number: number * 2).sink("out", sinks.Callable(lambda number: None))
        >>> handle = mp.InProcess().start(job, control=False)
        >>> [record.value % 2 for record in handle.tap("even", count=3)]
        [0, 0, 0]
        >>> handle.stop(drain=False)

        Raises:
            PlanError: there is no such step, its records have no keys, or ``key`` cannot be looked for.
            OperationInProgress: the job has too many taps.
            JobEnded: the job has ended.
        """
        check_name(step, "step")
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
            raise PlanError(f"count must be a whole number of at least 1, or None, got {count!r}")
        keys = None if key is None else stored_keys(key)
        return Tap(self._ask, step, keys, count=count, timeout_s=None if timeout_s is None else _seconds(timeout_s))

    def stop(self, *, drain: bool | None = None, wait: bool = True, timeout_s: float = TIMEOUT_S) -> SnapshotId | None:
        """End the job before its sources do. A job with ``snapshots=`` can resume later; any other cannot.

        ``drain=True``, the default without snapshots: the sources stop, records in flight are processed, the maximum
        watermark is emitted, and the sinks commit. The job is finished, and `wait` returns its result.
        ``drain=False``, the default with ``snapshots=``: all workers stop immediately, and the sinks discard
        uncommitted rows. With ``snapshots=`` the job first makes a last snapshot, from which its next start resumes.
        `wait` then raises `JobEnded` with the id of that snapshot.

        Blocks until the job has ended, unless ``wait`` is False. A repeated stop has no effect; neither has a stop of a
        job that has ended in the same way, or, where ``drain`` is left out, by itself.

        Returns: The id of the job's last snapshot; of a job that was recovering, the snapshot that it was restoring.
        None if there is none, if the last one could not be made, or if the job has not ended yet.

        Raises: OperationInProgress: the stop takes longer than ``timeout_s`` and continues; or the job is being stopped
        with the other ``drain``, or makes a savepoint. JobEnded: the job had ended in another way before it could be
        stopped. Exception: the error of the job, which failed during the stop.
        """
        drain = None if drain is None else checked_flag(drain, "drain")
        last: SnapshotId | None = self._ask(StopCommand(drain, checked_flag(wait, "wait"), _seconds(timeout_s)))
        return last

    def wait(self, *, timeout_s: float | None = None) -> RunResult:
        """Wait until the job has ended or was stopped, and return its result. Without ``timeout_s`` there is no limit.

        Raises:
            OperationInProgress: the job still runs after ``timeout_s``.
            JobEnded: the job was stopped without drain.
            Exception: the error of a job that failed.
        """
        result: RunResult = self._ask(WaitCommand(None if timeout_s is None else _seconds(timeout_s)))
        return result


_clusters: list[ClusterJobs] = []


def search_cluster(jobs: ClusterJobs) -> None:
    """Let `JobHandle.attach` find ``jobs`` too."""
    _clusters.append(jobs)


def find_job(name: str, address: str | None) -> RunningJob:
    """Return the job ``name`` as `JobHandle.attach` finds it. Raises what that raises."""
    if address is not None:
        return _clusters[0].attach(name, address)
    try:
        return find(name)
    except JobNotFound:
        nearby = (jobs.attach_nearby(name) for jobs in _clusters)
        job = next((job for job in nearby if job is not None), None)
        if job is None:
            raise
        return job


def _seconds(timeout_s: float) -> float:
    """Return the timeout of a command.

    >>> _seconds(10**400)
    100000000.0
    """
    return float(min(checked_seconds(timeout_s, "timeout_s"), TIMEOUT_S_MAX))
