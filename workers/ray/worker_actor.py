"""The actor of one worker: runs a `WorkerServer`, and returns its failure as a value.

Rule: Ray's calls start an actor, run it and watch it; orders of the coordinator travel over the streams.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import ray

from malstrom_py.errors import MalstromError
from malstrom_py.workers.coordinator.recovery import SnapshotUse
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.ray.job_config import Wiring, log_as, unpack_plan
from malstrom_py.workers.ray.worker_server import BlackBox, WorkerServer, box_path, clear_before
from malstrom_py.workers.reports.error_transfer import pack_error
from malstrom_py.workers.transport.calls import RayCallTransport

_LOG: Final = logging.getLogger("malstrom_py.worker")


class PackedFailure:
    """The result of a failed call: the packed error."""

    def __init__(self, error: BaseException) -> None:
        self.packed = pack_error(error)


class WorkerActor:
    """Worker ``worker`` of job ``job``. The loop runs in ``run``, which returns when the loop has ended.

    ``coordinator``: the address of the coordinator's end of the streams.
    """

    def __init__(
        self,
        job: str,
        worker: int,
        plan: bytes,
        wiring: Wiring,
        coordinator: Any,
        *,
        batching: Batching,
        checks: bool,
        incarnation: int,
        keeping: SnapshotUse | None,
        watched: bool,
    ) -> None:
        self._name = f"malstrom(job={job} worker={worker})"
        log_as(job, f"worker={worker}")
        self._failed: PackedFailure | None = None
        self._server: WorkerServer | None = None
        try:
            self._transport = wiring.end(worker, incarnation=incarnation)
            clear_before(wiring.secret.token, incarnation)
            box = BlackBox(box_path(wiring.secret.token, incarnation, worker)) if watched else None
            self._server = WorkerServer(
                unpack_plan(plan, job),
                worker,
                self._transport,
                coordinator,
                batching=batching,
                checks=checks,
                keeping=keeping,
                box=box,
            )
        except MalstromError as error:
            self._failed = PackedFailure(error)  # Ray would wrap an error

    def __repr__(self) -> str:
        return self._name

    def address(self) -> Any:
        """Return the address for the peers. The first answer means that the worker is up."""
        return self._failed or self._transport.address

    def node(self) -> str:
        """Return the id of the worker's node."""
        return str(ray.get_runtime_context().get_node_id())

    @ray.method(concurrency_group="run")
    def run(self) -> PackedFailure | None:
        """Run the worker's loop to its end."""
        if self._server is None:
            return self._failed
        try:
            self._server.run()
        except BaseException as error:
            _LOG.error("failed: %s", error if isinstance(error, MalstromError) else type(error).__name__)
            return PackedFailure(error)
        return None

    @ray.method(concurrency_group="deliver")
    def deliver(self, data: bytes) -> None:
        """Receive a peer's message where the streams are Ray calls."""
        if isinstance(self._transport, RayCallTransport):
            self._transport.deliver(data)


def worker_class(options: Mapping[str, Any]) -> Any:
    """Return the actor class with these Ray options."""
    remote: Any = ray.remote  # its types do not know concurrency groups
    groups = {"run": 1, "deliver": 1}
    return remote(max_restarts=0, max_task_retries=0, concurrency_groups=groups)(WorkerActor).options(**options)
