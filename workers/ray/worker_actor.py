"""The actor of a worker, and the cluster that starts it. Rule: Ray's calls start an actor, run it and watch it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from malstrom_py.errors import InternalError, PeerError
from malstrom_py.workers.ray.cluster import (
    NAMESPACE,
    ON_NODES,
    check_room,
    describe_needs,
    describe_room,
    room_now,
    summarize_error,
)
from malstrom_py.workers.ray.coordinator_watch import CoordinatorWatch
from malstrom_py.workers.ray.job_config import JobSetup
from malstrom_py.workers.ray.node_watch import NodeWatch
from malstrom_py.workers.remote.worker_server import PackedFailure, WorkerRuns, read_black_box
from malstrom_py.workers.remote.worker_setup import WorkerSetup

WORDS_S: Final = 10.0
"""The timeout for reading a black box on another machine."""


class WorkerActor:
    """The process of a worker of job ``job``."""

    def __init__(self, job: str) -> None:
        self._name = f"malstrom(job={job} worker)"
        self._runs = WorkerRuns(ON_NODES, shares_output=False)
        self._coordinator_watch: CoordinatorWatch | None = None

    def __repr__(self) -> str:
        return self._name

    def open(self, setup: JobSetup, plan: bytes, worker: int, coordinator: Any) -> Any:
        """Do as `WorkerRuns.open`. Worker 0 watches the coordinator of a job with snapshots."""
        self._name = f"malstrom(job={setup.job} worker={worker})"
        address = self._runs.open(setup, plan, worker, coordinator)
        is_watching = self._coordinator_watch is not None or isinstance(address, PackedFailure)
        if worker == 0 and setup.snapshot_use is not None and not is_watching:
            self._coordinator_watch = CoordinatorWatch(setup)
            self._coordinator_watch.start()
        return address

    def node(self) -> str:
        """Return the id of the worker's node."""
        return str(ray.get_runtime_context().get_node_id())

    @ray.method(concurrency_group="run")
    def run(self) -> PackedFailure | None:
        """Run the worker's loop to its end."""
        return self._runs.run()


def worker_class(options: Mapping[str, Any]) -> Any:
    """Return the actor class with these Ray options."""
    remote: Any = ray.remote  # its types do not know concurrency groups
    return remote(max_restarts=0, max_task_retries=0, concurrency_groups={"run": 1})(WorkerActor).options(**options)


class RayProcess:
    """An actor that can run a worker of the job of ``setup``, on any node except ``but``. A `WorkerProcess`."""

    def __init__(self, setup: JobSetup, but: Collection[str] = ()) -> None:
        options = setup.options
        self.actor = worker_class(
            {
                "num_cpus": options.num_cpus,
                "num_gpus": options.num_gpus,
                "memory": options.memory or None,
                "resources": dict(options.resources) or None,
                "runtime_env": options.runtime_env,
                "namespace": NAMESPACE,
                "scheduling_strategy": {"spread": "SPREAD", "pack": "DEFAULT"}[options.placement],
                "label_selector": {"ray.io/node-id": f"!in({','.join(sorted(but))})"} if but else None,
            }
        ).remote(setup.job)
        self.found_node = self.actor.node.remote().future()

    @property
    def node(self) -> str | None:
        if not self.found_node.done() or self.found_node.exception() is not None:
            return None
        return str(self.found_node.result())

    def open(self, setup: WorkerSetup, plan: Any, worker: int, coordinator: Any) -> Future[Any]:
        opening: Future[Any] = self.actor.open.remote(setup, plan, worker, coordinator).future()
        return opening

    def run(self) -> Future[Any]:
        running: Future[Any] = self.actor.run.remote().future()
        return running

    def result(self, call: Future[Any], worker: int) -> Any:
        try:
            return call.result(timeout=0)
        except RayActorError as error:
            raise worker_died(worker, error) from None
        except RayError as error:
            raise InternalError(f"worker {worker}: {summarize_error(error)}") from error

    def read_black_box(self, path: Path) -> str:
        if path.exists():
            return read_black_box(path)
        try:
            here = NodeAffinitySchedulingStrategy(self.found_node.result(0.0), soft=False)
            remote: Any = ray.remote  # its types lack the scheduling strategy
            read = remote(num_cpus=0, max_retries=0, scheduling_strategy=here)(read_black_box)
            return str(ray.get(read.remote(path), timeout=WORDS_S))
        except (RayError, TimeoutError):
            return ""  # the node is gone too

    def kill(self) -> None:
        ray.kill(self.actor, no_restart=True)


def worker_died(worker: int, error: RayActorError) -> PeerError:
    """Return the error for a dead worker process, with what Ray knows about it."""
    return PeerError(
        f"worker {worker} died: {summarize_error(error)}. Its log, and Ray's on its node, may say why (killed, out of "
        f"memory, its node gone). Without snapshots the job fails; with them it restarts from the last, as often as "
        f"restart= allows",
        peer=worker,
    )


class ClusterMachines:
    """The nodes of a Ray cluster, as the job of ``setup`` may use them. ``node_watch`` knows the silent ones."""

    def __init__(self, setup: JobSetup, node_watch: NodeWatch) -> None:
        self._setup = setup
        self._needs = setup.options.needs
        self._node_watch = node_watch

    @property
    def silent(self) -> frozenset[str]:
        return self._node_watch.silent

    def new_process(self, but: Collection[str] = ()) -> RayProcess:
        return RayProcess(self._setup, but)

    def share(self, plan: bytes) -> Any:
        return ray.put(plan)

    def check_room(self, size: int, *, now: bool = False) -> None:
        if now or not self._setup.autoscaling:
            check_room(size, self._needs, but=self.silent)

    def check_lost_room(self, wanted: int) -> None:
        if self._setup.autoscaling:
            return
        room = room_now(self._needs, but=self.silent)
        if room < wanted:
            raise PeerError(
                f"job {self._setup.job!r} waits for {wanted} workers to start, and the Ray cluster has room for "
                f"only {room} since it lost a node. Add a node, or run fewer workers"
            )

    def why_late(self, wanted: int) -> str:
        return (
            f"see `ray status` for whether the cluster has room: {describe_room(wanted, self._needs, but=self.silent)} "
            f"(each needs {describe_needs(self._needs)}). Or allow more with RayRuntime(start_timeout_s=)"
        )
