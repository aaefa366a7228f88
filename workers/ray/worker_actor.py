"""The actor of a worker: runs a `WorkerServer` in each run of the job, and returns its failure as a value.

Rule: Ray's calls start an actor, run it and watch it; orders of the coordinator travel over the streams.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import ray

from malstrom_py.errors import InternalError, MalstromError
from malstrom_py.workers.ray.job_config import JobSetup, log_as, unpack_plan
from malstrom_py.workers.ray.worker_server import BlackBox, WorkerServer, box_path, clear_before
from malstrom_py.workers.reports.error_transfer import pack_error
from malstrom_py.workers.transport.base import Transport
from malstrom_py.workers.transport.calls import RayCallTransport

_LOG: Final = logging.getLogger("malstrom_py.worker")


class PackedFailure:
    """The result of a failed call: the packed error."""

    def __init__(self, error: BaseException) -> None:
        self.packed = pack_error(error)


class WorkerActor:
    """The process of a worker of job ``job``: runs one worker after the other, each in its own run of the job.

    `open` prepares a worker; then the loop runs in `run`, which returns when the loop has ended.
    """

    def __init__(self, job: str) -> None:
        self._name = f"malstrom(job={job} worker)"
        self._transport: Transport | None = None
        self._server: WorkerServer | None = None

    def __repr__(self) -> str:
        return self._name

    def open(self, setup: JobSetup, plan: bytes, worker: int, coordinator: Any) -> Any:
        """Prepare the loop of ``worker`` of ``plan``, and return the address for its peers or the failure.

        ``coordinator``: the address of the coordinator's end of the streams.
        """
        self._name = f"malstrom(job={setup.job} worker={worker})"
        log_as(setup.job, f"worker={worker}")
        try:
            self._transport = setup.wiring.end(worker, incarnation=setup.incarnation)
            token = setup.wiring.secret.token
            clear_before(token, setup.incarnation)
            self._server = WorkerServer(
                unpack_plan(plan, setup.job),
                worker,
                self._transport,
                coordinator,
                batching=setup.batching,
                checks=setup.checks,
                keeping=setup.keeping,
                box=BlackBox(box_path(token, setup.incarnation, worker)) if setup.watched else None,
            )
        except MalstromError as error:
            return PackedFailure(error)  # Ray would wrap an error
        return self._transport.address

    def node(self) -> str:
        """Return the id of the worker's node."""
        return str(ray.get_runtime_context().get_node_id())

    @ray.method(concurrency_group="run")
    def run(self) -> PackedFailure | None:
        """Run the worker's loop to its end."""
        server, self._server = self._server, None
        try:
            if server is None:
                raise InternalError("a worker's loop runs once, after `open`")
            server.run()
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
