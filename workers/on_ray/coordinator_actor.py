"""The actor of a job's coordinator, found by the job's name. A thin shell around one `JobRun` in a thread of its own.

Whoever wants something of the job asks here, in the words of `control_messages`. The actor ends itself once its job has
ended and its owner knows, or nobody has asked for a while.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass, field
from typing import Any, Final

import ray

from malstrom_py.clock import SystemClock
from malstrom_py.errors import MalstromError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.workers.answering import answer_to
from malstrom_py.workers.control_messages import LENGTH_BYTES, decode_request, encode_answer
from malstrom_py.workers.controls import Controls
from malstrom_py.workers.failures import pack
from malstrom_py.workers.job_run import JobRun
from malstrom_py.workers.job_status import Ending, How
from malstrom_py.workers.on_ray.logs import log_as
from malstrom_py.workers.on_ray.ray_crew import RayCrew
from malstrom_py.workers.on_ray.setup import JobSetup
from malstrom_py.workers.on_ray.shipment import unpack_plan
from malstrom_py.workers.outgoing import COORDINATOR
from malstrom_py.workers.result import RunResult
from malstrom_py.workers.started import conduct
from malstrom_py.workers.transport.calls import RayCallTransport

ANSWERS: Final = 64
"""How many may wait for an answer at once; more wait for their turn."""

STAY_S: Final = 60.0
"""How long the coordinator of a job that has ended waits to be asked how."""

TOLD_S: Final = 0.2
"""How long it waits for answers to go out before it leaves."""

_LOG: Final = logging.getLogger("malstrom_py.coordinator")


@dataclass(frozen=True, slots=True)
class PackedEnding:
    """How a job ended, for the program that started it: what its own sinks are to commit, and under which id."""

    how: How
    counts: RunResult
    workers: int
    error: bytes | None = field(repr=False)
    delivery: list[tuple[str, bytes]] = field(repr=False)
    snapshot: SnapshotId


class CoordinatorActor:
    """Coordinates the job of ``setup``."""

    def __init__(self, setup: JobSetup) -> None:
        self._name = f"malstrom(job={setup.job} coordinator)"
        log_as(setup.job, "coordinator")
        self._setup = setup
        self._controls = Controls(setup.job)
        self._transport = setup.wiring.end(COORDINATOR, incarnation=setup.incarnation)
        self._crew: RayCrew | None = None
        self._begun = threading.Event()
        self._known = threading.Event()
        threading.Thread(target=self._work, name=f"malstrom-job-{setup.job}", daemon=True).start()

    def __repr__(self) -> str:
        return self._name

    @ray.method(concurrency_group="answers")
    def ask(self, request: bytes) -> bytes:
        """The answer to a request, both as frames of a control socket without their length."""
        try:
            answer = asyncio.run(answer_to(decode_request(request).ask, self._controls))
        except MalstromError as error:
            answer = error
        return encode_answer(answer)[LENGTH_BYTES:]

    @ray.method(concurrency_group="ending")
    def ending(self) -> PackedEnding:
        """How the job ended, once it has."""
        ending = self._controls.ended.result()
        error = None if ending.error is None else pack(ending.error)
        self._known.set()
        commit = None if self._crew is None or error is not None else self._crew.commit
        delivery, snapshot = ([], SnapshotId("")) if commit is None else (commit.to_deliver(), commit.snapshot)
        return PackedEnding(ending.how, ending.counts, self._controls.known().workers, error, delivery, snapshot)

    def is_up(self) -> bool:
        """Answers once the coordinator is up."""
        return True

    def begin(self) -> None:
        """Begin with the job: who starts it has all it needs."""
        self._begun.set()

    def has_ended(self) -> bool:
        """Whether the job has."""
        return self._controls.ended.done()

    @ray.method(concurrency_group="deliver")
    def deliver(self, data: bytes) -> None:
        """What a worker sends, where the streams go through Ray."""
        if isinstance(self._transport, RayCallTransport):
            self._transport.deliver(data)

    def _work(self) -> None:
        setup, controls, clock = self._setup, self._controls, SystemClock()
        handle: Any = ray.get_runtime_context().current_actor
        if not self._begun.wait(setup.start_timeout_s):
            ray.kill(handle, no_restart=True)
            return
        try:
            plan = unpack_plan(setup.plan, setup.job)
            self._crew = RayCrew(setup, plan, self._transport, clock)
            run = JobRun(plan, self._crew, clock, controls=controls)
        except BaseException as error:
            self._transport.close(linger_s=0.0)
            controls.end(Ending.of(RunResult(setup.job, {}, 0.0), error))
        else:
            self._conduct(run)
        _LOG.info("the job has %s", controls.ended.result().how)
        if self._known.wait(STAY_S):
            clock.sleep_s(TOLD_S)
        ray.kill(handle, no_restart=True)

    def _conduct(self, run: JobRun[RayCrew]) -> None:
        try:
            conduct(run, self._controls, None)
        except BaseException as error:
            _LOG.error("the job failed: %s", error if isinstance(error, MalstromError) else type(error).__name__)


def coordinator_class() -> Any:
    """The actor class."""
    groups = {"answers": ANSWERS, "ending": 4, "deliver": 1}
    remote: Any = ray.remote  # its types do not know concurrency groups
    return remote(num_cpus=0, max_restarts=0, max_task_retries=0, concurrency_groups=groups)(CoordinatorActor)
