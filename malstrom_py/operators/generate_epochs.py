"""``generate_epochs``: turns timestamps into event time, per source part, and parts the late from the on-time.

T1: lateness is decided here, once, per record. T2: the epoch sent on is the minimum over the parts that are
open here; a part without data holds it back, a finished one does not. T5: the maximum epoch comes from the
source, when all its parts are finished.
"""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any, Final

from malstrom_py.batches import Batch
from malstrom_py.epochs import EpochGenerator, EpochTracker
from malstrom_py.errors import InternalError, OperatorError
from malstrom_py.messages import (
    MIN_EPOCH,
    AbsBarrier,
    Epoch,
    PartFinished,
    PartMessage,
    PartOpened,
    PartReleased,
    StateMessage,
)
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.failures import Failures, describe_function
from malstrom_py.time import Unit

ON_TIME: Final = 0
LATE: Final = 1


class GenerateEpochs(Operator):
    """Sends on-time records and epochs to the first stream, late records (no epochs) to the second.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> times = job.source("times", sources.Memory([100, 90, 89])).assign_timestamps("at", lambda t: t)
    >>> on_time, late = times.generate_epochs("epochs", mp.limit_out_of_orderness(10))
    >>> mp.collect(on_time), mp.collect(late)
    ([100, 90], [89])
    """

    def __init__(self, context: StepContext, *, generator: EpochGenerator, unit: Unit) -> None:
        super().__init__(context)
        self._generator = generator
        self._unit: Unit = unit
        self._trackers: dict[str, EpochTracker] = {}
        # On how many ways a part comes here: more than one behind branches that have been joined again.
        self._ways: Counter[str] = Counter()
        self._sent = MIN_EPOCH
        self._failures = Failures(context)

    def on_part(self, message: PartMessage, out: Outlet) -> None:
        match message:
            case PartOpened():
                self._ways[message.part] += 1
                if message.part not in self._trackers:
                    self._trackers[message.part] = self._tracker((message.state or {}).get(self.context.step))
            case PartReleased():
                # T2: the part's epoch moves with it.
                if (tracker := self._ended(message.part)) is not None:
                    message.state[self.context.step] = tracker.snapshot()
            case PartFinished():
                if self._ended(message.part) is not None:
                    self._advance(out)

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        if isinstance(message, AbsBarrier):
            state = {part: tracker.snapshot() for part, tracker in self._trackers.items()}
            message.backend.persist(self.context.step, self.context.codec.encode_at_rest(state, step=self.context.step))
        out.forward(message)

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        timestamps = batch.timestamps
        if batch.part is None:
            raise OperatorError(
                f"step {self.context.step!r} was sent records that come from no part of a source, so their lateness "
                f"cannot be judged (T1): let steps before it send in on_data only, not in on_epoch",
                step=self.context.step,
            )
        if timestamps is None or batch.part not in self._trackers:
            raise InternalError(f"step {self.context.step!r} was sent {batch} of part {batch.part!r}, not open here")
        observe = self._trackers[batch.part].observe
        try:
            late = observe(timestamps)
        except Exception as error:
            raise self._failures.error(error, observe, policy=False) from error
        if not _is_of_rows(late, len(batch)):
            raise self._broken(
                "observe did not return the indices of the late records",
                "Return a list of them, ascending, each once, from 0 to len(timestamps) - 1, empty if none is late",
                observe,
            )
        if not isinstance(self._trackers[batch.part].epoch, int):
            raise self._broken("the tracker's epoch is no int", "Let observe set it to one", observe)
        if late:
            self.counters.late += len(late)
            out.send(batch.take(late), LATE)
            batch = batch.drop(late)
        out.send(batch, ON_TIME)
        self._advance(out)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        self._sent = epoch.time
        out.forward(epoch)

    def _ended(self, part: str) -> EpochTracker | None:
        """The tracker of ``part``, taken out, once it has ended on every way by which it comes here."""
        self._ways[part] -= 1
        if self._ways[part] > 0:
            return None
        del self._ways[part]
        return self._trackers.pop(part, None)

    def _tracker(self, state: Any) -> EpochTracker:
        """A tracker that goes on from ``state``, if there is one.

        T2: a gained part keeps the frontier it came with, even where this worker is ahead of it; how that is told
        downstream is the rescale's business. A part that is new here starts at the epoch already sent.
        """
        try:
            tracker = self._generator.tracker(self._unit)
            if state is not None:
                tracker.restore(state)
            else:
                tracker.raise_to(self._sent)
        except Exception as error:
            raise self._failures.error(error, self._generator.tracker, policy=False) from error
        return tracker

    def _broken(self, what: str, remedy: str, hook: object) -> OperatorError:
        """The error of a user's tracker that does not keep to `EpochTracker`; for the caller to raise."""
        where = describe_function(hook)
        step = self.context.step
        return OperatorError(f"step {step!r}: {what} (in {where}). {remedy}.", step=step, function=where)

    def _advance(self, out: Outlet) -> None:
        epoch = min((tracker.epoch for tracker in self._trackers.values()), default=MIN_EPOCH)
        if epoch > self._sent:
            self._sent = epoch
            out.send(Epoch(epoch), ON_TIME)


def _is_of_rows(late: object, rows: int) -> bool:
    """Whether ``late``, which a user's tracker may have returned, is what `EpochTracker.observe` has to return."""
    if not isinstance(late, list) or not all(type(index) is int for index in late):
        return False
    return not late or (late[0] >= 0 and late[-1] < rows and all(map(operator.lt, late, late[1:])))
