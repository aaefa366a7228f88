"""The messages between workers and their coordinator beside the rescale protocol, and the unions of all messages.

Frames and grants travel on channels; all other messages travel outside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from malstrom_py.events import AnyEvent
from malstrom_py.operators.read_source import RestoredPart
from malstrom_py.rescale.channels.channel import Frame, Grant
from malstrom_py.rescale.moves.protocol import Order, PartHandedOver, Report, StateChunk
from malstrom_py.sinks.base import CommitContext
from malstrom_py.snapshot.manifest import Artefact
from malstrom_py.sources.base import Part
from malstrom_py.workers.reports.figures import WorkerFigures
from malstrom_py.workers.reports.result import StepCounts
from malstrom_py.workers.reports.taps import SeenOfStep, TapStep

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
    """The counts of the steps of ``worker``, and its figures: sent periodically while it works or awaits external
    calls.
    """

    worker: int
    counts: Mapping[str, StepCounts] = field(hash=False)
    figures: WorkerFigures = field(default_factory=WorkerFigures, hash=False)


WorkerReport = WorkerStatus | WorkerCounts
"""The periodic messages from a worker to the coordinator."""


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """An event that ``worker`` has noticed."""

    worker: int
    event: AnyEvent


@dataclass(frozen=True, slots=True)
class PartsEnded:
    """``parts`` of ``source`` have ended on ``worker``."""

    worker: int
    source: str
    parts: tuple[Part, ...]


Notice = WorkerEvent | PartsEnded | SeenOfStep
"""What a worker notices, for those who watch the job."""


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


@dataclass(frozen=True, slots=True)
class Build:
    """Build worker ``worker`` with the table of ``members``, and channels also to ``others``, which join with it (R1).

    Then open its sinks and restore its slots of ``restored``, a `RestorePoint`, if any (S5). ``beginning``: the steps
    that start with their initial state. ``parameters``: the values of those that
    were set.
    """

    worker: int
    members: tuple[int, ...]
    table: tuple[int, ...] = field(repr=False)
    version: int = 0
    incarnation: int = 1
    others: tuple[int, ...] = ()
    restored: Any = field(default=None, repr=False)
    beginning: tuple[str, ...] = ()
    parameters: Mapping[str, Any] | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True)
class Reach:
    """Open streams to these peers."""

    addresses: Mapping[int, Any] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Welcome:
    """Open streams and channels to joining workers (R1)."""

    addresses: Mapping[int, Any] = field(hash=False)


@dataclass(frozen=True, slots=True)
class PartWith:
    """Close channels and streams to workers that have left (R8)."""

    leavers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OpenSources:
    """Open the sources with ``parts``, those in ``restored`` at their positions."""

    parts: Mapping[str, Sequence[Part]] = field(hash=False)
    restored: Mapping[str, Mapping[Part, RestoredPart]] = field(default_factory=dict, repr=False, hash=False)


@dataclass(frozen=True, slots=True)
class Start:
    """Start processing."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Stop the sources, so that the job finishes."""


@dataclass(frozen=True, slots=True)
class Suspend:
    """Stop after all data in flight."""


@dataclass(frozen=True, slots=True)
class Notify:
    """Notify the logics of ``event``, by their ``on_event``."""

    event: AnyEvent


@dataclass(frozen=True, slots=True)
class Finish:
    """Stop processing, pre-commit, and close all but the transactional writers."""

    contexts: Mapping[str, CommitContext] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Close:
    """Close the worker, and end its process or loop."""


WorkerOrder = (
    Build | Reach | Welcome | PartWith | OpenSources | Start | Notify | TapStep | Drain | Suspend | Finish | Close
)
"""The orders of the coordinator to a worker beside the rescale protocol."""


@dataclass(frozen=True, slots=True)
class Built:
    """``worker`` is built, its sinks are open and its state is restored."""

    worker: int


@dataclass(frozen=True, slots=True)
class Reached:
    """``worker`` has opened the streams of a `Reach` or a `Welcome`."""

    worker: int


@dataclass(frozen=True, slots=True)
class Parted:
    """``worker`` has closed the channels and streams of a `PartWith`."""

    worker: int


@dataclass(frozen=True, slots=True)
class SourcesOpened:
    """``worker`` has opened its sources. ``fixed``: a source that cannot move to another worker, or ""."""

    worker: int
    fixed: str


@dataclass(frozen=True, slots=True)
class Finished:
    """What a finished worker leaves: the pre-commits of its sinks, by step, and its last counts.

    ``error``: the error of finishing, packed between processes; earlier pre-commits are listed to be discarded.
    ``saved``: the last `Saved` again, because a leaver's stream may be closed before it arrives. ``positions``: where
    the parts of sources that acknowledge have ended, by step.
    """

    worker: int
    payloads: tuple[tuple[str, bytes], ...] = field(repr=False)
    counts: Mapping[str, StepCounts] = field(repr=False, hash=False)
    error: Any = None
    saved: Saved | None = None
    positions: Mapping[str, Mapping[Part, Any]] = field(default_factory=dict, repr=False, hash=False)


@dataclass(frozen=True, slots=True)
class OrderFailed:
    """``worker`` could not execute an order. ``error`` is packed."""

    worker: int
    error: bytes = field(repr=False)


WorkerReply = Built | Reached | Parted | SourcesOpened | Finished | OrderFailed
"""The replies of a worker to a `WorkerOrder`. `Start`, `Notify`, `Drain`, `Suspend` and `Close` have
none; a `TapStep` is followed by any number of `Tapped`."""

COORDINATOR: Final = -1
"""The peer number of the coordinator."""

PeerMessage = StateChunk | PartHandedOver
"""The messages from worker to worker outside the channels."""

Outgoing = tuple[int, Frame | Grant | PeerMessage | Report | Notice | WorkerReply]
"""A message for another worker or the coordinator, with its receiver."""

Content = (
    Frame | Grant | PeerMessage | Order | Report | Connected | WorkerReport | Notice | Saved | WorkerOrder | WorkerReply
)
"""All messages that a transport carries."""

Message = tuple[int, Content]
"""Any message with its receiver."""

Incoming = Frame | Grant | PeerMessage | Order
"""The messages that `Worker.receive` takes."""
