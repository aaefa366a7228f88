"""A warning about a function whose results are all None: most often it forgets ``return``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

from malstrom_py.errors.text import describe_function
from malstrom_py.logs import log
from malstrom_py.operators.base import StepContext

_LOG: Final = logging.getLogger("malstrom_py")

CALLS: Final = 1000
"""So many results of None, the first of a worker, are warned of."""


class NoneWatch:
    """Logs one warning when the first `CALLS` results of a step's ``function`` were None; the first other one ends it.

    ``what``: what the function should return. The look-up of a column is not watched: a column may be null.
    """

    def __init__(self, context: StepContext, function: object, what: str) -> None:
        self._context = context
        self._function = function
        self._what = what
        self._left = 0 if isinstance(function, itemgetter | None) else CALLS

    @property
    def active(self) -> bool:
        """Whether more results are to be counted."""
        return self._left > 0

    def results(self, results: Sequence[Any]) -> None:
        """Count the next results."""
        if self._left <= 0:
            return
        if any(result is not None for result in results):
            self._left = 0
            return
        self._left -= len(results)
        if self._left <= 0 and self._context.step not in self._context.warned:
            self._context.warned.add(self._context.step)
            self._warn()

    def _warn(self) -> None:
        job, step = self._context.job, self._context.step
        log(
            _LOG,
            logging.WARNING,
            "job %s: step %r: %s results in a row were None (in %s). If that is not intended, return %s",
            *(job, step, f"{CALLS:,}", describe_function(self._function), self._what),
            job=job,
            worker=self._context.worker,
            step=step,
        )
