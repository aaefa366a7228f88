"""The capture of one worker's state at a barrier, and its durable writing.

Rule: most of the state is packed before the barrier, between batches (`PackingAhead`). The rest is captured step by
step while the barrier passes the regions; the image is complete after the last region, and immutable. Capturing pauses
the worker; writing runs in the background and touches only the image and the store. When `save` returns, everything is
durable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import sleep
from typing import Any, Final, TypeVar

from malstrom_py.clock import Clock
from malstrom_py.codec import Codec
from malstrom_py.data.messages import AbsBarrier
from malstrom_py.errors import FencedError, SnapshotError
from malstrom_py.operators.base import Operator
from malstrom_py.operators.event_time import GenerateEpochs
from malstrom_py.operators.keyed import StatefulOperator
from malstrom_py.operators.read_source import ReadSource
from malstrom_py.operators.write_sink import WriteSink
from malstrom_py.rescale.channels.channel import Barrier
from malstrom_py.rescale.moves.protocol import PackAhead, PackedAhead
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.checkpointer import Checkpointer, save_pieces
from malstrom_py.snapshot.manifest import Artefact, Kind, artefact_path
from malstrom_py.state.ahead_of_barrier import AheadOfBarrier, PackedPart, split
from malstrom_py.workers.transport.messages import Positions, Saved


@dataclass(frozen=True, slots=True)
class CapturedState:
    """The image of ``worker`` at the barrier of ``snapshot``.

    ``states``: step -> its keyed state, as an artefact. ``sources``: step -> the positions of its parts. ``parts``:
    step -> its state for each part, by the part's name. ``frontiers``: exchange -> the epoch that it has passed.
    ``payloads``: sink and pre-committed payload. ``paused_s``: the time that the capture took. ``packed``: step -> what
    was packed ahead, relative to which its state is.
    """

    snapshot: str
    worker: int
    states: Mapping[str, bytes] = field(repr=False, hash=False)
    sources: Mapping[str, Positions] = field(repr=False, hash=False)
    parts: Mapping[str, Mapping[str, Any]] = field(repr=False, hash=False)
    frontiers: Mapping[str, int] = field(hash=False)
    payloads: tuple[tuple[str, bytes], ...] = field(repr=False)
    paused_s: float = 0.0
    packed: Mapping[str, Sequence[PackedPart]] = field(default_factory=dict, repr=False, hash=False)


_TURNS: Final = 4
"""Of so many turns one is for batches, if packing comes first."""


_PACKS_S: Final = 0.02
"""How long a turn of a worker packs at most, if the rest of it took as long: few keys in each of long turns would take
a snapshot of a million keys a minute."""


class PackingAhead:
    """What a worker with ``operators`` packs ahead of a barrier. ``keys_max``: of one step; by default as fits."""

    def __init__(self, order: PackAhead, operators: Mapping[str, Operator], keys_max: int | None = None) -> None:
        found = [one.packs_ahead for one in operators.values() if isinstance(one, StatefulOperator)]
        states = [state for state in found if state is not None and state.tracked]
        self._snapshot = order.snapshot
        self._states = [state.pack_ahead(order.snapshot, order.parent, keys_max=keys_max) for state in states]
        self._is_reported = self._has_looked = False
        self._turn = 0

    @property
    def under_way(self) -> bool:
        """Whether something is to be packed, or reported."""
        return not self._is_reported or any(state.under_way for state in self._states)

    def comes_first(self) -> bool:
        """Return whether this turn of the worker is for packing alone, as state changes as fast as this packs it.

        Not while other workers are waited for: batches wait as long then.
        """
        self._turn = (self._turn + 1) % _TURNS
        if self._is_reported:
            for state in self._states:
                if self._turn == 0 or not state.in_arrays:  # arrays take some milliseconds to find what has changed
                    state.keep_small()
            return False
        return self._turn != 0 and any(state.is_behind and state.under_way for state in self._states)

    def take_turn(self, worker: int, clock: Clock, began_s: float | None) -> PackedAhead | None:
        """Do `next` for as long as the rest of a turn, which began at ``began_s``, has taken; at least once."""
        now_s = clock.monotonic_s()
        until_s = now_s + (0.0 if began_s is None else min(_PACKS_S, now_s - began_s))
        while True:
            report = self.next(worker)
            if report is not None or not self.under_way or clock.monotonic_s() >= until_s:
                return report

    def next(self, worker: int) -> PackedAhead | None:
        """Pack the next keys of a step. Return the report of ``worker`` once little is left to the barrier."""
        state = self._next_state()
        if state is None and not self._has_looked:
            self._has_looked = True
            for one in self._states:
                one.keep_small()  # what has changed while others were packed
            state = self._next_state()
        if state is not None:
            state.next()
        elif not self._is_reported:
            self._is_reported = True
            return PackedAhead(self._snapshot, worker)
        return None

    def _next_state(self) -> AheadOfBarrier | None:
        """Return the state to pack: that of the fewest rounds, because while it is packed the others change."""
        return min((state for state in self._states if state.under_way), key=lambda state: state.rounds, default=None)


class SnapshotCapture:
    """A capture in progress: the backend of its barrier, which has to pass ``regions`` regions."""

    def __init__(self, barrier: Barrier, regions: int) -> None:
        self.barrier = barrier
        self._left = regions
        self.persisted: dict[str, bytes] = {}
        """The states so far, by step."""
        self._frontiers: dict[str, int] = {}
        self.paused_s = 0.0

    def persist(self, operator: str, state: bytes) -> None:
        """Add the state of one step."""
        self.persisted[operator] = state

    def passed(self, frontiers: Mapping[str, int], took_s: float) -> None:
        """Record that the barrier has passed one more region, and the ``frontiers`` of its exchanges before it."""
        self._left -= 1
        self._frontiers.update(frontiers)
        self.paused_s += took_s

    @property
    def is_complete(self) -> bool:
        """Whether the barrier has passed all regions."""
        return self._left == 0

    def cut(self, worker: int, operators: Mapping[str, Operator], codec: Codec) -> CapturedState:
        """Return the image of ``worker``, which runs ``operators``, by step."""
        sources: dict[str, Positions] = {}
        parts: dict[str, Mapping[str, Any]] = {}
        states: dict[str, bytes] = {}
        payloads: list[tuple[str, bytes]] = []
        packed: dict[str, Sequence[PackedPart]] = {}
        for step, operator in operators.items():
            persisted = self.persisted.get(step)
            if isinstance(operator, WriteSink):
                payloads += [(step, payload) for payload in operator.take_payloads()]
            elif persisted is None:
                continue
            elif isinstance(operator, ReadSource):
                images = codec.decode_at_rest(persisted, step=step)
                sources[step] = {part: (position, is_finished) for part, (position, is_finished) in images.items()}
            elif isinstance(operator, GenerateEpochs):
                parts[step] = codec.decode_at_rest(persisted, step=step)
            else:
                states[step] = persisted
                if isinstance(operator, StatefulOperator):
                    packed[step] = operator.state.take_packed()
        image = (states, sources, parts, self._frontiers, tuple(payloads))
        return CapturedState(self.barrier.snapshot, worker, *image, self.paused_s, packed)

    def abs_barrier(self, incarnation: int) -> AbsBarrier:
        """Return the barrier for operators."""
        return AbsBarrier(self.barrier.snapshot, self, self.barrier.parent, incarnation)


T = TypeVar("T")

_PAUSES_S: Final = (0.1, 0.5, 2.0)
"""The pauses before the retries of a failed store operation."""


def save(cut: CapturedState, checkpointer: Checkpointer) -> Saved:
    """Write ``cut`` with ``checkpointer``. `SnapshotError` if all retries fail."""
    artefacts = [
        _artefact(cut, step, part, checkpointer)
        for step, state in cut.states.items()
        for part in split(cut.packed.get(step, ()), state)
    ]
    return Saved(cut.snapshot, cut.worker, tuple(artefacts), cut.sources, cut.parts, cut.frontiers, cut.payloads)


def persistently(work: Callable[[], T]) -> T:
    """Run ``work``, retrying a few times when the store fails."""
    for pause_s in _PAUSES_S:
        try:
            return work()
        except FencedError:
            raise
        except SnapshotError:
            sleep(pause_s)
    return work()


def _artefact(cut: CapturedState, step: str, part: PackedPart, checkpointer: Checkpointer) -> Artefact:
    snapshot = SnapshotId(cut.snapshot)
    kind: Kind = "delta" if part.is_delta else "full"
    sha256, size = persistently(lambda: save_pieces(checkpointer, snapshot, step, cut.worker, kind, part.made))
    return Artefact(step, cut.worker, kind, snapshot, artefact_path(snapshot, step, cut.worker, kind), size, sha256)
