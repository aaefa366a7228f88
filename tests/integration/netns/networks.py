"""Two network namespaces, near and far, that reach each other through the relay and nothing else."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from select import select
from typing import Any, Final

from tests.integration.netns.namespaces import PATIENCE_S
from tests.integration.netns.relay import ADDRESSES, Quality
from tests.tree import ROOT

_NUMBERS: Final = itertools.count()


@dataclass(frozen=True)
class Network:
    """The two namespaces, by side, and the relay between them."""

    names: dict[str, str]
    relay: subprocess.Popen[str]
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def change(self, *, to_far: Quality | None = None, to_near: Quality | None = None) -> dict[str, tuple[int, int]]:
        """Change the quality of a direction or both, and return (carried, lost) packets of each so far."""
        assert self.relay.stdin is not None
        changes = {"to_far": to_far, "to_near": to_near}
        wanted = {name: asdict(quality) for name, quality in changes.items() if quality is not None}
        print(json.dumps(wanted), file=self.relay.stdin, flush=True)
        return {name: tuple(counts) for name, counts in json.loads(_line(self.relay)).items()}

    def both(self, quality: Quality) -> None:
        """Give both directions the same quality."""
        self.change(to_far=quality, to_near=quality)

    def start(self, side: str, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a program in a namespace. It ends with the network at the latest."""
        self.started.append(subprocess.Popen(["ip", "netns", "exec", self.names[side], *command], **options))
        return self.started[-1]


@contextmanager
def network() -> Iterator[Network]:
    """Make the namespaces; at the end they are removed, with what was started in them."""
    made = f"mn{os.getpid()}{next(_NUMBERS)}"
    names = {side: f"{made}{side[0]}" for side in ADDRESSES}
    command = [sys.executable, "-m", "tests.integration.netns.relay", *names.values()]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    # In its own session, so that Ctrl-C reaches it only by the end of its input.
    with subprocess.Popen(command, cwd=ROOT, text=True, bufsize=1, start_new_session=True, **pipes) as relay:
        assert relay.stdin is not None
        assert relay.stderr is not None
        built = Network(names, relay)
        try:
            if _line(relay) != "ready\n":
                raise OSError(relay.stderr.read().strip().rpartition("\n")[2])
            yield built
        finally:
            try:
                relay.stdin.close()
                code = relay.wait(PATIENCE_S)
                for process in built.started:
                    process.wait(PATIENCE_S)
            finally:
                relay.kill()
        assert code == 0, relay.stderr.read()


def _line(relay: subprocess.Popen[str]) -> str:
    """Return the next line of the relay, which answers one line for each that it gets."""
    assert relay.stdout is not None
    assert select([relay.stdout], [], [], PATIENCE_S)[0], "the relay does not answer"
    return relay.stdout.readline()


def missing() -> str:
    """Return what keeps this machine from having such a network, and what to do; "" if nothing does."""
    if os.geteuid() != 0:
        return "root: only root makes network namespaces. Run the tests as root"
    if shutil.which("ip") is None:
        return "ip: not found. Install it (on Debian: apt install iproute2)"
    if shutil.which("unshare") is None:
        return "unshare: not found. Install it (on Debian: apt install util-linux)"
    if not Path("/dev/net/tun").exists():
        return "/dev/net/tun: not found. Load the kernel's module tun, or give the container the device"
    try:
        with network():
            return ""
    except (OSError, AssertionError) as error:
        return f"network namespaces: not allowed here ({error}). Run the tests with CAP_SYS_ADMIN and CAP_NET_ADMIN"
