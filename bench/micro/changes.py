"""What snapshots cost a step: to note which keys change, to write them, to merge a chain, to take it over again.

Change tracking is compared with the same step without it, in turn; writing and loading with one msgpack of the same
states in one piece, which can neither be read by slot nor written in part; merging with a copy of the chain.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

import msgpack

from bench.micro.inputs import SEED
from bench.micro.state import BATCH_ROWS, a_step, asking, filling
from bench.micro.timing import Spread, WrongResult, ratios, spread
from malstrom_py.codec import Codec
from malstrom_py.data.messages import AbsBarrier
from malstrom_py.rescale.slots import StableSlots
from malstrom_py.state.artefact import merged
from malstrom_py.state.keyed_state import KeyedState

KEYS: Final = 100_000
CHANGED: Final = (1_000, 10_000)
CHAIN: Final = 8
US_BUDGET: Final = 1.5
SLOTS: Final = 1024

KINDS: Final[dict[str, tuple[Callable[[int], Any], Callable[[int], Any]]]] = {
    "int -> int": (lambda number: number, lambda number: number * 7),
    "str -> (int, float)": ("user-{:07d}".format, lambda number: (number, number / 3)),
    "str -> 100 bytes": ("user-{:07d}".format, lambda number: f"{number:0100d}"),
}
"""What of what: a key and a state of a number."""


def noting(lookups: int, reps: int) -> str:
    """Lookups and updates of a step that is tracked, after a barrier that wrote everything, and of one that is not."""
    steps = {"tracked": a_step(), "not tracked": a_step()}
    tracked = steps["tracked"][0].state
    tracked.track(StableSlots(SLOTS).slots_of)
    for _, take in steps.values():
        for batch in filling(KEYS):
            take(batch)
    batches = asking(KEYS, lookups)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(reps + 1):
        tracked.artefact(AbsBarrier(str(number), _NOWHERE, None))
        for name, (_, take) in steps.items():
            started = perf_counter()
            for batch in batches:
                take(batch)
            if number:  # the first round only warms up
                seconds[name].append(perf_counter() - started)
    more = spread([(a - b) / lookups * 1e9 for a, b in zip(*seconds.values(), strict=True)])
    slower = ratios(seconds["tracked"], seconds["not tracked"])
    return f"noting changes, {KEYS:,} int keys: {more.show(0)} ns per record, {slower.show()} of not tracked"


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    gc.collect()
    started = perf_counter()
    made = call()
    return perf_counter() - started, made


def writing(kind: str, reps: int) -> list[str]:
    """Lines about one kind of state."""
    key_of, value_of = KINDS[kind]
    figures: dict[str, list[float]] = {}

    def note(what: str, figure: float) -> None:
        figures.setdefault(what, []).append(figure)

    for _ in range(reps):
        state, slots = KeyedState("bench", Codec()), StableSlots(SLOTS)
        state.values.update((key_of(number), value_of(number)) for number in range(KEYS))
        slots.slots_of(list(state.values))  # they are known from when records came
        state.track(slots.slots_of)
        packed_s, packed = timed(lambda: msgpack.packb(list(state.values.items())))  # noqa: B023  called immediately
        full_s, full = timed(lambda: state.artefact(AbsBarrier("full", _NOWHERE)))  # noqa: B023
        note("full", full_s / KEYS * 1e6)
        note("full of msgpack", full_s / packed_s)
        chain, parent = [full], "full"
        for number in range(CHAIN):
            changed = CHANGED[number % len(CHANGED)]
            _change(state, [key_of(one) for one in random.Random(SEED + number).sample(range(KEYS), changed)])
            barrier = AbsBarrier(f"delta-{number}", _NOWHERE, parent)
            delta_s, delta = timed(lambda: state.artefact(barrier))  # noqa: B023
            note(f"{changed:,} changed", delta_s / changed * 1e6)
            note(f"pause of {changed:,}", delta_s * 1e3)
            chain.append(delta)
            parent = barrier.snapshot
        merged_s, base = timed(lambda: merged(chain))  # noqa: B023
        note("merged", sum(map(len, chain)) / merged_s / 1e6)
        taker = KeyedState("bench", Codec())
        taken_s, _ = timed(lambda: taker.install([base], range(SLOTS)))  # noqa: B023
        unpacked_s, _ = timed(lambda: dict(msgpack.unpackb(packed, use_list=False, strict_map_key=False)))  # noqa: B023
        note("taken over", taken_s / KEYS * 1e6)
        note("taken over of msgpack", taken_s / unpacked_s)
        if taker.values != state.values:
            raise WrongResult(f"what was taken over is not what there was ({kind})")
    cost: dict[str, Spread] = {what: spread(some) for what, some in figures.items()}
    parts = ", ".join(f"{cost[f'{n:,} changed'].show()} where {n:,} changed" for n in CHANGED)
    pauses = ", ".join(f"{cost[f'pause of {n:,}'].show(1)} ms for {n:,}" for n in CHANGED)
    verdict = "hit" if cost["full"].median <= US_BUDGET else "MISS"
    merging, taking = cost["merged"].show(0), cost["taken over"].show()
    return [
        f"{kind}, {KEYS:,} keys: µs per entry {cost['full'].show()} in full, budget <= {US_BUDGET}, {verdict}; {parts}",
        f"{kind}: in full {cost['full of msgpack'].show()} of one msgpack of all",
        f"{kind}: a barrier takes {pauses}",
        f"{kind}: a chain of {CHAIN} deltas is merged at {merging} MB/s",
        f"{kind}: taken over at {taking} µs per entry, {cost['taken over of msgpack'].show()} of one msgpack of all",
    ]


def _change(state: KeyedState, keys: list[Any]) -> None:
    state.note(keys)
    for start in range(0, len(keys), BATCH_ROWS):
        some = keys[start : start + BATCH_ROWS]
        state.values.update(zip(some, reversed([state.values[key] for key in some]), strict=True))


class _Nowhere:
    def persist(self, operator: str, state: bytes) -> None:
        """What is written is returned."""


_NOWHERE: Final = _Nowhere()


def measure_changes(lookups: int, reps: int) -> list[str]:
    """What snapshots cost a step, in lines of text."""
    return [noting(lookups, reps), *(line for kind in KINDS for line in writing(kind, reps))]
