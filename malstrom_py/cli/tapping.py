"""The command tap: records of a step of a running job, as they pass."""

from __future__ import annotations

import ast
import json
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

import malstrom_py as mp
from malstrom_py.cli.commands import examples
from malstrom_py.cli.options import AddressOption, JsonOption, NameArgument
from malstrom_py.cli.output import WrongCommand, print_out, reporting_errors
from malstrom_py.cli.watching import found_job
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
        typer.Option("--save", help="Folder to write the records to as well: STEP.jsonl, as lines of JSON."),
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
        file = None if save is None else stack.enter_context(_opened(save, step))
        with suppress(KeyboardInterrupt):
            _print_rates(tapped, count, as_json=as_json) if rate else _print_records(tapped, file, as_json=as_json)
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


def _opened(folder: Path, step: str) -> TextIO:
    path = folder / f"{step}.jsonl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return path.open("x", encoding="utf-8", errors="backslashreplace")
    except FileExistsError:
        raise WrongCommand(f"--save: {path} is there already: give another folder") from None
    except OSError as error:
        raise WrongCommand(f"--save: {path} cannot be written ({error.strerror}): give another folder") from None


def _print_records(tapped: Tap, file: TextIO | None, *, as_json: bool) -> None:
    for record in tapped:
        line = _json(record) if as_json or file is not None else ""
        if file is not None:
            file.write(line + "\n")
            file.flush()
        print_out(line if as_json else str(record))


def _json(record: mp.TapRecord) -> str:
    """Return a record as JSON; the repr of what JSON does not have."""
    try:
        return json.dumps(record._asdict(), default=repr)
    except (TypeError, ValueError):  # a dict whose keys are no texts
        return json.dumps(record._replace(value=repr(record.value))._asdict(), default=repr)


def _print_rates(tapped: Tap, count: int | None, *, as_json: bool) -> None:
    while count is None or count > 0:
        if (rate := tapped.rate()) is None:
            return
        print_out(json.dumps({"rows_per_s": rate, "passed": tapped.passed}) if as_json else f"{rate:,.0f} records/s")
        count = None if count is None else count - 1


_EXAMPLES = ("malstrom tap shop paid", "malstrom tap shop paid --key tea --count 20", "malstrom tap shop paid --rate")
app = typer.Typer(rich_markup_mode=None)
app.command(epilog=examples(*_EXAMPLES))(tap)
