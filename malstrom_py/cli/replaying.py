"""The command replay: the records of a recording, in the order in which a job replays them.

Rule: it reads files and contacts no running job.
Exit codes: 0 done, or ended by Ctrl-C, 1 the recording is damaged or cannot be read, 2 the command was wrong."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Annotated, Final

import typer

from malstrom_py import sources
from malstrom_py.cli.captures import NameArgument, UriArgument, lines_of
from malstrom_py.cli.commands import examples
from malstrom_py.cli.output import json_line, print_out, reporting_errors
from malstrom_py.clock import SystemClock
from malstrom_py.codec.job_codec import AnyClass
from malstrom_py.data.batch import Batch
from malstrom_py.sources.replay import ALL

_ROWS: Final = 1_000


def replay(
    uri: UriArgument,
    name: NameArgument = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Read on while a job writes the recording, until it has finished.")
    ] = False,
    loop: Annotated[bool, typer.Option("--loop", help="Start again at the end.")] = False,
    pace: Annotated[
        float | None, typer.Option(min=0.001, help="1 for the pace of the original, 2 for twice as fast.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, which this command does in any case.")] = False,
) -> None:
    """Print the records of a recording as lines of JSON: the key, the time and the value.

    They come in their order by key, of all streams, without pauses. With --follow only what the job has
    committed is printed, so each record once. A value that JSON does not have is printed as its repr.
    """
    with reporting_errors(traceback=False), suppress(KeyboardInterrupt):
        source = sources.Replay(uri, name, pace=pace, follow=follow).restoring(AnyClass())
        while _print_all(source) and loop:
            pass


def _print_all(source: sources.Replay) -> int:
    """Print a recording from its beginning to its end; return how many records it has."""
    rows, clock = 0, SystemClock()
    with closing(source.build_part(ALL, None)) as part:
        while not part.is_finished():
            found = part.poll(_ROWS)
            if isinstance(found, Batch):
                rows += len(found)
                for line in lines_of(found):
                    print_out(json_line(line))
            elif found is None and not part.is_finished():
                clock.sleep_s(part.wait_max_s)
    return rows


app = typer.Typer(rich_markup_mode=None)
app.command(
    epilog=examples(
        "malstrom replay recordings",
        "malstrom replay recordings orders --follow",
        "malstrom replay seen --pace 2 --loop",
    )
)(replay)
