"""What workers and their coordinator send each other beside the rescale protocol.

What a worker that runs by itself tells its coordinator of its own accord: how it stands, and what it has done.

What workers and their coordinator send each other: frames and credit on channels, letters outside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from malstrom_py.rescale.channels.channel import Frame, Grant
from malstrom_py.rescale.moves.protocol import Order, PartHandedOver, Report, StateChunk
from malstrom_py.snapshot.manifest import Artefact
from malstrom_py.workers.reports.result import StepCounts

Positions = Mapping[str, tuple[Any, bool]]
"""Part -> its position, and whether it is finished."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """How ``worker`` stands, told whenever that changes. ``version``: of the table it sends by.

    ``finished`` and ``suspended`` count only where ``version`` is the coordinator's: what moves may wake a worker.
    """

    worker: int
    version: int
    finished: bool
    suspended: bool


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """What the steps of ``worker`` have done so far: told now and then while it gets on, or awaits calls of its own."""

    worker: int
    counts: Mapping[str, StepCounts] = field(hash=False)


WorkerReport = WorkerStatus | WorkerCounts
"""From a worker to the coordinator, beside its reports."""


@dataclass(frozen=True, slots=True)
class Connected:
    """A joiner has been built from the old table and connected both ways (R1)."""

    worker: int


@dataclass(frozen=True, slots=True)
class Saved:
    """The image of ``worker`` at the barrier of ``snapshot``, once it is durable; otherwise as in `Cut`."""

    snapshot: str
    worker: int
    artefacts: tuple[Artefact, ...]
    sources: Mapping[str, Positions] = field(repr=False, hash=False)
    parts: Mapping[str, Mapping[str, Any]] = field(repr=False, hash=False)
    frontiers: Mapping[str, int] = field(hash=False)
    payloads: tuple[tuple[str, bytes], ...] = field(repr=False)


COORDINATOR: Final = -1
"""The coordinator, as a receiver."""

PeerMessage = StateChunk | PartHandedOver
"""From worker to worker, outside the channels."""

Outgoing = tuple[int, Frame | Grant | PeerMessage | Report]
"""What is meant for another worker or the coordinator, and for which."""

Content = Frame | Grant | PeerMessage | Order | Report | Connected | WorkerReport | Saved
"""All that is carried."""

Message = tuple[int, Content]
"""The same with its receiver."""

Incoming = Frame | Grant | PeerMessage | Order
"""What a worker takes."""
