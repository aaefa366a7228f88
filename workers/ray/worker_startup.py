"""Has workers of a job on Ray come up, and connects them: the first ones, and those that join while it runs.

Rule: whoever waits here has a deadline, and is told at once if the cluster has lost the room that is waited for.
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
"""How often it is looked whether there is room still."""


class WorkerStartup:
    """Hires for ``registry``, as ``setup`` says. ``plan`` is packed; ``streams`` is the coordinator's end of them.
    ``told`` is called, in any thread, when somebody has come up, answered or ended. ``node_watch``: knows the nodes where
    nobody can be hired.
    """

    def __init__(
        self,
        setup: JobSetup,
        registry: WorkerRegistry,
        plan: bytes,
        streams: Transport,
        clock: Clock,
        told: Callable[[], None],
        node_watch: NodeWatch,
    ) -> None:
        self.newcomers: list[WorkerHandle] = []
        self._setup = setup
        self._registry = registry
        self._plan = ray.put(plan)
        self._streams = streams
        self._clock = clock
        self._notify = told
        self._node_watch = node_watch
        self._avoided: frozenset[str] = frozenset()

    def start_actors(self, workers: Sequence[int]) -> None:
        """Have ``workers`` come up, on nodes that are not silent."""
        self._avoided = self._node_watch.silent
        self.newcomers = [self._new_handle(worker) for worker in workers]

    def wait_until_up(self) -> Iterator[None]:
        """Until all newcomers have told their addresses."""
        deadline_s = self._setup.start_timeout_s
        look_s = self._clock.monotonic_s()
        until_s = look_s + deadline_s
        while not all(handle.is_up for handle in self.newcomers):
            now_s = self._clock.monotonic_s()
            if now_s >= until_s:
                needs = describe_needs(self._setup.options.needs)
                missing = [str(handle.worker) for handle in self.newcomers if not handle.is_up]
                raise DeadlineError(
                    f"worker {', '.join(missing)} of job {self._setup.job!r} did not come up within {deadline_s:g} s: "
                    f"see `ray status` for whether the cluster has room (each needs {needs}), or "
                    f"allow more with RayRuntime(start_timeout_s=)",
                    wait="workers to come up",
                    deadline_s=deadline_s,
                )
            if now_s >= look_s and not self._setup.autoscaling:
                look_s = now_s + LOOK_S
                self._check_room()
            self._start_elsewhere()
            yield
        for handle in self.newcomers:
            handle.wait_until_up()

    def addresses_but(self, but: WorkerHandle) -> dict[int, Any]:
        """Where everyone else is reached by one worker."""
        handles = [*self._registry.handles.values(), *self.newcomers]
        others = {handle.worker: handle.address for handle in handles if handle is not but}
        return {COORDINATOR: self._streams.address, **others}

    def build(self, start: events.StartWorkers, *, draining: bool, got_on: Callable[[], None]) -> Iterator[None]:
        """R1: have the newcomers come up, and build what they run, from the table of now."""
        until_s = self._clock.monotonic_s() + self._setup.start_timeout_s
        for _ in self.wait_until_up():
            got_on()  # this has a deadline of its own
            yield
        others = [*start.members, *start.workers]
        built = []
        for handle in self.newcomers:
            member = Membership(handle.worker, start.members, start.table, start.version, self._setup.incarnation)
            more = [other for other in others if other not in start.members and other != handle.worker]
            built.append((handle, handle.ask("build", member, more, draining)))
        while not _all_done(built) and self._clock.monotonic_s() < until_s:
            self._registry.check_nodes(self.newcomers)
            got_on()
            yield
        await_answers(built, "open its sinks", timeout_s=0.0, waited_s=self._setup.start_timeout_s)

    def connect(self) -> Iterator[None]:
        """R1: connect those who are there with the newcomers, who are among them from then on."""
        joiners = self.newcomers
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
        self.newcomers = []
        started = [(handle, handle.ask("start")) for handle in joiners]
        while not _all_done(started):
            yield
        await_answers(started, "start")

    def give_up(self) -> None:
        """Those who were to join are not."""
        newcomers, self.newcomers = self.newcomers, []
        for handle in newcomers:
            handle.kill()

    def _new_handle(self, worker: int) -> WorkerHandle:
        return WorkerHandle(self._setup, worker, self._plan, self._notify, self._avoided)

    def _start_elsewhere(self) -> None:
        """A node has fallen silent: start_actors others for those who may be there. Ray says who is only once they are up."""
        if self._node_watch.silent <= self._avoided:
            return
        self._avoided = self._avoided | self._node_watch.silent
        for at, handle in enumerate(self.newcomers):
            if not handle.is_up or handle.node in self._avoided:
                handle.kill()
                self.newcomers[at] = self._new_handle(handle.worker)

    def _check_room(self) -> None:
        room = room_now(self._setup.options.needs, but=self._node_watch.silent)
        wanted = len(self._registry.handles) + len(self.newcomers)
        if room < wanted:
            raise PeerError(
                f"job {self._setup.job!r} waits for {wanted} workers to come up, and the Ray cluster has room for "
                f"{room} by now: it has lost a node. Add one, or run fewer workers"
            )


def _all_done(asked: PendingAnswers) -> bool:
    return all(future.done() for _, future in asked)


def parts_of(
    parts: Mapping[str, Sequence[Part]], begun: Mapping[str, Mapping[Part, RestoredPart]]
) -> dict[str, dict[Part, RestoredPart]]:
    """Where those of ``parts`` stand that were begun."""
    return {
        step: {part: begun[step][part] for part in some if part in begun.get(step, {})} for step, some in parts.items()
    }
