"""Finds running jobs on a Ray cluster by their names: on the one that is asked for, or on one that is at handle."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from malstrom_py.errors import ControlError, JobNotFound, MalstromError
from malstrom_py.validation import check_name
from malstrom_py.workers.control.remote_job import RemoteJob
from malstrom_py.workers.ray.cluster import NAMESPACE, imported_ray, is_reachable, join_cluster

_AT_HAND: Final = "auto"
"""The address by which Ray finds one, ``RAY_ADDRESS`` first."""

_CURRENT: Final = "ray_current_cluster"
"""The file in which Ray notes the cluster that was started on this machine last."""


def attach(name: str, address: str) -> RemoteJob:
    """The running job of that name on the cluster at ``address``.

    Raises:
        PlanError: this cannot be the name of a job; or Ray is missing, too old, or connected to another cluster.
        ControlError: there is no such cluster.
        JobNotFound: there is no such job on it.
    """
    check_name(name, "job")
    join_cluster(address)
    return _found(name)


def attach_nearby(name: str) -> RemoteJob | None:
    """The same on a cluster that is at hand: the one this program is connected to, that ``RAY_ADDRESS`` names, or that
    runs on this machine. None if there is none, or not this job on it.
    """
    if not _is_at_hand():
        return None
    try:
        join_cluster(_AT_HAND)
        return _found(name)
    except (ControlError, JobNotFound):
        return None


def running_nearby(address: str | None = None) -> list[str]:
    """The names of the jobs on the cluster at ``address``, or on one that is at handle."""
    if address is not None:
        join_cluster(address)
        return _running()
    if not _is_at_hand():
        return []
    try:
        join_cluster(_AT_HAND)
        return _running()
    except MalstromError:
        return []


def _is_at_hand() -> bool:
    if find_spec("ray") is None:
        return False
    if "RAY_ADDRESS" in os.environ:
        return True
    ray: Any = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        return True
    noted = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / _CURRENT
    try:
        return is_reachable(noted.read_text().strip())  # the note outlives a cluster that was killed
    except OSError:
        return False


def _found(name: str) -> RemoteJob:
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
