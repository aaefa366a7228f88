"""The direct transport beyond the contract: ports, hosts, processes that are stopped or hold the GIL."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from malstrom_py.errors import PlanError
from malstrom_py.rescale.moves.protocol import Leave
from malstrom_py.workers.transport.base import JobSecret, Transport
from malstrom_py.workers.transport.messages import Connected
from malstrom_py.workers.transport.zeromq import ZeroMQTransport
from tests.integration.transport import acts
from tests.integration.transport.ends import ProcessEnd, ZeroMQKind


@contextmanager
def busy_ports(count: int) -> Iterator[tuple[int, int]]:
    """That many ports in a row, all of them in use; the first and the last."""
    with ExitStack() as opened:
        while True:
            found = [opened.enter_context(closing(listening(0)))]
            first = found[0].getsockname()[1]
            try:
                found += [opened.enter_context(closing(listening(first + n))) for n in range(1, count)]
            except OSError:
                continue
            yield first, first + count - 1
            return


def listening(port: int) -> socket.socket:
    made = socket.socket()
    try:
        made.bind(("127.0.0.1", port))
        made.listen()
    except OSError:
        made.close()
        raise
    return made


def transport(me: int = 0, *, host: str = "127.0.0.1", ports: tuple[int, int] | None = None) -> ZeroMQTransport:
    return ZeroMQTransport(me, incarnation=1, secret=JobSecret.new(), host=host, ports=ports)


def test_ports_that_are_all_in_use_are_named_with_what_to_do() -> None:
    with busy_ports(3) as (first, last), pytest.raises(PlanError) as raised:
        transport(ports=(first, last))
    assert str(raised.value) == (
        f"no port from {first} to {last} is free at '127.0.0.1': stop the programs that use them, or give a "
        "wider range as ports="
    )


def test_the_port_of_a_range_that_is_free_is_taken_and_freed_again() -> None:
    with busy_ports(3) as (first, last):
        free = last + 1
        for _ in range(2):
            made = transport(ports=(first, free))
            assert made.address == f"tcp://127.0.0.1:{free}"
            made.close(linger_s=0.0)


@pytest.mark.parametrize("ports", [(0, 10), (10, 9), (1, 65_536)])
def test_a_wrong_range_of_ports_is_refused(ports: tuple[int, int]) -> None:
    with pytest.raises(PlanError, match="ports must be \\(first, last\\) with 1 <= first <= last <= 65535"):
        transport(ports=ports)


@pytest.mark.parametrize("host", ["", "*", "0.0.0.0", "::"])
def test_a_host_that_means_all_addresses_is_refused(host: str) -> None:
    with pytest.raises(PlanError, match="means all addresses of a machine"):
        transport(host=host)


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_a_host_that_is_not_this_machine_is_refused(host: str) -> None:
    with pytest.raises(PlanError, match="give as host= an address of this machine"):
        transport(host=host)


def reached_at(host: str, port: int) -> bool:
    with socket.socket() as other:
        return other.connect_ex((host, port)) == 0


def test_a_port_is_open_at_its_host_alone() -> None:
    # Another program may own the same port at another address: a transport that is open everywhere is met every time.
    reached = []
    for _ in range(5):
        made = transport(host="127.0.0.2")
        try:
            reached.append(reached_at("127.0.0.1", int(made.address.rpartition(":")[2])))
        finally:
            made.close(linger_s=0.0)
    assert not all(reached)


def process(zeromq: ZeroMQKind, me: int) -> ProcessEnd:
    end = zeromq.end(me, own_process=True)
    assert isinstance(end, ProcessEnd)
    return end


def pid(end: ProcessEnd) -> int:
    found = end.process.pid
    assert found is not None
    return found


@pytest.mark.usefixtures("impatient")
def test_a_peer_that_stands_still_is_reported(zeromq: ZeroMQKind) -> None:
    watcher, victim = zeromq.end(1), process(zeromq, 0)
    watcher.run(acts.connect, 0, victim.address)
    watcher.run(acts.send, 0, [Leave()])
    assert victim.run(acts.receive, 1) == [Leave()]
    os.kill(pid(victim), signal.SIGSTOP)
    assert watcher.run(acts.receive_until_lost)[:2] == ([], 0)


def hold_the_gil(transport: Transport, seconds: float) -> None:
    """Hold the GIL: no Python code runs in this process during the call."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


@pytest.mark.usefixtures("impatient")
def test_a_peer_whose_python_stands_still_is_not_taken_for_dead(zeromq: ZeroMQKind) -> None:
    watcher, busy = zeromq.end(1), process(zeromq, 0)
    watcher.run(acts.connect, 0, busy.address)
    watcher.run(acts.send, 0, [Leave()])
    assert busy.run(acts.receive, 1) == [Leave()]
    done = busy.start(hold_the_gil, 2.5)
    for _ in range(3):
        assert watcher.run(acts.receive_quietly) == []
    done()
    watcher.run(acts.send, 0, [Leave()])
    assert busy.run(acts.receive, 1) == [Leave()]


def test_close_gives_up_on_a_peer_that_takes_nothing(zeromq: ZeroMQKind) -> None:
    sender, stopped = zeromq.end(1), process(zeromq, 0)
    sender.run(acts.connect, 0, stopped.address)
    sender.run(acts.send, 0, [Leave()])
    assert stopped.run(acts.receive, 1) == [Leave()]
    os.kill(pid(stopped), signal.SIGSTOP)
    sender.run(acts.send_large, 1, 0, 50_000_000)
    sender.run(acts.disconnect, 0)
    sender.run(acts.close, 0.2)


def test_a_peer_with_another_secret_is_told_apart(zeromq: ZeroMQKind) -> None:
    watcher, stranger = zeromq.end(1), zeromq.end(0, secret=JobSecret.new())
    watcher.run(acts.connect, 0, stranger.address)
    watcher.run(acts.send, 0, [Connected(1)])
    contents, peer, told = watcher.run(acts.receive_until_lost)
    assert (contents, peer) == ([], 0)
    assert "it does not accept the secret" in told
    assert stranger.run(acts.receive_quietly) == []


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere ends of one machine use TCP")
def test_a_hundred_peers_and_more_connect_before_the_first_is_let_in(local: ZeroMQKind) -> None:
    """A Unix socket refuses a client for which its queue has no place, and no end tries again."""
    busy = process(local, 0)
    os.kill(pid(busy), signal.SIGSTOP)
    with ExitStack() as opened:
        for _ in range(120):
            client = opened.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            client.connect("\0" + busy.address.removeprefix("ipc://@"))
