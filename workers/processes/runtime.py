"""The runtime of worker processes on this machine: the coordinator is in the program, each worker in a process."""

from __future__ import annotations

import os
from typing import Unpack

from malstrom_py import logs
from malstrom_py.builder.plan import Plan
from malstrom_py.clock import SystemClock
from malstrom_py.errors.text import redacts
from malstrom_py.validation import checked_seconds
from malstrom_py.workers.coordinator.coordinator import Coordinator
from malstrom_py.workers.coordinator.sink_commits import SinkCommits
from malstrom_py.workers.engine.graph_builder import build_sinks
from malstrom_py.workers.processes.worker_process import FORKS, ThisMachine
from malstrom_py.workers.remote.packed_plan import pack_plan
from malstrom_py.workers.remote.remote_workers import RemoteWorkers
from malstrom_py.workers.remote.worker_handle import WorkerProcesses
from malstrom_py.workers.remote.worker_setup import Wiring, WorkerSetup, in_other_processes
from malstrom_py.workers.runtime.hot_reload import HotReload
from malstrom_py.workers.runtime.local_runtime import LocalRuntime, NextRun
from malstrom_py.workers.runtime.run_options import RunKeywords, RunOptions, options_of
from malstrom_py.workers.transport.base import JobSecret

START_S = 60.0
"""The timeout for the start of workers."""


class Processes(LocalRuntime[RemoteWorkers]):
    """Runs jobs on this machine in ``workers`` processes, one for each processor if None; no Ray is needed.

    ``start_timeout_s``: the timeout for the start of workers, also in a rescale. ``options``, or keywords: those of
    `RunOptions`. The coordinator is in this program, and ends its processes. With ``snapshots=`` the job survives the
    death of a worker: it restarts from the last one.

    The user's functions, sources and sinks are copied to the workers. A sink that shows its rows in the program, such
    as `malstrom_py.sinks.Memory`, does so here, too.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sinks, sources
    >>> job, out = mp.Job("docs"), sinks.Memory()
    >>> numbers = job.source("in", sources.Memory(range(6))).key_by("parity", lambda n: n % 2)
    >>> numbers.sum("sum").final().sink("out", out)
    >>> result = mp.Processes(workers=2, progress=False).run(job)
    >>> result.read, sorted(out.items)
    (6, [6, 9])
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        start_timeout_s: float = START_S,
        options: RunOptions | None = None,
        **keywords: Unpack[RunKeywords],
    ) -> None:
        self._start_timeout_s = checked_seconds(start_timeout_s, "Processes: start_timeout_s", above_0=True)
        workers = self.processors() if workers is None else workers
        super().__init__(workers, SystemClock(), options_of(Processes, options, keywords))
        self._snapshot_use = in_other_processes(self._snapshot_use, "Processes")
        FORKS.warm_up()

    @staticmethod
    def processors() -> int:
        """Return the number of processors that this program may use."""
        affinity = getattr(os, "sched_getaffinity", None)
        return len(affinity(0)) if affinity is not None else os.cpu_count() or 1

    def _runs_of_job(self) -> _ProcessRuns:
        return _ProcessRuns(self._options, self._start_timeout_s)

    def _reloads(self, plan: Plan) -> HotReload:
        return HotReload(plan, pack=pack_plan)


class _ProcessRuns:
    """The runs of a job in processes. A `JobRuns`. Processes whose worker survives a run are there for the next one."""

    def __init__(self, options: RunOptions, start_timeout_s: float) -> None:
        self._options = options
        self._start_timeout_s = start_timeout_s
        self._wiring = Wiring(JobSecret.new())
        self._machine = ThisMachine()
        self._processes = WorkerProcesses(self._machine)

    def coordinator(self, run: NextRun) -> Coordinator[RemoteWorkers]:
        plan, clock, snapshot_use = run.plan, run.clock, run.snapshot_use
        setup = WorkerSetup(
            job=plan.job,
            batching=self._options.batching,
            wiring=self._wiring,
            start_timeout_s=self._start_timeout_s,
            checks=self._options.checks,
            state=self._options.state,
            snapshot_use=snapshot_use,
            watched=run.is_again,
            logs=logs.configured(),
            redact_errors=self._options.redact_errors or redacts(),
        )
        return Coordinator(
            plan,
            RemoteWorkers(setup, plan, clock, self._machine, self._processes),
            workers=run.workers,
            clock=clock,
            snapshot_use=snapshot_use,
            commits=SinkCommits(plan.job, build_sinks(plan, clock), clock.now_s(), stored=snapshot_use is not None),
            log=run.events,
        )

    def close(self) -> None:
        self._processes.kill_kept()
