"""The command tap: records of a step of a running job, as they pass."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from malstrom_py.capture.frames import Header
from malstrom_py.capture.recording import begin_new
from malstrom_py.cli.commands import examples
from malstrom_py.cli.options import AddressOption, JsonOption, NameArgument
from malstrom_py.cli.output import WrongCommand, json_line, print_out, reporting_errors
from malstrom_py.cli.watching import found_job
from malstrom_py.clock import SystemClock
from malstrom_py.codec import TypeTable
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH
from malstrom_py.data.time import Unit
from malstrom_py.errors import CaptureError
from malstrom_py.sinks.base import BaseTransactionalWriter, CommitContext
from malstrom_py.sinks.capture import Capture
from malstrom_py.snapshot.ids import fresh_snapshot_id
from malstrom_py.worker_context import WorkerId, WorkerInfo
from malstrom_py.workers.control.tap import Tap, stored_keys


def tap(
    job: NameArgument,
    step: Annotated[str, typer.Argument(metavar="STEP", help="The step whose records are shown.")],
    key: Annotated[
        str | None,
        typer.Option("--key", help="Show records of this key only: a text, or a literal such as 17."),
    ] = None,
    rate: Annotated[bool, typer.Option("--rate", help="Print the records per second instead, once a second.")] = False,
    count: Annotated[int | None, typer.Option("--count", min=1, help="End after so many lines.")] = None,
    as_json: JsonOption = False,
    save: Annotated[
        Path | None,
        typer.Option("--save", help="Folder to write the records to as well, as a new recording called STEP."),
    ] = None,
    address: AddressOption = None,
) -> None:
    """Show records that a step of a running job emits, as they pass.

    Of a sink it shows the records that it gets. Of many records some are shown; the last line has the number of all.
    The job does not wait for this command. Ends with Ctrl-C, or when the job ends.
    """
    with reporting_errors(traceback=False), ExitStack() as stack:
        found = found_job(job, address)
        tapped = Tap(found.ask, step, None if key is None else stored_keys(*keys_of(key)), count=count)
        writer = None if save is None else stack.enter_context(_recording(save, job, tapped))
        with suppress(KeyboardInterrupt):
            _print_rates(tapped, count, as_json=as_json) if rate else _print_records(tapped, writer, as_json=as_json)
        typer.echo(f"sampled: {tapped.passed:,} records passed, {tapped.shown:,} shown", err=True)


def keys_of(text: str) -> list[Any]:
    """Return the keys that ``text`` may mean.

    >>> keys_of("ant"), keys_of("17"), keys_of("('a', 1)")
    (['ant'], ['17', 17], ["('a', 1)", ('a', 1)])
    """
    try:
        return [text, ast.literal_eval(text)]
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return [text]


@contextmanager
def _recording(folder: Path, job: str, tapped: Tap) -> Iterator[BaseTransactionalWriter]:
    """Write a recording of one stream, as `StreamBuilder.capture_into` does; it is committed at the end."""
    header = Header("", "", "", worker=0, keyed=tapped.keyed, unit=cast("Unit | None", tapped.unit))
    sink = Capture(folder, header, TypeTable(), replace=False)
    context = CommitContext(job, tapped.step, fresh_snapshot_id(SystemClock().now_s()), 1)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        begin_new(sink.place, tapped.step)
    except CaptureError as error:
        raise WrongCommand(f"--save: {error}") from None
    except OSError as error:
        raise WrongCommand(f"--save: {folder} cannot be written ({error.strerror}): give another folder") from None
    writer = sink.open(WorkerInfo(job, tapped.step, WorkerId(0)))
    with closing(writer):
        yield writer
        writer.advanced(MAX_EPOCH)
        sink.commit(context, [writer.pre_commit(context)])


def _print_records(tapped: Tap, writer: BaseTransactionalWriter | None, *, as_json: bool) -> None:
    for record in tapped:
        if writer is not None:
            keys = [record.key] if tapped.keyed else None
            times = None if record.timestamp is None else [record.timestamp]
            writer.write(Batch([record.value], keys=keys, timestamps=times))
        print_out(json_line(record._asdict()) if as_json else str(record))


def _print_rates(tapped: Tap, count: int | None, *, as_json: bool) -> None:
    while count is None or count > 0:
        if (rate := tapped.rate()) is None:
            return
        print_out(json.dumps({"rows_per_s": rate, "passed": tapped.passed}) if as_json else f"{rate:,.0f} records/s")
        count = None if count is None else count - 1


_EXAMPLES = ("malstrom tap shop paid", "malstrom tap shop paid --key tea --count 20", "malstrom tap shop paid --rate")
app = typer.Typer(rich_markup_mode=None)
app.command(epilog=examples(*_EXAMPLES))(tap)
