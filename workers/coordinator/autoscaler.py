"""The autoscaler of one job: samples what its workers do, asks the policy, and requests rescales as a user would (R9).

Rule: it samples while nothing moves, and its request is like any other: a later one of a user wins, and leaves it out
for a cool-down. Each decision is an event with its reason and figures, before the rescale that follows.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from math import inf
from typing import Final, Protocol

from malstrom_py.errors import MalstromError, PlanError
from malstrom_py.events import Autoscaled
from malstrom_py.logs import log
from malstrom_py.metrics import AutoscaleMetrics
from malstrom_py.rescale.autoscaling import Autoscale, AutoscalePolicy, Decision, Observation
from malstrom_py.workers.coordinator.metering import Sample, rows_per_s, share_of
from malstrom_py.workers.coordinator.rescale_requests import Done
from malstrom_py.workers.reports.event_log import EventLog
from malstrom_py.workers.reports.figures import WorkerFigures
from malstrom_py.workers.reports.job_status import WORKERS_MAX, RescaleReport
from malstrom_py.workers.reports.result import StepCounts

_LOG: Final = logging.getLogger("malstrom_py.coordinator")
_AGAIN_S: Final = 0.2
"""When it looks again while a barrier passes."""


class ScaledGroup(Protocol):
    """The workers of a run, of which samples are taken."""

    def figures(self) -> Mapping[int, WorkerFigures]: ...


class ScaledRun(Protocol):
    """A run whose number of workers is changed by load."""

    @property
    def group(self) -> ScaledGroup: ...

    @property
    def members(self) -> tuple[int, ...]: ...

    @property
    def phase(self) -> str: ...

    def counts(self) -> Mapping[str, StepCounts]: ...

    def check_rescale(self, size: int, *, now: bool = False) -> None: ...

    def rescale(self, size: int, done: Done) -> None: ...


def check_autoscale(autoscale: object) -> Autoscale | None:
    """Return the checked ``autoscale`` argument of a runtime."""
    if autoscale is None:
        return None
    if not isinstance(autoscale, Autoscale):
        raise PlanError(f"autoscale must be an mp.Autoscale(min=…, max=…), got {type(autoscale).__name__}")
    if autoscale.max > WORKERS_MAX:
        raise PlanError(f"autoscale: max must be at most {WORKERS_MAX}, got {autoscale.max}")
    return autoscale


def observed(now: Sample, before: Sample) -> Observation:
    """Return what the workers did from ``before`` to ``now``. Workers that share a process take turns. A lag that was
    not known before has not grown since.
    """
    over_s = now.at_s - before.at_s
    pairs = [(here, before.workers[worker][0]) for worker, (here, _) in now.workers.items()]
    processes = Counter((here.host, here.pid) for here, _ in pairs)
    sharing = [processes[here.host, here.pid] if here.pid else 1 for here, _ in pairs]
    spent_s = [(here.busy_s - was.busy_s) * turns for (here, was), turns in zip(pairs, sharing, strict=True)]
    waited_s = sum(max(0.0, here.waiting_s - was.waiting_s) for here, was in pairs)
    lags, lags_before = _lags(now), _lags(before)
    grown = sum(rows - lags_before[part] for part, rows in lags.items() if part in lags_before)
    return Observation(
        at_s=now.at_s,
        workers=len(pairs),
        read_per_s=rows_per_s("source", now, before, over_s),
        busy=[share_of(each_s, over_s) for each_s in spent_s],
        waiting=min(1.0, waited_s / over_s / len(pairs)),
        lag_rows=sum(lags.values()) if lags else None,
        lag_per_s=grown / over_s,
    )


def _lags(sample: Sample) -> dict[tuple[str, str], int]:
    parts = [part for figures, _ in sample.workers.values() for part in figures.parts]
    return {(part.source, part.part): part.lag_rows for part in parts if part.lag_rows is not None}


class Autoscaler:
    """The autoscaler of ``job``, which emits its decisions in ``events``. Without options it does nothing."""

    def __init__(self, job: str, events: EventLog) -> None:
        self._changed: Callable[[Autoscale | None], None] | None = None
        self._due_s = inf
        self._is_changed = False
        self._job = job
        self._events = events
        self._options: Autoscale | None = None
        self._policy: AutoscalePolicy | None = None
        self._run: ScaledRun | None = None
        self._before: Sample | None = None
        self._overruled = False
        self._now_s = 0.0
        self._last: Decision | None = None
        self._decisions = self._refused = 0

    # Any thread.

    def start(self, options: Autoscale | None, changed: Callable[[Autoscale | None], None] | None = None) -> None:
        """Follow these ``options``, with which the job starts. ``changed`` is called with others, to keep them."""
        self._options, self._changed = check_autoscale(options), changed
        self._is_changed = True

    def set(self, options: Autoscale | None) -> None:
        """Follow these ``options`` from now on; None: do nothing more."""
        self._options = check_autoscale(options)
        self._is_changed = True
        if self._changed is not None:
            self._changed(options)

    @property
    def due_s(self) -> float:
        """When `turn` is due, on the monotonic time of the run: with other options now."""
        return 0.0 if self._is_changed else self._due_s

    @property
    def metrics(self) -> AutoscaleMetrics | None:
        """The figures of the last sample; None without options."""
        options, last = self._options, self._last
        if options is None:
            return None
        known = {} if last is None else {name: getattr(last.figures, name) for name in _FIGURES}
        reason = "" if last is None else last.reason
        return AutoscaleMetrics(
            options.min, options.max, options.target, self._decisions, self._refused, reason, **known
        )

    # The thread of the run.

    def overruled(self, size: int | None) -> None:
        """Note that a user has requested ``size`` workers, which are left alone for a cool-down; None: a rebalance."""
        self._overruled = self._overruled or (size is not None and self._policy is not None)

    def pause(self, now_s: float) -> None:
        """Look again later: the run does something else."""
        self._before, self._now_s, self._is_changed = None, now_s, False
        if self._policy is not None:
            self._policy.paused()
        self._due_s = inf if self._options is None else now_s + self._options.interval_s

    def turn(self, run: ScaledRun, now_s: float) -> None:
        """Take a sample of ``run`` if nothing moves, and request what the policy decides."""
        self._now_s, self._is_changed = now_s, False
        options = self._options
        if self._policy is None or self._policy.options != options:
            self._policy = None if options is None else AutoscalePolicy(options)
            self._last = None
        policy = self._policy
        if policy is None or run is not self._run or run.phase not in {"steady", "barrier"}:
            self._run = run
            self.pause(now_s)
            return
        if self._overruled:
            self._overruled = False
            policy.held(now_s)
        if run.phase == "barrier":
            self._due_s = now_s + _AGAIN_S
            return
        self._due_s = now_s + policy.options.interval_s
        figures = run.group.figures()
        present = {worker: figures.get(worker, WorkerFigures()) for worker in run.members}
        sample, before = Sample.of(now_s, run.counts(), {}, present), self._before
        self._before = sample
        if before is None or before.workers.keys() != sample.workers.keys() or now_s <= before.at_s:
            return
        decision = self._last = policy.decide(observed(sample, before))
        if decision.goes:
            self._request(run, policy, decision)

    def _request(self, run: ScaledRun, policy: AutoscalePolicy, decision: Decision) -> None:
        """Request the size of ``decision``, or the nearest one for which there is room."""
        why = ""
        step = 1 if decision.size < decision.workers else -1
        for size in range(decision.size, decision.workers, step):
            try:
                run.check_rescale(size)
            except PlanError as error:
                why = why or str(error)
                continue
            self._decisions += 1
            reason = f"{decision.reason}; there is no room for {decision.size}: {why}" if why else decision.reason
            self._emit(decision, size, reason)
            if why:
                policy.refused(self._now_s, decision, size, why)
            run.rescale(size, partial(self._ended, run, policy, decision))
            return
        self._refuse(policy, decision, why, decision.workers)

    def _ended(
        self, run: ScaledRun, policy: AutoscalePolicy, decision: Decision, result: RescaleReport | MalstromError
    ) -> None:
        if isinstance(result, MalstromError):
            self._refuse(policy, decision, str(result), _room(run, decision))

    def _refuse(self, policy: AutoscalePolicy, decision: Decision, why: str, room: int) -> None:
        """Note that the job keeps its size, because the request could not be executed, and that there is ``room``."""
        self._refused += 1
        policy.refused(self._now_s, decision, room, why)
        self._emit(decision, decision.size, decision.reason, why)

    def _emit(self, decision: Decision, size: int, reason: str, error: str = "") -> None:
        workers, job, why = decision.workers, self._job, error or reason
        self._events.emit(Autoscaled(workers, size, reason, error, **asdict(decision.figures)))
        text = "job %s stays at %d workers, not %d: %s" if error else "job %s goes from %d to %d workers by load: %s"
        level = logging.WARNING if error else logging.INFO
        log(_LOG, level, text, *(job, workers, size, why), job=job, workers_from=workers, workers=size, why=why)


def _room(run: ScaledRun, decision: Decision) -> int:
    """Return for how many workers there is room if it is less than those of ``decision``. Otherwise that request had
    another failure: the workers that are there.
    """
    for size in range(decision.size, decision.workers, -1):
        try:
            run.check_rescale(size, now=True)
        except PlanError:
            continue
        return size if size < decision.size else decision.workers
    return decision.workers


_FIGURES: Final = ("arrival_per_s", "needed_per_s", "capacity_per_s")
