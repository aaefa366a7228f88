"""The command `malstrom` in a new process. The process is forked from one that has imported the package: that takes
a tenth of the time of a new Python, and commands are what these tests run most.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from functools import cache
from importlib import import_module
from pathlib import Path
from select import select
from typing import IO, Final

from tests.tree import ROOT

PATIENCE_S: Final = 60.0


def environment() -> dict[str, str]:
    """Return the variables of a program that finds this package."""
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def python(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run this Python in a new process, with this package."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=environment() | environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )


def malstrom(folder: Path, *arguments: str, stdout: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command in a folder. What it prints goes into a file, ``stdout`` if that is given, and is returned."""
    with tempfile.TemporaryDirectory() as files:
        out, err = stdout or f"{files}/out", f"{files}/err"
        order = {
            "arguments": arguments,
            "folder": str(folder),
            "environ": environment(),
            "files": [os.devnull, out, err],
        }
        code = _Origin.one().run(json.dumps(order))
        printed = "" if stdout else Path(out).read_text()
        return subprocess.CompletedProcess(arguments, code, printed, Path(err).read_text())


class _Origin:
    """The process that is forked for each command, one after the other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.commands"],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._process.communicate)

    @staticmethod
    @cache
    def one() -> _Origin:
        """Return the one of this process of tests."""
        return _Origin()

    def run(self, order: str) -> int:
        """Return the exit code of the command."""
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None
        assert answers is not None
        print(order, file=orders, flush=True)
        pid = int(answers.readline())
        if not select([answers], [], [], PATIENCE_S)[0]:
            os.kill(pid, signal.SIGKILL)
            answers.readline()
            raise TimeoutError(f"still running after {PATIENCE_S:.0f} s: {order}")
        return int(answers.readline())


def serve(orders: IO[str]) -> bool:
    """Fork for each order. Return whether this is the process of a command."""
    import malstrom_py as mp
    from malstrom_py.cli.commands import COMMANDS

    # What is loaded here need not be loaded there.
    for module, _ in COMMANDS.values():
        import_module(f"malstrom_py.cli.{module}")
    for face in (mp, mp.sources, mp.sinks):
        for name in face.__all__:
            getattr(face, name)

    gc.freeze()  # a command that collects garbage copies no page of what is loaded here
    for order in orders:
        if not (pid := os.fork()):
            become(**json.loads(order))
            return True
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    return False


def become(arguments: list[str], folder: str, environ: dict[str, str], files: list[str]) -> None:
    """Make of this process one that was started for a command."""
    os.chdir(folder)
    os.environ.clear()
    os.environ |= environ
    for number, (name, flags) in enumerate(zip(files, (os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT] * 2), strict=True)):
        descriptor = os.open(name, flags, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.argv[1:] = arguments
    sys.path[0] = folder  # as for python -m


if __name__ == "__main__" and serve(sys.stdin):
    runpy.run_module("malstrom_py.cli", run_name="__main__", alter_sys=True)
