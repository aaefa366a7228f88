"""Which addresses react, and which are silent."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from malstrom_py.workers.ray.node_watch import reacting


@pytest.fixture
def listening() -> Iterator[dict[str, socket.socket]]:
    """Sockets that listen, by name."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(socket.create_server(("127.0.0.1", 0))) for name in ("a", "b", "c")}


def test_who_accepts_and_says_nothing_is_silent_and_who_answers_or_hangs_up_is_not(
    listening: dict[str, socket.socket],
) -> None:
    def answer() -> None:
        connection, _ = listening["a"].accept()
        with connection:
            assert connection.recv(100).startswith(b"PRI * HTTP/2.0")
            connection.sendall(b"x")
            connection.recv(1)

    def hang_up() -> None:
        listening["b"].accept()[0].close()

    threads = [threading.Thread(target=act) for act in (answer, hang_up)]
    for thread in threads:
        thread.start()
    nodes = {name: ("127.0.0.1", int(end.getsockname()[1])) for name, end in listening.items()}
    silent = nodes.pop("c")
    assert reacting(nodes, 60.0) == {"a", "b"}
    assert reacting({"c": silent}, 0.2) == set()
    for thread in threads:
        thread.join(60.0)


def test_where_nobody_listens_there_is_no_node(listening: dict[str, socket.socket]) -> None:
    address = ("127.0.0.1", int(listening["a"].getsockname()[1]))
    listening["a"].close()
    assert reacting({"gone": address}, 10.0) == set()
