"""``malstrom run --reload``: reloads the steps of a running job when their files change, for development.

Rule: the files are watched by their times, in a thread. A reload is the command of the job's handle, so a change that
cannot be imported, or that fails, leaves the job as it was; the error is printed.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

import malstrom_py as mp
from malstrom_py.cli.output import WrongCommand
from malstrom_py.workers.runtime.hot_reload import watched_files

ReloadOption = Annotated[
    bool,
    typer.Option(
        "--reload",
        help="Reload steps when the files of their functions change, while you develop. Without --snapshots the "
        "snapshots for it are in a temporary folder.",
    ),
]

LOOK_S: Final = 0.3
"""The interval at which files are looked at."""

PROBATION_S: Final = 1.0


class Reloads:
    """The reloads of one run; inactive without the option."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._ended = threading.Event()

    def snapshots(self, given: str | None) -> str | None:
        """Return the place of the snapshots."""
        return given or self._folder

    def watch(self, job: mp.Job, address: str | None) -> None:
        """Begin to watch the files of ``job``."""
        if self._folder is None:
            return
        files = watched_files(job.plan())
        if not files:
            raise WrongCommand("--reload: no step of the job has a function of a file that can be imported again")
        typer.echo(f"reloading when these change: {', '.join(files)}", err=True)
        known = {path: _time(path) for path in files}
        watch = threading.Thread(target=self._watch, args=(job.name, files, known, address), daemon=True)
        watch.start()

    def end(self) -> None:
        """End watching."""
        self._ended.set()

    def _watch(self, job: str, files: dict[str, str], known: dict[str, int | None], address: str | None) -> None:
        while not self._ended.wait(LOOK_S):
            for path, step in files.items():
                now = _time(path)
                if now is not None and now != known[path]:
                    known[path] = now
                    self._reload(job, step, address)

    def _reload(self, job: str, step: str, address: str | None) -> None:
        try:
            report = mp.JobHandle.attach(job, address=address).reload(step, probation_s=PROBATION_S)
        except mp.MalstromError as error:
            typer.echo(f"error: {error}", err=True)
        else:
            typer.echo(f"job {job}: {report}", err=True)


@contextmanager
def reloading(wanted: bool, no_control: bool, detached: bool) -> Iterator[Reloads]:
    """Return the reloads of a run. `WrongCommand` if the options do not fit."""
    if not wanted:
        yield Reloads(None)
        return
    if no_control or detached:
        raise WrongCommand("--reload commands the job from this program: leave out --no-control and --detached")
    with tempfile.TemporaryDirectory(prefix="malstrom-reload-") as folder:
        reloads = Reloads(folder)
        try:
            yield reloads
        finally:
            reloads.end()


def _time(path: str) -> int | None:
    """Return when a file was changed, in ns; None while an editor replaces it."""
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return None
