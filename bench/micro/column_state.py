"""What state in arrays costs at rest and on the way, as ratios of the same state by rows in the same run.

A step with the count and the sum of 100,000 keys takes the same records in columns and in rows; then both are persisted
in full and in part, restored, and moved to another worker in the chunks of a rescale. Contents are compared first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import process_time
from typing import Any, Final

from bench.micro.timing import WrongResult, ratios, spread
from malstrom_py import agg
from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import AbsBarrier, Collect, Interrogate
from malstrom_py.operators.aggregate import Aggregate
from malstrom_py.operators.base import Outlet, StepContext
from malstrom_py.rescale.slots import StableSlots
from malstrom_py.state.artefact import entries_in, merged
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.workers.engine.state_transfer import COLUMN_KEYS_MAX, KEYS_MAX, ColumnShare, KeyIndex

KEYS: Final = 100_000
DIRTY: Final = 10_000
SLOTS: Final = 1024
LEAVING: Final = range(0, SLOTS, 2)


class _Nowhere:
    def send(self, message: Any, port: int = 0) -> None:
        """What is sent is not looked at."""

    def persist(self, operator: str, state: bytes) -> None:
        """What is written is returned."""


_NOWHERE: Final = _Nowhere()


class _Step:
    """The step, its state tracked, whose records are columns or rows."""

    def __init__(self, *, by_column: bool) -> None:
        context = StepContext("bench", "figures", codec=Codec())
        self.operator = Aggregate(context, aggregations={"n": agg.count(), "total": agg.sum("v")})
        self.state: KeyedState = self.operator.state
        self.slots_of = StableSlots(SLOTS).slots_of
        self.operator.track(self.slots_of)
        self._by_column = by_column

    def take(self, numbers: range) -> None:
        import pyarrow as pa

        keys, values = [f"user-{number:07d}" for number in numbers], [number / 3 for number in numbers]
        batch: Batch = ColumnBatch(pa.RecordBatch.from_pydict({"v": values}), key_column=pa.array(keys))
        if not self._by_column:
            batch = Batch([{"v": value} for value in values], keys=keys)
        out: Outlet = _NOWHERE  # type: ignore[assignment]
        self.operator.on_batch(batch, out)

    def barrier(self, snapshot: str, parent: str | None = None) -> bytes:
        return self.state.artefact(AbsBarrier(snapshot, _NOWHERE, parent))

    def listed(self) -> Callable[[], list[bytes]]:
        """Find the keys that leave, and return what takes their state in chunks."""
        if self._by_column:
            share = ColumnShare(self.state, LEAVING, self.slots_of)
            return partial(self._shares, share)
        message = Interrogate()
        self.state.handle(message)
        index = KeyIndex(self.slots_of, message.keys)
        index.put(len(message.keys))
        return partial(self._collected, [key for slot in LEAVING for key in index.of(slot)])

    @staticmethod
    def _shares(share: ColumnShare) -> list[bytes]:
        chunks, room = [], COLUMN_KEYS_MAX
        for slot in LEAVING:
            while share.count(slot):
                room -= share.choose(slot, room)
                if not room:
                    chunks.append(share.take())
                    room = COLUMN_KEYS_MAX
        chunks.append(share.take())
        return [chunk for chunk in chunks if chunk is not None]

    def _collected(self, keys: list[Any]) -> list[bytes]:
        messages = [Collect(dict.fromkeys(keys[at : at + KEYS_MAX]).keys()) for at in range(0, len(keys), KEYS_MAX)]
        for message in messages:
            self.state.handle(message)
        return [message.states["figures"] for message in messages]


def _measured(*, by_column: bool, seconds: dict[str, list[float]]) -> Any:
    """Do all once; return what must be equal."""
    step, taker, mover = (_Step(by_column=by_column) for _ in range(3))

    def timed(what: str, call: Callable[[], Any]) -> Any:
        started = process_time()
        made = call()
        seconds.setdefault(what, []).append(process_time() - started)
        return made

    step.take(range(KEYS))
    step.slots_of([f"user-{number:07d}" for number in range(KEYS)])  # they are known from when records came
    full = timed("full", lambda: step.barrier("s1"))
    step.take(range(0, KEYS, KEYS // DIRTY))
    delta = timed("delta", lambda: step.barrier("s2", "s1"))
    base = timed("merged", lambda: merged([full, delta]))
    timed("restored", lambda: taker.operator.install([base], range(SLOTS)))
    take = timed("listed", step.listed)
    chunks = timed("taken", take)

    def install() -> None:
        for chunk in chunks:
            mover.state.acquire(chunk)

    timed("installed", install)
    content = {entry.key: entry.value for entry in entries_in([base], Codec())}
    if dict(taker.state.values) != content or {**dict(step.state.values), **dict(mover.state.values)} != content:
        raise WrongResult("what was restored or moved is not what there was")
    return content, len(mover.state.values)


def measure_column_state(reps: int) -> list[str]:
    """What state in arrays costs, in lines of text."""
    seconds: dict[bool, dict[str, list[float]]] = {True: {}, False: {}}
    moved = 0
    for _ in range(reps):
        columns, moved = _measured(by_column=True, seconds=seconds[True])
        rows, _ = _measured(by_column=False, seconds=seconds[False])
        if columns != rows:
            raise WrongResult("columns are not rows")
    lines = []
    for what, count in (
        ("full", KEYS),
        ("delta", DIRTY),
        ("merged", KEYS),
        ("restored", KEYS),
        ("listed", KEYS),
        ("taken", moved),
        ("installed", moved),
    ):
        rate = spread([count / one / 1e6 for one in seconds[True][what]])
        ratio = ratios(seconds[False][what], seconds[True][what])
        lines.append(f"{what}, {count:,} keys in arrays: {rate.show()} M keys/s, {ratio.show()} times as fast as rows")
    return lines
