"""The decisions of a seed: batch sizes, speeds, requests and their moments, crashes."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from malstrom_py.rescale.channels.channel import Credit
from malstrom_py.rescale.moves.protocol import SentAhead, StateChunk
from malstrom_py.snapshot.snapshots import Snapshots
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.workers.engine.flow_limits import MOVE_FIRST_S, Batching

T = TypeVar("T")

_SPEEDS: Final = (1.0, 1.0, 1.0, 0.3, 0.05)
_SIZE_MAX: Final = 5
_TURNS: Final = (10, 40, 120, 400)
"""The latest turn of a request is one of these."""
_STOPS: Final = 0.15
"""The probability that the job is stopped with a requested snapshot."""
_BREAKS: Final = ("turn", "moving", "saving", "storing", "stored", "writing", "recovering", "kept", "kept", "kept")

_COPYING: Final = 0.4
"""How probable it is that a crash waits until state goes ahead of a move, in a job that sends some ahead."""


@dataclass(frozen=True, slots=True)
class ScheduledRescale:
    """A rescale to ``size`` workers, ``kept`` of the present ones, not before ``turn``, and then at the moment
    ``when``; ``size`` 0: slots move by load, and the workers stay.

    ``when``: "turn": immediately, "moving": during another rescale, "full": while a channel has no credit, "quiet":
    while no record is in flight, "end": when nothing else can happen.
    """

    turn: int
    size: int
    kept: int
    when: str


@dataclass(frozen=True, slots=True)
class ScheduledSnapshot:
    """A requested snapshot, not before ``turn``, and then at the moment ``when``, as in `ScheduledRescale`. ``last``:
    the job stops with it, and is restarted.
    """

    turn: int
    when: str
    last: bool = False


@dataclass(frozen=True, slots=True)
class ScheduledCrash:
    """The loss of a worker or of the coordinator, not before ``turn``, and then at the moment ``when``.

    ``when``: "turn": immediately, "moving": during a rescale, "copying": while state is in flight ahead of a move,
    "saving": during a snapshot, "storing": before its manifest is written, "stored": after that, before the run
    knows, "kept": after a snapshot, "writing": between two operations of the store, "recovering": the same during a
    recovery. A job without snapshots treats all but "moving" as "turn".
    """

    turn: int
    who: str
    when: str


class RandomSchedule:
    """The decisions of ``seed``: the same calls in the same order return the same decisions."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._rng = random.Random(seed)
        self._kept = random.Random(f"snapshots {seed}")  # so that a job without them runs as if there were none
        self._stops = random.Random(f"stops {seed}")
        self._ahead = random.Random(f"ahead {seed}")
        self._loads = random.Random(f"loads {seed}")
        self._speeds: dict[Hashable, float] = {}

    def batching(self) -> Batching:
        """Return the limits of batches and the credit of channels."""
        rng = self._rng
        return Batching(
            rows_max=rng.choice((1, 2, 7, 100, 1024)),
            columns_rows_max=rng.choice((1, 7, 1024)),
            bytes_max=rng.choice((64, 1 << 20)),
            credit=Credit(rows=rng.choice((1, 1, 2, 8, 1000)), size=rng.choice((1, 1000, 1 << 24))),
        )

    def slots_per_move(self, slots: int) -> int | None:
        """Return the slots per move, for a few moves per rescale; None: the production sizing."""
        moves = self._rng.choice((1, 2, 3, 4, None))
        return None if moves is None else max(1, slots // moves)

    def keys_per_chunk(self) -> int:
        """Return the number of keys in the first state chunk."""
        return self._rng.choice((1, 2, 256))

    def move_first_s(self) -> float:
        """Return for how long the work of a move comes before the sources, in every other seed; 0: never."""
        return MOVE_FIRST_S if random.Random(f"moves first {self._seed}").random() < 0.5 else 0.0

    def gathers(self) -> Callable[[], bool]:
        """Return what says whether a step may be the last for some milliseconds: in every other seed some may be."""
        rng = random.Random(f"gathers {self._seed}")
        share = rng.choice((0.0, 0.0, 0.5, 1.0))
        return lambda: rng.random() < share

    def ahead_least(self) -> int | None:
        """Return the bytes of state from which a job with snapshots sends it ahead of a move, in every other seed;
        None: never.
        """
        return 0 if random.Random(f"sends ahead {self._seed}").random() < 0.5 else None

    def ahead_turns(self) -> int:
        """Return for how many turns state goes ahead at least: until then it may change."""
        return self._ahead.choice((0, 10, 60))

    def ahead_held(self) -> type:
        """Return which messages are in flight for that time: the reports that state is ahead, or the state."""
        return self._ahead.choice((SentAhead, SentAhead, StateChunk))

    def rescales(self, count: int | None) -> list[ScheduledRescale]:
        """Return ``count`` rescales, or as many as the seed says."""
        rng = self._rng
        whens: Sequence[str] = ("turn", "turn", "turn", "moving", "full", "quiet", "end")
        asked = [
            ScheduledRescale(
                rng.randint(0, rng.choice(_TURNS)), rng.randint(1, _SIZE_MAX), rng.randint(0, 4), self.one_of(whens)
            )
            for _ in range(rng.choice((1, 1, 2, 3)) if count is None else count)
        ]
        return sorted(asked, key=lambda request: request.turn)

    @property
    def weighs(self) -> bool:
        """Whether the slots of this job are weighed: in every other seed."""
        return random.Random(f"weighs {self._seed}").random() < 0.5

    def rebalances(self, count: int) -> list[ScheduledRescale]:
        """Return when slots of a job with ``count`` rescales are to move by load."""
        rng = self._loads
        whens: Sequence[str] = ("turn", "turn", "moving", "full", "quiet", "end")
        if not self.weighs or not count:
            return []
        return [ScheduledRescale(rng.randint(0, rng.choice(_TURNS)), 0, 0, rng.choice(whens)) for _ in range(count + 1)]

    def weights(self, slots: int) -> list[float] | None:
        """Return the weights of the slots now, some of them far heavier than others; None: they are not known."""
        rng = self._loads
        if not self.weighs or rng.random() < 0.1:
            return None
        spread = rng.choice((1.0, 3.0, 10.0))
        return [rng.random() ** spread + 0.01 for _ in range(slots)]

    def crashes(self, count: int | None, *, kept: bool) -> list[ScheduledCrash]:
        """Return ``count`` crashes, or as many as the seed says, mostly none. ``kept``: the job has snapshots."""
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
            if self.ahead_least() is not None:
                drawn = [
                    replace(crash, when="copying") if self._ahead.random() < _COPYING else crash for crash in drawn
                ]
        return sorted(drawn, key=lambda crash: crash.turn)

    def snapshots(self) -> Snapshots | None:
        """Return the snapshot settings with a new store, or None."""
        rng = self._kept
        made = Snapshots(
            MemoryStore(),
            interval_s=rng.choice((None, 0.001, 0.01, 0.1)),
            keep=rng.choice((1, 1, 2, 3)),
            chain_max=rng.choice((1, 1, 2, 8)),
        )
        return made if rng.random() < 0.5 else None

    def wanted(self) -> list[ScheduledSnapshot]:
        """Return the requested snapshots."""
        rng = self._kept
        whens: Sequence[str] = ("turn", "turn", "moving", "moving", "full", "quiet", "end")
        wanted = [
            ScheduledSnapshot(rng.randint(0, rng.choice(_TURNS)), rng.choice(whens), self._stops.random() < _STOPS)
            for _ in range(rng.choice((0, 1, 2, 4)))
        ]
        return sorted(wanted, key=lambda request: request.turn)

    def size(self) -> int:
        """Return the number of workers of a run that resumes."""
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
        """Return the next action. Each action keeps its speed for the whole run."""
        speeds = self._speeds
        for action in actions:
            if action not in speeds:
                speeds[action] = self._rng.choice(_SPEEDS)
        return self._rng.choices(actions, [speeds[action] for action in actions])[0]
