"""Sees which nodes of a Ray cluster have fallen silent: cut off or stopped, long before Ray says that they are lost.

Ray asks a node five times before it gives it up, which takes a minute where no answer comes at all; until then it
places actors there. Here a bare connection is opened to each raylet, once a second. What counts is that its process
reacts, not what it says. A user's function never runs in that process, so a busy worker is never taken for a lost node.
Rule: a node is silent after `MISSES` questions in a row, and no longer once it has reacted. Where no node has ever
reacted, the way is barred for such questions, and nothing is said of any.
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
"""How often nodes are asked, up to a hundred of them; more are asked less often."""

REACT_S: Final = 2.0
"""How long a node may take to react: long enough for a first packet to be lost on the way."""

MISSES: Final = 3
"""A node is silent when it has not reacted to so many questions in a row, about seven seconds after it was cut off. A
raylet that gets no CPU for five seconds, on an overloaded machine, is not silent."""

_HELD_UP_S: Final = 1.0
_PER_NODE_S: Final = 0.01

_HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""How a client of gRPC begins: what serves it answers at once, and what wants TLS hangs up, which is a reaction too."""

Address = tuple[str, int]


class SilentNodes:
    """Which nodes are silent, by how they reacted to what they were asked. Pure.

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
        """These were asked, being all that there are, and these of them have reacted."""
        self._answered = self._answered or bool(reacted)
        self._misses = {node: 0 if node in reacted else self._misses.get(node, 0) + 1 for node in asked}
        silent = {node for node, misses in self._misses.items() if misses >= MISSES}
        self.nodes = frozenset(silent if self._answered else ())


class NodeWatch:
    """Looks, in a thread of its own from `start` to `close`."""

    def __init__(self) -> None:
        self._silence = SilentNodes()
        self._closed = threading.Event()
        self._here = str(ray.get_runtime_context().get_node_id())

    @property
    def silent(self) -> frozenset[str]:
        """The ids of the nodes that do not react."""
        return self._silence.nodes

    def start(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._look, name="malstrom-node-watch", daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def _look(self) -> None:
        pause_s = 0.0
        while not self._closed.wait(pause_s):
            pause_s = LOOK_S
            with suppress(Exception):  # Ray's head may be away for a while, and is asked again
                pause_s = self._asked()

    def _asked(self) -> float:
        """Ask all nodes but this one: how long to pause."""
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
            return 0.0  # this process was held up itself: it proves nothing
        self._silence.note(nodes, reacted)
        return max(0.0, max(LOOK_S, _PER_NODE_S * len(nodes)) - took_s)


def reacting(nodes: Mapping[str, Address], within_s: float) -> set[str]:
    """Those of ``nodes`` (id -> host, port) that react to a connection in any way within ``within_s`` seconds.

    >>> reacting({"nobody": ("127.0.0.1", 1)}, 1.0)
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
                if _went_on(selector, key):
                    reacted.add(key.data)
        for key in list(selector.get_map().values()):
            _end(selector, key.fileobj)
    return reacted


def _connecting(address: Address) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    made.setblocking(False)
    made.connect_ex(address)
    return made


def _went_on(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> bool:
    """Go on with a connection that is ready. Whether its other side has reacted."""
    end: Any = key.fileobj
    if key.events == selectors.EVENT_WRITE:
        try:
            if not end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                end.send(_HELLO)
                selector.modify(end, selectors.EVENT_READ, key.data)
                return False
        except OSError:
            pass  # it has hung up before it was greeted: nobody serves there
        _end(selector, end)
        return False
    with suppress(OSError):
        end.recv(1)
    _end(selector, end)
    return True


def _end(selector: selectors.BaseSelector, end: Any) -> None:
    selector.unregister(end)
    end.close()
