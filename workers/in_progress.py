"""What is told when the waiting for an operation of a job has ended, and the operation has not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from malstrom_py.errors import OperationInProgress

_TOLD: Final[Mapping[str, str]] = {
    "run": "has not ended within {} s; it goes on",
    "rescale": "has not been rescaled within {} s; the rescale goes on",
    "snapshot": "has not completed a snapshot within {} s; the snapshot goes on",
    "savepoint": "has not completed the savepoint within {} s; it goes on",
    "stop": "has not stopped within {} s; it is still being stopped",
}


def in_progress(job: str, operation: str, timeout_s: float) -> OperationInProgress:
    """That a wait for ``operation`` ("run", "rescale", "snapshot", "savepoint" or "stop") has run out, and it goes on.

    >>> print(in_progress("flights", "rescale", 5))
    job 'flights' has not been rescaled within 5 s; the rescale goes on: see status(), or allow more with timeout_s=
    """
    told = _TOLD[operation].format(f"{timeout_s:g}")
    return OperationInProgress(
        f"job {job!r} {told}: see status(), or allow more with timeout_s=", job=job, operation=operation
    )


def goes_on(job: str) -> str:
    """What is noted on a Ctrl-C that has stopped the waiting, and not what was waited for."""
    return f"job {job!r} goes on, and does what it was asked to: only the waiting was interrupted"
