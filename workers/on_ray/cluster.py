"""The Ray cluster that a job runs on: joined or started, looked at, and asked how many workers it has room for."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from malstrom_py.errors import ControlError, PlanError

RAY_MIN: Final = (2, 52)
"""The first Ray whose cluster can ask for a token of whoever comes."""

NAMESPACE: Final = "malstrom"
"""Where the coordinators of jobs are named."""

REACH_S: Final = 2.0
"""How long the head of a cluster may take to answer."""

LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Cluster:
    """``is_local``: this program has started it on this machine, for itself, and it ends with the program."""

    is_local: bool


def joined(address: str | None) -> Cluster:
    """Join the cluster at ``address``; the one that is there already, or one of this program's own, if None.

    Raises:
        PlanError: Ray is missing, too old, or used through its client; or it is connected to another cluster.
        ControlError: there is no cluster at that address.
    """
    ray = imported_ray()
    if not ray.is_initialized():
        _initialise(ray, address)
    elif address not in {None, "auto", ray.get_runtime_context().gcs_address}:
        raise PlanError(
            f"this program is connected to the Ray cluster at {ray.get_runtime_context().gcs_address}, not to the one "
            f"at {address}: leave address out, or call ray.shutdown() first"
        )
    if ray.util.client.ray.is_connected():
        raise PlanError("jobs cannot be started through the Ray client (ray://): run the program on the cluster")
    return Cluster(is_local=started_here(ray))


def imported_ray() -> Any:
    """Ray, if it is there and new enough; else `PlanError`."""
    try:
        import ray
    except ImportError as error:
        raise PlanError("RayRuntime needs Ray: pip install 'malstrom-py[ray]'") from error
    check_version(ray.__version__)
    return ray


def check_version(version: str) -> None:
    """`PlanError` if this version of Ray is too old to be safe.

    >>> check_version("2.60.0")
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < RAY_MIN:
        least = ".".join(map(str, RAY_MIN))
        raise PlanError(
            f"Ray {version} is too old: its clusters let in whoever reaches them. Install ray>={least} "
            f"(pip install 'ray>={least}'), on every node"
        )


def started_here(ray: Any) -> bool:
    """Whether this process has started the cluster."""
    node = getattr(ray._private.worker, "_global_node", None)  # Ray has no other word for it
    return bool(node is not None and node.head)


def is_reachable(address: str) -> bool:
    """Whether anybody listens at ``address``, of the head of a cluster.

    >>> is_reachable("127.0.0.1:1")
    False
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()
    except (OSError, ValueError):  # nobody there, or no address
        return False
    return True


def in_short(error: BaseException, *, end: bool = False) -> str:
    r"""What Ray says of ``error``, without its guesses at causes, in one line: how it begins, or its ``end``, which is
    where a traceback says what was raised.

    >>> in_short(RuntimeError("The actor died\n  pid: 7\n. Some common causes include: (1) many"))
    'The actor died; pid: 7'
    """
    said = str(error).partition("Some common causes include")[0]
    lines = [line for line in (line.strip(" .") for line in said.splitlines()) if line]
    return "; ".join(lines[-4:] if end else lines[:8]) or type(error).__name__


def check_room(workers: int, needs: Mapping[str, float]) -> None:
    """`PlanError` if the cluster, all of it, has no room for ``workers`` workers that need this much each."""
    nodes = _nodes()
    room = room_in(nodes, needs)
    if room < workers:
        needed = ", ".join(f"{amount:g} {name}" for name, amount in needs.items() if amount)
        raise PlanError(
            f"{workers} workers of {needed} each are more than the Ray cluster can place: it has room for {room} "
            f"({len(nodes)} node{'' if len(nodes) == 1 else 's'}). Add nodes, or let a worker need less, for instance "
            f"RayRuntime(num_cpus={needs.get('CPU', 1.0) / 2:g})"
        )


def room_now(needs: Mapping[str, float]) -> int:
    """How many workers that need this much each the cluster has room for, if nobody else uses it."""
    return room_in(_nodes(), needs)


def room_in(nodes: list[dict[str, float]], needs: Mapping[str, float]) -> int:
    """How many workers with these ``needs`` nodes with these resources can hold, if nobody else uses them.

    >>> room_in([{"CPU": 4.0}, {"CPU": 1.5}], {"CPU": 0.5})
    11
    """
    wanted = {name: amount for name, amount in needs.items() if amount > 0}
    if not wanted:
        return 1 << 30 if nodes else 0
    return sum(min(int(node.get(name, 0.0) / amount + 1e-9) for name, amount in wanted.items()) for node in nodes)


def _nodes() -> list[dict[str, float]]:
    """What the nodes have that are there."""
    return [node["Resources"] for node in imported_ray().nodes() if node["Alive"]]


def _initialise(ray: Any, address: str | None) -> None:
    _show_token()
    # Without an address Ray would also join what some earlier program has left behind on this machine.
    wanted = address or os.environ.get("RAY_ADDRESS") or "local"
    try:
        ray.init(address=wanted, namespace=NAMESPACE, include_dashboard=False, logging_level="WARNING")
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ControlError(
            f"there is no Ray cluster {f'at {address}' if address else 'to be started here'} ({error}): start one with "
            f"ray start --head, or leave address out to run on this machine alone"
        ) from error


def _show_token() -> None:
    """Have Ray show the token of this user where there is one: a cluster of `ray start` asks for it, and a program that
    joins shows none unless ``RAY_AUTH_MODE`` says so.
    """
    try:
        from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
    except ImportError:
        return  # an older Ray, which asks only if told to
    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
