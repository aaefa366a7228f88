"""Commands on recordings: check, cat and stats.

Rule: they read files and contact no running job. Only ``cat`` prints values of records.
Exit codes: 0 done, 1 the recording is damaged or incomplete, or cannot be read, 2 the command was wrong."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from malstrom_py import capture
from malstrom_py.cli.commands import examples
from malstrom_py.cli.options import JsonOption
from malstrom_py.cli.output import FAILED, json_line, print_json, print_out, reporting_errors, table
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.workers.reports.figures import format_size

_SLASH: Final = "/"

app = typer.Typer(
    help="Check and show what capture_into recorded.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=examples("malstrom capture check recordings orders", "malstrom capture cat recordings"),
)

UriArgument = Annotated[str, typer.Argument(metavar="URI", help="The folder that was given to capture_into.")]
NameArgument = Annotated[
    str | None, typer.Argument(metavar="NAME", help="The captured step; required if the folder has several.")
]


@app.command(epilog=examples("malstrom capture check recordings", "malstrom capture check recordings orders --json"))
def check(uri: UriArgument, name: NameArgument = None, as_json: JsonOption = False) -> None:
    """Check every byte of a recording, and that its event time keeps the rules and ends.

    The exit code is 1 if there is a fault.
    """
    with reporting_errors(traceback=False):
        faults = capture.check(uri, name)
        if as_json:
            print_json([{**asdict(fault), "path": f"{uri.rstrip(_SLASH)}/{fault.segment}"} for fault in faults])
        else:
            for fault in faults:
                print_out(f"{uri.rstrip(_SLASH)}/{fault.segment}: {fault.kind}: {fault.text}")
            rows = sum(stream.rows for stream in capture.stats(uri, name))
            print_out(f"{uri}: {rows:,} rows, {len(faults)} faults")
        if faults:
            raise typer.Exit(FAILED)


@app.command(epilog=examples("malstrom capture stats recordings", "malstrom capture stats recordings orders --json"))
def stats(uri: UriArgument, name: NameArgument = None, as_json: JsonOption = False) -> None:
    """Show the streams of a recording: rows, size, and and the watermark."""
    with reporting_errors(traceback=False):
        found = capture.stats(uri, name)
        if as_json:
            print_json([asdict(stream) for stream in found])
            return
        rows = [
            (
                str(stream.generation),
                stream.stream,
                f"{stream.rows:,}",
                format_size(stream.bytes),
                str(stream.segments),
                _epoch(stream.epoch),
            )
            for stream in found
        ]
        print_out(table(("start", "stream", "rows", "size", "segments", "watermark"), rows))


def _epoch(epoch: int) -> str:
    return {MAX_EPOCH: "ended", MIN_EPOCH: "none yet"}.get(epoch, f"after {epoch}")


@app.command(epilog=examples("malstrom capture cat recordings", "malstrom capture cat recordings orders"))
def cat(
    uri: UriArgument,
    name: NameArgument = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, which this command does in any case.")] = False,
) -> None:
    """Print the contents of a recording, stream by stream, as lines of JSON.

    A value that JSON does not have is printed as its repr.
    """
    with reporting_errors(traceback=False):
        for stream, content in capture.read(uri, name):
            if isinstance(content, Batch):
                for line in lines_of(content):
                    print_out(json_line({"stream": stream, **line}))
            else:
                print_out(json.dumps({"stream": stream, type(content).__name__.lower(): asdict(content)}))


def lines_of(batch: Batch) -> list[dict[str, Any]]:
    """Return the records of a batch as dicts: key and time, where it has them, and value.

    >>> lines_of(Batch([7], keys=["ant"]))
    [{'key': 'ant', 'value': 7}]
    """
    columns = {"key": batch.keys, "time": batch.timestamps, "value": batch.values}
    given = {name: column for name, column in columns.items() if column is not None}
    return [dict(zip(given, record, strict=True)) for record in zip(*given.values(), strict=True)]
