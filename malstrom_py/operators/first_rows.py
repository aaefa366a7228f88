"""Warnings about the first rows of a step, where they show a mistake: results or keys that are all None, by a function
that forgets ``return``, and timestamps in another unit than that of the step. Each step logs one at most.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

from malstrom_py.data.time import PER_SECOND, Unit
from malstrom_py.errors.text import describe_function
from malstrom_py.logs import log
from malstrom_py.operators.base import StepContext

_LOG: Final = logging.getLogger("malstrom_py")

CALLS: Final = 1000
"""So many results of None, the first of a worker, are warned of; at the end of the stream so few as 2."""

_LEAST_S: Final = 631_152_000
_MOST_S: Final = 4_102_444_800
"""1990 and 2100: times between them are taken for right."""


class NoneWatch:
    """Logs one warning when the first `CALLS` results of a step's ``function`` were None, or all of them, at least 2,
    when the stream `ended`. The first other one ends the watch.

    ``what``: what the function should return. The look-up of a column is not watched: a column may be null. But that
    of ``keys`` is: a key that is always None is a mistake.
    """

    def __init__(self, context: StepContext, function: object, what: str, *, keys: bool = False) -> None:
        self._context = context
        self._function = function
        self._what = what
        self._kind = "keys" if keys else "results"
        self._left = CALLS if keys or not isinstance(function, itemgetter | None) else 0
        self._none = 0

    @property
    def active(self) -> bool:
        """Whether more results are to be counted."""
        return self._left > 0

    def results(self, results: Sequence[Any]) -> None:
        """Count the next results."""
        if self._left > 0:
            self.counted(len(results), sum(result is None for result in results))

    def counted(self, results: int, none: int) -> None:
        """Count the next ``results``, of which ``none`` are None."""
        if self._left <= 0:
            return
        if none < results:
            self._left = 0
            return
        self._left -= results
        self._none += results
        if self._left <= 0:
            self._tell(f"the first {CALLS:,}")

    def ended(self) -> None:
        """Note the end of the stream: there are no more results."""
        if self._left > 0 and self._none > 1:
            self._tell(f"all {self._none}")
        self._left = 0

    def _tell(self, results: str) -> None:
        _warn(
            self._context,
            "%s %s were None (in %s). If that is not intended, return %s",
            *(results, self._kind, describe_function(self._function), self._what),
        )


class UnitWatch:
    """Logs one warning if the first timestamps are not between 1990 and 2100, but would be in another unit: such as
    seconds since 1970 in a step whose unit is "ms". Small numbers, as in a test, are in no unit between these years.

    >>> UnitWatch.better("ms", 1_700_000_000, 1_700_000_060), UnitWatch.better("ms", 0, 60)
    ('s', None)
    """

    def __init__(self, context: StepContext, function: object, unit: Unit) -> None:
        self._context = context
        self._function = function
        self._unit: Unit = unit
        self.active = True
        """Whether no timestamps have been looked at."""

    def looked_at(self, least: int, most: int) -> None:
        """Look at the range of the first timestamps that are numbers."""
        self.active = False
        better = self.better(self._unit, least, most)
        if better is not None:
            _warn(
                self._context,
                "the first timestamps are not between 1990 and 2100 in unit %r, but they are in unit %r (in %s). If "
                "that is their unit, give the step unit=%r",
                *(self._unit, better, describe_function(self._function), better),
            )

    @staticmethod
    def better(unit: Unit, least: int, most: int) -> str | None:
        """Return the unit in which such times are likely, None if ``unit`` is as likely, or if there is none."""
        likely = [name for name, per_s in PER_SECOND.items() if least // per_s >= _LEAST_S and most // per_s <= _MOST_S]
        return None if not likely or unit in likely else likely[0]


def _warn(context: StepContext, text: str, *arguments: str) -> None:
    if context.step in context.warned:
        return
    context.warned.add(context.step)
    log(
        _LOG,
        logging.WARNING,
        f"job %s: step %r: {text}",
        *(context.job, context.step, *arguments),
        job=context.job,
        worker=context.worker,
        step=context.step,
    )
