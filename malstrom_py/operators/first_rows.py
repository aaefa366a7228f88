"""Warnings about the first rows of a step, where they show a mistake: results or keys that are all None, by a function
that forgets ``return``, and timestamps in another unit than that of the step. `Unmatched` is such a watch of joins.
Each step logs one at most.
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

ROWS: Final = 1000
"""So many rows with a mistake, the first of a worker, are warned of before the stream ends."""

_FEW: Final = 2
_FEW_OF_SEVERAL: Final = 10
"""So few at the end of the stream, if they are all; of one of several workers, which others may not resemble."""

_LEAST_S: Final = 631_152_000
_MOST_S: Final = 4_102_444_800
"""1990 and 2100: times between them are taken for right."""


class FirstRows:
    """Logs one warning if the first `ROWS` rows of a step on a worker show a mistake, or all at the end of the stream.

    A row that does not show it ends the watch. As ``watch`` of an operator it is notified of the end by the executor.
    """

    def __init__(self, context: StepContext, *, active: bool = True) -> None:
        self._context = context
        self._mistaken = 0
        self.active = active
        """Whether more rows are to be counted."""

    def mistaken(self, rows: int) -> None:
        """Count rows that show the mistake."""
        if self.active:
            self._mistaken += rows
            if self._mistaken >= ROWS:
                self._tell(f"the first {ROWS:,}")

    def right(self) -> None:
        """Note a row that does not show it."""
        self.active = False

    def ended(self) -> None:
        """Note that there are no more rows."""
        if self.active and self._mistaken >= (_FEW if self._context.workers == 1 else _FEW_OF_SEVERAL):
            self._tell(f"all {self._mistaken}")
        self.active = False

    def _tell(self, rows: str) -> None:
        self.active = False
        warn(self._context, self._words(rows))

    def _words(self, rows: str) -> str:
        """Return the warning about ``rows``, "all 5" for instance."""
        raise NotImplementedError


class NoneWatch(FirstRows):
    """Watches whether the results of a step's ``function`` are None.

    ``what``: what the function should return. The look-up of a column is not watched: a column may be null. But that
    of ``keys`` is: a key that is always None is a mistake.
    """

    def __init__(self, context: StepContext, function: object, what: str, *, keys: bool = False) -> None:
        super().__init__(context, active=keys or not isinstance(function, itemgetter | None))
        self._function = function
        self._what = what
        self._kind = "keys" if keys else "results"

    def results(self, results: Sequence[Any]) -> None:
        """Count the next results."""
        if self.active:
            self.counted(len(results), sum(result is None for result in results))

    def counted(self, results: int, none: int) -> None:
        """Count the next ``results``, of which ``none`` are None."""
        if none < results:
            self.right()
        else:
            self.mistaken(none)

    def _words(self, rows: str) -> str:
        function = describe_function(self._function)
        return f"{rows} {self._kind} were None (in {function}). If that is not intended, return {self._what}"


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
            warn(
                self._context,
                f"the first timestamps are not between 1990 and 2100 in unit {self._unit!r}, but they are in unit "
                f"{better!r} (in {describe_function(self._function)}). If that is their unit, give the step "
                f"unit={better!r}",
            )

    @staticmethod
    def better(unit: Unit, least: int, most: int) -> str | None:
        """Return the unit in which such times are likely, None if ``unit`` is as likely, or if there is none."""
        likely = [name for name, per_s in PER_SECOND.items() if least // per_s >= _LEAST_S and most // per_s <= _MOST_S]
        return None if not likely or unit in likely else likely[0]


def warn(context: StepContext, text: str) -> None:
    """Log ``text`` about a step as a warning, the first of the step in the job."""
    if context.step in context.warned:
        return
    context.warned.add(context.step)
    log(
        _LOG,
        logging.WARNING,
        "job %s: step %r: %s",
        *(context.job, context.step, text),
        job=context.job,
        worker=context.worker,
        step=context.step,
    )
