"""Taps all steps of a simulated job again and again, and checks what is counted. It changes nothing else."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from malstrom_py.codec.job_codec import without_classes
from malstrom_py.workers.engine.worker import Worker
from malstrom_py.workers.reports.taps import Keys, Tapped, TapStep
from malstrom_py.workers.simulator.simulated_coordinator import SimulatedCoordinator
from tests.simulation.jobs.jobs import Case
from tests.simulation.jobs.runs import Ran, run_case

_FOR_EVER_S = 1e9


class Tapper:
    """Taps ``steps`` and counts what is shown: ``keys``: of all keys, or of one."""

    def __init__(self, seed: int, hits: Counter[str], broken: list[str]) -> None:
        self._chance = random.Random(f"taps {seed}")
        self._hits = hits
        self._broken = broken
        self._codec = without_classes()
        self._passed = Counter[tuple[int, int, str]]()
        self._begun: dict[tuple[int, int, str], int] = {}
        self._workers: list[Worker] = []  # so that no two have the same id

    def turn(self, coordinator: SimulatedCoordinator) -> None:
        """Maybe renew the taps of some workers, and begin those of new ones."""
        if self._chance.random() > 0.03:
            return
        for worker in coordinator.group.hosted:
            if worker not in self._workers:
                self._workers.append(worker)
            for step in worker.counts():
                self._renew(worker, step, None, _FOR_EVER_S)
                if self._chance.random() < 0.1:
                    key = self._codec.encode_at_rest(self._chance.choice([1, "a", "k1", None]), step=step)
                    self._renew(worker, step, (key,), self._chance.choice([0.0, 0.01, _FOR_EVER_S]))

    def took(self, tapped: Tapped, incarnation: int) -> None:
        """Check what a worker has sent."""
        for row in tapped.rows:
            self._codec.decode_at_rest(row.key)
            self._codec.decode_at_rest(row.value)
        self._hits["tapped"] += len(tapped.rows)
        self._hits["passed"] += tapped.passed
        if tapped.keys is None:
            self._passed[incarnation, tapped.worker, tapped.step] += tapped.passed
        if len(tapped.rows) > tapped.passed:
            self._broken.append(f"tap of {tapped.step}: {len(tapped.rows)} records of {tapped.passed}")

    def _renew(self, worker: Worker, step: str, keys: Keys, lease_s: float) -> None:
        at = id(worker), worker.id, step
        rows = _emitted(worker, step)
        begun = self._begun.setdefault(at, rows) if keys is None else 0
        for _, message in worker.tapping.obey(TapStep(step, keys, lease_s)):
            self.took(message, id(worker))  # type: ignore[arg-type]
        if keys is None and self._passed[at] + _held(worker, step) != rows - begun:
            self._broken.append(f"tap of {step}: {self._passed[at]} records, and {rows - begun} have passed")


def _emitted(worker: Worker, step: str) -> int:
    counts = worker.counts()[step]
    return sum(counts.ports.values()) if counts.ports else counts.rows_in


def _held(worker: Worker, step: str) -> int:
    messages: Any = worker._messages
    return sum(m.passed for _, m in messages if isinstance(m, Tapped) and m.step == step and m.keys is None)


@contextmanager
def tapped(seed: int, hits: Counter[str], broken: list[str]) -> Iterator[None]:
    """Tap all steps of a job in a simulation."""
    tapper = Tapper(seed, hits, broken)
    of: dict[int, int] = {}
    step = SimulatedCoordinator.step

    def stepped(self: SimulatedCoordinator, **options: Any) -> None:
        of.update({worker.id: id(worker) for worker in self.group.hosted})
        self.tapped = lambda sent: tapper.took(sent, of[sent.worker]) if isinstance(sent, Tapped) else None
        tapper.turn(self)
        step(self, **options)

    with patch.object(SimulatedCoordinator, "step", stepped):
        yield


def run_tapped(case: Case, seed: int) -> Ran:
    """Do as `run_case`, with all steps tapped."""
    hits = Counter[str]()
    with tapped(seed, hits, case.seen.broken):
        ran = run_case(case, seed)
    ran.hits.update(hits)
    return ran
