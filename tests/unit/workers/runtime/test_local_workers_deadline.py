"""A rescale that makes no progress ends the job with an error that names the cause, and only then (R7, P8)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.errors import DeadlineError, InternalError
from malstrom_py.rescale.moves.protocol import OpenSlots, PartHandedOver, PollParts, StartMove, StateChunk
from malstrom_py.testing import VirtualClock
from malstrom_py.workers.coordinator.coordinator import MOVE_DEADLINE_S
from malstrom_py.workers.runtime.local_workers import LocalWorkers
from malstrom_py.workers.transport.messages import Content, Message
from tests.unit.polled import Polled
from tests.unit.workers.harness import Running, two_stages


def trickle(clock: VirtualClock, every_s: float = 5.0) -> Polled:
    """A source that has a row every ``every_s`` seconds, and no end."""
    return Polled(lambda part, at, rows_max: [at + 1] if clock.monotonic_s() >= at * every_s else None)


class Forgetful(LocalWorkers):
    """Loses every message of the kinds in ``lost``: a worker that waits for one waits forever."""

    lost: tuple[type, ...] = ()

    def _hand(self, receiver: int, message: Content) -> Sequence[Message]:
        return [] if isinstance(message, self.lost) else super()._hand(receiver, message)


def stuck(lost: type, clock: VirtualClock, *, every_s: float = 1e9, workers: int = 1) -> Running:
    """A job whose rescale, just asked for, waits for what is lost."""
    kind = type("Losing", (Forgetful,), {"lost": (lost,)})
    job = mp.Job("stuck", slots=8)
    first = job.source("in", trickle(clock, every_s)).key_by("key", lambda n: n % 9)
    first.count("count").key_by("again", lambda n: n % 4).count("counts").sink("out", sinks.Memory())
    return Running(job, workers=workers, clock=clock, kind=kind).step(3).ask(workers + 1)


def go_on(running: Running) -> None:
    for _ in range(100_000):
        running.coordinator.step()


@pytest.mark.parametrize("lost", [StateChunk, OpenSlots])
def test_r7_past_its_deadline_a_rescale_ends_the_job_and_says_what_it_waits_for(lost: type) -> None:
    clock = VirtualClock()
    running = stuck(lost, clock)
    asked_s = clock.monotonic_s()
    with pytest.raises(DeadlineError, match=r"a rescale has made no progress for 120 s. It waits for region 'count"):
        go_on(running)
    assert MOVE_DEADLINE_S < clock.monotonic_s() - asked_s < MOVE_DEADLINE_S + 5
    assert (running.coordinator.phase, running.reports) == ("moving", [])
    running.coordinator.close()


def test_r7_who_still_gets_something_done_is_not_given_up() -> None:
    """Rows that trickle in are still carried to the end of the job."""
    clock = VirtualClock()
    running = stuck(OpenSlots, clock, every_s=100.0)
    while clock.monotonic_s() < 10 * MOVE_DEADLINE_S:
        running.coordinator.step()
    assert running.coordinator.phase == "moving"
    running.coordinator.close()


def test_r7_without_a_rescale_nothing_is_watched() -> None:
    clock = VirtualClock()
    job = mp.Job("calm", slots=8)
    job.source("in", trickle(clock, 1e9)).key_by("key", lambda n: n).sink("out", sinks.Memory())
    running = Running(job, clock=clock)
    while clock.monotonic_s() < 3 * MOVE_DEADLINE_S:
        running.coordinator.step()
    # And a rescale that is asked for after a long time has its own.
    running.ask(2).settle()
    assert running.coordinator.members == (0, 1)
    running.coordinator.close()


@pytest.mark.parametrize("lost", [PartHandedOver, PollParts, StartMove])
def test_p8_where_no_time_could_pass_it_ends_at_once(lost: type) -> None:
    """Nothing is due anywhere that could let time pass, so nothing will ever happen."""
    clock = VirtualClock()
    kind = type("Losing", (Forgetful,), {"lost": (lost,)})
    running = Running(two_stages(sinks.Memory(), parts=2), clock=clock, kind=kind, workers=1).step(2).ask(2)
    with pytest.raises((InternalError, DeadlineError)):
        go_on(running)
    running.coordinator.close()
