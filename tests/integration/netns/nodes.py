"""Two nodes of Ray in two network namespaces, and a program beside the head that starts a job on them."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from tests.integration.netns.networks import Network, network
from tests.integration.netns.relay import ADDRESSES
from tests.tree import ROOT

PATIENCE_S: Final = 120.0
HEAD: Final = f"{ADDRESSES['near']}:6379"

# None is among those that Ray gives its workers: 10002 to 19999.
_RAY: Final = (
    *("-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=2", "--object-store-memory=80000000"),
    *("--node-manager-port=7001", "--object-manager-port=7002", "--runtime-env-agent-port=7003"),
    *("--dashboard-agent-grpc-port=7004", "--dashboard-agent-listen-port=7005", "--metrics-export-port=7006"),
    *("--min-worker-port=20000", "--max-worker-port=20999", "--disable-usage-stats", "--include-log-monitor=false"),
)
_HEAD: Final = ("--head", "--port=6379", "--include-dashboard=false", "--ray-client-server-port=7007")
_OWN_FOLDER: Final = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'


@dataclass(frozen=True)
class Driven:
    """The program: `ask` has it do something, see `tests.integration.netns.driver`."""

    _pipe: Connection

    def ask(self, name: str, *arguments: Any) -> Any:
        """Return what a method of the program returns."""
        self._pipe.send((name, arguments))
        assert self._pipe.poll(PATIENCE_S), f"the program does not answer {name}"
        answer, error = self._pipe.recv()
        assert not error, error
        return answer

    def until(self, holds: Callable[[Any], bool], deadline_s: float = PATIENCE_S) -> Any:
        """Wait until ``holds`` returns True for the status of the job, and return that."""
        until_s = time.monotonic() + deadline_s
        while not holds(status := self.ask("status")):
            assert time.monotonic() < until_s, status
            time.sleep(0.05)
        return status


@dataclass(frozen=True)
class Apart(Driven):
    """Two nodes, and the program."""

    network: Network


@contextmanager
def two_nodes_apart(logs: Path) -> Iterator[Apart]:
    """Start a head with room for two workers, a node with the same, and the program. At the end nothing is left.

    Each node has its temporary files in the same path, as two machines would.
    """
    # Paths of sockets are short.
    short = tempfile.TemporaryDirectory(prefix="mr-", dir="/tmp", ignore_cleanup_errors=True)
    mine, others = Pipe()
    with short as name, mine, network() as made:
        folder = Path(name)
        (folder / "token").touch(mode=0o600)
        (folder / "token").write_text(secrets.token_hex(32))
        for folders in ("tmp", *ADDRESSES):
            (folder / folders).mkdir()

        def start(side: str, words: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
            own = ["sh", "-c", _OWN_FOLDER, "sh", str(folder / side), str(folder / "tmp"), sys.executable]
            where: dict[str, Any] = {"env": environment_in(folder), "cwd": ROOT, "start_new_session": True}
            with (logs / f"{words[1].rpartition('.')[2]}-{side}.log").open("wb") as out:
                return made.start(side, [*own, *words], stdout=out, stderr=subprocess.STDOUT, **where, **options)

        def wait(ray: subprocess.Popen[bytes], holds: Callable[[], bool]) -> None:
            until_s = time.monotonic() + PATIENCE_S
            while not holds():
                assert ray.poll() is None, f"Ray has not started, see {logs}"
                assert time.monotonic() < until_s, f"Ray does not start, see {logs}"
                time.sleep(0.1)

        head = start("near", [*_RAY, *_HEAD, f"--node-ip-address={ADDRESSES['near']}"])
        with others:
            start("near", ["-m", "tests.integration.netns.driver", str(others.fileno())], pass_fds=[others.fileno()])
        apart = Apart(mine, made)
        wait(head, lambda: bool(apart.ask("connect", HEAD)))
        far = start("far", [*_RAY, f"--address={HEAD}", f"--node-ip-address={ADDRESSES['far']}"])
        wait(far, lambda: set(apart.ask("nodes")) == set(ADDRESSES.values()))
        yield apart


def environment_in(folder: Path) -> dict[str, str]:
    """Return the environment of a Ray that keeps its files and its token in ``folder``."""
    theirs = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return theirs | {
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(folder / "tmp"),
        "RAY_TMPDIR": str(folder / "tmp"),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        "RAY_worker_niceness": "0",
    }
