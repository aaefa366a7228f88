"""Starts the worker actors of a job on Ray and connects them: the first workers, and workers that join later.

Rule: every wait has a deadline, and fails early if the cluster no longer has enough room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import ray

from malstrom_py.clock import Clock
from malstrom_py.errors import DeadlineError, PeerError
from malstrom_py.operators.read_source import RestoredPart
from malstrom_py.sources.base import Part
from malstrom_py.workers.coordinator import machine as events
from malstrom_py.workers.engine.graph_builder import Membership
from malstrom_py.workers.ray.cluster import describe_needs, room_now
from malstrom_py.workers.ray.job_config import JobSetup
from malstrom_py.workers.ray.node_watch import NodeWatch
from malstrom_py.workers.ray.worker_handle import PendingAnswers, WorkerHandle, await_answers
from malstrom_py.workers.ray.worker_registry import WorkerRegistry
from malstrom_py.workers.transport.base import Transport
from malstrom_py.workers.transport.messages import COORDINATOR

LOOK_S: Final = 1.0
"""How often the room in the cluster is checked."""


class WorkerStartup:
    """Starts workers for ``registry``. ``plan`` is packed; ``streams`` is the coordinator's end of the streams.

    ``notify`` is called, in any thread, when a worker is up, has answered or has ended. No worker is started on a node
    that ``node_watch`` calls silent.
    """

    def __init__(
        self,
        setup: JobSetup,
        registry: WorkerRegistry,
        plan: bytes,
        streams: Transport,
        clock: Clock,
        notify: Callable[[], None],
        node_watch: NodeWatch,
    ) -> None:
        self.joiners: list[WorkerHandle] = []
        self._setup = setup
        self._registry = registry
        self._plan = ray.put(plan)
        self._streams = streams
        self._clock = clock
        self._notify = notify
        self._node_watch = node_watch
        self._avoided: frozenset[str] = frozenset()

    def start_actors(self, workers: Sequence[int]) -> None:
        """Start the actors of ``workers`` on nodes that are not silent."""
        self._avoided = self._node_watch.silent
        self.joiners = [self._new_handle(worker) for worker in workers]

    def wait_until_up(self) -> Iterator[None]:
        """Yield until the addresses of all joining workers are known."""
        deadline_s = self._setup.start_timeout_s
        look_s = self._clock.monotonic_s()
        until_s = look_s + deadline_s
        while not all(handle.is_up for handle in self.joiners):
            now_s = self._clock.monotonic_s()
            if now_s >= until_s:
                needs = describe_needs(self._setup.options.needs)
                missing = [str(handle.worker) for handle in self.joiners if not handle.is_up]
                raise DeadlineError(
                    f"worker {', '.join(missing)} of job {self._setup.job!r} did not start within {deadline_s:g} s: "
                    f"see `ray status` for whether the cluster has room (each needs {needs}), or "
                    f"allow more with RayRuntime(start_timeout_s=)",
                    wait="the start of workers",
                    deadline_s=deadline_s,
                )
            if now_s >= look_s and not self._setup.autoscaling:
                look_s = now_s + LOOK_S
                self._check_room()
            self._start_elsewhere()
            yield
        for handle in self.joiners:
            handle.wait_until_up()

    def addresses_but(self, but: WorkerHandle) -> dict[int, Any]:
        """Return the addresses of all peers of one worker."""
        handles = [*self._registry.handles.values(), *self.joiners]
        others = {handle.worker: handle.address for handle in handles if handle is not but}
        return {COORDINATOR: self._streams.address, **others}

    def build(self, start: events.StartWorkers, *, draining: bool, got_on: Callable[[], None]) -> Iterator[None]:
        """Wait for the joining workers and build their graphs from the current table (R1)."""
        until_s = self._clock.monotonic_s() + self._setup.start_timeout_s
        for _ in self.wait_until_up():
            got_on()  # the start has its own deadline
            yield
        others = [*start.members, *start.workers]
        built = []
        for handle in self.joiners:
            member = Membership(handle.worker, start.members, start.table, start.version, self._setup.incarnation)
            more = [other for other in others if other not in start.members and other != handle.worker]
            built.append((handle, handle.ask("build", member, more, draining)))
        while not _all_done(built) and self._clock.monotonic_s() < until_s:
            self._registry.check_nodes(self.joiners)
            got_on()
            yield
        await_answers(built, "open its sinks", timeout_s=0.0, waited_s=self._setup.start_timeout_s)

    def connect(self) -> Iterator[None]:
        """Connect the present and the joining workers, and register the joining ones (R1)."""
        joiners = self.joiners
        addresses = {handle.worker: handle.address for handle in joiners}
        asked = [(handle, handle.ask("welcome", addresses)) for handle in self._registry.handles.values()]
        asked += [(handle, handle.ask("reach", self.addresses_but(handle))) for handle in joiners]
        while not _all_done(asked):
            self._registry.check_nodes(joiners)
            yield
        await_answers(asked, "reach the others")
        for handle in joiners:
            self._streams.connect(handle.worker, handle.address)
            self._registry.handles[handle.worker] = handle
        self.joiners = []
        started = [(handle, handle.ask("start")) for handle in joiners]
        while not _all_done(started):
            yield
        await_answers(started, "start")

    def give_up(self) -> None:
        """Kill the workers that were to join."""
        joiners, self.joiners = self.joiners, []
        for handle in joiners:
            handle.kill()

    def _new_handle(self, worker: int) -> WorkerHandle:
        return WorkerHandle(self._setup, worker, self._plan, self._notify, self._avoided)

    def _start_elsewhere(self) -> None:
        """Replace joining workers that may be on a silent node. Ray knows a worker's node only once it is up."""
        if self._node_watch.silent <= self._avoided:
            return
        self._avoided = self._avoided | self._node_watch.silent
        for at, handle in enumerate(self.joiners):
            if not handle.is_up or handle.node in self._avoided:
                handle.kill()
                self.joiners[at] = self._new_handle(handle.worker)

    def _check_room(self) -> None:
        room = room_now(self._setup.options.needs, but=self._node_watch.silent)
        wanted = len(self._registry.handles) + len(self.joiners)
        if room < wanted:
            raise PeerError(
                f"job {self._setup.job!r} waits for {wanted} workers to start, and the Ray cluster has room for "
                f"only {room} since it lost a node. Add a node, or run fewer workers"
            )


def _all_done(asked: PendingAnswers) -> bool:
    return all(future.done() for _, future in asked)


def parts_of(
    parts: Mapping[str, Sequence[Part]], begun: Mapping[str, Mapping[Part, RestoredPart]]
) -> dict[str, dict[Part, RestoredPart]]:
    """Return the positions of those of ``parts`` that have one."""
    return {
        step: {part: begun[step][part] for part in some if part in begun.get(step, {})} for step, some in parts.items()
    }
