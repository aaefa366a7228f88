"""Network namespaces, made and removed with all that runs in them (root only)."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

PATIENCE_S: Final = 60.0


def ip(*words: str) -> str:
    """Run `ip`, and return what it prints."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


@contextmanager
def namespaces(names: Iterable[str]) -> Iterator[None]:
    """Make namespaces with a loopback, and remove those that exist at the end."""
    made = list[str]()
    try:
        for name in names:
            ip("netns", "add", name)
            made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in made:
            kill_in(name)
        for name in made:
            ip("netns", "del", name)


def kill_in(name: str) -> None:
    """Kill all that runs in a namespace, each process by its number."""
    until_s = time.monotonic() + PATIENCE_S
    while pids := ip("netns", "pids", name).split():
        if time.monotonic() > until_s:
            raise TimeoutError(f"these processes in the namespace {name} live on after SIGKILL: {', '.join(pids)}")
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.02)
