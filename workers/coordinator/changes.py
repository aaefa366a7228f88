"""Changes of a running job at the cut of a snapshot, from which the next run continues: code, values of parameters."""

from __future__ import annotations

from typing import Any

from malstrom_py.events import StopCause
from malstrom_py.workers.reports.commands import ReloadCommand, SetCommand
from malstrom_py.workers.reports.job_events import PlannedEnd

ChangeCommand = ReloadCommand | SetCommand


class ChangeDue(PlannedEnd):
    """The run has stopped at the cut ``snapshot``, ``at_s`` of its clock; the next one has what was ``prepared``: the
    code, or the value of a parameter.
    """

    def __init__(self, command: ChangeCommand, prepared: Any, snapshot: str, at_s: float) -> None:
        is_reload = isinstance(command, ReloadCommand)
        super().__init__("the code of a step is reloaded" if is_reload else "a parameter is set")
        self.cause = StopCause.RELOAD if is_reload else StopCause.PARAMETER
        self.command, self.prepared, self.snapshot, self.at_s = command, prepared, snapshot, at_s
