"""Heartbeats to the nodes of a Ray cluster: detects a node that is cut off or stopped, long before Ray does.

Ray needs a minute to declare a node dead that does not answer, and places actors there until then. This module opens a
plain connection to each raylet once a second. Any reaction counts as a heartbeat. User functions never run in the
raylet, so a busy worker never makes a node look dead. Rule: a node is silent after `MISSES` missed heartbeats in a row,
until it reacts again. While no node has ever reacted (a firewall, say), no node counts as silent.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, Final

import ray

from malstrom_py.clock import SystemClock

LOOK_S: Final = 1.0
"""The heartbeat interval for up to a hundred nodes; it grows with more nodes."""

REACT_S: Final = 2.0
"""The timeout of a heartbeat: long enough for one lost packet."""

MISSES: Final = 3
"""Missed heartbeats in a row after which a node is silent: about seven seconds. A raylet that gets no CPU for five
seconds, on an overloaded machine, is not silent."""

_HELD_UP_S: Final = 1.0
_PER_NODE_S: Final = 0.01

_HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""The start of a gRPC connection. A server answers it; one that wants TLS hangs up, which is a reaction too."""

Address = tuple[str, int]


class SilentNodes:
    """The set of silent nodes, computed from missed heartbeats. Pure.

    >>> silence = SilentNodes()
    >>> silence.note(["a", "b"], {"a", "b"})
    >>> for _ in range(3):
    ...     silence.note(["a", "b"], {"a"})
    >>> silence.nodes
    frozenset({'b'})
    """

    def __init__(self) -> None:
        self.nodes: frozenset[str] = frozenset()
        self._misses: dict[str, int] = {}
        self._answered = False

    def note(self, asked: Collection[str], reacted: Collection[str]) -> None:
        """Count one heartbeat: all nodes were ``asked``, and these have ``reacted``."""
        self._answered = self._answered or bool(reacted)
        self._misses = {node: 0 if node in reacted else self._misses.get(node, 0) + 1 for node in asked}
        silent = {node for node, misses in self._misses.items() if misses >= MISSES}
        self.nodes = frozenset(silent if self._answered else ())


class NodeWatch:
    """Sends heartbeats from its own thread, from `start` to `close`."""

    def __init__(self) -> None:
        self._silence = SilentNodes()
        self._closed = threading.Event()
        self._here = str(ray.get_runtime_context().get_node_id())

    @property
    def silent(self) -> frozenset[str]:
        """The ids of the silent nodes."""
        return self._silence.nodes

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._look, name="malstrom-node-watch", daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()

    def _look(self) -> None:
        pause_s = 0.0
        while not self._closed.wait(pause_s):
            pause_s = LOOK_S
            with suppress(Exception):  # Ray's head may be down for a while
                pause_s = self._heartbeat()

    def _heartbeat(self) -> float:
        """Send a heartbeat to every other node, and return how long to pause."""
        clock = SystemClock()
        nodes = {
            str(node["NodeID"]): (str(node["NodeManagerAddress"]), int(node["NodeManagerPort"]))
            for node in ray.nodes()  # type: ignore[no-untyped-call]
            if node["Alive"] and node["NodeID"] != self._here
        }
        began_s = clock.monotonic_s()
        reacted = reacting(nodes, REACT_S)
        took_s = clock.monotonic_s() - began_s
        if took_s > REACT_S + _HELD_UP_S:
            return 0.0  # this process got no CPU itself, so a missed heartbeat proves nothing
        self._silence.note(nodes, reacted)
        return max(0.0, max(LOOK_S, _PER_NODE_S * len(nodes)) - took_s)


def reacting(nodes: Mapping[str, Address], within_s: float) -> set[str]:
    """Return those of ``nodes`` (id -> host, port) that react to a connection within ``within_s`` seconds.

    >>> reacting({"closed": ("127.0.0.1", 1)}, 1.0)
    set()
    """
    reacted, clock = set[str](), SystemClock()
    until_s = clock.monotonic_s() + within_s
    with selectors.DefaultSelector() as selector:
        for node, address in nodes.items():
            with suppress(OSError):
                selector.register(_connecting(address), selectors.EVENT_WRITE, node)
        while selector.get_map() and (left_s := until_s - clock.monotonic_s()) > 0:
            for key, _ in selector.select(left_s):
                if _advance(selector, key):
                    reacted.add(key.data)
        for key in list(selector.get_map().values()):
            _end(selector, key.fileobj)
    return reacted


def _connecting(address: Address) -> socket.socket:
    connection = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    connection.setblocking(False)
    connection.connect_ex(address)
    return connection


def _advance(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> bool:
    """Advance a connection that is ready, and return whether its other side has reacted."""
    end: Any = key.fileobj
    if key.events == selectors.EVENT_WRITE:
        try:
            if not end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                end.send(_HELLO)
                selector.modify(end, selectors.EVENT_READ, key.data)
                return False
        except OSError:
            pass  # refused: no server
        _end(selector, end)
        return False
    with suppress(OSError):
        end.recv(1)
    _end(selector, end)
    return True


def _end(selector: selectors.BaseSelector, end: Any) -> None:
    selector.unregister(end)
    end.close()
