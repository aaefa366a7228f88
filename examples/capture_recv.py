"""Receive captured streams over TCP, and replay them: ``capture_recv`` of timely dataflow; see ``capture_send``."""

from __future__ import annotations

import argparse
import socket
from functools import partial
from typing import BinaryIO

import malstrom_py as mp
from examples.capture_send import PORT
from malstrom_py import capture, sinks


def accept(port: int) -> BinaryIO:
    """Wait for one connection at ``port``."""
    with socket.create_server(("127.0.0.1", port)) as server:
        connection, _ = server.accept()
    with connection:
        return connection.makefile("rb")


def receiving(port: int, peers: int) -> mp.Job:
    """Return a job that replays the streams of ``peers`` workers, which connect to ``port`` and the next ones."""
    streams = [partial(accept, port + peer) for peer in range(peers)]
    job = mp.Job("receive")
    replayed = job.replay_from("replayed", capture.Reader(*streams))
    replayed.inspect("print", lambda number: print(f"replayed: {number}")).sink("out", sinks.Memory())
    return job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", type=int, help="the number of workers that send")
    parser.add_argument("workers", type=int, help="of this job")
    parser.add_argument("--port", type=int, default=PORT)
    given = parser.parse_args()
    mp.run(receiving(given.port, given.peers), workers=given.workers)


if __name__ == "__main__":
    main()
