"""The Ray runtime: each worker an actor, the coordinator an actor that is found by the job's name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

from malstrom_py.clock import SystemClock
from malstrom_py.errors import MalstromError, OperationInProgress, PlanError
from malstrom_py.job import Job
from malstrom_py.plan import Plan
from malstrom_py.snapshot.snapshots import Snapshots
from malstrom_py.workers.batching import Batching
from malstrom_py.workers.beginning import LATEST, keeping_of, pinned, warn_of_reading_again
from malstrom_py.workers.control_files import check_name
from malstrom_py.workers.handle import JobHandle, RunningJob
from malstrom_py.workers.in_process import check_job
from malstrom_py.workers.interrupts import PlannedStop
from malstrom_py.workers.job_size import check_size
from malstrom_py.workers.on_ray.options import is_amount, worker_options
from malstrom_py.workers.on_ray.setup import JobSetup, Placement, Streams, Wiring
from malstrom_py.workers.pinning import Pins
from malstrom_py.workers.progress import Progress, progress_for
from malstrom_py.workers.restart import Restart, restart_of
from malstrom_py.workers.result import RunResult
from malstrom_py.workers.running_loop import refuse_in_coroutine
from malstrom_py.workers.tracebacks import outermost
from malstrom_py.workers.transport.secret import JobSecret

_SHOWN_S: Final = 0.5
"""How often progress is shown: workers tell of it about so often."""

START_S: Final = 60.0
"""How long workers and coordinator may take to come up."""


class RayRuntime:
    """Runs jobs on a Ray cluster: ``workers`` actors, and one more that coordinates them.

    ``address``: of the cluster, "auto" for the one of this machine; None for the one this program is connected to, or
    that ``RAY_ADDRESS`` names, or else one of its own on this machine. ``num_cpus``, ``num_gpus``, ``memory`` (bytes),
    ``resources`` and ``runtime_env``: what each worker needs, as for any actor of Ray. Its ``working_dir`` and
    ``py_modules`` are set for the whole program, where this connects it to Ray. ``placement``: "spread" over as many
    nodes as there are, or "pack" as Ray does by itself, onto few. ``batch``, ``checks`` and ``progress``: as in
    `InProcess`.
    ``streams``: "direct" for connections between the actors, "ray" to send batches in calls of Ray, where no ports can
    be opened: slower by far. ``ports``: the first and the last port that actors may listen on; any that is free if
    None. ``start_timeout_s``: how long workers may take to come up, at the start and in a rescale. ``detached``: the
    job goes on when the program that started it ends; only on a cluster that was started by ``ray start``.
    ``autoscaling``: ask for workers that the cluster has no room for now, for it grows.

    ``snapshots``, ``resume``, ``restart`` and ``allow_dropped_state``: as in `InProcess`; the store must be one that
    all nodes reach. With them the job outlives workers, nodes and its coordinator: it goes on from its last snapshot,
    with as many workers as were wanted, or as there is room for then.

    The user's functions, sources and sinks are copied to the workers. What is in files must be there for all of them.
    """

    def __init__(
        self,
        workers: int = 1,
        *,
        address: str | None = None,
        num_cpus: float = 1.0,
        num_gpus: float = 0.0,
        memory: int = 0,
        resources: Mapping[str, float] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        placement: Placement = "spread",
        batch: Batching | None = None,
        checks: bool = False,
        streams: Streams = "direct",
        ports: tuple[int, int] | None = None,
        start_timeout_s: float = START_S,
        detached: bool = False,
        autoscaling: bool = False,
        progress: bool | None = None,
        snapshots: Snapshots | None = None,
        resume: str = LATEST,
        restart: Restart | Literal["never"] | None = None,
        allow_dropped_state: bool = False,
    ) -> None:
        check_size(workers)
        _check(ports, streams, start_timeout_s)
        _check_flags(checks=checks, detached=detached, autoscaling=autoscaling)
        if batch is not None and not isinstance(batch, Batching):
            raise PlanError(f"batch is how batches are cut, mp.Batching(rows_max=…), got {type(batch).__name__}")
        self._workers = workers
        self._address = address
        self._options = worker_options(
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            memory=memory,
            resources=resources,
            runtime_env=runtime_env,
            placement=placement,
        )
        self._batching = batch or Batching()
        self._checks = checks
        self._streams: Streams = streams
        self._ports = ports
        self._start_timeout_s = start_timeout_s
        self._detached = detached
        self._autoscaling = autoscaling
        self._progress = progress
        keeping = keeping_of(snapshots, resume=resume, allow_dropped_state=allow_dropped_state)
        self._keeping = None if keeping is None else replace(keeping, snapshots=_everywhere(keeping.snapshots))
        self._restart = restart_of(restart, kept=self._keeping is not None)

    def run(self, job: Job, *, control: bool = True, stop_on_sigterm: bool = False) -> RunResult:
        """Run ``job`` to its end. Ctrl-C stops it without drain: with ``snapshots=`` after a last one. ``control`` and
        ``stop_on_sigterm``: as in `InProcess.run`; one that comes before the job has been started stops it then.
        """
        refuse_in_coroutine("RayRuntime.run")
        started: Future[JobHandle] = Future()
        stopping = PlannedStop(lambda: started.result().stop(wait=False)) if stop_on_sigterm else None
        with stopping or nullcontext():
            try:
                handle = self._start(job, "RayRuntime.run", control=control, stopping=stopping)
            except BaseException:
                started.cancel()
                raise
            started.set_result(handle)
            try:
                with (shown := progress_for(job.plan(), self._progress)) or nullcontext():
                    return _seen_to_its_end(handle, shown)
            except KeyboardInterrupt as error:
                try:
                    handle.stop(drain=False, wait=True)
                except MalstromError as failure:
                    error.add_note(str(failure))
                raise

    def start(self, job: Job, *, control: bool = True) -> JobHandle:
        """Start ``job``, and return a handle on it once its coordinator is up; its workers come up meanwhile.

        It is found by its name on the cluster, and, with ``control``, on this machine as long as this program runs.

        Raises:
            PlanError: the job is wrong, cannot be taken to other processes, or the cluster has no room for it; Ray is
                missing or too old.
            JobRunning: a job of that name runs there already.
            ControlError: there is no such cluster.
        """
        return self._start(job, "RayRuntime.start", control=control, stopping=None)

    def _start(self, job: Job, where: str, *, control: bool, stopping: PlannedStop | None) -> JobHandle:
        try:
            return JobHandle(self._started(check_job(job, where), control=control, stopping=stopping))
        except MalstromError as error:
            raise outermost(error) from error.__cause__

    def _started(self, job: Job, *, control: bool, stopping: PlannedStop | None) -> RunningJob:
        from malstrom_py.workers.on_ray.cluster import check_fields, check_room, imported_ray, joined
        from malstrom_py.workers.on_ray.shipment import pack_plan

        imported_ray()
        check_fields({**self._options.for_program, **(self._options.runtime_env or {})})
        from malstrom_py.workers.on_ray.ray_job import check_detached, make_ready
        from malstrom_py.workers.on_ray.starting import await_name

        plan = job.plan()
        packed = pack_plan(plan)  # what cannot be copied is told before anything is begun
        if self._detached:
            check_detached(plan)
        own = None if stopping is None else stopping.come_first
        cluster = joined(self._address, self._options.for_program, on_sigterm=own)
        if stopping is not None:
            stopping.take_back()
        if self._detached and cluster.is_local:
            raise PlanError(
                "this program has started Ray for itself, so no job outlives it: start a cluster with `ray start "
                "--head` and pass address='auto', or leave out detached"
            )
        if not self._autoscaling:
            check_room(self._workers, self._options.needs)

        await_name(plan.job)
        if control:
            check_name(plan.job)
        warn_of_reading_again(plan, self._keeping)
        with ExitStack() as on_failure:
            pins = on_failure.enter_context(Pins(plan, SystemClock()))
            if self._keeping is None:
                make_ready(plan, every_sink=pins.any)  # what is pinned may be what a sink has left half done
            self._pin(plan, pins)
            begun = self._begun(plan, pack_plan(plan) if pins.any else packed, pins, cluster.is_local, control=control)
            on_failure.pop_all()  # from now on the job sees to it
            return begun

    def _pin(self, plan: Plan, pins: Pins) -> None:
        """Pin what the job is to read: nothing, if it has finished, for it may not be there any more."""
        known = None if self._keeping is None or not pins.any else pinned(plan, self._keeping, SystemClock())
        if known is None or not known.finished:
            pins.keep = known is not None and bool(known.records)  # if it cannot start now, it may the next time
            pins.pin(known)

    def _begun(self, plan: Plan, packed: bytes, pins: Pins, is_local: bool, *, control: bool) -> RunningJob:
        from malstrom_py.workers.on_ray.cluster import imported_ray
        from malstrom_py.workers.on_ray.ray_job import OwnRayJob
        from malstrom_py.workers.on_ray.starting import start_coordinator

        setup = JobSetup(
            job=plan.job,
            plan=packed,
            workers=self._workers,
            batching=self._batching,
            checks=self._checks,
            wiring=Wiring(self._streams, is_local, self._ports, JobSecret.new()),
            options=replace(self._options, for_program={}),  # which Ray has by now
            start_timeout_s=self._start_timeout_s,
            autoscaling=self._autoscaling,
            keeping=self._keeping,
            restart=self._restart,
            outlives=self._detached,
        )
        actor = start_coordinator(setup, detached=self._detached)
        try:
            return OwnRayJob(
                plan, actor, pins, outlives=self._detached, control=control, kept=self._keeping is not None
            )
        except BaseException:  # its name is held on this machine, say: it has not begun, and must not
            imported_ray().kill(actor, no_restart=True)
            raise


def _seen_to_its_end(handle: JobHandle, progress: Progress | None) -> RunResult:
    while progress is not None:
        try:
            result = handle.wait(timeout_s=_SHOWN_S)
        except OperationInProgress:
            counts = handle.status().counts
            if counts.steps:
                progress.show(counts)
        else:
            progress.show(result)
            return result
    return handle.wait()


def _everywhere(snapshots: Snapshots) -> Snapshots:
    """The same for other processes, which have folders of their own to begin from."""
    if not snapshots.is_in_store:
        import cloudpickle

        try:
            cloudpickle.dumps(snapshots)
        except Exception as error:
            raise PlanError(
                f"RayRuntime: the checkpointer cannot be sent to workers in other processes "
                f"({type(error).__name__}: {error}): give mp.Snapshots(checkpointer=) a function of the job's name "
                f"that makes one there"
            ) from error
    if not isinstance(snapshots.uri, str | os.PathLike) or "://" in os.fspath(snapshots.uri):
        return snapshots
    return replace(snapshots, uri=Path(snapshots.uri).absolute())


def _check(ports: object, streams: object, start_timeout_s: object) -> None:
    """`PlanError` for an option that cannot be."""
    if not is_amount(start_timeout_s):
        raise PlanError(f"RayRuntime: start_timeout_s is a number of at least 0, got {start_timeout_s!r}")
    if streams not in get_args(Streams):
        raise PlanError(f"RayRuntime: streams is one of {', '.join(get_args(Streams))}, got {streams!r}")
    if ports is not None and not _are_ports(ports):
        raise PlanError(f"RayRuntime: ports is the first and the last port, such as (20000, 20099), got {ports!r}")


def _check_flags(**flags: object) -> None:
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise PlanError(f"RayRuntime: {name} is True or False, got {flag!r}")


def _are_ports(ports: object) -> bool:
    if not isinstance(ports, tuple) or len(ports) != 2 or not all(isinstance(port, int) for port in ports):
        return False
    return bool(0 < ports[0] <= ports[1] < 1 << 16)
