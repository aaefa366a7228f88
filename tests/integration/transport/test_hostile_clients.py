"""A client without the secret at a port of a job: its messages are never opened or kept, and delay no worker."""

from __future__ import annotations

import os
import pickle
import socket
import struct
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Final

import pytest
import zmq

from malstrom_py.rescale.moves.protocol import Leave
from malstrom_py.workers.transport import wire
from malstrom_py.workers.transport.base import Transport
from malstrom_py.workers.transport.messages import Connected
from malstrom_py.workers.transport.zeromq import PART_BYTES_MAX
from tests.integration.transport import acts
from tests.integration.transport.ends import PATIENCE_S, End, ZeroMQKind

SIGNATURE: Final = b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f"
NULL: Final = SIGNATURE + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
CURVE: Final = SIGNATURE + b"\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
READY: Final = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH"


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._path,)


def trap_message(path: Path) -> bytes:
    """What a peer would send, were its contents not a trap."""
    body = pickle.dumps([Trap(path)])
    return wire._ENVELOPE.pack(wire._FORMAT, 1, 0, 1, 5, 1, len(body)) + body


def frame(data: bytes) -> bytes:
    """A frame of ZMTP 2 and 3."""
    return b"\x02" + struct.pack(">Q", len(data)) + data


def reached(end: End) -> socket.socket:
    host, _, port = end.address.removeprefix("tcp://").rpartition(":")
    made = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    made.settimeout(2.0)
    return made


def pushed(client: socket.socket, data: bytes) -> None:
    """Send the bytes, as far as the socket accepts them."""
    with suppress(OSError):
        client.sendall(data)


def undisturbed(zeromq: ZeroMQKind, victim: End) -> None:
    """Check that the workers of the job still reach ``victim``, and no other client has."""
    friend = zeromq.end(2)
    friend.run(acts.connect, 1, victim.address)
    friend.run(acts.send, 1, [Connected(2)])
    assert victim.run(acts.receive, 1) == [Connected(2)]
    assert victim.run(acts.receive_quietly) == []


@pytest.mark.parametrize(
    "opening",
    [
        b"",
        NULL + READY,
        CURVE + READY,
        CURVE,
        b"\x01\x00",  # of ZMTP 1.0, which knows no security
        SIGNATURE + b"\x01\x08\x00\x00",  # of ZMTP 2.0, which knows none either
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["nothing", "no security", "no key", "greeting alone", "ZMTP 1", "ZMTP 2", "HTTP"],
)
def test_nothing_is_opened_of_who_has_not_proved_that_he_belongs(
    opening: bytes, zeromq: ZeroMQKind, tmp_path: Path
) -> None:
    victim = zeromq.end(1)
    message = trap_message(tmp_path / "sprung")
    version_1 = bytes([0xFF]) + struct.pack(">Q", len(message) + 1) + b"\x00" + message
    with reached(victim) as client:
        pushed(client, opening)
        sleep(0.2)
        pushed(client, version_1 if opening == b"\x01\x00" else frame(message))
        undisturbed(zeromq, victim)
    assert not (tmp_path / "sprung").exists()


def test_garbage_does_no_harm(zeromq: ZeroMQKind) -> None:
    victim = zeromq.end(1)
    for _ in range(20):
        with reached(victim) as client:
            pushed(client, os.urandom(100_000))
    undisturbed(zeromq, victim)


def test_a_zeromq_socket_without_keys_delivers_nothing(zeromq: ZeroMQKind) -> None:
    victim = zeromq.end(1)
    with zmq.Context() as context, context.socket(zmq.PUSH) as stranger:
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(victim.address)
        for _ in range(100):
            stranger.send(b"x" * 1000, zmq.NOBLOCK)
        undisturbed(zeromq, victim)


def resident_bytes(transport: Transport) -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_who_has_no_secret_makes_no_memory_grow(zeromq: ZeroMQKind) -> None:
    victim = zeromq.end(1, own_process=True)
    before = victim.run(resident_bytes)
    block = bytes(1 << 20)
    with ExitStack() as clients:
        for _ in range(10):
            client = clients.enter_context(reached(victim))
            pushed(client, CURVE + b"\x06" + struct.pack(">Q", 1 << 28))  # a command of 256 MiB
            for _ in range(30):
                pushed(client, block)
        # And messages that are as large as they may be, of which the end is missing.
        for _ in range(10):
            client = clients.enter_context(reached(victim))
            pushed(client, CURVE + b"\x06" + struct.pack(">Q", PART_BYTES_MAX) + block)
        grown = victim.run(resident_bytes) - before
        undisturbed(zeromq, victim)
    assert grown < 60_000_000, f"{grown:,} bytes more, of 325,000,000 that were offered"


@pytest.mark.usefixtures("impatient")
def test_connections_that_say_nothing_are_closed(zeromq: ZeroMQKind) -> None:
    victim = zeromq.end(1)
    with ExitStack() as clients:
        opened = [clients.enter_context(reached(victim)) for _ in range(100)]
        undisturbed(zeromq, victim)
        deadline = monotonic() + PATIENCE_S
        for client in opened:
            client.settimeout(max(0.1, deadline - monotonic()))
            while client.recv(1000):  # its greeting, and then the end
                continue


@pytest.mark.parametrize("proof", [b"", bytes(32), b"x"], ids=["none", "of another secret", "too short"])
def test_a_process_of_this_user_without_the_secret_delivers_nothing(
    proof: bytes, local: ZeroMQKind, tmp_path: Path
) -> None:
    victim = local.end(1)
    with zmq.Context() as context, context.socket(zmq.PUSH) as stranger:
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(victim.address)
        stranger.send_multipart([proof + trap_message(tmp_path / "sprung"), b"more"], zmq.NOBLOCK)
        stranger.send(b"", zmq.NOBLOCK)
        stranger.send(bytes(100_000), zmq.NOBLOCK)
        sleep(0.2)
        undisturbed(local, victim)
    assert not (tmp_path / "sprung").exists()


def test_another_user_does_not_reach_a_worker(local: ZeroMQKind, monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.getuid()
    with monkeypatch.context() as patched:
        patched.setattr(os, "getuid", lambda: own + 1)  # the end takes the clients of this test for another user's
        victim = local.end(1)
    with zmq.Context() as context, context.socket(zmq.PUSH) as stranger:
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(victim.address)
        stranger.send(local.secret.derive("stream proof") + trap_message(Path("/nowhere")), zmq.NOBLOCK)
        assert victim.run(acts.receive_quietly) == []


def test_a_worker_sends_nothing_to_the_socket_of_another_user(
    local: ZeroMQKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of the socket of a worker that has died is free for all users of the machine."""
    worker, stranger = local.end(0), local.end(1)
    own = os.getuid()
    with monkeypatch.context() as patched:
        patched.setattr(os, "getuid", lambda: own + 1)
        worker.run(acts.connect, 1, stranger.address)
    worker.run(acts.send, 1, [Leave()])
    contents, peer, said = worker.run(acts.receive_until_lost)
    assert (contents, peer) == ([], 1)
    assert "another user" in said
    assert stranger.run(acts.receive_quietly) == []
