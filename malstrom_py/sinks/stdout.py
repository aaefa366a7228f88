"""``Stdout``: a sink that prints. Each batch is flushed immediately and cannot be undone."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any

from malstrom_py.data.batch import Batch
from malstrom_py.errors import PlanError, SinkError
from malstrom_py.errors.text import describe_error, describe_function, failed_in
from malstrom_py.sinks.base import BaseStatelessSink, BaseWriter
from malstrom_py.worker_context import WorkerInfo


class Stdout(BaseStatelessSink):
    """Prints one line per value: the result of ``format`` (default `str`). Keys are not printed.

    SinkError: ``format`` raises or returns no str, the reader of a pipe has closed it, or the output cannot be written.

    >>> sink = Stdout(format=lambda flight: f"{flight['carrier']}: {flight['delay']} min")
    >>> writer = sink.build(WorkerInfo("docs", "out", 0))
    >>> writer.write(Batch([{"carrier": "UA", "delay": 2}, {"carrier": "B6", "delay": -3}]))
    UA: 2 min
    B6: -3 min
    """

    def __init__(self, *, format: Callable[[Any], str] = str) -> None:
        if not callable(format):
            raise PlanError(f"sinks.Stdout: format must be a function value -> str, got {type(format).__name__}")
        self._format = format

    def __repr__(self) -> str:
        return "Stdout()"

    def build(self, worker: WorkerInfo) -> _StdoutWriter:
        return _StdoutWriter(self._format)


class _StdoutWriter(BaseWriter):
    def __init__(self, format: Callable[[Any], str]) -> None:
        self._format = format

    def write(self, batch: Batch) -> None:
        text = "".join([line + "\n" for line in self._lines(batch)])
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError as error:
            _silence_stdout()
            raise SinkError(
                "the reader of the output closed the pipe ('| head', for instance). "
                "Let it read to the end, or write to a file."
            ) from error
        except UnicodeEncodeError as error:
            raise SinkError(
                f"a character cannot be printed as {error.encoding}. "
                f"Set PYTHONIOENCODING=utf-8, or give Stdout a format= that avoids it."
            ) from error
        except (OSError, ValueError) as error:
            _silence_stdout()
            why = getattr(error, "strerror", None) or "it is closed"
            raise SinkError(f"cannot write to standard output: {why}. Check where it goes.") from error

    def _lines(self, batch: Batch) -> list[str]:
        try:
            # Not list(map(…)): a StopIteration raised by the function would end the list early.
            lines = [self._format(value) for value in batch.values]
        except Exception as error:
            raise SinkError(
                f"format raised {describe_error(error)} (in {failed_in(self._format, error)}). Fix the function."
            ) from error
        for line in lines:
            if not isinstance(line, str):
                raise SinkError(
                    f"format returned {type(line).__name__}, not str "
                    f"(in {describe_function(self._format)}). Fix the function."
                )
        return lines


def _silence_stdout() -> None:
    """Redirect standard output to /dev/null: Python flushes the buffer at exit, and would print another error."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
