"""The messages between workers and their coordinator beside the rescale protocol, and the unions of all messages.

Frames and grants travel on channels; all other messages travel outside them.
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
"""Part -> its position, and whether the part is finished."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The status of ``worker``, sent whenever it changes. ``version``: the version of the worker's routing table.

    ``finished`` and ``suspended`` are valid only if ``version`` is the coordinator's, because a move may give a
    finished worker more work.
    """

    worker: int
    version: int
    finished: bool
    suspended: bool


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """The counts of the steps of ``worker``: sent periodically while it works or awaits external calls."""

    worker: int
    counts: Mapping[str, StepCounts] = field(hash=False)


WorkerReport = WorkerStatus | WorkerCounts
"""The periodic messages from a worker to the coordinator."""


@dataclass(frozen=True, slots=True)
class Connected:
    """A joiner has been built from the old table, and is connected in both directions (R1)."""

    worker: int


@dataclass(frozen=True, slots=True)
class Saved:
    """The durable image of ``worker`` at the barrier of ``snapshot``; fields as in `CapturedState`."""

    snapshot: str
    worker: int
    artefacts: tuple[Artefact, ...]
    sources: Mapping[str, Positions] = field(repr=False, hash=False)
    parts: Mapping[str, Mapping[str, Any]] = field(repr=False, hash=False)
    frontiers: Mapping[str, int] = field(hash=False)
    payloads: tuple[tuple[str, bytes], ...] = field(repr=False)


COORDINATOR: Final = -1
"""The peer number of the coordinator."""

PeerMessage = StateChunk | PartHandedOver
"""The messages from worker to worker outside the channels."""

Outgoing = tuple[int, Frame | Grant | PeerMessage | Report]
"""A message for another worker or the coordinator, with its receiver."""

Content = Frame | Grant | PeerMessage | Order | Report | Connected | WorkerReport | Saved
"""All messages that a transport carries."""

Message = tuple[int, Content]
"""Any message with its receiver."""

Incoming = Frame | Grant | PeerMessage | Order
"""The messages that a worker receives."""
