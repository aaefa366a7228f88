"""The workers of a job on Ray: their handles, progress, counts and failures.

Rule: of all failures the one nearest to the root is reported: a user's error before a death, a death before a lost
stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any, Final

from malstrom_py.clock import Clock
from malstrom_py.errors import MalstromError, PeerError
from malstrom_py.workers.ray.node_watch import NodeWatch
from malstrom_py.workers.ray.worker_handle import ANSWER_S, PendingAnswers, WorkerHandle, await_answers, result_of
from malstrom_py.workers.ray.worker_server import WorkerOutcome
from malstrom_py.workers.reports.error_transfer import unpack_error
from malstrom_py.workers.reports.result import StepCounts, merged_counts
from malstrom_py.workers.transport.messages import WorkerCounts, WorkerStatus

ROOT_S: Final = 2.0
"""How long a lost stream waits for the failure that caused it."""

SETTLE_S: Final = 2.0
"""How long workers may continue to pre-commit once one of them has failed."""


class WorkerRegistry:
    """The started workers of ``job``. ``handles``: by number; ``node_watch``: knows the silent nodes."""

    def __init__(self, job: str, clock: Clock, node_watch: NodeWatch) -> None:
        self.handles: dict[int, WorkerHandle] = {}
        self._job = job
        self._clock = clock
        self._node_watch = node_watch
        self._standings: dict[int, WorkerStatus] = {}
        self._counts: dict[int, Mapping[str, StepCounts]] = {}
        self._left: list[Mapping[str, StepCounts]] = []

    def record(self, news: WorkerStatus | WorkerCounts) -> None:
        """Record a worker's progress or counts."""
        if isinstance(news, WorkerStatus):
            self._standings[news.worker] = news
        else:
            self._counts[news.worker] = news.counts

    def all_stand(self, members: Sequence[int], version: int, as_wanted: Callable[[WorkerStatus], bool]) -> bool:
        """Return whether the progress of all ``members``, at ``version`` of the table, satisfies ``as_wanted``."""
        found = [self._standings.get(worker) for worker in members]
        return all(standing is not None and standing.version == version and as_wanted(standing) for standing in found)

    def counts(self, members: Sequence[int]) -> dict[str, StepCounts]:
        """Return the last reported counts of each step, over all workers."""
        known = [self._counts[worker] for worker in members if worker in self._counts]
        return merged_counts(known, self._left) if known else {}

    def remove(self, handle: WorkerHandle) -> None:
        """Remove a worker that has left."""
        del self.handles[handle.worker]
        self._left.append(self._counts.pop(handle.worker))
        self._standings.pop(handle.worker, None)

    def answers(self, asked: PendingAnswers, what: str, *, timeout_s: float = ANSWER_S) -> list[Any]:
        """Return the workers' answers. Raises if any worker dies, fails or is cut off before that."""

        def look() -> None:
            self.check_ended()
            self.check_nodes([handle for handle, future in asked if not future.done()])

        try:
            return await_answers(asked, what, timeout_s=timeout_s, look=look)
        except PeerError as error:
            raise self.root_of(error) from None

    def ask_all(self, handles: Sequence[WorkerHandle], what: str, *arguments: Any) -> list[Any]:
        """Send the same request to each of ``handles``, and wait for all answers."""
        return self.answers([(handle, handle.ask(what, *arguments)) for handle in handles], what.replace("_", " "))

    def finish(
        self, handles: Sequence[WorkerHandle], contexts: object, took: Callable[[WorkerOutcome], None], timeout_s: float
    ) -> None:
        """Finish ``handles`` and pass each outcome to ``took``, then raise the first error."""
        asked = [(handle, handle.ask("finish", contexts)) for handle in handles]
        try:
            self.answers(asked, "make durable what it has written", timeout_s=timeout_s)
        except MalstromError:
            wait_for([future for _, future in asked], timeout=SETTLE_S)  # what they pre-commit until then is discarded
            raise
        finally:
            errors = [self._finished(handle, future, took) for handle, future in asked]
        for error in errors:
            if error is not None:
                raise error

    def _finished(
        self, handle: WorkerHandle, future: Future[Any], took: Callable[[WorkerOutcome], None]
    ) -> BaseException | None:
        """Pass on the outcome of a worker that has answered, and return the worker's error."""
        try:
            end: WorkerOutcome = result_of(future, handle.worker)
        except (MalstromError, TimeoutError):
            return None  # `answers` raises it
        took(end)
        self._counts[handle.worker] = end.counts
        return None if end.error is None else unpack_error(end.error)

    def check_ended(self) -> None:
        """Raise the root error if any worker has ended."""
        if any(handle.has_ended for handle in self.handles.values()):
            raise self.root_of(None)

    def check_nodes(self, handles: Iterable[WorkerHandle]) -> None:
        """Raise `PeerError` if one of ``handles`` is on a silent node."""
        silent = self._node_watch.silent
        if not silent:
            return
        for handle in handles:
            if handle.node in silent:
                raise PeerError(
                    f"worker {handle.worker} is cut off: its node ({handle.node}) no longer reacts. Check that "
                    f"machine and the network to it",
                    peer=handle.worker,
                )

    def root_of(self, error: MalstromError | None) -> MalstromError:
        """Return the error nearest to the root of ``error``, or of a worker's end."""
        until_s = self._clock.monotonic_s() + ROOT_S
        while True:
            ends = [end for handle in self.handles.values() if (end := handle.ended_by()) is not None]
            nearest = min(ends, key=lambda end: end[0], default=None)
            found_root = nearest is not None and nearest[0] == 0
            if found_root or self._clock.monotonic_s() >= until_s:
                break
            self._clock.sleep_s(0.05 if nearest is None or nearest[0] > 1 else ROOT_S / 4)
            if nearest is not None and nearest[0] == 1:
                until_s = 0.0  # a death: check again for a user's error that came first
        if nearest is not None and nearest[0] == 1:
            return self._with_black_box(nearest[1])
        if nearest is not None:
            return nearest[1]
        return error or PeerError(f"the workers of job {self._job!r} have ended before the job did")

    def _with_black_box(self, death: MalstromError) -> MalstromError:
        """Return the death of a worker, with the content of its black box."""
        peer = death.peer if isinstance(death, PeerError) else None
        is_near = peer in self.handles and self.handles[peer].node not in self._node_watch.silent
        words = self.handles[peer].read_black_box() if peer is not None and is_near else ""
        return PeerError(f"{death}. When it died, {words}", peer=peer) if words else death
