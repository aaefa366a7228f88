"""What all runs of a simulated job have in common, and what one run leaves to the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from malstrom_py.builder.plan import Plan
from malstrom_py.clock import Clock
from malstrom_py.state.memory import State
from malstrom_py.workers.coordinator.recovery import SnapshotUse
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.reports.event_log import EventLog
from malstrom_py.workers.simulator.coverage import Coverage
from malstrom_py.workers.simulator.random_schedule import (
    RandomSchedule,
    ScheduledCrash,
    ScheduledRescale,
    ScheduledSnapshot,
)
from malstrom_py.workers.transport.messages import Content

Work = Callable[[], Any]


class Sent(NamedTuple):
    """A message in flight, with the incarnation that sent it."""

    incarnation: int
    receiver: int
    content: Content


Queues = dict[Hashable, deque[Sent]]
"""Way -> what is on it, first sent first."""


@dataclass(slots=True)
class SimulatedJob:
    """A simulated job of ``plan``; each of its runs is an incarnation. ``checks``: test mode.

    ``snapshot_use``: its snapshots, if it has any. ``rescales``, ``crashes`` and ``wanted`` (snapshots): what is to
    happen. ``row_cost_s``: as of `Simulation`. ``dead_writes``: pending writes of earlier runs; ``zombies``: their
    messages that are still in flight.
    """

    plan: Plan
    schedule: RandomSchedule
    clock: Clock
    batching: Batching = field(default_factory=Batching)
    coverage: Coverage = field(default_factory=Coverage)
    events: EventLog = field(default_factory=EventLog)
    checks: bool = False
    state: State | None = None
    snapshot_use: SnapshotUse | None = None
    rescales: list[ScheduledRescale] = field(default_factory=list)
    crashes: list[ScheduledCrash] = field(default_factory=list)
    wanted: list[ScheduledSnapshot] = field(default_factory=list)
    row_cost_s: float = 0.0
    incarnation: int = 1
    dead_writes: list[Work] = field(default_factory=list)
    zombies: Queues = field(default_factory=dict)
