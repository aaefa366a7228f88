"""Errors of polled sources, in words that are the same for all of them."""

from __future__ import annotations

import logging
from typing import Any, Literal

from malstrom_py.errors import MalformedRecord, SourceError, lasting
from malstrom_py.errors.text import describe_error, sentence
from malstrom_py.object_stores import hidden_logins

Gap = Literal["fail", "skip"]
"""What to do where records were removed before they were read."""


def unreachable(name: str, error: BaseException) -> SourceError:
    """Return the error of an input that could not be read for too long."""
    why = sentence(hidden_logins(describe_error(error)))
    return SourceError(
        f"{name} cannot be read: {why}. Check that the server runs, and that user and permissions are right, then run "
        f"the job again"
    )


def malformed(name: str, record: Any, error: Exception | None) -> MalformedRecord:
    """Return the error of a record that has no value; ``error`` None: the iterator of values ended before it."""
    why = "no value, or StopIteration" if error is None else sentence(describe_error(error))
    return MalformedRecord(
        f"{name} cannot be decoded: {why}. Correct the function that decodes it (value=), or leave the record out by "
        f"on_error=",
        record=record,
    )


def misplaced(name: str, error: MalformedRecord) -> SourceError:
    """Return the error of a reader that raises what belongs to a record."""
    return lasting(
        SourceError(
            f"{name}: read raised {describe_error(error)}: return the record, and raise in values of the source"
        )
    )


def uncounted(values: int, records: int) -> SourceError:
    """Return the error of more values than records."""
    return lasting(
        SourceError(
            f"values of a polled source returned {values} values or more for {records} records: return one for each, "
            f"and use flat_map in a step after the source"
        )
    )


def missing(records: str, advice: str, on_gap: Gap, log: logging.Logger) -> None:
    """Fail or warn because ``records`` were removed before they were read. ``advice``: how to keep them longer."""
    text = f"{records} were removed before they were read"
    if on_gap == "fail":
        raise lasting(SourceError(f"{text}. {advice}. To continue with those that are available, use on_gap='skip'."))
    log.warning("%s: the job continues without them", text)


def another(name: str, read: str) -> SourceError:
    """Return the error of an input that is not the one of the position."""
    return lasting(
        SourceError(
            f"{name} is not the one that was read up to {read}: it was deleted or made again, or its newest records "
            f"were lost. Restore it, or start the job without resuming."
        )
    )


def foreign_record(what: str, job: str) -> SourceError:
    """Return the error of a pin that another source has recorded."""
    return SourceError(
        f"{what}: the snapshot of job {job!r} has a record of another source for this step: name the step otherwise, "
        f"or start the job without its snapshots"
    )
