"""Clients that speak the protocol of control sockets themselves."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

from malstrom_py.workers.control.messages import Reply, decode_answer
from malstrom_py.workers.control.registry import socket_path, token_path
from tests.unit.workers.harness import PATIENCE_S


def connected(folder: Path, job: str = "endless") -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(PATIENCE_S)
    connection.connect(str(socket_path(folder, job)))
    return connection


def token_of(folder: Path, job: str = "endless") -> str:
    return token_path(folder, job).read_text().partition("\n")[0]


def answer_of(connection: socket.socket) -> Reply:
    """What is said until the other side closes."""
    said = b""
    while piece := connection.recv(1 << 16):
        said += piece
    assert len(said) == 4 + int.from_bytes(said[:4], "big")
    return decode_answer(said[4:])


def until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
