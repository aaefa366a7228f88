"""The line between two network namespaces: late, with losses, cut, and cut in one direction."""

from __future__ import annotations

import subprocess
import sys
import time
from select import select

import pytest

from tests.integration.netns.namespaces import PATIENCE_S, ip
from tests.integration.netns.networks import Network
from tests.integration.netns.relay import ADDRESSES, Quality

pytestmark = pytest.mark.needs_netns

_ECHO = """
import socket
with socket.create_server(("", 9)) as server:
    print("listens", flush=True)
    connection, _ = server.accept()
    while data := connection.recv(65536):
        if data[:1] != b"x":
            print(data.decode(), flush=True)
        connection.sendall(data)
"""
_SEND = f"""
import socket, sys
with socket.create_connection(("{ADDRESSES["far"]}", 9)) as connection:
    for line in sys.stdin:
        data = b"x" * 400_000 if line == "much\\n" else line.strip().encode()
        connection.sendall(data)
        while data:
            data = data[len(connection.recv(65536)):]
        print("echoed", flush=True)
"""


def says(process: subprocess.Popen[bytes], within_s: float = PATIENCE_S) -> str:
    """Return what a program prints next, "" if it prints nothing."""
    assert process.stdout is not None
    return process.stdout.readline().decode().strip() if select([process.stdout], [], [], within_s)[0] else ""


def test_a_connection_lives_through_delay_loss_and_a_cut_of_each_direction(line: Network) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    with line.start("far", [sys.executable, "-c", _ECHO], **pipes) as far:
        assert says(far) == "listens"
        with line.start("near", [sys.executable, "-c", _SEND], **pipes) as near:
            assert near.stdin is not None

            line.both(Quality(delay_s=0.02, loss=0.01))
            began_s = time.monotonic()
            near.stdin.write(b"1\n")
            assert (says(far), says(near)) == ("1", "echoed")
            assert time.monotonic() - began_s > 0.079, "a connection and an echo: the line is crossed four times"
            near.stdin.write(b"much\n")
            assert says(near) == "echoed"
            assert sum(lost for _, lost in line.change().values()) > 0

            line.change(to_near=Quality(is_cut=True), to_far=Quality())
            near.stdin.write(b"2\n")
            assert says(far) == "2"
            assert says(near, 0.3) == ""
            line.both(Quality())
            assert says(near) == "echoed"

            line.change(to_far=Quality(is_cut=True))
            near.stdin.write(b"3\n")
            assert says(far, 0.3) == ""
            line.both(Quality())
            assert (says(far), says(near)) == ("3", "echoed")
            near.stdin.close()


def test_nothing_is_left_after_a_test_that_was_killed(line: Network) -> None:
    sleeper = line.start("far", ["sleep", "600"], start_new_session=True)
    assert line.relay.stdin is not None
    line.relay.stdin.close()  # so it is closed when the process of the tests dies
    assert (line.relay.wait(PATIENCE_S), sleeper.wait(PATIENCE_S)) == (0, -9)
    assert not set(line.names.values()) & set(ip("netns", "list").split())
