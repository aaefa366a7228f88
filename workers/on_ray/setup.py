"""What a job on Ray is started with, as its actors are told it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from malstrom_py.workers.batching import Batching
from malstrom_py.workers.beginning import Keeping
from malstrom_py.workers.restart import NEVER, Restart
from malstrom_py.workers.transport.base import Transport
from malstrom_py.workers.transport.secret import JobSecret

Streams = Literal["direct", "ray"]
"""How batches go from worker to worker: over sockets of their own, or in calls of Ray where no port can be opened."""


Placement = Literal["spread", "pack"]
"""Which nodes workers go to: as many as there are, or as few as Ray thinks right."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """How the ends of the streams are made. ``on_loopback``: all of them are on one machine."""

    streams: Streams
    on_loopback: bool
    ports: tuple[int, int] | None
    secret: JobSecret

    def end(self, peer: int, *, incarnation: int) -> Transport:
        """The end of ``peer``, made inside its actor."""
        import ray

        if self.streams == "ray":
            from malstrom_py.workers.transport.calls import RayCallTransport

            handle = ray.get_runtime_context().current_actor
            return RayCallTransport(peer, incarnation=incarnation, secret=self.secret, handle=handle)
        from malstrom_py.workers.transport.zeromq import ZeroMQTransport

        host = "127.0.0.1" if self.on_loopback else str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        return ZeroMQTransport(peer, incarnation=incarnation, secret=self.secret, host=host, ports=self.ports)


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What each worker needs of Ray. ``memory`` in bytes. ``for_program``: of the ``runtime_env``, what a whole program
    has.
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
        """What Ray counts: resource -> how much of it."""
        return {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": self.memory, **self.resources}


@dataclass(frozen=True, slots=True)
class JobSetup:
    """A job with everything that its coordinator must know to start it. ``plan`` is packed.

    ``keeping``: how it is snapshotted, None if it is not; ``restart``: how it is begun again then. ``incarnation``:
    which start of the job this is, where snapshots do not tell. ``outlives``: it goes on when its program ends.
    ``watched``: workers note what they are at work on, for when they die.
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
    keeping: Keeping | None = None
    restart: Restart = NEVER
    outlives: bool = False
    watched: bool = False
