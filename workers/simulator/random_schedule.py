"""What a seed decides: how a simulated job is run, who is slow, what is asked for and when, what breaks."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from malstrom_py.rescale.channels.channel import Credit
from malstrom_py.snapshot.snapshots import Snapshots
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.workers.engine.flow_limits import Batching

T = TypeVar("T")

_SPEEDS: Final = (1.0, 1.0, 1.0, 0.3, 0.05)
_SIZE_MAX: Final = 5
_TURNS: Final = (10, 40, 120, 400)
"""Within how many turns the seed asks for things."""
_STOPS: Final = 0.15
"""How probable it is that a job is to stop behind a snapshot that somebody asks for."""
_BREAKS: Final = ("turn", "moving", "saving", "storing", "stored", "writing", "recovering", "kept", "kept", "kept")


@dataclass(frozen=True, slots=True)
class ScheduledRescale:
    """A rescale to ``size`` workers, ``kept`` of those that are there; not before ``turn``, and then as ``when`` says.

    ``when``: "turn": at once, "moving": in the middle of another, "full": while something has no credit, "quiet":
    while nothing is on its way, "end": when nothing else can happen.
    """

    turn: int
    size: int
    kept: int
    when: str


@dataclass(frozen=True, slots=True)
class ScheduledSnapshot:
    """A snapshot that somebody asks for, not before ``turn``, and then as ``when`` says, as in `ScheduledRescale`. ``last``: the
    job is to stop behind it, and is begun again.
    """

    turn: int
    when: str
    last: bool = False


@dataclass(frozen=True, slots=True)
class ScheduledCrash:
    """The loss of a worker or of the coordinator, not before ``turn``, and then as ``when`` says.

    ``when``: "turn": at once, "moving": in the middle of a rescale, "saving": while a snapshot is being made,
    "storing": while its manifest is about to be written, "stored": when that stands, and nobody knows, "kept": behind a
    snapshot, "writing": between two operations of the store, "recovering": in the same way while the job begins again.
    Of a job without snapshots all but "moving" are as "turn".
    """

    turn: int
    who: str
    when: str


class RandomSchedule:
    """All that is decided by ``seed``, in the order in which it is asked for: the same questions, the same answers."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._kept = random.Random(f"snapshots {seed}")  # so that a job without them runs as if there were none
        self._stops = random.Random(f"stops {seed}")
        self._speeds: dict[Hashable, float] = {}

    def batching(self) -> Batching:
        """How batches are cut, and how little may be on its way."""
        rng = self._rng
        return Batching(
            rows_max=rng.choice((1, 2, 7, 100, 1024)),
            columns_rows_max=rng.choice((1, 7, 1024)),
            bytes_max=rng.choice((64, 1 << 20)),
            credit=Credit(rows=rng.choice((1, 1, 2, 8, 1000)), size=rng.choice((1, 1000, 1 << 24))),
        )

    def slots_per_move(self, slots: int) -> int | None:
        """How many slots a move takes: so many that there are a few moves. None: as many as the last one says."""
        moves = self._rng.choice((1, 2, 3, 4, None))
        return None if moves is None else max(1, slots // moves)

    def keys_per_parcel(self) -> int:
        """How many keys travel together at first."""
        return self._rng.choice((1, 2, 256))

    def rescales(self, count: int | None) -> list[ScheduledRescale]:
        """``count`` requests, or as many as the seed says."""
        rng = self._rng
        whens: Sequence[str] = ("turn", "turn", "turn", "moving", "full", "quiet", "end")
        asked = [
            ScheduledRescale(
                rng.randint(0, rng.choice(_TURNS)), rng.randint(1, _SIZE_MAX), rng.randint(0, 4), self.one_of(whens)
            )
            for _ in range(rng.choice((1, 1, 2, 3)) if count is None else count)
        ]
        return sorted(asked, key=lambda request: request.turn)

    def crashes(self, count: int | None, *, kept: bool) -> list[ScheduledCrash]:
        """``count`` crashes, or as many as the seed says: mostly none. ``kept``: whether the job has snapshots."""
        rng = self._rng
        if count is None:
            count = rng.choice((0, 0, 0, 0, 1, 2))
        drawn = [
            ScheduledCrash(
                rng.randint(0, rng.choice(_TURNS)),
                rng.choice(("worker", "coordinator")),
                "moving" if rng.random() < 0.5 else "turn",
            )
            for _ in range(count)
        ]
        if kept:
            drawn = [replace(crash, when=self._kept.choice(_BREAKS)) for crash in drawn]
        return sorted(drawn, key=lambda crash: crash.turn)

    def snapshots(self) -> Snapshots | None:
        """How the job is snapshotted, if it is, in a store of its own."""
        rng = self._kept
        made = Snapshots(
            MemoryStore(),
            interval_s=rng.choice((None, 0.001, 0.01, 0.1)),
            keep=rng.choice((1, 1, 2, 3)),
            chain_max=rng.choice((1, 1, 2, 8)),
        )
        return made if rng.random() < 0.5 else None

    def wanted(self) -> list[ScheduledSnapshot]:
        """What snapshots are asked for."""
        rng = self._kept
        whens: Sequence[str] = ("turn", "turn", "moving", "moving", "full", "quiet", "end")
        wanted = [
            ScheduledSnapshot(rng.randint(0, rng.choice(_TURNS)), rng.choice(whens), self._stops.random() < _STOPS)
            for _ in range(rng.choice((0, 1, 2, 4)))
        ]
        return sorted(wanted, key=lambda request: request.turn)

    def size(self) -> int:
        """With how many workers a job goes on from a snapshot."""
        return self._kept.randint(1, _SIZE_MAX)

    def one_of(self, things: Sequence[T]) -> T:
        """Any of ``things``."""
        return self._rng.choice(things)

    def some_of(self, things: Sequence[T], count: int) -> list[T]:
        """Any ``count`` of ``things``, at most all."""
        return self._rng.sample(things, min(count, len(things)))

    def happens(self, probability: float) -> bool:
        """Whether something of that ``probability`` does."""
        return self._rng.random() < probability

    def next_of(self, actions: Sequence[Hashable]) -> Hashable:
        """What happens next: whatever is slow in this run is slow all the time."""
        speeds = self._speeds
        for action in actions:
            if action not in speeds:
                speeds[action] = self._rng.choice(_SPEEDS)
        return self._rng.choices(actions, [speeds[action] for action in actions])[0]
