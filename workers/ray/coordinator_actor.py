"""The actor of a job's coordinator, found on the cluster by the job's name: it runs the job in its own thread.

A command is one call, which waits for its result. The actor exits once its job has ended and the driver
knows, or after a while without a client. Rule: a job with snapshots survives its coordinator (S6): Ray restarts the
actor under its name, and the job resumes from the store and the journal. The journal, in Ray's key-value store, holds
only facts that no snapshot holds. It belongs to one start of the job and is deleted at its end. It is lost with the
head of a cluster that does not persist its store; a restarted coordinator then uses its setup and the snapshots.
"""

from __future__ import annotations

import json
import logging
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

import ray

from malstrom_py.builder.plan import Plan
from malstrom_py.clock import SystemClock
from malstrom_py.errors import FencedError, JobEnded, MalstromError, PeerError
from malstrom_py.errors.text import public_text
from malstrom_py.events import NodeFailed
from malstrom_py.metrics import JobMetrics
from malstrom_py.rescale.autoscaling import Autoscale
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.ids import made_at_s
from malstrom_py.workers.control.messages import error_of
from malstrom_py.workers.coordinator.command_queue import CommandQueue
from malstrom_py.workers.coordinator.coordinator import Coordinator
from malstrom_py.workers.coordinator.recovery import begun_again
from malstrom_py.workers.coordinator.sink_commits import SinkCommits
from malstrom_py.workers.coordinator.worker_group import RunJournal
from malstrom_py.workers.engine.graph_builder import build_sinks
from malstrom_py.workers.ray.cluster import ON_NODES, room_now
from malstrom_py.workers.ray.coordinator_watch import ActorProcess, this_process
from malstrom_py.workers.ray.driver_commits import DriverTask, DriverTasks, commit_in_driver
from malstrom_py.workers.ray.job_config import JobSetup
from malstrom_py.workers.ray.node_watch import NodeWatch
from malstrom_py.workers.ray.worker_actor import ClusterMachines
from malstrom_py.workers.remote.packed_plan import pack_plan, unpack_plan
from malstrom_py.workers.remote.remote_workers import RemoteWorkers
from malstrom_py.workers.remote.worker_handle import WorkerProcesses
from malstrom_py.workers.remote.worker_setup import log_as
from malstrom_py.workers.reports.commands import Command, Result
from malstrom_py.workers.reports.error_transfer import pack_error
from malstrom_py.workers.reports.event_log import EventImage
from malstrom_py.workers.reports.job_status import JobOutcome, JobStatus, SnapshotStatus
from malstrom_py.workers.reports.result import RunResult
from malstrom_py.workers.reports.shadows import ShadowReport
from malstrom_py.workers.runtime.hot_reload import HotReload, Reloaded
from malstrom_py.workers.runtime.job_run import JobRun
from malstrom_py.workers.runtime.job_thread import run_to_end
from malstrom_py.workers.runtime.supervisor import RestartBudget, Supervisor, wait_out

_NAMESPACE: Final = b"malstrom"


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """The facts. ``has_begun``: the job was claimed, to resume from the snapshot ``began_from``. ``workers``: the last
    requested number of workers, 0 without a request. ``restarts``: the number of restarts. ``died_at_s``: when dead
    coordinators were replaced, in seconds since 1970. ``drain``: how the job is being stopped, if it is.
    ``last_known``: the last complete snapshot. ``autoscale``: the options of the autoscaler if they were changed, False
    if it was switched off; None: those of the start.
    """

    has_begun: bool = False
    workers: int = 0
    restarts: int = 0
    died_at_s: Sequence[float] = ()
    drain: bool | None = None
    last_known: str | None = None
    began_from: str | None = None
    autoscale: dict[str, Any] | Literal[False] | None = None

    def autoscale_of(self, setup: JobSetup) -> Autoscale | None:
        """Return the options of the autoscaler of the job of ``setup``."""
        if self.autoscale is None:
            return setup.autoscale
        return Autoscale(**self.autoscale) if self.autoscale else None


class CoordinatorJournal(RunJournal):
    """The journal of the coordinator in ``actor``. Without ``kept`` nothing is stored: no coordinator replaces it."""

    def __init__(self, actor: str, *, kept: bool) -> None:
        self._key = f"coordinator-{actor}".encode()
        self._kept = kept
        self._lock = threading.Lock()
        self.entry = self._read() if kept else JournalEntry()

    def has_begun(self, began_from: str | None = None) -> None:
        """Record that the job was claimed, to resume from this snapshot. The first call counts."""
        if not self.entry.has_begun:
            self._write(has_begun=True, began_from=began_from)

    def finished(self, snapshot: str | None) -> None:
        """Record that the job has finished with ``snapshot``, and that a run follows."""
        self._write(began_from=snapshot)

    def wanted(self, workers: int) -> None:
        """Record the requested number of workers."""
        self._write(workers=workers)

    def autoscaled(self, options: Autoscale | None) -> None:
        """Record other options of the autoscaler."""
        self._write(autoscale=asdict(options) if options is not None else False)

    def completed(self, snapshot: str) -> None:
        """Record the last complete snapshot."""
        if snapshot != self.entry.last_known:
            self._write(last_known=snapshot)

    def stopping(self, *, drain: bool) -> None:
        """Record that the job is being stopped."""
        self._write(drain=drain)

    def restarted(self, *, died_at_s: float | None = None) -> None:
        """Record a restart; ``died_at_s``: because the coordinator was found dead then."""
        died = self.entry.died_at_s if died_at_s is None else (*self.entry.died_at_s, died_at_s)
        self._write(restarts=self.entry.restarts + 1, died_at_s=died)

    def reloaded(self, plan: bytes) -> None:
        """Record the plan with the code of a reload."""
        if self._kept:
            _store()._internal_kv_put(self._key + b"-plan", plan, namespace=_NAMESPACE)

    def read_plan(self) -> bytes | None:
        """Return the plan of the last confirmed reload, if there was one."""
        plan: bytes | None = (
            _store()._internal_kv_get(self._key + b"-plan", namespace=_NAMESPACE) if self._kept else None
        )
        return plan

    def forget(self) -> None:
        """Delete the journal: the job has ended. That of a coordinator that has replaced this one stays."""
        if self._kept and not self._is_taken():
            for key in (self._key, self._key + b"-plan"):
                _store()._internal_kv_del(key, namespace=_NAMESPACE)

    def _write(self, **changes: Any) -> None:
        with self._lock:
            if self._kept and self._is_taken():
                raise FencedError("another coordinator has replaced this one, which was stopped for a while: it ends")
            self.entry = replace(self.entry, **changes)
            if self._kept:
                _store()._internal_kv_put(self._key, json.dumps(asdict(self.entry)), namespace=_NAMESPACE)

    def _is_taken(self) -> bool:
        """Return whether a coordinator that has replaced this one has written: it has counted one more restart."""
        return self._read().restarts > self.entry.restarts

    def _read(self) -> JournalEntry:
        data = _store()._internal_kv_get(self._key, namespace=_NAMESPACE)
        return JournalEntry() if data is None else JournalEntry(**json.loads(data))


def _store() -> Any:
    from ray.experimental import internal_kv

    return internal_kv


class PersistentReload(HotReload):
    """The plan of a job on Ray. A coordinator that replaces this one finds its code, that of a confirmed reload."""

    def __init__(self, plan: Plan, journal: CoordinatorJournal, files: Mapping[str, str]) -> None:
        super().__init__(plan, pack=pack_plan, files=files)
        self._journal = journal

    def install(self, reloaded: Reloaded) -> None:
        # One that replaces this one on trial goes back to the former code, whose files may have changed.
        self._journal.reloaded(pack_plan(replace(self.plan, by_value=reloaded.plan.by_value)))
        super().install(reloaded)

    def confirm(self) -> None:
        super().confirm()
        self._journal.reloaded(pack_plan(self.plan))


ANSWERS: Final = 64
"""The number of commands answered at the same time; others queue."""

STAY_S: Final = 60.0
"""How long the coordinator of an ended job waits for clients that ask for the outcome."""

TOLD_S: Final = 0.2
"""How long the coordinator waits for answers to go out before it exits."""

_LOG: Final = logging.getLogger("malstrom_py.coordinator")


@dataclass(frozen=True, slots=True)
class PackedEnding:
    """The outcome of a job for the driver. ``delivery``: the pre-commits for the driver's sinks and their snapshot id,
    unless they are committed already. ``is_stopped``: a stop was requested, so pinned input may be partly read.
    ``events``: the events of the job; ``metrics``: the final ones; ``shadows``: what was found of those that it had.
    """

    status: JobStatus
    error: bytes | None = field(repr=False)
    delivery: tuple[SnapshotId, list[tuple[str, bytes]]] | None = field(repr=False)
    is_stopped: bool
    events: EventImage = field(repr=False)
    metrics: JobMetrics = field(repr=False)
    shadows: list[ShadowReport] = field(repr=False)


class CoordinatorActor:
    """Coordinates the job of ``setup``."""

    def __init__(self, setup: JobSetup) -> None:
        self._name = f"malstrom(job={setup.job} coordinator)"
        log_as(setup)
        self._setup = setup
        self._commands = CommandQueue(setup.job, kept=setup.snapshot_use is not None, accepted=self._accepted)
        self._tasks = DriverTasks(outlives=setup.outlives)
        self._coordinator: Coordinator[RemoteWorkers] | None = None
        self._node_watch = NodeWatch()
        self._machines = ClusterMachines(setup, self._node_watch)
        self._processes = WorkerProcesses(self._machines)
        self._driver_ready = threading.Event()
        self._known = threading.Event()
        context = ray.get_runtime_context()
        self._journal = CoordinatorJournal(str(context.get_actor_id()), kept=setup.snapshot_use is not None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray warns about its own implementation
            self._follows = bool(context.was_current_actor_reconstructed)
        if self._follows:
            self._driver_ready.set()
        threading.Thread(target=self._work, name=f"malstrom-job-{setup.job}", daemon=True).start()

    def __repr__(self) -> str:
        return self._name

    @ray.method(concurrency_group="answers", max_task_retries=-1)
    def ask(self, command: Command) -> Result | MalstromError:
        """Return the result of ``command``, or its error."""
        try:
            return self._commands.ask(command)
        except Exception as error:
            return error_of(error)

    @ray.method(concurrency_group="ending", max_task_retries=-1)
    def ending(self) -> PackedEnding:
        """Return the outcome once the job has ended."""
        ending = self._commands.ended.result()
        error = None if ending.error is None else pack_error(ending.error)
        has_committed = self._setup.snapshot_use is not None  # by tasks, with each snapshot
        commit = None if self._coordinator is None or error is not None or has_committed else self._coordinator.commit
        delivery = None if commit is None else (commit.snapshot, commit.to_deliver())
        events = self._commands.events.image
        commands = self._commands
        metrics, shadows = commands.known_metrics(), commands.shadows.reports()
        return PackedEnding(commands.known(), error, delivery, commands.is_stopping, events, metrics, shadows)

    @ray.method(max_task_retries=-1)
    def heard(self) -> None:
        """Note that the driver has the outcome. A driver that is gone never calls this."""
        self._known.set()

    @ray.method(concurrency_group="tasks", max_task_retries=-1)
    def task(self) -> DriverTask | None:
        """Return the driver's next task, or None after a while without one."""
        return self._tasks.next()

    @ray.method(concurrency_group="tasks", max_task_retries=-1)
    def task_done(self, number: str, error: bytes | None) -> None:
        """Record that the driver has finished a task."""
        self._tasks.done(number, error)

    @ray.method(max_task_retries=-1)
    def is_up(self) -> bool:
        """Answer as soon as the coordinator is up."""
        return True

    @ray.method(max_task_retries=-1)
    def process(self) -> ActorProcess:
        """Return the process of the coordinator, as a sign of life."""
        return this_process()

    @ray.method(max_task_retries=-1)
    def begin(self) -> None:
        """Begin the job: the driver is ready."""
        self._driver_ready.set()

    @ray.method(max_task_retries=-1)
    def has_ended(self) -> bool:
        """Return whether the job has ended."""
        return self._commands.ended.done()

    def _work(self) -> None:
        setup, commands, clock = self._setup, self._commands, SystemClock()
        handle: Any = ray.get_runtime_context().current_actor
        if not self._driver_ready.wait(setup.start_timeout_s):
            ray.kill(handle, no_restart=True)
            return
        self._node_watch.start()
        try:
            runs = self._runs(clock)
        except BaseException as error:
            commands.end(JobOutcome.of(RunResult(setup.job, {}, 0.0), error))
        else:
            self._run_to_end(runs)
        _LOG.info("the job has ended: %s", commands.ended.result().how)
        self._node_watch.close()
        self._tasks.close()
        if self._known.wait(STAY_S):
            clock.sleep_s(TOLD_S)
        self._journal.forget()
        ray.kill(handle, no_restart=True)

    def _runs(self, clock: SystemClock) -> Supervisor[JobRun[RemoteWorkers]]:
        """Return the supervisor of the job, which continues after the runs of an earlier coordinator."""
        setup, journal, failures = self._setup, self._journal, RestartBudget(self._setup.restart)
        if self._follows:
            self._follow(failures, clock)
        autoscaler = self._commands.autoscaler
        autoscaler.start(journal.entry.autoscale_of(setup), journal.autoscaled)
        plan = unpack_plan(journal.read_plan() or setup.plan, setup.job, ON_NODES)
        reloads = PersistentReload(plan, journal, setup.files)
        snapshot_use, entry = setup.snapshot_use, journal.entry
        if snapshot_use is not None:
            snapshot_use = replace(
                snapshot_use, last_known=entry.last_known, is_again=entry.has_begun, began_from=entry.began_from
            )

        def make(again: bool, workers: int | None) -> JobRun[RemoteWorkers]:
            nonlocal snapshot_use
            again = again or journal.entry.has_begun
            wanted = journal.entry.workers or workers or setup.workers
            size = self._with_room(wanted) if again else wanted
            if again:
                finished = self._coordinator is not None and self._coordinator.kept is not None
                known = None if self._coordinator is None else self._coordinator.snapshots
                snapshot_use = begun_again(snapshot_use, known, finished=finished)
                if finished and known is not None:
                    journal.finished(known.last)
            this = replace(setup, plan=b"", workers=size, snapshot_use=snapshot_use, watched=again)
            plan = reloads.plan
            sinks = build_sinks(plan, clock)
            if snapshot_use is not None:
                sinks = commit_in_driver(sinks, self._tasks)
            self._coordinator = Coordinator(
                plan,
                RemoteWorkers(this, plan, clock, self._machines, self._processes),
                workers=size,
                clock=clock,
                snapshot_use=snapshot_use,
                commits=SinkCommits(
                    plan.job, sinks, clock.now_s(), deliver=snapshot_use is None, stored=snapshot_use is not None
                ),
                journal=journal,
                log=self._commands.events,
            )
            return JobRun(plan, self._coordinator, clock, commands=self._commands)

        return Supervisor(
            make,
            self._commands,
            setup.restart,
            clock,
            failures,
            restarted=journal.restarted,
            at_end=self._processes.kill_kept,
            reloads=reloads,
        )

    def _follow(self, failures: RestartBudget, clock: SystemClock) -> None:
        """Continue after the death of an earlier coordinator. `PeerError` if too many have died."""
        setup, journal, commands = self._setup, self._journal, self._commands
        now_s = clock.now_s()
        journal.restarted(died_at_s=now_s)
        pause_s: float | None = 0.0
        for at_s in journal.entry.died_at_s:
            pause_s = failures.pause_s(clock.monotonic_s() - (now_s - at_s))
        _LOG.warning("the previous coordinator died; this one replaces it")
        commands.events.emit(NodeFailed("coordinator", "the coordinator died; another one replaces it"))
        if pause_s is None:
            raise PeerError(
                f"the coordinator of job {setup.job!r} died {len(journal.entry.died_at_s)} times, more often than "
                f"restart=mp.Restart(max_restarts={setup.restart.max_restarts}) allows. Ray's logs on its node may say "
                f"why (killed, out of memory, its node gone)"
            )
        if (last_known := journal.entry.last_known) is not None:
            commands.note_snapshots(SnapshotStatus(last_known, made_at_s(SnapshotId(last_known)), 0))
        commands.recover(
            RunResult(setup.job, {}, 0.0), journal.entry.workers or setup.workers, times=journal.entry.restarts
        )
        if journal.entry.drain is not None:
            commands.stop(drain=journal.entry.drain)
        wait_out(pause_s, commands, clock)

    def _accepted(self, drain: bool) -> None:
        self._journal.stopping(drain=drain)

    def _with_room(self, wanted: int) -> int:
        """Return the wanted number of workers, or fewer if a node is gone and there is less room (S6).

        In a cluster that grows one start waits for nodes: the next one takes the room that there is.
        """
        if self._setup.autoscaling and (self._coordinator is None or self._coordinator.group.has_started):
            return wanted
        size = max(1, min(wanted, room_now(self._setup.options.needs, but=self._node_watch.silent)))
        if size < wanted:
            _LOG.warning("the cluster has room for %d of %d workers", size, wanted)
        return size

    def _run_to_end(self, runs: Supervisor[JobRun[RemoteWorkers]]) -> None:
        try:
            run_to_end(runs, self._commands, None)
        except BaseException as error:
            if not (isinstance(error, JobEnded) and error.how == "stopped"):  # the user requested it
                _LOG.error("the job failed: %s", public_text(error))


def coordinator_class(*, restarts: bool) -> Any:
    """Return the actor class. ``restarts``: whether Ray restarts the actor after its death."""
    groups = {"answers": ANSWERS, "ending": 4, "tasks": 2}
    remote: Any = ray.remote  # its types do not know concurrency groups
    most = -1 if restarts else 0
    return remote(num_cpus=0, max_restarts=most, max_task_retries=0, concurrency_groups=groups)(CoordinatorActor)
