"""The workers of a job as its coordinator has them: actors, hired, asked and let go.

Rule: an answer is a value or one of our errors, whatever Ray made of it; and each wait for one has a deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future
from concurrent.futures import wait as wait_for
from typing import Any, Final

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from malstrom_py.clock import SystemClock
from malstrom_py.errors import DeadlineError, InternalError, MalstromError, PeerError
from malstrom_py.workers.ray.cluster import NAMESPACE, summarize_error
from malstrom_py.workers.ray.job_config import JobSetup
from malstrom_py.workers.ray.worker_actor import PackedFailure, worker_class
from malstrom_py.workers.ray.worker_server import box_path, read_black_box
from malstrom_py.workers.reports.error_transfer import unpack_error

ANSWER_S: Final = 120.0
"""How long a worker may take to come by between two steps, in which a function of the user may run."""


WORDS_S: Final = 10.0
"""How long it may take to read on another machine what a worker was at work on."""

LOOK_S: Final = 0.5
"""How often one who waits for answers looks around."""


class WorkerHandle:
    """Worker ``worker``: its actor, on any node ``but`` these. ``told`` is called, in any thread, when it has come up,
    answered or ended.
    """

    def __init__(
        self, setup: JobSetup, worker: int, plan: Any, told: Callable[[], None], but: Collection[str] = ()
    ) -> None:
        self.worker = worker
        self._notify = told
        options = setup.options
        self.actor = worker_class(
            {
                "num_cpus": options.num_cpus,
                "num_gpus": options.num_gpus,
                "memory": options.memory or None,
                "resources": dict(options.resources) or None,
                "runtime_env": options.runtime_env,
                "namespace": NAMESPACE,
                "scheduling_strategy": {"spread": "SPREAD", "pack": "DEFAULT"}[options.placement],
                "label_selector": {"ray.io/node-id": f"!in({','.join(sorted(but))})"} if but else None,
            }
        ).remote(
            setup.job,
            worker,
            plan,
            setup.wiring,
            batching=setup.batching,
            checks=setup.checks,
            incarnation=setup.incarnation,
            keeping=setup.keeping,
            watched=setup.watched,
        )
        self.address: Any = None
        self._box = box_path(setup.wiring.secret.token, setup.incarnation, worker) if setup.watched else None
        self._node = self.actor.node.remote().future()
        self._up = self.actor.address.remote().future()
        self._run = self.actor.run.remote().future()
        self._run.add_done_callback(lambda _: told())
        self._up.add_done_callback(lambda _: told())

    @property
    def is_up(self) -> bool:
        """Whether the actor has told its address, or has failed to come up: `wait_until_up` tells which."""
        return bool(self._up.done())

    @property
    def node(self) -> str | None:
        """The id of the node it is on, once that is known."""
        if not self._node.done() or self._node.exception() is not None:
            return None
        return str(self._node.result())

    def wait_until_up(self) -> None:
        """Note the address; the error, if there is none."""
        self.address = result_of(self._up, self.worker)

    @property
    def has_ended(self) -> bool:
        """Whether its loop has, one way or another."""
        return bool(self._run.done())

    def ended_by(self) -> tuple[int, MalstromError] | None:
        """How its loop has ended, with how far that is from the root of a failure: 0 an error of its own, 1 its death,
        2 the loss of another. None while it runs.
        """
        if not self._run.done():
            return None
        try:
            result_of(self._run, self.worker)
        except PeerError as error:
            return (1 if error.peer == self.worker else 2), error
        except MalstromError as error:
            return 0, error
        return 2, PeerError(f"worker {self.worker} has ended before the job did", peer=self.worker)

    def ask(self, what: str, *arguments: Any) -> Future[Any]:
        """Ask for one of `worker_host.ORDERS`. `await_answers` gives what comes of it."""
        future: Future[Any] = self.actor.do.remote(what, arguments).future()
        future.add_done_callback(lambda _: self._notify())
        return future

    def read_black_box(self) -> str:
        """What the process was at work on when it died, as far as it has noted it down."""
        if self._box is None:
            return ""
        if self._box.exists():
            return read_black_box(self._box)
        try:
            here = NodeAffinitySchedulingStrategy(self._node.result(0.0), soft=False)
            remote: Any = ray.remote  # its types do not know where a task is to run
            read = remote(num_cpus=0, max_retries=0, scheduling_strategy=here)(read_black_box)
            return str(ray.get(read.remote(self._box), timeout=WORDS_S))
        except (RayError, TimeoutError):
            return ""  # its node is gone as well

    def kill(self) -> None:
        """Have the process end now."""
        ray.kill(self.actor, no_restart=True)
        if self._box is not None:
            self._box.unlink(missing_ok=True)


PendingAnswers = Sequence[tuple[WorkerHandle, Future[Any]]]
"""Workers that were asked for something, and what they will answer."""


def await_answers(
    asked: PendingAnswers,
    what: str,
    *,
    timeout_s: float = ANSWER_S,
    waited_s: float = 0.0,
    look: Callable[[], None] = lambda: None,
) -> list[Any]:
    """What the workers have answered, in order. The first error is raised, whoever else has not answered yet.

    They have been waited for for ``waited_s`` already. ``look`` is called now and then while they are waited for, and
    may raise what it sees.

    Raises:
        DeadlineError: one of them has not answered within ``timeout_s``.
    """
    clock = SystemClock()
    until_s = clock.monotonic_s() + timeout_s
    done, waiting = wait_for([future for _, future in asked], timeout=0)
    while waiting and (left_s := until_s - clock.monotonic_s()) > 0:
        done, waiting = wait_for([future for _, future in asked], min(LOOK_S, left_s), FIRST_EXCEPTION)
        for handle, future in asked:
            if future in done:
                result_of(future, handle.worker)
        look()
    values = [result_of(future, handle.worker) for handle, future in asked if future in done]
    if len(values) < len(asked):
        silent = [str(handle.worker) for handle, future in asked if future not in done]
        raise DeadlineError(
            f"worker {', '.join(silent)} did not {what} within {waited_s + timeout_s:g} s: see its log, and what keeps "
            f"its functions so long",
            wait=what,
            deadline_s=waited_s + timeout_s,
        )
    return values


def result_of(future: Future[Any], worker: int) -> Any:
    """What a call of an actor came to: a value, or the error raised."""
    try:
        value = future.result(timeout=0)
    except RayActorError as error:
        raise worker_died(worker, error) from None
    except RayError as error:
        raise InternalError(f"worker {worker}: {summarize_error(error)}") from error
    if isinstance(value, PackedFailure):
        failure = unpack_error(value.packed)
        if isinstance(failure, MalstromError):
            raise failure
        raise InternalError(f"worker {worker} failed by an unexpected {type(failure).__name__}") from failure
    return value


def worker_died(worker: int, error: RayActorError) -> PeerError:
    """That a worker's process is gone, and what Ray knows of it."""
    return PeerError(
        f"worker {worker} died: {summarize_error(error)}. Its log, and Ray's on its node, may say why (killed, out of "
        f"memory, its node gone). Without snapshots the job ends by it; with them it goes back to the last, as often "
        f"as restart= says (S6)",
        peer=worker,
    )
