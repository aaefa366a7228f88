"""What the command line prints: results on standard output, errors on standard error; tables, sizes and ages.

Rule: an error is printed after ``error:``, with the text of its cause and the user's own file and line; the last line
names ``--traceback`` if the command has that option and it would show more. The exit code is how the command ended."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback as tracebacks
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import typer

import malstrom_py as mp
from malstrom_py.errors import shown
from malstrom_py.errors.text import describe_error, redacts, sentence, text_of, users_frame
from malstrom_py.workers.reports.error_transfer import trace_of
from malstrom_py.workers.reports.result import as_plain, text_of_new_input

FAILED: Final = 1
WRONG_COMMAND: Final = 2
INTERRUPTED: Final = 130
TERMINATED: Final = 143

_SUMS: Final = ("read", "written", "filtered", "late", "ahead", "skipped", "dead_letters", "dropped_timers")

TRACEBACK_HINT: Final = "run again with --traceback to see the full error"


class WrongCommand(Exception):
    """The command or its arguments are wrong, or the job does not exist."""


class NotPrinted(Exception):
    """Standard output could not be written."""


class UserCodeFailed(Exception):
    """The user's module or function raised before there was a job; its error is the ``__cause__``."""


@contextmanager
def reporting_errors(traceback: bool, *, has_option: bool = False) -> Iterator[None]:
    """Print what is raised inside on standard error, and exit with its code.

    ``has_option``: whether the command has the option ``--traceback``.
    """
    try:
        yield
    except (WrongCommand, mp.JobNotFound) as error:
        print_error("error", str(error))
        raise typer.Exit(WRONG_COMMAND) from None
    except KeyboardInterrupt as error:
        print_error("interrupted", *getattr(error, "__notes__", ()) or ("nothing had run yet",))
        raise typer.Exit(INTERRUPTED) from None
    except (typer.Exit, BrokenPipeError):
        raise  # The reader of standard output has closed it; typer ends quietly.
    except SystemExit as error:
        if _by_sigterm(error):
            print_error(
                "terminated", "SIGTERM arrived before the job had started; `malstrom status` lists the running jobs"
            )
            raise typer.Exit(TERMINATED) from None
        hidden = redacts() and error.code is not None and type(error.code) is not int
        code = "sys.exit(…)" if hidden else exit_text(error)
        print_error("error", f"a function of the job ended the program ({code}), before the job was done")
        raise typer.Exit(FAILED) from None
    except Exception as error:
        if traceback and not redacts():
            tracebacks.print_exception(error.__cause__ if isinstance(error, UserCodeFailed) else error)
            if users_frame(_origin(error)) is None and (frames := trace_of(error)):  # it was raised in another process
                typer.echo(f"In the functions of the job, most recent call last:\n{frames}", err=True)
        hint = [TRACEBACK_HINT] if has_option and not (traceback or redacts()) and _has_more(error) else []
        print_error("error", *_story(error), *hint)
        raise typer.Exit(FAILED) from None


def print_error(what: str, *lines: str) -> None:
    """Print on standard error what happened, and details in the lines below."""
    typer.echo(f"{what}: " + "\n  ".join(lines), err=True)


def stopped_text(job: str, snapshot: str) -> str:
    """Return what both sides of a planned stop print at its end."""
    return f"job {job} has stopped; it can resume from snapshot {snapshot}"


def print_stopped(error: mp.JobEnded, *, quiet: bool, as_json: bool = False) -> None:
    """Print on standard error that a job was stopped as planned, its snapshot, and its counts unless ``quiet``.

    Raise ``error`` if the job ended in another way.
    """
    if not (error.how == "stopped" and error.snapshot):
        raise error
    typer.echo(stopped_text(error.job, error.snapshot), err=True)
    if not quiet and error.result is not None:
        typer.echo(str(error.result), err=True)
    if as_json:
        counts = error.result or mp.RunResult(error.job, {}, 0.0)
        print_json(plain_result(counts, "stopped", error.snapshot))


def print_result(result: mp.RunResult, *, quiet: bool, as_json: bool = False) -> None:
    """Print the counts of a run on standard error; also if ``quiet``, print that the job had finished before.

    The counts are then those of the run that finished the job.
    """
    last = f"; its last snapshot is {result.last_snapshot}" if result.last_snapshot else ""
    if result.resumed_finished:
        finished, last = f"job {result.job} has already finished, in snapshot {result.last_snapshot}", ""
        new = text_of_new_input(result.read_new_with)
        typer.echo(f"{finished}: nothing was read; --resume none starts over{new}", err=True)
    if not quiet:
        earlier = " (an earlier run)" if result.resumed_finished else ""
        typer.echo(f"{replace(result, resumed_finished=False)}{earlier}{last}", err=True)
    if as_json:
        print_json(plain_result(result, "finished", result.last_snapshot))


def json_line(line: Mapping[str, Any]) -> str:
    """Return a record as a line of JSON; the repr of what JSON does not have.

    >>> print(json_line({"key": "ant", "value": {2}}))
    {"key": "ant", "value": "{2}"}
    >>> print(json_line({"key": "ant", "value": {(1, 2): 3}}))
    {"key": "ant", "value": "{(1, 2): 3}"}
    """
    try:
        return json.dumps(line, default=repr)
    except (TypeError, ValueError):  # a dict whose keys are no texts
        return json.dumps({**line, "value": repr(line["value"])}, default=repr)


def print_json(value: object) -> None:
    """Print a result as one line of JSON on standard output."""
    print_out(json.dumps(value))


def plain_result(result: mp.RunResult, state: str, snapshot: str | None) -> dict[str, Any]:
    """Return the counts of a run for JSON. ``snapshot``: the last one."""
    sums = {name: getattr(result, name) for name in _SUMS}
    plain = as_plain(result)
    for name, counts in result.steps.items():
        plain["steps"][name]["rows_out"] = counts.rows_out
    return {
        "job": result.job,
        "state": state,
        **sums,
        "duration_s": result.duration_s,
        "snapshots": result.snapshots,
        "last_snapshot": snapshot,
        "resumed_finished": result.resumed_finished,
        "steps": plain["steps"],
    }


def print_out(text: str) -> None:
    """Print a result on standard output, which may be a full disk."""
    try:
        typer.echo(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        # Otherwise Python would write the rest of its buffer, and fail, when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise NotPrinted(f"standard output cannot be written: {error.strerror}") from error


def exit_text(error: SystemExit) -> str:
    """Return the call that ended the program."""
    return f"sys.exit({'' if error.code is None else shown(error.code)})"


def _by_sigterm(error: SystemExit) -> bool:
    """Whether Ray's handler of SIGTERM raised ``error``, to end its processes with the program."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return error.code == signal.SIGTERM and trace is not None and trace.tb_frame.f_code.co_name == "sigterm_handler"


def _story(error: Exception) -> list[str]:
    """Return the lines of an error: what happened, its cause, the place in the user's code, further errors."""
    if isinstance(error, NotPrinted):
        return [str(error)]
    if not isinstance(error, mp.MalstromError | UserCodeFailed):
        return [f"unexpected {describe_error(error)}", "this is a bug of malstrom-py"]
    lines = [str(error)]
    origin = _origin(error)
    if origin is not error and not isinstance(origin, mp.MalstromError):
        known = type(origin).__name__ in lines[0] and sentence(text_of(origin)) in lines[0]
        if not known and not isinstance(error, UserCodeFailed):
            lines.append(f"caused by {describe_error(origin)}")
        place = users_place(origin)
        if place is not None:
            lines.append(f"raised at {place}")
    elif (place := users_place(error)) is not None:
        lines.append(f"at {place}")
    return lines + list(getattr(error, "__notes__", ()))


def _has_more(error: Exception) -> bool:
    """Whether a traceback shows more than `_story`."""
    if isinstance(error, NotPrinted):
        return False
    return not isinstance(error, mp.MalstromError) or error.__cause__ is not None or users_frame(error) is not None


def _origin(error: BaseException) -> BaseException:
    """Return the root cause; causes may form a circle, because ``raise e from e`` is legal."""
    seen = [error]
    while (cause := seen[-1].__cause__) is not None and cause not in seen:
        seen.append(cause)
    return seen[-1]


def users_place(error: BaseException | None) -> str | None:
    """Return the innermost line of the user's code that was running: ``file:line, in function``; None for none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(error.filename)}:{error.lineno}"
    frame = None if error is None else users_frame(error)
    if frame is None:
        return None
    where = f"{_shown(frame.filename)}:{frame.lineno}"
    return where if frame.name == "<module>" else f"{where}, in {frame.name}"


def _shown(file: str) -> str:
    """Return a path relative to the working directory if it is inside it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


Row = Sequence[object]


def format_age(age_s: float) -> str:
    """Format the time since an event.

    >>> format_age(5.3), format_age(200), format_age(7_200), format_age(200_000), format_age(-3)
    ('5 s', '3 min', '2 h', '2 d', '0 s')
    """
    for unit, factor in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if age_s >= factor:
            return f"{age_s // factor:,.0f} {unit}"
    return f"{max(0.0, age_s):.0f} s"


def table(headings: Sequence[str], rows: Sequence[Row], *, drawn: bool | None = None) -> str:
    """Format ``rows`` below ``headings``; ``drawn``: with lines, by default if standard output is a terminal.

    >>> print(table(["step", "keys"], [["total", 12], ["n", 3]], drawn=False))
    step   keys
    total  12
    n      3
    """
    cells = [[str(cell) for cell in row] for row in rows]
    if sys.stdout.isatty() if drawn is None else drawn:
        return _drawn(headings, cells)
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in (headings, *cells))
    return "\n".join(lines)


def _drawn(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(*headings)
    for row in rows:
        made.add_row(*map(Text, row))  # brackets in a Text are not markup
    console = Console()
    with console.capture() as captured:
        console.print(made)
    return captured.get().rstrip("\n")
