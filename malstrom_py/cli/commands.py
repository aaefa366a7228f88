"""The commands of ``malstrom`` by name, and how they load: the module of a command is imported when it is called.

Rule: a line of `COMMANDS` is the first sentence of the command's own help; a test compares them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

COMMANDS: Final = {
    "run": ("running", "Run a job to its end."),
    "explain": ("running", "Print the steps of a job without running it."),
    "doctor": ("doctor", "Check what works on this machine."),
    "rescale": ("jobs", "Rescale a running job to N workers without stopping it."),
    "rebalance": ("jobs", "Move key groups of a running job from loaded workers to others."),
    "autoscale": ("jobs", "Let the number of workers of a running job follow its load from now on."),
    "snapshot": ("jobs", "Make a snapshot of a running job now, in addition to those by interval."),
    "savepoint": ("jobs", "Make a complete snapshot of a running job in another place, where it is never pruned."),
    "status": ("jobs", "Print the status of a running job."),
    "health": ("watching", "Print what is wrong with a running job; the exit code is 0 if nothing is, else 1."),
    "query": ("jobs", "Print the result of a query for the state of steps of a running job."),
    "events": (
        "jobs",
        "Print the events of a running job, a time and a sentence per line: workers, snapshots, rescales, failures.",
    ),
    "reload": ("jobs", "Replace the code of a step in a running job."),
    "set": ("jobs", "Give a parameter of a running job another value."),
    "stop": ("jobs", "Stop a running job."),
    "top": ("watching", "Watch a running job in the terminal: steps, workers, lag, back-pressure, snapshots, events."),
    "metrics": ("watching", "Print the metrics of a running job, or serve them to Prometheus."),
    "dashboard": ("watching", "Show running jobs in a browser, until Ctrl-C or SIGTERM."),
    "tap": ("tapping", "Show records that a step of a running job emits, as they pass."),
    "snapshots": ("snapshots", "List, show, verify and prune snapshots."),
    "replay": ("replaying", "Print the records of a recording as lines of JSON: the key, the time and the value."),
    "why": ("whys", "Print the captured input records that led to one output row of a job."),
    "capture": ("captures", "Check and show what capture_into recorded."),
}
"""Name -> the module that has the command, and the line on it in the help."""

_GROUPS: Final = ("snapshots", "capture")


class Commands(TyperGroup):
    """The group of all commands. Its help needs only their names and lines, so it loads no module of theirs."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: TyperCommand(name, help=line) for name, (_, line) in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load the command that is called, or completed by a shell."""
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = loaded(args[0])
        return super().resolve_command(ctx, args)


def loaded(name: str) -> Any:
    """Return a command with its options, from its module."""
    module, _ = COMMANDS[name]
    group = typer.main.get_group(import_module(f"malstrom_py.cli.{module}").app)
    command: Any = group if name in _GROUPS else group.commands[name]
    command.name = name
    return command


def examples(*lines: str) -> str:
    r"""Return the end of a help text.

    >>> examples("malstrom status")
    '\x08\nExamples:\n  malstrom status'
    """
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
