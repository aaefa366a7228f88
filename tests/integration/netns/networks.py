"""Two network namespaces, near and far, that reach each other through the relay and nothing else."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from select import select
from typing import Any, Final

from tests.integration.netns.relay import Quality
from tests.tree import ROOT

PATIENCE_S: Final = 60.0
ADDRESSES: Final = {"near": "10.88.0.1", "far": "10.88.0.2"}

_NUMBERS: Final = itertools.count()


def ip(*words: str) -> str:
    """Run `ip`, and return what it prints."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
    return done.stdout


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

    def pids(self, side: str) -> list[int]:
        """Return the processes in a namespace."""
        return [int(pid) for pid in ip("netns", "pids", self.names[side]).split()]

    def kill(self, side: str) -> None:
        """Kill all that runs in a namespace, each process by its number."""
        until_s = time.monotonic() + PATIENCE_S
        while pids := self.pids(side):
            assert time.monotonic() < until_s, f"these live on after SIGKILL: {pids}"
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def close(self) -> None:
        """Kill all that runs in the namespaces."""
        for side in self.names:
            self.kill(side)
        for process in self.started:
            process.wait(PATIENCE_S)


@contextmanager
def network() -> Iterator[Network]:
    """Make the namespaces; at the end nothing of them is left, nor of what was started in them."""
    made = f"mn{os.getpid()}{next(_NUMBERS)}"
    names = {side: f"{made}{side[0]}" for side in ADDRESSES}
    with ExitStack() as stack:
        for name in names.values():
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
        relay = stack.enter_context(_relay(*names.values()))
        built = Network(names, relay)
        stack.callback(built.close)
        for side, name in names.items():
            ip("link", "set", name, "netns", name)  # the device has the name of its namespace
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "addr", "add", f"{ADDRESSES[side]}/30", "dev", name)
            ip("-n", name, "link", "set", name, "up")
            ip("-n", name, "route", "add", "default", "dev", name)  # Ray asks the routes which address it has
        yield built


@contextmanager
def _relay(near: str, far: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.integration.netns.relay", near, far]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, bufsize=1, **pipes) as relay:
        try:
            assert _line(relay) == "ready\n"
            yield relay
        finally:
            relay.kill()


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
    if not Path("/dev/net/tun").exists():
        return "/dev/net/tun: this machine has none. Load the kernel's module tun, or give the container the device"
    try:
        with network() as made:
            made.start("near", ["true"]).wait(PATIENCE_S)
    except (AssertionError, OSError) as error:
        return f"network namespaces: not allowed here ({str(error).strip()}). Run the tests with CAP_SYS_ADMIN"
    return ""
