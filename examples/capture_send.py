"""Send captured streams over TCP: each worker connects to a port, as in ``capture_send`` of timely dataflow.

Run ``python -m examples.capture_recv 2 3`` first, then ``python -m examples.capture_send 2``: two workers send, three
receive.
"""

from __future__ import annotations

import argparse
import socket
from typing import BinaryIO

import malstrom_py as mp
from malstrom_py import capture, sources

PORT = 8000


def sending(port: int) -> mp.Job:
    """Return a job whose worker 0 sends to ``port``, worker 1 to the next one, and so on."""

    def connect(worker: int) -> BinaryIO:
        return socket.create_connection(("127.0.0.1", port + worker)).makefile("wb")

    job = mp.Job("send")
    job.source("numbers", sources.Memory(range(10), parts=4)).capture_into("sent", capture.Writer(connect))
    return job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workers", type=int, help="of this job")
    parser.add_argument("--port", type=int, default=PORT)
    given = parser.parse_args()
    mp.run(sending(given.port), workers=given.workers)


if __name__ == "__main__":
    main()
