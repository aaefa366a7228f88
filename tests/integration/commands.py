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
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from select import select
from typing import IO, Any, Final

from tests.tree import ROOT

PATIENCE_S: Final = 60.0
COMMAND: Final = ("-m", "malstrom_py.cli")


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
        code = _Origin.one().run(_order(folder, arguments, environment(), out, err))
        printed = "" if stdout else Path(out).read_text()
        return subprocess.CompletedProcess(arguments, code, printed, Path(err).read_text())


def _order(
    folder: Path, arguments: tuple[str, ...], environ: dict[str, str], out: str, err: str, code: str = ""
) -> str:
    files = [os.devnull, out, err]
    return json.dumps({"arguments": arguments, "folder": str(folder), "environ": environ, "files": files, "code": code})


class Started:
    """A command that runs in another process, with the methods of `subprocess.Popen` that these tests call."""

    def __init__(self, folder: Path, arguments: tuple[str, ...], environ: dict[str, str]) -> None:
        self._files = tempfile.TemporaryDirectory()
        self._code = Path(self._files.name) / "code"
        out, err = (f"{self._files.name}/{name}" for name in ("out", "err"))
        for pipe in (out, err):
            os.mkfifo(pipe)
        self.pid = _Origin.one().start(_order(folder, arguments, environ, out, err, str(self._code)))
        self.stdout, self.stderr = Path(out).open(), Path(err).open()  # noqa: SIM115 - until `close`
        self._ended: int | None = None

    @property
    def returncode(self) -> int | None:
        """The exit code; None as long as it runs."""
        if self._ended is None and self._code.exists():
            self._ended = int(self._code.read_text())
        return self._ended

    def poll(self) -> int | None:
        """Return the exit code."""
        return self.returncode

    def wait(self, timeout: float = PATIENCE_S) -> int:
        """Wait for its end."""
        until_s = time.monotonic() + timeout
        while (code := self.returncode) is None:
            if time.monotonic() > until_s:
                raise subprocess.TimeoutExpired("malstrom", timeout)
            time.sleep(0.01)
        return code

    def communicate(self, timeout: float = PATIENCE_S) -> tuple[str, str]:
        """Return what it prints until its end."""
        printed = {self.stdout: "", self.stderr: ""}
        left, until_s = [file for file in printed if not file.closed], time.monotonic() + timeout
        while left:
            ready, _, _ = select(left, [], [], max(0.0, until_s - time.monotonic()))
            if not ready:
                raise subprocess.TimeoutExpired("malstrom", timeout)
            for file in ready:
                printed[file] += file.read()  # to the end: a command prints little after its first line
                file.close()
            left = [file for file in left if not file.closed]
        self.wait(max(1.0, until_s - time.monotonic()))
        return printed[self.stdout], printed[self.stderr]

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Kill it if it still runs, and remove its files."""
        with suppress(ProcessLookupError):
            self.kill()
        self.wait()
        for file in (self.stdout, self.stderr):
            file.close()
        self._files.cleanup()


@contextmanager
def started(folder: Path, *arguments: str, **environ: str) -> Iterator[Any]:
    """Start a command, or another program of this Python, in a new session; kill it at the end."""
    if arguments[:2] == COMMAND:
        command = Started(folder, arguments[2:], environment() | environ)
        try:
            yield command
        finally:
            command.close()
        return
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment() | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until(holds: Callable[[], object], process: Any) -> None:
    """Wait until ``holds`` returns True; fail if the process ends before that."""
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until_s
        time.sleep(0.05)


class _Origin:
    """The process that is forked for each command."""

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

    def start(self, order: str) -> int:
        """Return the process of the command."""
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None
        assert answers is not None
        print(order, file=orders, flush=True)
        return int(answers.readline())

    def run(self, order: str) -> int:
        """Return the exit code of the command."""
        pid, answers = self.start(order), self._process.stdout
        assert answers is not None
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
        asked = json.loads(order)
        code = asked.pop("code")
        if not (pid := os.fork()):
            # A command that is not waited for has a process beside it that notes its exit code.
            if not code or not (pid := os.fork()):
                become(**asked)
                return True
            print(pid, flush=True)
            Path(f"{code}.part").write_text(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
            Path(f"{code}.part").rename(code)
            os._exit(0)
        if not code:
            print(pid, flush=True)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    return False


def become(arguments: list[str], folder: str, environ: dict[str, str], files: list[str]) -> None:
    """Make of this process one that was started for a command, in a new session."""
    os.setsid()
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
