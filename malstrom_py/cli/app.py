"""The command line ``malstrom``: run a job, explain it, control a running job, manage snapshots, check this machine.

Rule: standard output is for the job and for the requested result. Errors go to standard error, after ``error:``, with
the user's own file and line; ``--traceback`` adds the traceback."""

from __future__ import annotations

from typing import Annotated

import typer

import malstrom_py as mp
from malstrom_py.cli.commands import Commands, examples

app = typer.Typer(
    cls=Commands,
    help="Run, explain and control stream processing jobs.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=examples(
        "malstrom run jobs/shop.py:job --workers 2",
        "malstrom status shop",
        "malstrom --install-completion",
    ),
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from malstrom_py.cli.output import print_out, reporting_errors

        with reporting_errors(traceback=False):
            print_out(f"malstrom {mp.__version__}")
        raise typer.Exit


@app.callback()
def malstrom(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Run, explain and control stream processing jobs."""


def main() -> None:
    """The console script ``malstrom``."""
    app(prog_name="malstrom")
