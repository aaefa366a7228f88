"""What the command line tells, and where: what was asked for on standard output, what went wrong on standard error.

Rule: an error is told in lines, after ``error:``, with the user's own file and line; the text of a foreign one, which
may hold values of records, only to those who ask for the ``traceback``. How a command ended is its exit code.
"""

from __future__ import annotations

import os
import sys
import traceback as tracebacks
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import typer

import malstrom_py as mp
from malstrom_py.errors import shown
from malstrom_py.operators.failures import told
from malstrom_py.workers.tracebacks import users_frame

FAILED: Final = 1
WRONG_COMMAND: Final = 2
INTERRUPTED: Final = 130


class WrongCommand(Exception):
    """What was asked for is not there, or no job."""


class NotPrinted(Exception):
    """Standard output could not be written."""


class UserCodeFailed(Exception):
    """The user's own module or function raised before there was a job; what it raised is the ``__cause__``."""


@contextmanager
def telling(traceback: bool) -> Iterator[None]:
    """What is raised inside is told on standard error, and becomes the exit code."""
    try:
        yield
    except (WrongCommand, mp.JobNotFound) as error:
        tell("error", str(error))
        raise typer.Exit(WRONG_COMMAND) from None
    except KeyboardInterrupt as error:
        tell("interrupted", *getattr(error, "__notes__", ()) or ("nothing had run yet",))
        raise typer.Exit(INTERRUPTED) from None
    except (typer.Exit, BrokenPipeError):
        raise  # Whoever read standard output went away; typer ends quietly.
    except SystemExit as error:
        tell("error", f"a function of the job ended the program ({exit_text(error)}), before the job was done")
        raise typer.Exit(FAILED) from None
    except Exception as error:
        if traceback:
            tracebacks.print_exception(error.__cause__ if isinstance(error, UserCodeFailed) else error)
        tell("error", *_story(error, traceback))
        raise typer.Exit(FAILED) from None


def tell(what: str, *lines: str) -> None:
    """Say on standard error what happened, and below it what there is to say about it."""
    typer.echo(f"{what}: " + "\n  ".join(lines), err=True)


def print_out(text: str) -> None:
    """Print what was asked for on standard output, which may be a full disk."""
    try:
        typer.echo(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        # What is left in the buffer would be tried, and complained about, once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise NotPrinted(f"standard output cannot be written: {error.strerror}") from error


def exit_text(error: SystemExit) -> str:
    """The call that ended the program."""
    return f"sys.exit({'' if error.code is None else shown(error.code)})"


def _story(error: Exception, traceback: bool) -> list[str]:
    """What happened, where in the user's code it came from, and what else went wrong meanwhile.

    The text of a foreign error may hold values of records: it is for those who ask for the ``traceback``.
    """
    if isinstance(error, NotPrinted):
        return [str(error)]
    if not isinstance(error, mp.MalstromError | UserCodeFailed):
        return [f"unexpected {type(error).__name__}", "this is a bug of malstrom-py; --traceback shows where"]
    lines = [str(error)]
    origin = _origin(error)
    if origin is not error and not isinstance(origin, mp.MalstromError):
        cause = told(origin) if traceback or isinstance(origin, OSError) else type(origin).__name__
        if cause not in lines[0] and not isinstance(error, UserCodeFailed):
            lines.append(f"caused by {cause}")
        place = users_place(origin)
        if place is not None:
            lines.append(f"raised at {place}")
    elif (place := users_place(error)) is not None:
        lines.append(f"at {place}")
    return lines + list(getattr(error, "__notes__", ()))


def _origin(error: BaseException) -> BaseException:
    """The first cause of all; causes may go round in a circle, for ``raise e from e`` is legal."""
    seen = [error]
    while (cause := seen[-1].__cause__) is not None and cause not in seen:
        seen.append(cause)
    return seen[-1]


def users_place(error: BaseException | None) -> str | None:
    """The user's innermost line that was running: ``file:line, in function``; None if none was."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(error.filename)}:{error.lineno}"
    frame = None if error is None else users_frame(error)
    if frame is None:
        return None
    where = f"{_shown(frame.filename)}:{frame.lineno}"
    return where if frame.name == "<module>" else f"{where}, in {frame.name}"


def _shown(file: str) -> str:
    """A path as short as it can be written from here."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
