"""What the workers have found in the comparison of a step with its shadow, at the coordinator.

Rule: counts are those of the records that the job has processed, each once. So a run that resumes from a snapshot
begins with the counts at its barrier, as its state does. The last differences are kept for people, also of such runs.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Collection, Iterable
from typing import Final

from malstrom_py.errors import PlanError
from malstrom_py.metrics import ShadowMetrics
from malstrom_py.workers.reports.shadows import PAIRS_MAX, Compared, ShadowPair, ShadowReport

_CUTS_MAX: Final = 64
"""How many snapshots back a run may resume with exact counts."""

_COMPARED, _DIFFERENT = "compared", "different"


class ShadowCounts:
    """The comparisons of job ``job``. Any thread may call the methods.

    >>> counts = ShadowCounts("docs")
    >>> counts.compare(["total"], "")
    >>> counts.add(Compared(0, "total", 10, 1, snapshot="a"))
    >>> counts.add(Compared(0, "total", 5, 0))
    >>> print(counts.report("total"))
    step total: 1 of 15 outputs of the new code differ
    >>> counts.compare(["total"], "a")
    >>> print(counts.report("total"))
    step total: 1 of 10 outputs of the new code differ
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._lock = threading.Lock()
        self._steps: dict[str, _StepCounts] = {}

    def expect(self, steps: Collection[str]) -> None:
        """Let ``steps`` have a shadow before their run has begun: a coordinator that replaces another finds some."""
        with self._lock:
            for step in steps:
                self._steps.setdefault(step, _StepCounts())

    def compare(self, steps: Collection[str], snapshot: str) -> None:
        """Begin a run in which ``steps`` have a shadow, at the counts at the barrier of ``snapshot``. Those of others
        are kept until `end`: a run that tries a promoted shadow may be rolled back.
        """
        with self._lock:
            for step in steps:
                self._steps[step] = self._kept(step)
                self._steps[step].resume(snapshot)

    def end(self, step: str) -> None:
        """Forget a step whose shadow has ended."""
        with self._lock:
            self._steps.pop(step, None)

    def add(self, compared: Compared) -> None:
        """Take what a worker has compared. After a failure no more is counted."""
        with self._lock:
            if (counts := self._steps.get(compared.step)) is not None and not counts.failure:
                counts.add(compared)

    def failed(self) -> list[str]:
        """Return the steps whose shadow has stopped by an error."""
        with self._lock:
            return [step for step, counts in self._steps.items() if counts.failure]

    def report(self, step: str) -> ShadowReport:
        """Return what was found so far. `PlanError`: the step has no shadow."""
        with self._lock:
            if (counts := self._steps.get(step)) is not None:
                return counts.report(step)
        raise PlanError(
            f"job {self._job!r}: step {step!r} has no shadow: begin one by handle.reload({step!r}, shadow=True) or "
            f"malstrom reload {self._job} {step} --shadow"
        )

    def reports(self) -> list[ShadowReport]:
        """Return what was found so far of each step that has a shadow."""
        with self._lock:
            return [counts.report(step) for step, counts in self._steps.items()]

    def restore(self, reports: Iterable[ShadowReport]) -> None:
        """Report the same as the coordinator in another process, which has ended."""
        for one in reports:
            self.expect([one.step])
            self.add(Compared(0, one.step, one.compared, one.different, one.failure, one.pairs))

    def metrics(self) -> dict[str, ShadowMetrics]:
        """Return the counts of each step that has a shadow."""
        return {one.step: ShadowMetrics(one.compared, one.different, one.failure) for one in self.reports()}

    def _kept(self, step: str) -> _StepCounts:
        known = self._steps.get(step)
        return _StepCounts() if known is None or known.failure else known


class _StepCounts:
    """The counts of one step: those before this run, and those of each worker in it, as of now and of each snapshot."""

    def __init__(self) -> None:
        self.failure = ""
        self._before: Counter[str] = Counter()
        self._workers: dict[int, Counter[str]] = {}
        self._cuts: dict[str, dict[int, Counter[str]]] = {}
        self._pairs: deque[ShadowPair] = deque(maxlen=PAIRS_MAX)

    def add(self, compared: Compared) -> None:
        own = self._workers.setdefault(compared.worker, Counter())
        own.update({_COMPARED: compared.compared, _DIFFERENT: compared.different})
        self._pairs.extend(compared.pairs)
        self.failure = compared.failure
        if (snapshot := compared.snapshot) is not None:
            # Workers that have left before the barrier are not in the snapshot, but what they have counted is.
            cut = self._cuts.setdefault(snapshot, {worker: counts.copy() for worker, counts in self._workers.items()})
            cut[compared.worker] = own.copy()
            if len(self._cuts) > _CUTS_MAX:
                del self._cuts[min(self._cuts)]

    def resume(self, snapshot: str) -> None:
        self._before += sum(self._cuts.get(snapshot, {}).values(), Counter[str]())
        self._cuts.clear()
        self._workers.clear()

    def report(self, step: str) -> ShadowReport:
        counts = sum(self._workers.values(), self._before.copy())
        return ShadowReport(step, counts[_COMPARED], counts[_DIFFERENT], self.failure, tuple(self._pairs))
