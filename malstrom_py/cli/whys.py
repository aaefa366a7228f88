"""The command why: the captured input records that led to one output row.

Rule: it loads the job and reads its recordings; it contacts no running job.
Exit codes: 0 done, 1 no output is such a row, or the recordings do not show it, 2 the command was wrong."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from malstrom_py.cli import options
from malstrom_py.cli.commands import examples
from malstrom_py.cli.output import json_line, print_out, reporting_errors
from malstrom_py.cli.running import JobArgument, load_job
from malstrom_py.errors import shown
from malstrom_py.testing.why import explained


def why(
    job: JobArgument,
    row: Annotated[
        str,
        typer.Argument(
            metavar="ROW",
            help="The row as JSON, or enough of it to choose it: {'key': …, 'start' or 'time': …, 'value': …}.",
        ),
    ],
    step: Annotated[
        str | None, typer.Option("--step", help="The step that has made it; by default the one before the only sink.")
    ] = None,
    key_type: Annotated[
        str | None,
        typer.Option("--key-type", help="The Python type of the key, such as date, where a text key is written alike."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, which this command does in any case.")] = False,
    traceback: options.TracebackOption = False,
) -> None:
    """Print the captured input records that led to one output row of a job.

    Each is a line of JSON. The recordings of the job are replayed in this process, also while the job runs. A ROW that
    is not JSON is a text.
    """
    with reporting_errors(traceback, has_option=True):
        try:
            wanted = json.loads(row)
        except ValueError:
            wanted = row
        found = explained(load_job(job), wanted, step, key_type=key_type)
        for record in found.inputs:
            line = {"recording": record.recording, "key": record.key, "time": record.timestamp, "value": record.value}
            print_out(json_line(line))
        window = "" if found.window is None else f" in the window from {found.window[0]} to {found.window[1]}"
        typer.echo(f"{len(found.inputs):,} records of key {shown(found.key)}{window}, by step {found.step}", err=True)
        if found.parameters:
            text = ", ".join(f"{name} = {value!r}" for name, value in found.parameters.items())
            typer.echo(f"functions have read parameters, which have their defaults in a replay: {text}", err=True)


app = typer.Typer(rich_markup_mode=None)
app.command(
    epilog=examples(
        'malstrom why jobs.shop:job \'{"key": "tea", "start": 60}\'',
        'malstrom why jobs.shop:job \'{"key": "tea", "value": 7}\' --step total',
    )
)(why)
