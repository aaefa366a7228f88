"""Pins the input of a job's sources from its start to its end.

Rule: each pinned source is unpinned once, however the job ends, and as the last act of that end. A job that resumes
reads the input recorded in the manifest, not what its sources would find now.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from malstrom_py.builder.plan import Plan
from malstrom_py.clock import Clock
from malstrom_py.errors.text import public_text
from malstrom_py.operators.read_source import ReadSource
from malstrom_py.sources.base import pins
from malstrom_py.workers.coordinator.recovery import PinnedInputs
from malstrom_py.workers.engine.graph_builder import build_sources


class SourcePins:
    """The sources of ``plan`` that need pinning, each once, however many steps read it. The end of the context unpins.

    ``keep``, set before that, keeps their staged data: the job has a snapshot and has not finished.

    >>> from malstrom_py.clock import SystemClock
    >>> from malstrom_py.builder.plan import Plan
    >>> with SourcePins(Plan("docs", 1024, ()), SystemClock()) as pins:
    ...     pins.pin()
    >>> pins.any
    False
    """

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self._read = [step for step in build_sources(plan, clock) if pins(step.source)]
        self._steps = list({id(step.given): step for step in reversed(self._read)}.values())[::-1]
        self._pinned: list[ReadSource] = []
        self.keep = False
        self.keep_unread = False
        """Whether sources of new files keep them: the job was drained, and its next run reads the rest."""

    @property
    def any(self) -> bool:
        """Whether any source needs pinning."""
        return bool(self._steps)

    def pin(self, known: PinnedInputs | None = None) -> None:
        """Pin all sources in the order of the steps. `SourceError` names the step whose source cannot be pinned.

        ``known``: the pins in the manifest that the job resumes from. A source without a record there, or one that pins
        new input, comes last: its staging removes what no source has pinned.
        """
        known = known or PinnedInputs()
        records = {step: self._record(step, known.records) for step in self._steps}
        read = {step: step.source.reads_new and self._was_read(step, known) for step in self._steps}
        for step in sorted(self._steps, key=lambda step: records[step] is None or read[step]):
            step.pin(records[step], was_read=read[step])
            self._pinned.append(step)

    def records(self) -> dict[str, Any]:
        """Return the pin records in plain types, by the name of each step that reads the source."""
        records = {id(step.given): step.source.pin_record() for step in self._pinned}
        return {step.context.step: records[id(step.given)] for step in self._read if id(step.given) in records}

    def unpin(self, *, keep: bool = False) -> None:
        """Unpin all pinned sources, then raise the first error. Another call does nothing.

        ``keep``: staged data stays, because the job will resume.
        """
        errors: list[Exception] = []
        while self._pinned:
            try:
                step = self._pinned.pop()
                step.unpin(keep=keep or (self.keep_unread and step.source.reads_new))
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
            error.add_note(public_text(failure))

    def _was_read(self, step: ReadSource, known: PinnedInputs) -> bool:
        """Return whether all earlier steps that read ``step``'s source have read its pinned input."""
        names = {reader.context.step for reader in self._read if reader.given is step.given}
        return names.intersection(known.records) <= known.read

    def _record(self, step: ReadSource, records: Mapping[str, Any]) -> Any:
        """Return the record of ``step``'s source, from any step that reads it."""
        names = (reader.context.step for reader in self._read if reader.given is step.given)
        return next((records[name] for name in names if name in records), None)
