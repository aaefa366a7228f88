"""The configuration of a job on Ray as its actors get it: settings, the packed plan, and the format of the log.

Rule: a plan is packed by cloudpickle; functions and classes of ``__main__`` travel by value.
"""

from __future__ import annotations

import logging
import pickle
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from types import CodeType
from typing import Any, ClassVar, Final, Literal

from malstrom_py import logs
from malstrom_py.builder.plan import Plan
from malstrom_py.errors import PlanError
from malstrom_py.errors.text import describe_error, redact
from malstrom_py.logs import LogSettings
from malstrom_py.rescale.autoscaling import Autoscale
from malstrom_py.workers.coordinator.recovery import SnapshotUse
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.runtime.supervisor import NEVER, Restart
from malstrom_py.workers.transport.base import JobSecret, Transport

_NO_FILE: Final = "<dynamic-code>"


def log_as(setup: JobSetup, worker: int | None = None) -> None:
    """Log under ``malstrom_py`` in this process as ``worker``, or as the coordinator, of the job of ``setup``.

    Ray sends the log to the driver and to files. Without settings of the program, lines are text.
    """
    redact(setup.redact_errors)  # the process is of this job alone
    logger = logging.getLogger(logs.ROOT)
    given, level = setup.logs or logs.LogSettings(), logger.level
    incarnation = None if worker is None else setup.incarnation
    logger.handlers.clear()
    logs.attach(given, job=setup.job, worker=worker, incarnation=incarnation)
    if setup.logs is None and level != logging.NOTSET:  # set by a hook of the user
        logger.setLevel(level)


def pack_plan(plan: Plan) -> bytes:
    """Pack ``plan``. `PlanError` names the step whose function, source or sink cannot be pickled."""
    try:
        return _packed(plan)
    except Exception as error:
        raise _unpicklable(plan, error) from error


def unpack_plan(packed: bytes, job: str) -> Plan:
    """Unpack a plan. `PlanError` if it needs a module that this process lacks."""
    try:
        plan: Plan = pickle.loads(packed)
    except ImportError as error:
        raise PlanError(
            f"job {job!r} uses module {error.name!r}, which a worker does not have: install it on every node of the "
            f"cluster, or have Ray bring it there with RayRuntime(runtime_env={{'pip': [...]}}) or, for your own code, "
            f"runtime_env={{'working_dir': '.'}}"
        ) from error
    except Exception as error:
        raise PlanError(
            f"job {job!r} cannot be built on a worker ({describe_error(error)}): check that the cluster runs "
            f"the same versions of Python and of the libraries as the program that starts the job"
        ) from error
    return plan


def _packed(thing: object) -> bytes:
    file = BytesIO()
    _pickler()(file, protocol=5).dump(thing)
    return file.getvalue()


@cache
def _pickler() -> Any:
    """Return a pickler of which functions that travel by value keep their file: cloudpickle writes none, and errors
    would then not name the line of a program's own function.
    """
    import cloudpickle

    reduce = cloudpickle.Pickler.dispatch_table[CodeType]

    def with_file(code: CodeType) -> tuple[Any, ...]:
        make, arguments = reduce(code)
        return make, tuple(code.co_filename if given == _NO_FILE else given for given in arguments)

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
        dispatch_table: ClassVar[Any] = ChainMap({CodeType: with_file}, cloudpickle.Pickler.dispatch_table)

    return Pickler


def _unpicklable(plan: Plan, error: Exception) -> PlanError:
    for step in plan.steps:
        try:
            _packed((step.factory, step.traits))
        except Exception as own:
            return PlanError(
                f"step {step.name!r} ({step.kind}{f', {step.detail}' if step.detail else ''}) cannot be sent to the "
                f"workers: {describe_error(own)}. Create what it uses inside the function, or once per worker with "
                f"mp.per_worker(factory)"
            )
    return PlanError(f"job {plan.job!r} cannot be sent to the workers: {describe_error(error)}")


Placement = Literal["spread", "pack"]
"""How workers are placed: over many nodes, or by Ray's default on few."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """How streams are opened. ``on_loopback``: all workers are on one machine."""

    on_loopback: bool
    ports: tuple[int, int] | None
    secret: JobSecret

    def end(self, peer: int, *, incarnation: int) -> Transport:
        """Open the end of ``peer`` inside its actor."""
        import ray

        from malstrom_py.workers.transport.zeromq import ZeroMQTransport

        host = "127.0.0.1" if self.on_loopback else str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        return ZeroMQTransport(peer, incarnation=incarnation, secret=self.secret, host=host, ports=self.ports)


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The Ray options of each worker. ``memory`` in bytes. ``for_program``: the fields of ``runtime_env`` that Ray sets
    only for a whole program.
    """

    num_cpus: float
    resources: Mapping[str, float] = field(default_factory=dict, hash=False)
    runtime_env: Mapping[str, Any] | None = field(default=None, hash=False)
    num_gpus: float = 0.0
    memory: int = 0
    placement: Placement = "spread"
    for_program: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def needs(self) -> dict[str, float]:
        """The resources that Ray schedules by: name -> amount."""
        return {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": self.memory, **self.resources}


@dataclass(frozen=True, slots=True)
class JobSetup:
    """All that a coordinator needs to start a job. ``plan`` is packed.

    ``keeping``: how the job keeps snapshots, None without; ``restart``: the restart policy. ``incarnation``: the number
    of this start, for a job without snapshots. ``outlives``: the job outlives its driver. ``watched``: workers keep
    black boxes. ``files``: the modules of the user's functions -> their files, for a reload. ``logs``: the settings of
    the program that starts the job, None if it has none. ``silent_s``: how long the coordinator of a job with
    snapshots may answer nothing before its process is looked at. ``autoscale``: how the number of workers follows the
    load, None if it does not. ``redact_errors``: texts of other code's exceptions are hidden.
    """

    job: str
    plan: bytes = field(repr=False)
    workers: int
    batching: Batching
    checks: bool
    wiring: Wiring
    options: WorkerOptions
    start_timeout_s: float
    autoscaling: bool
    incarnation: int = 1
    keeping: SnapshotUse | None = None
    restart: Restart = NEVER
    outlives: bool = False
    watched: bool = False
    files: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    logs: LogSettings | None = None
    silent_s: float = 0.0
    autoscale: Autoscale | None = None
    redact_errors: bool = False
