"""A step that checks epochs: no record is below the frontier, which only rises."""

from __future__ import annotations

from functools import partial
from typing import Any

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MIN_EPOCH, Epoch
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.testing import as_step
from tests.simulation.jobs.seen import Seen


def watched(stream: Any, name: str, seen: Seen, *, at_source: bool = False) -> Any:
    """Return ``stream`` after a watch.

    ``at_source``: in the region of a source, where an epoch may come again, to say that the parts before it are idle,
    or are no more, and where a part that moves here brings its own frontier (T2).
    """
    return as_step(partial(Watching, seen=seen, at_source=at_source), name=name)(stream)


class Watching(Operator):
    """Passes everything on, and notes what is against the rules."""

    def __init__(self, context: StepContext, *, seen: Seen, at_source: bool) -> None:
        super().__init__(context)
        self._seen = seen
        self._at_source = at_source
        self._moves: list[int] | None = None
        self._frontier = MIN_EPOCH
        self.takes_columns = True

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        if batch.timestamps is not None and min(batch.timestamps) <= self._frontier:
            self._broken(f"was sent a record at {min(batch.timestamps)}, at or below its frontier {self._frontier}")
        out.send(batch)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        if epoch.time < self._frontier or (epoch.time == self._frontier and not self._at_source):
            self._broken(f"goes from epoch {self._frontier} to {epoch.time}")
        self._frontier = epoch.time
        if self._moves is None:
            self._moves = self._seen.frontiers.setdefault((self.context.step, self.context.worker), [])
        self._moves.append(epoch.time)
        out.forward(epoch)

    def continue_at(self, epoch: int) -> None:
        self._frontier = epoch

    def _broken(self, what: str) -> None:
        noted = self._seen.broken_at_sources if self._at_source else self._seen.broken
        noted.append(f"{self.context.step} on worker {self.context.worker} {what}")
