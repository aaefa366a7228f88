"""Starts the coordinator of a job on Ray, under the job's name."""

from __future__ import annotations

from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from malstrom_py.clock import SystemClock
from malstrom_py.errors import DeadlineError, JobRunning, PlanError
from malstrom_py.workers.on_ray.cluster import HEAD, NAMESPACE, has_head, in_short
from malstrom_py.workers.on_ray.coordinator_actor import coordinator_class
from malstrom_py.workers.on_ray.setup import JobSetup

NAME_S: Final = 5.0
"""How long a job whose predecessor of the same name is just ending waits for the name."""

_LITTLE: Final = 0.001
"""What a coordinator takes of the one head that there is: a thousand jobs find room there."""


def await_name(job: str) -> None:
    """Wait until no job of that name runs on the cluster: nothing is done for one that cannot start.

    Raises:
        JobRunning: one does.
    """
    until_s = SystemClock().monotonic_s() + NAME_S
    while _is_taken(job):
        _make_way(job, until_s)


def start_coordinator(setup: JobSetup, *, detached: bool) -> Any:
    """The coordinator's actor, once it is up.

    Raises:
        JobRunning: a job of that name runs already.
        DeadlineError: it has not come up in time.
        PlanError: it cannot, for what the job or its ``runtime_env`` needs is not there.
    """
    actor = _created(setup, detached=detached)
    try:
        ray.get(actor.is_up.remote(), timeout=setup.start_timeout_s)
    except GetTimeoutError:
        ray.kill(actor, no_restart=True)
        raise DeadlineError(
            f"the coordinator of job {setup.job!r} did not come up within {setup.start_timeout_s:g} s: see `ray "
            f"status` and Ray's logs, or allow more with RayRuntime(start_timeout_s=)",
            wait="the coordinator to come up",
            deadline_s=setup.start_timeout_s,
        ) from None
    except RayError as error:
        raise PlanError(
            f"the coordinator of job {setup.job!r} could not be started: {in_short(error, end=True)}. See that every "
            f"node has malstrom-py with what its extra ray brings, and what runtime_env asks for"
        ) from error
    except BaseException:
        ray.kill(actor, no_restart=True)
        raise
    return actor


def _created(setup: JobSetup, *, detached: bool) -> Any:
    # Beside the head, without which no job gets far anyway: so none depends on a second node.
    beside = {HEAD: _LITTLE} if has_head() else None
    until_s = SystemClock().monotonic_s() + NAME_S
    while True:
        try:
            return (
                coordinator_class(restarts=setup.keeping is not None)
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
                raise PlanError(f"RayRuntime: Ray does not take these options: {error}") from error
            _make_way(setup.job, until_s)


def _is_taken(job: str) -> bool:
    try:
        ray.get_actor(job, namespace=NAMESPACE)
    except ValueError:
        return False
    return True


def _make_way(job: str, until_s: float) -> None:
    """Forget who has the name, if dead, or wait a little; `JobRunning` from ``until_s`` on."""
    clock = SystemClock()
    is_late = clock.monotonic_s() >= until_s
    if _buried(job, idle=is_late):
        return
    if is_late:
        raise JobRunning(
            f"a job {job!r} runs already on this Ray cluster: attach to it with JobHandle.attach({job!r}), stop it, or "
            f"give this one another name",
            job=job,
        ) from None
    clock.sleep_s(0.1)


def _buried(job: str, *, idle: bool) -> bool:
    """Whether who has the name was dead, and is now forgotten: Ray keeps its name for those who hold on to it.

    ``idle``: also one that lives, and whose job has ended: it waits for somebody who asks how.
    """
    try:
        actor = ray.get_actor(job, namespace=NAMESPACE)
    except ValueError:
        return False
    try:
        buried = bool(ray.get(actor.has_ended.remote(), timeout=NAME_S)) and idle
    except RayActorError:
        buried = True
    except RayError:
        return False
    if buried:
        ray.kill(actor, no_restart=True)
    return buried
