"""Holds still what the sources of a job are to read, from its start to its end.

Rule: what was pinned is unpinned once, however the job ends, and behind everything else that its end brings about.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from malstrom_py.clock import Clock
from malstrom_py.operators.read_source import ReadSource
from malstrom_py.plan import Plan
from malstrom_py.sources.base import PinnedSource
from malstrom_py.workers.graph import build_sources


class Pins:
    """The sources of ``plan`` that are to be pinned, each once, however many steps read it. As a context: unpins them.

    >>> from malstrom_py.clock import SystemClock
    >>> from malstrom_py.plan import Plan
    >>> with Pins(Plan("docs", 1024, ()), SystemClock()) as pins:
    ...     pins.pin()
    >>> pins.any
    False
    """

    def __init__(self, plan: Plan, clock: Clock) -> None:
        read = [step for step in build_sources(plan, clock) if isinstance(step.source, PinnedSource)]
        self._steps = list({id(step.source): step for step in reversed(read)}.values())[::-1]
        self._pinned: list[ReadSource] = []

    @property
    def any(self) -> bool:
        """Whether there is a source to be pinned."""
        return bool(self._steps)

    def pin(self) -> None:
        """Pin them all, in the order of the steps. `SourceError` names the step whose source cannot be."""
        for step in self._steps:
            step.pin()
            self._pinned.append(step)

    def unpin(self) -> None:
        """Unpin those that have been pinned; the first error is raised when all have been. Again at will."""
        errors: list[Exception] = []
        while self._pinned:
            try:
                self._pinned.pop().unpin()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.unpin()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(str(failure))
