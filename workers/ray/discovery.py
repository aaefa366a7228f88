"""Finds running jobs by name on a Ray cluster: at a given address, or nearby.

A nearby cluster is the one this program is connected to, that ``RAY_ADDRESS`` names, or that runs on this machine.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from malstrom_py.errors import ControlError, JobNotFound, MalstromError
from malstrom_py.validation import check_name
from malstrom_py.workers.ray.cluster import NAMESPACE, imported_ray, is_reachable, join_cluster
from malstrom_py.workers.reports.commands import RunningJob

_NEARBY: Final = "auto"
"""The address with which Ray finds a nearby cluster, ``RAY_ADDRESS`` first."""

_CURRENT: Final = "ray_current_cluster"
"""The file in which Ray records the last cluster that was started on this machine."""


def attach(name: str, address: str) -> RunningJob:
    """Return the running job of that name on the cluster at ``address``.

    Raises:
        PlanError: the name is invalid; or Ray is missing, too old, or connected to another cluster.
        ControlError: there is no such cluster.
        JobNotFound: there is no such job on it.
    """
    check_name(name, "job")
    join_cluster(address)
    return _found(name)


def attach_nearby(name: str) -> RunningJob | None:
    """Return the running job of that name on a nearby cluster; None if there is no such cluster or job."""
    if not _is_nearby():
        return None
    try:
        join_cluster(_NEARBY)
        return _found(name)
    except (ControlError, JobNotFound):
        return None


def running_nearby(address: str | None = None) -> list[str]:
    """Return the names of the jobs on the cluster at ``address``, or on a nearby one."""
    if address is not None:
        join_cluster(address)
        return _running()
    if not _is_nearby():
        return []
    try:
        join_cluster(_NEARBY)
        return _running()
    except MalstromError:
        return []


def _is_nearby() -> bool:
    if find_spec("ray") is None:
        return False
    if "RAY_ADDRESS" in os.environ:
        return True
    ray: Any = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        return True
    noted = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / _CURRENT
    try:
        return is_reachable(noted.read_text().strip())  # the file outlives a cluster that was killed
    except OSError:
        return False


def _found(name: str) -> RunningJob:
    from malstrom_py.workers.ray.ray_job import RayJob

    ray = imported_ray()
    try:
        return RayJob(name, ray.get_actor(name, namespace=NAMESPACE))
    except ValueError:
        known = _running()
        raise JobNotFound(
            f"there is no job {name!r} on the Ray cluster; running there: {', '.join(known) or 'none'}",
            job=name,
            running=tuple(known),
        ) from None


def _running() -> list[str]:
    ray = imported_ray()
    actors = ray.util.list_named_actors(all_namespaces=True)
    return sorted(actor["name"] for actor in actors if actor["namespace"] == NAMESPACE)
