"""The words of the coordinator machine: what it is told, and what it has done.

Everything here is immutable. What it sends to workers, and they to it, stands in `rescale.protocol`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from malstrom_py.errors import MalstromError
from malstrom_py.rescale.protocol import Order, Report


@dataclass(frozen=True, slots=True)
class Topology:
    """What the coordinator must know of the job: its exchanges, and which of them each region and source feeds."""

    exchanges: tuple[str, ...]
    regions: Mapping[str, tuple[str, ...]]
    sources: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Requested:
    """Rescale to ``members``."""

    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Connected:
    """A joiner has been built from the old table and connected both ways (R1)."""

    worker: int


@dataclass(frozen=True, slots=True)
class Reported:
    """A worker reports."""

    report: Report


@dataclass(frozen=True, slots=True)
class CalledOff:
    """Joiners have not come up: the rescale under way is not to be, for what ``error`` says."""

    error: MalstromError


@dataclass(frozen=True, slots=True)
class SnapshotWanted:
    """Have the barrier of ``snapshot`` pass as soon as no move is under way (R7). ``last``: nothing goes on behind it,
    so that it waits for the end of a rescale, and what is asked for then does not begin.
    """

    snapshot: str
    parent: str | None = None
    last: bool = False


Event = Requested | Connected | Reported | CalledOff | SnapshotWanted


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Start and connect ``workers``: built with ``members``, ``table`` and ``version`` of now."""

    workers: tuple[int, ...]
    members: tuple[int, ...]
    table: tuple[int, ...]
    version: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send an order to a worker."""

    worker: int
    order: Order


@dataclass(frozen=True, slots=True)
class Ended:
    """A rescale has ended: ``members`` are there, and nobody else. ``error``: it was called off, nothing changed."""

    members: tuple[int, ...]
    version: int
    error: MalstromError | None = None


@dataclass(frozen=True, slots=True)
class BarrierBegun:
    """The barrier of ``snapshot`` has been ordered: these are the ``members`` that it has to pass, and no others."""

    snapshot: str
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CutMade:
    """S1: the barrier of ``snapshot`` has passed all workers."""

    snapshot: str
    paused_s: float


Effect = StartWorkers | Send | Ended | BarrierBegun | CutMade
