"""Who works for a job on Ray: the handles that are there, how they stand, what they have done, and how they ended.

Rule: whoever fails, the error that is told is the one nearest to the root: a user's own before a death, a death before
a lost stream.
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
"""How long it is waited for the root of a failure when all that is known is that a stream was lost."""

SETTLE_S: Final = 2.0
"""How long those who make durable what they were given may go on once one of them has failed."""


class WorkerRegistry:
    """The workers of ``job``: ``handles`` by number, those that have begun to work. ``node_watch``: on their nodes."""

    def __init__(self, job: str, clock: Clock, node_watch: NodeWatch) -> None:
        self.handles: dict[int, WorkerHandle] = {}
        self._job = job
        self._clock = clock
        self._node_watch = node_watch
        self._standings: dict[int, WorkerStatus] = {}
        self._counts: dict[int, Mapping[str, StepCounts]] = {}
        self._left: list[Mapping[str, StepCounts]] = []

    def told(self, news: WorkerStatus | WorkerCounts) -> None:
        """A worker tells how it stands, or what it has done."""
        if isinstance(news, WorkerStatus):
            self._standings[news.worker] = news
        else:
            self._counts[news.worker] = news.counts

    def all_stand(self, members: Sequence[int], version: int, as_wanted: Callable[[WorkerStatus], bool]) -> bool:
        """Whether all ``members`` do, of those who send by ``version`` of the table."""
        found = [self._standings.get(worker) for worker in members]
        return all(standing is not None and standing.version == version and as_wanted(standing) for standing in found)

    def counts(self, members: Sequence[int]) -> dict[str, StepCounts]:
        """What each step has done, on all workers together, as far as they have told."""
        known = [self._counts[worker] for worker in members if worker in self._counts]
        return merged_counts(known, self._left) if known else {}

    def left(self, handle: WorkerHandle) -> None:
        """A worker is not one of them any more."""
        del self.handles[handle.worker]
        self._left.append(self._counts.pop(handle.worker))
        self._standings.pop(handle.worker, None)

    def answers(self, asked: PendingAnswers, what: str, *, timeout_s: float = ANSWER_S) -> list[Any]:
        """What workers answer, unless one of all of them dies, fails or is cut off meanwhile."""

        def look() -> None:
            self.check_ended()
            self.check_nodes([handle for handle, future in asked if not future.done()])

        try:
            return await_answers(asked, what, timeout_s=timeout_s, look=look)
        except PeerError as error:
            raise self.root_of(error) from None

    def ask_all(self, handles: Sequence[WorkerHandle], what: str, *arguments: Any) -> list[Any]:
        """Ask each of ``handles`` the same, and wait for all answers."""
        return self.answers([(handle, handle.ask(what, *arguments)) for handle in handles], what.replace("_", " "))

    def finish(
        self, handles: Sequence[WorkerHandle], contexts: object, took: Callable[[WorkerOutcome], None], timeout_s: float
    ) -> None:
        """Have ``handles`` end, and ``took`` told what each leaves; the first error is raised when all were told."""
        asked = [(handle, handle.ask("finish", contexts)) for handle in handles]
        try:
            self.answers(asked, "make durable what it has written", timeout_s=timeout_s)
        except MalstromError:
            wait_for([future for _, future in asked], timeout=SETTLE_S)  # what they have made by then is discarded
            raise
        finally:
            errors = [self._finished(handle, future, took) for handle, future in asked]
        for error in errors:
            if error is not None:
                raise error

    def _finished(
        self, handle: WorkerHandle, future: Future[Any], took: Callable[[WorkerOutcome], None]
    ) -> BaseException | None:
        """Note what a worker has left, if it has answered: what went wrong there."""
        try:
            end: WorkerOutcome = result_of(future, handle.worker)
        except (MalstromError, TimeoutError):
            return None  # it is told as the answer
        took(end)
        self._counts[handle.worker] = end.counts
        return None if end.error is None else unpack_error(end.error)

    def check_ended(self) -> None:
        """Raise what one of them has ended by, if one has."""
        if any(handle.has_ended for handle in self.handles.values()):
            raise self.root_of(None)

    def check_nodes(self, handles: Iterable[WorkerHandle]) -> None:
        """`PeerError` if one of ``handles`` is on a node that has fallen silent."""
        silent = self._node_watch.silent
        if not silent:
            return
        for handle in handles:
            if handle.node in silent:
                raise PeerError(
                    f"worker {handle.worker} is cut off: its node ({handle.node}) does not react any more. See whether "
                    f"that machine is up, and the network to it",
                    peer=handle.worker,
                )

    def root_of(self, error: MalstromError | None) -> MalstromError:
        """The error nearest to the root of a failure that has shown as ``error``, or as the end of a worker."""
        until_s = self._clock.monotonic_s() + ROOT_S
        while True:
            ends = [end for handle in self.handles.values() if (end := handle.ended_by()) is not None]
            nearest = min(ends, key=lambda end: end[0], default=None)
            found_root = nearest is not None and nearest[0] == 0
            if found_root or self._clock.monotonic_s() >= until_s:
                break
            self._clock.sleep_s(0.05 if nearest is None or nearest[0] > 1 else ROOT_S / 4)
            if nearest is not None and nearest[0] == 1:
                until_s = 0.0  # a death: look once more whether it was a user's error that came first
        if nearest is not None and nearest[0] == 1:
            return self._with_black_box(nearest[1])
        if nearest is not None:
            return nearest[1]
        return error or PeerError(f"the workers of job {self._job!r} have ended before the job did")

    def _with_black_box(self, death: MalstromError) -> MalstromError:
        """The death of a worker, with what it was at work on."""
        peer = death.peer if isinstance(death, PeerError) else None
        is_near = peer in self.handles and self.handles[peer].node not in self._node_watch.silent
        words = self.handles[peer].read_black_box() if peer is not None and is_near else ""
        return PeerError(f"{death}. When it died, {words}", peer=peer) if words else death
