"""A reload in progress, from the command to the next run: the cut, the new code, and its time on trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from malstrom_py.workers.reports.commands import ReloadCommand


class Reloads(Protocol):
    """The interface that imports the module of a step again."""

    def prepare(self, step: str, texts: Mapping[str, str]) -> Any:
        """Return what the next run is to use, and change nothing. `ReloadError` if that is not possible."""
        ...


@dataclass(slots=True)
class Trial:
    """The reload of ``command`` with the code ``prepared``. ``snapshot``: the cut, on all workers, at ``cut_s``.

    ``until_s``: when the new code has proved itself; ``pause_s``: how long no worker had processed records by then.
    Times are of the run's clock, in seconds.
    """

    command: ReloadCommand
    prepared: Any = field(repr=False)
    snapshot: str
    cut_s: float
    until_s: float | None = None
    pause_s: float = 0.0

    def begin(self, now_s: float) -> None:
        """Begin the trial: the new code processes records."""
        self.pause_s = now_s - self.cut_s
        self.until_s = now_s + self.command.probation_s


class ReloadDue(Exception):
    """The run has stopped at the cut of ``trial``; the next one has the new code."""

    is_stop = True

    def __init__(self, trial: Trial) -> None:
        super().__init__("the code of a step is reloaded")
        self.trial = trial
