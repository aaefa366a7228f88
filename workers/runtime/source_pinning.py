"""Holds still what the sources of a job are to read, from its start to its end.

Rule: what was pinned is unpinned once, however the job ends, and behind everything else that its end brings about. What
a job that goes on reads is what stands in the manifest, and not what the sources would find now.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from malstrom_py.builder.plan import Plan
from malstrom_py.clock import Clock
from malstrom_py.operators.read_source import ReadSource
from malstrom_py.sources.base import PinnedSource
from malstrom_py.workers.coordinator.recovery import PinnedInputs
from malstrom_py.workers.engine.graph_builder import build_sources


class SourcePins:
    """The sources of ``plan`` that are to be pinned, each once, however many steps read it. As a context: unpins them,
    and has them keep what they staged if ``keep`` is set by then: the job has a snapshot, and has not finished.

    >>> from malstrom_py.clock import SystemClock
    >>> from malstrom_py.builder.plan import Plan
    >>> with SourcePins(Plan("docs", 1024, ()), SystemClock()) as pins:
    ...     pins.pin()
    >>> pins.any
    False
    """

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self._read = [step for step in build_sources(plan, clock) if isinstance(step.source, PinnedSource)]
        self._steps = list({id(step.source): step for step in reversed(self._read)}.values())[::-1]
        self._pinned: list[ReadSource] = []
        self.keep = False
        self.keep_unread = False
        """Whether those that read what is new keep it: the job was drained, and its next run reads the rest."""

    @property
    def any(self) -> bool:
        """Whether there is a source to be pinned."""
        return bool(self._steps)

    def pin(self, known: PinnedInputs | None = None) -> None:
        """Pin them all, in the order of the steps. `SourceError` names the step whose source cannot be.

        ``known``: of the manifest that the job goes on from. A source that has no record is new, and pinned anew,
        behind the others: what it stages clears away what nobody holds. So does one that pins what is new since.
        """
        known = known or PinnedInputs()
        records = {step: self._record(step, known.records) for step in self._steps}
        read = {step: step.reads_new and self._was_read(step, known) for step in self._steps}
        for step in sorted(self._steps, key=lambda step: records[step] is None or read[step]):
            step.pin(records[step], was_read=read[step])
            self._pinned.append(step)

    def records(self) -> dict[str, Any]:
        """What is pinned, in plain types, by the names of all steps that read it."""
        told = {id(step.source): step.pin_record() for step in self._pinned}
        return {step.context.step: told[id(step.source)] for step in self._read if id(step.source) in told}

    def unpin(self, *, keep: bool = False) -> None:
        """Unpin those that have been pinned; the first error is raised when all have been. Again at will.

        ``keep``: what they staged stays, for the job is to be gone on with.
        """
        errors: list[Exception] = []
        while self._pinned:
            try:
                step = self._pinned.pop()
                step.unpin(keep=keep or (self.keep_unread and step.reads_new))
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
            self.unpin(keep=self.keep)
        except Exception as failure:
            if error is None:
                raise
            error.add_note(str(failure))

    def _was_read(self, step: ReadSource, known: PinnedInputs) -> bool:
        """Whether all steps that read ``step``'s source, and were there, have read what it had pinned."""
        names = {reader.context.step for reader in self._read if reader.source is step.source}
        return names.intersection(known.records) <= known.read

    def _record(self, step: ReadSource, records: Mapping[str, Any]) -> Any:
        """The record of ``step``'s source, by whichever of its steps it is known."""
        names = (reader.context.step for reader in self._read if reader.source is step.source)
        return next((records[name] for name in names if name in records), None)
