"""The configuration of a job on Ray as its actors get it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from malstrom_py.rescale.autoscaling import Autoscale
from malstrom_py.workers.remote.worker_setup import WorkerSetup
from malstrom_py.workers.runtime.supervisor import NEVER, Restart

Placement = Literal["spread", "pack"]
"""How workers are placed: over many nodes, or by Ray's default on few."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSetup(WorkerSetup):
    """All that a coordinator needs to start a job. ``plan`` is packed.

    ``restart``: the restart policy. ``outlives``: the job outlives its driver. ``files``: the modules of the user's
    functions -> their files, for a reload. ``silent_s``: how long the coordinator of a job with snapshots may answer
    nothing before its process is looked at. ``autoscale``: how the number of workers follows the load, None if it does
    not; ``autoscaling``: the cluster does.
    """

    plan: bytes = field(repr=False)
    workers: int
    options: WorkerOptions
    autoscaling: bool
    restart: Restart = NEVER
    outlives: bool = False
    files: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    silent_s: float = 0.0
    autoscale: Autoscale | None = None


def node_address() -> str:
    """Return the address of this node that the others reach."""
    import ray

    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
