"""The Ray runtime: checks the user's options, joins the cluster, and starts the coordinator under the job's name.

Rule: what Ray sets only for a whole program (a local ``working_dir``, ``py_modules``) is set where the program joins
Ray; all other options go with each actor.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, Unpack, get_args

from malstrom_py import logs
from malstrom_py.builder.job import Job
from malstrom_py.builder.plan import Plan
from malstrom_py.clock import SystemClock
from malstrom_py.errors import MalstromError, OperationInProgress, PlanError
from malstrom_py.errors.text import public_text, redacting, redacts
from malstrom_py.validation import checked_flag
from malstrom_py.workers.control.registry import check_name
from malstrom_py.workers.coordinator.recovery import pinned
from malstrom_py.workers.ray import discovery
from malstrom_py.workers.ray.job_config import JobSetup, Placement, WorkerOptions, node_address
from malstrom_py.workers.remote.worker_setup import Wiring, in_other_processes
from malstrom_py.workers.reports.commands import RunningJob
from malstrom_py.workers.reports.error_transfer import outermost
from malstrom_py.workers.reports.job_status import check_size
from malstrom_py.workers.reports.result import RunResult
from malstrom_py.workers.runtime.hot_reload import modules_of
from malstrom_py.workers.runtime.interrupts import STOP_S, PlannedStop
from malstrom_py.workers.runtime.job_handle import JobHandle, search_cluster
from malstrom_py.workers.runtime.local_runtime import check_job, refuse_in_coroutine
from malstrom_py.workers.runtime.progress import Progress, progress_for
from malstrom_py.workers.runtime.run_options import (
    RunKeywords,
    RunOptions,
    observers_of,
    options_of,
    restart_of,
    snapshot_use_of,
    warn_of_reading_again,
)
from malstrom_py.workers.runtime.source_pinning import SourcePins
from malstrom_py.workers.transport.base import JobSecret

__tracebackhide__ = True  # pytest shows the line of the user

_SIZES: Final = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


def worker_options(
    *,
    num_cpus: float,
    num_gpus: float,
    memory: int,
    resources: Mapping[str, float] | None,
    runtime_env: Mapping[str, Any] | None,
    placement: Placement,
) -> WorkerOptions:
    """Check the options of a worker and return them. `PlanError` for an invalid one."""
    for name, value in (("num_cpus", num_cpus), ("num_gpus", num_gpus)):
        if not is_amount(value):
            raise PlanError(f"RayRuntime: {name} must be a number of at least 0, got {value!r}")
    if type(memory) is not int or memory < 0:
        raise PlanError(
            f"RayRuntime: memory must be a whole number of bytes per worker, such as 2 << 30, got {memory!r}"
        )
    named = resources if isinstance(resources, Mapping) else {} if resources is None else {"": None}
    if not all(isinstance(name, str) and name and is_amount(amount) for name, amount in named.items()):
        raise PlanError(f"RayRuntime: resources maps names to amounts, as for an actor of Ray, got {resources!r}")
    for name in _SIZES.keys() & named.keys():
        raise PlanError(
            f"RayRuntime: resources takes only what a cluster defines itself, not {name!r}: give "
            f"{_SIZES[name]}= instead"
        )
    if placement not in get_args(Placement):
        raise PlanError(f"RayRuntime: placement must be one of {', '.join(get_args(Placement))}, got {placement!r}")
    for_program, for_actors = split_env(runtime_env)
    return WorkerOptions(
        num_cpus, dict(resources or {}), for_actors, num_gpus, memory, placement, for_program=for_program
    )


def split_env(env: object) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """A ``runtime_env``: what of it a whole program has, with paths in full, and what each actor has.

    >>> split_env({"py_modules": ["s3://bucket/shapes.zip"], "env_vars": {"A": "1"}})
    ({}, {'py_modules': ['s3://bucket/shapes.zip'], 'env_vars': {'A': '1'}})
    """
    if env is None:
        return {}, None
    if not isinstance(env, Mapping) or not all(isinstance(name, str) for name in env):
        raise PlanError(f"RayRuntime: runtime_env must be a dict, as for an actor of Ray, got {type(env).__name__}")
    for_program: dict[str, Any] = {}
    if _is_local(folder := env.get("working_dir")):
        for_program["working_dir"] = _found("working_dir", folder)
    modules = env.get("py_modules")
    if modules is not None and (isinstance(modules, str | Path) or not isinstance(modules, Sequence)):
        raise PlanError(f"RayRuntime: py_modules in runtime_env must be a list of paths, got {type(modules).__name__}")
    if any(map(_is_local, modules or ())):
        for_program["py_modules"] = [_found("py_modules", module) for module in modules or ()]
    if for_program and "excludes" in env:
        for_program["excludes"] = env["excludes"]
    for_actors = {name: value for name, value in env.items() if name not in for_program}
    return for_program, for_actors or None


def is_amount(value: object) -> bool:
    """Return whether this is a finite number of at least 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value >= 0


def _is_local(what: object) -> bool:
    return isinstance(what, os.PathLike | ModuleType) or (isinstance(what, str) and "://" not in what)


def _found(name: str, what: Any) -> Any:
    """Return a local path as absolute, anything else unchanged. `PlanError` if the path does not exist."""
    if not isinstance(what, str | os.PathLike) or "://" in os.fspath(what):
        return what
    path = Path(what).expanduser().absolute()
    is_file = path.suffix in {".zip", ".jar"} or (name == "py_modules" and path.suffix in {".py", ".whl"})
    if not (path.is_file() if is_file else path.is_dir()):
        kind = "file" if is_file else "folder"
        raise PlanError(f"RayRuntime: {name} in runtime_env names {path}, but no such {kind} exists")
    return str(path)


_SHOWN_S: Final = 0.5
"""How often progress is shown: about as often as workers report."""

START_S: Final = 60.0
"""The timeout for starting workers and the coordinator."""


class RayKeywords(RunKeywords, total=False):
    """The options of `RunOptions` as keywords, and one that has a single value left."""

    streams: Literal["direct"]


class RayRuntime:
    """Runs jobs on a Ray cluster: ``workers`` actors, and one more that coordinates them.

    ``address``: of the cluster, "auto" for the one of this machine; None for the one this program is connected to, or
    that ``RAY_ADDRESS`` names, or else a new one on this machine. ``num_cpus``, ``num_gpus``, ``memory`` (bytes),
    ``resources`` and ``runtime_env``: what each worker needs, as for any actor of Ray. Its ``working_dir`` and
    ``py_modules`` are set for the whole program, where this connects it to Ray. ``placement``: "spread" over as
    many nodes as there are, or "pack", Ray's default, onto few. ``ports``: the first and the last port that actors may
    listen on; any that is free if None. ``start_timeout_s``: the timeout for the start of workers, also in a rescale.
    ``detached``: the job continues when the program that started it ends; only on a cluster that was started by
    ``ray start``. ``autoscaling``: request workers that the cluster has no room for yet, because it grows; with
    ``autoscale`` beyond the room of now. ``options``, or keywords: those of `RunOptions`.

    The store of ``snapshots`` must be one that all nodes reach. With them the job survives the loss of workers, nodes
    and its coordinator: it restarts from the last one, with the wanted number of workers, or as many as there is room
    for.

    The user's functions, sources and sinks are copied to the workers. Files must be accessible to all workers.
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
        ports: tuple[int, int] | None = None,
        start_timeout_s: float = START_S,
        detached: bool = False,
        autoscaling: bool = False,
        options: RunOptions | None = None,
        **keywords: Unpack[RayKeywords],
    ) -> None:
        check_size(workers)
        _check(ports, keywords.pop("streams", "direct"), start_timeout_s)
        checked_flag(detached, "RayRuntime: detached")
        checked_flag(autoscaling, "RayRuntime: autoscaling")
        self._options = options = options_of(RayRuntime, options, keywords)
        self._observers = observers_of(options)
        if detached and self._observers.any:
            raise PlanError(
                "RayRuntime: a detached job continues without this program, which on_event=, metrics= and dashboard= "
                "need: leave out detached, or use the commands malstrom events, metrics and dashboard"
            )
        self._workers = workers if options.autoscale is None else options.autoscale.within(workers)
        self._address = address
        self._worker_options = worker_options(
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            memory=memory,
            resources=resources,
            runtime_env=runtime_env,
            placement=placement,
        )
        self._ports = ports
        self._start_timeout_s = start_timeout_s
        self._detached = detached
        self._autoscaling = autoscaling
        self._snapshot_use = in_other_processes(snapshot_use_of(options), "RayRuntime")

    def run(
        self, job: Job, *, control: bool = True, stop_on_sigterm: bool = False, stop_timeout_s: float = STOP_S
    ) -> RunResult:
        """Run ``job`` to its end. Ctrl-C stops it without drain: with ``snapshots=`` after a last one. ``control``,
        ``stop_on_sigterm`` and ``stop_timeout_s``: as in `InProcess.run`; a SIGTERM that comes before the job has been
        started stops it then.
        """
        refuse_in_coroutine("RayRuntime.run")
        started: Future[JobHandle] = Future()

        def abandon(why: str) -> None:
            if started.done():
                end_now(started.result(), why)

        stopping = None
        if stop_on_sigterm:
            stopping = PlannedStop(lambda: started.result().stop(wait=False), abandon=abandon, limit_s=stop_timeout_s)
        with stopping or nullcontext():
            try:
                handle = self._start(job, "RayRuntime.run", control=control, stopping=stopping)
            except BaseException:
                started.cancel()
                raise
            started.set_result(handle)
            try:
                with (shown := progress_for(job.plan(), self._options.progress)) or nullcontext():
                    return _seen_to_its_end(handle, shown)
            except KeyboardInterrupt as error:
                try:
                    handle.stop(drain=False, wait=True)
                except MalstromError as failure:
                    error.add_note(public_text(failure))
                raise

    def start(self, job: Job, *, control: bool = True) -> JobHandle:
        """Start ``job``, and return a handle on it once its coordinator is up; its workers still start then.

        Other programs find the job by name on the cluster, and with ``control`` on this machine while this program
        runs.

        Raises: PlanError: the job is invalid or cannot be sent to other processes, or the cluster has no room for it;
        Ray is missing or too old. JobRunning: a job of that name runs there already. ControlError: there is no such
        cluster.
        """
        return self._start(job, "RayRuntime.start", control=control, stopping=None)

    def _start(self, job: Job, where: str, *, control: bool, stopping: PlannedStop | None) -> JobHandle:
        with redacting(self._options.redact_errors):
            try:
                return JobHandle(self._started(check_job(job, where), control=control, stopping=stopping))
            except MalstromError as error:
                raise outermost(error) from error.__cause__

    def _started(self, job: Job, *, control: bool, stopping: PlannedStop | None) -> RunningJob:
        from malstrom_py.workers.ray.cluster import check_fields, check_room, imported_ray, join_cluster
        from malstrom_py.workers.remote.packed_plan import pack_plan

        imported_ray()
        check_fields({**self._worker_options.for_program, **(self._worker_options.runtime_env or {})})
        from malstrom_py.workers.ray.coordinator_start import await_name
        from malstrom_py.workers.ray.ray_job import check_detached, make_ready

        plan = job.plan()
        packed = pack_plan(plan)  # raises before the job begins
        if self._detached:
            check_detached(plan)
        own = None if stopping is None else stopping.come_first
        cluster = join_cluster(self._address, self._worker_options.for_program, on_sigterm=own)
        if stopping is not None:
            stopping.take_back()
        if self._detached and cluster.is_local:
            raise PlanError(
                "this program has started Ray for itself, so no job outlives it: start a cluster with `ray start "
                "--head` and pass address='auto', or leave out detached"
            )
        if not self._autoscaling:
            check_room(self._workers, self._worker_options.needs)

        await_name(plan.job)
        if control:
            check_name(plan.job)
        warn_of_reading_again(plan, self._snapshot_use)
        with ExitStack() as on_failure:
            pins = on_failure.enter_context(SourcePins(plan, SystemClock()))
            if self._snapshot_use is None:
                make_ready(plan, every_sink=pins.any)  # a source may pin a sink's unfinished output
            self._pin(plan, pins)
            running = self._start_actor(
                plan, pack_plan(plan) if pins.any else packed, pins, cluster.is_local, control=control
            )
            on_failure.pop_all()  # from now on the job unpins
            return running

    def _pin(self, plan: Plan, pins: SourcePins) -> None:
        """Pin the input, unless the job has finished: its input may be gone."""
        known = None if self._snapshot_use is None or not pins.any else pinned(plan, self._snapshot_use, SystemClock())
        if known is None or not known.finished:
            pins.keep = known is not None and bool(known.records)  # a later start may succeed
            pins.pin(known)

    def _start_actor(self, plan: Plan, packed: bytes, pins: SourcePins, is_local: bool, *, control: bool) -> RunningJob:
        from malstrom_py.workers.ray import coordinator_watch
        from malstrom_py.workers.ray.cluster import imported_ray
        from malstrom_py.workers.ray.coordinator_start import start_coordinator
        from malstrom_py.workers.ray.ray_job import OwnRayJob

        setup = JobSetup(
            job=plan.job,
            plan=packed,
            workers=self._workers,
            batching=self._options.batching,
            checks=self._options.checks,
            state=self._options.state,
            wiring=Wiring(JobSecret.new(), None if is_local else node_address, self._ports),
            options=replace(self._worker_options, for_program={}),  # set when the program joined Ray
            start_timeout_s=self._start_timeout_s,
            autoscaling=self._autoscaling,
            snapshot_use=self._snapshot_use,
            restart=restart_of(self._options),
            outlives=self._detached,
            files=modules_of(plan),
            logs=logs.configured(),
            silent_s=coordinator_watch.SILENT_S,
            autoscale=self._options.autoscale,
            redact_errors=self._options.redact_errors or redacts(),
        )
        actor = start_coordinator(setup, detached=self._detached)
        try:
            return OwnRayJob(
                plan,
                actor,
                pins,
                outlives=self._detached,
                control=control,
                kept=self._snapshot_use is not None,
                observers=self._observers,
                redact_errors=self._options.redact_errors,
            )
        except BaseException:  # such as a name that another job of this machine holds
            imported_ray().kill(actor, no_restart=True)
            raise


def end_now(handle: JobHandle, why: str) -> None:
    """End a job of this program immediately."""
    from malstrom_py.workers.ray.ray_job import OwnRayJob

    if isinstance(handle._job, OwnRayJob):
        handle._job.end_now(why)


def _seen_to_its_end(handle: JobHandle, progress: Progress | None) -> RunResult:
    while progress is not None:
        try:
            result = handle.wait(timeout_s=_SHOWN_S)
        except OperationInProgress:
            counts = handle.status().counts
            if counts.steps:
                progress.show(counts, handle.metrics())
        else:
            progress.show(result)
            return result
    return handle.wait()


def _check(ports: object, streams: object, start_timeout_s: object) -> None:
    """Raise `PlanError` for an invalid option."""
    if not is_amount(start_timeout_s):
        raise PlanError(f"RayRuntime: start_timeout_s must be a number of at least 0, got {start_timeout_s!r}")
    if streams != "direct":
        raise PlanError(
            f"RayRuntime: streams={streams!r} is gone, workers connect directly: leave it out, and open ports between "
            f"the nodes, for instance those of ports=(20000, 20099)"
        )
    if ports is not None and not _are_ports(ports):
        raise PlanError(f"RayRuntime: ports must be the first and the last port, such as (20000, 20099), got {ports!r}")


def _are_ports(ports: object) -> bool:
    if not isinstance(ports, tuple) or len(ports) != 2 or not all(isinstance(port, int) for port in ports):
        return False
    return bool(0 < ports[0] <= ports[1] < 1 << 16)


search_cluster(discovery)
