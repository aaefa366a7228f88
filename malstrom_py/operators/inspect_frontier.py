"""``inspect_frontier``: see how far event time has got at this place of the job."""

from __future__ import annotations

from collections.abc import Callable

from malstrom_py.batches import Batch
from malstrom_py.messages import MIN_EPOCH, Epoch
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.failures import Failures


class InspectFrontier(Operator):
    """Calls ``fn(frontier)`` each time the step's own frontier moves, on each worker; the records pass as they are.

    The last call is with `MAX_EPOCH`, on untimed streams too.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> times = job.source("times", sources.Memory([5, 7])).assign_timestamps("at", lambda t: t)
    >>> on_time, late = times.generate_epochs("epochs", mp.limit_out_of_orderness(0))
    >>> mp.collect(on_time.inspect_frontier("show", lambda time: print("end" if time == mp.MAX_EPOCH else time)))
    6
    end
    [5, 7]
    """

    takes_columns = True

    def __init__(self, context: StepContext, *, fn: Callable[[int], object]) -> None:
        super().__init__(context)
        self._fn = fn
        self._seen = MIN_EPOCH
        self._failures = Failures(context)

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        out.send(batch)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        # T2: an epoch may come again, to say that who sends it has become idle or has woken.
        if epoch.time > self._seen:
            self._seen = epoch.time
            try:
                self._fn(epoch.time)
            except Exception as error:
                raise self._failures.error(error, self._fn, policy=False) from error
        out.forward(epoch)

    def continue_at(self, epoch: int) -> None:
        self._seen = epoch
