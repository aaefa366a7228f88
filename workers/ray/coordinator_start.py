"""The start of a coordinator: takes the job's name on the cluster, and creates the coordinator's actor under it."""

from __future__ import annotations

from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from malstrom_py.clock import SystemClock
from malstrom_py.errors import DeadlineError, JobRunning, PlanError
from malstrom_py.errors.text import describe_error
from malstrom_py.workers.ray.cluster import HEAD, NAMESPACE, has_head, summarize_error
from malstrom_py.workers.ray.coordinator_actor import coordinator_class
from malstrom_py.workers.ray.job_config import JobSetup

NAME_S: Final = 5.0
"""How long a start waits for the name of a job that is just ending."""

_LITTLE: Final = 0.001
"""The share of the head resource that a coordinator takes: a thousand jobs fit."""


def await_name(job: str) -> None:
    """Wait until no job of that name runs on the cluster, before anything else is done.

    Raises:
        JobRunning: such a job still runs.
    """
    until_s = SystemClock().monotonic_s() + NAME_S
    while _is_taken(job):
        _make_way(job, until_s)


def start_coordinator(setup: JobSetup, *, detached: bool) -> Any:
    """Start the coordinator's actor, and return it once it is up.

    Raises:
        JobRunning: a job of that name runs already.
        DeadlineError: it has not started in time.
        PlanError: it cannot start: a dependency of the job or of its ``runtime_env`` is missing.
    """
    actor = _created(setup, detached=detached)
    try:
        ray.get(actor.is_up.remote(), timeout=setup.start_timeout_s)
    except GetTimeoutError:
        ray.kill(actor, no_restart=True)
        raise DeadlineError(
            f"the coordinator of job {setup.job!r} did not start within {setup.start_timeout_s:g} s: see `ray "
            f"status` and Ray's logs, or allow more with RayRuntime(start_timeout_s=)",
            wait="the start of the coordinator",
            deadline_s=setup.start_timeout_s,
        ) from None
    except RayError as error:
        raise PlanError(
            f"the coordinator of job {setup.job!r} could not be started: {summarize_error(error, end=True)}. Check "
            f"that every node has malstrom-py with its extra ray, and what runtime_env requires"
        ) from error
    except BaseException:
        ray.kill(actor, no_restart=True)
        raise
    return actor


def _created(setup: JobSetup, *, detached: bool) -> Any:
    # On the head node, which every job depends on anyway, so that no job depends on a second node.
    beside = {HEAD: _LITTLE} if has_head() else None
    until_s = SystemClock().monotonic_s() + NAME_S
    while True:
        try:
            return (
                coordinator_class(restarts=setup.snapshot_use is not None)
                .options(
                    name=setup.job,
                    namespace=NAMESPACE,
                    lifetime="detached" if detached else None,
                    resources=beside,
                    runtime_env=setup.options.runtime_env,
                )
                .remote(setup)
            )
        except (ValueError, TypeError) as error:
            if "already taken" not in str(error):
                raise PlanError(f"RayRuntime: Ray rejects these options: {describe_error(error)}") from error
            _make_way(setup.job, until_s)


def _is_taken(job: str) -> bool:
    try:
        ray.get_actor(job, namespace=NAMESPACE)
    except ValueError:
        return False
    return True


def _make_way(job: str, until_s: float) -> None:
    """Remove a dead actor that holds the name, or wait a little; `JobRunning` from ``until_s`` on."""
    clock = SystemClock()
    is_late = clock.monotonic_s() >= until_s
    if _removed(job, idle=is_late):
        return
    if is_late:
        raise JobRunning(
            f"a job {job!r} runs already on this Ray cluster: attach to it with JobHandle.attach({job!r}), stop it, or "
            f"give this one another name",
            job=job,
        ) from None
    clock.sleep_s(0.1)


def _removed(job: str, *, idle: bool) -> bool:
    """Remove a dead actor that holds the name, and return whether it did. Ray keeps the name while handles exist.

    ``idle``: also a live one whose job has ended and that waits for clients.
    """
    try:
        actor = ray.get_actor(job, namespace=NAMESPACE)
    except ValueError:
        return False
    try:
        removed = bool(ray.get(actor.has_ended.remote(), timeout=NAME_S)) and idle
    except RayActorError:
        removed = True
    except RayError:
        return False
    if removed:
        ray.kill(actor, no_restart=True)
    return removed
