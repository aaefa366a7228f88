"""The Ray cluster of a job: joins or starts it, and computes how many workers it has room for."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from malstrom_py.errors import ControlError, PlanError, pip_install
from malstrom_py.errors.text import describe_error, text_of
from malstrom_py.workers.remote.packed_plan import PlanAdvice

RAY_MIN: Final = (2, 52)
"""The first Ray version whose clusters can require a token."""

NAMESPACE: Final = "malstrom"
"""The Ray namespace of coordinators."""

ON_NODES: Final = PlanAdvice(
    module="install it on every node of the cluster, or have Ray bring it there with "
    "RayRuntime(runtime_env={'pip': [...]}) or, for your own code, runtime_env={'working_dir': '.'}",
    other="check that the cluster runs the same versions of Python and of the libraries as the program that starts the "
    "job",
)

HEAD: Final = "node:__internal_head__"
"""The resource that only the head node has."""

REACH_S: Final = 2.0
"""How long the head of a cluster may take to answer."""

LOOPBACK: Final = "127.0.0.1"

_AT_HAND: Final = "auto"

_BROUGHT: Final[list[tuple[dict[str, Any], str]]] = []
"""The runtime environment that this program started Ray with, and its worker id since then."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """``is_local``: this program has started the cluster on this machine, and the cluster ends with the program."""

    is_local: bool


def join_cluster(
    address: str | None,
    env: Mapping[str, Any] | None = None,
    *,
    on_sigterm: Callable[[Any], None] | None = None,
) -> Cluster:
    """Join the cluster at ``address``; None: the one this program is connected to, or a new one on this machine.

    ``env``: the runtime environment of the whole program. ``on_sigterm`` gets the SIGTERM handler that Ray would
    install; Ray then installs none.

    Raises:
        PlanError: Ray is missing, too old, or used through its client; or it is connected to another cluster, or was
            started here without ``env``.
        ControlError: there is no cluster at that address.
    """
    ray = imported_ray()
    if not ray.is_initialized():
        with _sigterm_left(ray, on_sigterm):
            _initialise(ray, address, env or {})
    elif address not in {None, _AT_HAND, ray.get_runtime_context().gcs_address}:
        raise PlanError(
            f"this program is connected to the Ray cluster at {ray.get_runtime_context().gcs_address}, not to the one "
            f"at {address}: leave address out, or call ray.shutdown() first"
        )
    if ray.util.client.ray.is_connected():
        raise PlanError("jobs cannot be started through the Ray client (ray://): run the program on the cluster")
    _check_brought(ray, env or {})
    return Cluster(is_local=started_here(ray))


def imported_ray() -> Any:
    """Import Ray. `PlanError` if it is missing or too old."""
    try:
        import ray
    except ImportError as error:
        raise PlanError(f"RayRuntime needs Ray: {pip_install('ray')}") from error
    check_version(ray.__version__)
    return ray


def check_fields(env: Mapping[str, Any]) -> None:
    """Raise `PlanError` for a field of ``env`` that Ray does not know and would silently ignore."""
    from ray.runtime_env import RuntimeEnv

    known: set[str] = set(getattr(RuntimeEnv, "known_fields", ()))
    unknown = sorted(set(env) - known)
    if known and unknown and not os.environ.get("RAY_RUNTIME_ENV_PLUGINS"):  # plugins add fields
        fields = sorted(name for name in known if not name.startswith("_"))
        raise PlanError(
            f"RayRuntime: runtime_env has {', '.join(unknown)}, which Ray does not know: it knows {', '.join(fields)}"
        )


def check_version(version: str) -> None:
    """Raise `PlanError` if this version of Ray is too old to be safe.

    >>> check_version("2.60.0")
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < RAY_MIN:
        least = ".".join(map(str, RAY_MIN))
        raise PlanError(
            f"Ray {version} is too old: its clusters accept any client that can reach them. Install ray>={least} "
            f"(pip install 'ray>={least}'), on every node"
        )


def started_here(ray: Any) -> bool:
    """Return whether this process has started the cluster."""
    node = getattr(ray._private.worker, "_global_node", None)  # Ray has no public way to ask
    return bool(node is not None and node.head)


def is_reachable(address: str) -> bool:
    """Return whether the head of a cluster listens at ``address``.

    >>> is_reachable("127.0.0.1:1")
    False
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()
    except (OSError, ValueError):  # no listener, or an invalid address
        return False
    return True


def summarize_error(error: BaseException, *, end: bool = False) -> str:
    r"""Return Ray's message of ``error`` in one line, without Ray's guesses at causes.

    The line has the start of the message, or its ``end``, where a traceback names the exception.

    >>> summarize_error(RuntimeError("The actor died\n  pid: 7\n. Some common causes include: (1) many"))
    'The actor died; pid: 7'
    """
    said = text_of(error).partition("Some common causes include")[0]
    lines = [line for line in (line.strip(" .") for line in said.splitlines()) if line]
    return "; ".join(lines[-4:] if end else lines[:8]) or type(error).__name__


def check_room(workers: int, needs: Mapping[str, float], *, but: Collection[str] = ()) -> None:
    """Raise `PlanError` if the cluster, without the nodes ``but``, cannot hold ``workers`` with these ``needs``."""
    nodes = _nodes(but)
    room = room_in(nodes, needs)
    if room < workers:
        short = short_in(nodes, workers, needs)
        what = f"less of {' and '.join(short)}" if short else "less"
        half = f"{needs.get('CPU', 0.0) / 2:g}"
        smaller = f"RayRuntime(num_cpus={half}), or --num-cpus {half} on the command line"
        less = smaller if "CPU" in short else "or ask for fewer workers"
        wanted = f"{workers} worker{'' if workers == 1 else 's'} of {describe_needs(needs)} each"
        raise PlanError(
            f"{wanted} are more than the Ray cluster can place: it has room for "
            f"{room} ({len(nodes)} node{'' if len(nodes) == 1 else 's'}). Add nodes, or let a worker need {what}, "
            f"{'for instance ' if less.startswith('Ray') else ''}{less}"
        )


def short_in(nodes: list[dict[str, float]], workers: int, needs: Mapping[str, float]) -> list[str]:
    """Return the resources of which these empty nodes have too little for ``workers`` with these ``needs``.

    >>> short_in([{"CPU": 4.0}], 2, {"CPU": 1.0, "GPU": 0.5})
    ['GPU']
    """
    return [name for name in needs if room_in(nodes, {name: needs[name]}) < workers]


def describe_room(workers: int, needs: Mapping[str, float], *, but: Collection[str] = ()) -> str:
    """Return whether the cluster has room for ``workers`` with these ``needs``, or what it lacks, as text."""
    nodes = _nodes(but)
    room = room_in(nodes, needs)
    if room >= workers:
        return f"its nodes have room for {workers} when nothing else runs on them"
    lacks = " and ".join(short_in(nodes, workers, needs)) or "nodes that have all of it together"
    return f"its nodes have room for {room} of {workers} workers, and lack {lacks}"


def describe_needs(needs: Mapping[str, float]) -> str:
    """Return what a worker needs as text.

    >>> describe_needs({"CPU": 0.5, "GPU": 0.0, "memory": 2e9})
    '0.5 CPU, 2 GB memory'
    """
    parts = [
        f"{amount / 1e9:g} GB {name}" if name == "memory" else f"{amount:g} {name}"
        for name, amount in needs.items()
        if amount
    ]
    return ", ".join(parts) or "nothing"


def room_now(needs: Mapping[str, float], *, but: Collection[str] = ()) -> int:
    """Return the number of workers with these ``needs`` that the cluster, without the nodes ``but``, can hold."""
    return room_in(_nodes(but), needs)


def room_in(nodes: list[dict[str, float]], needs: Mapping[str, float]) -> int:
    """Return the number of workers with these ``needs`` that empty nodes with these resources can hold.

    >>> room_in([{"CPU": 4.0}, {"CPU": 1.5}], {"CPU": 0.5})
    11
    """
    wanted = {name: amount for name, amount in needs.items() if amount > 0}
    if not wanted:
        return 1 << 30 if nodes else 0
    return sum(min(int(node.get(name, 0.0) / amount + 1e-9) for name, amount in wanted.items()) for node in nodes)


def has_head() -> bool:
    """Return whether Ray says which node is the head."""
    return any(HEAD in node for node in _nodes())


def _nodes(but: Collection[str] = ()) -> list[dict[str, float]]:
    """Return the resources of the nodes that are alive, without the nodes ``but``."""
    return [node["Resources"] for node in imported_ray().nodes() if node["Alive"] and node["NodeID"] not in but]


def _check_brought(ray: Any, env: Mapping[str, Any]) -> None:
    """Raise `PlanError` if Ray runs in this program without ``env``."""
    if not env or (dict(env), ray.get_runtime_context().get_worker_id()) in _BROUGHT:
        return
    names = " and ".join(name for name in env if name != "excludes")
    raise PlanError(
        f"Ray runs in this program already, and {names} can only be set where it is started: give it to "
        f"ray.init(runtime_env=…) there, or start the program by `ray job submit --working-dir`, and leave it out of "
        f"RayRuntime(runtime_env=…); or call ray.shutdown() first"
    )


def _initialise(ray: Any, address: str | None, env: Mapping[str, Any]) -> None:
    _show_token()
    # Without an address Ray would also join a cluster that an earlier program has left running on this machine.
    wanted = address or os.environ.get("RAY_ADDRESS") or "local"
    brings = {"runtime_env": dict(env)} if env else {}
    try:
        ray.init(address=wanted, namespace=NAMESPACE, include_dashboard=False, logging_level="WARNING", **brings)
        _BROUGHT[:] = [(dict(env), ray.get_runtime_context().get_worker_id())]
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        is_there = wanted in {"local", _AT_HAND} or is_reachable(wanted)
        if env and is_there and not isinstance(error, ConnectionError):
            ray.shutdown()
            raise PlanError(f"Ray rejects this runtime_env: {summarize_error(error)}") from error
        raise ControlError(
            f"there is no Ray cluster {f'at {address}' if address else 'to be started here'} "
            f"({describe_error(error)}): start one with ray start --head, or leave address out to run on "
            f"this machine alone"
        ) from error


@contextmanager
def _sigterm_left(ray: Any, on_sigterm: Callable[[Any], None] | None) -> Iterator[None]:
    """Pass Ray's SIGTERM handler to ``on_sigterm``. Ray would otherwise replace the handler of the program."""
    utils = ray._private.utils  # Ray has no option for it
    theirs = getattr(utils, "set_sigterm_handler", None)
    if on_sigterm is None or theirs is None:
        yield
        return
    utils.set_sigterm_handler = on_sigterm
    try:
        yield
    finally:
        utils.set_sigterm_handler = theirs


def _show_token() -> None:
    """Make Ray send this user's token if there is one. A cluster of `ray start` requires it; a program that joins sends
    none unless ``RAY_AUTH_MODE`` is set.
    """
    try:
        from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
    except ImportError:
        return  # an older Ray, which requires a token only if configured
    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
