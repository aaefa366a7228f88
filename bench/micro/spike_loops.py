"""The loops that `spikes` compares: ways to run a user's functions over batches, outside of any job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import compress
from typing import Any

from bench.micro.inputs import Bid
from bench.micro.timing import Variant
from bench.micro.workloads import Check, add, in_euros, key_of
from malstrom_py.operators.failures import kept_of, results_of, verdicts_of

ROWS = 1024
Batches = list[list[Any]]


def keyed_steps(update: Callable[[Iterator[Any], list[Any], dict[str, int]], None], batches: Batches) -> int:
    """key_by and stateful_map as two steps: a list of keys, then the loop over both lists."""
    states: dict[str, int] = {}
    total = 0
    for values in batches:
        keys: list[str] = []
        results_of(key_of, iter(values), keys)
        results: list[int] = []
        update(zip(keys, values, strict=True), results, states)
        total += sum(results)
    return total


def no_default() -> Callable[[], int] | None:
    """As when a step is not given one."""
    return None


def update_states(rows: Iterator[Any], results: list[Any], states: dict[str, int]) -> None:
    """The loop of stateful_map."""
    get = states.get
    default = no_default()
    for key, value in rows:
        state = get(key)
        if state is None and default is not None:
            state = default()
        result, state = add(key, value, state)
        if state is None:
            states.pop(key, None)
        else:
            states[key] = state
        results.append(result)


def update_without_default(rows: Iterator[Any], results: list[Any], states: dict[str, int]) -> None:
    """The same for steps that have no ``default``."""
    get = states.get
    for key, value in rows:
        result, state = add(key, value, get(key))
        if state is None:
            states.pop(key, None)
        else:
            states[key] = state
        results.append(result)


def fused_keyed(batches: Batches) -> int:
    """Both in one loop, as a generator of code would write it; the keys stay with the batch."""
    states: dict[str, int] = {}
    get = states.get
    default = no_default()
    total = 0
    for values in batches:
        keys: list[str] = []
        results: list[int] = []
        for value in values:
            key = key_of(value)
            state = get(key)
            if state is None and default is not None:
                state = default()
            result, state = add(key, value, state)
            if state is None:
                states.pop(key, None)
            else:
                states[key] = state
            keys.append(key)
            results.append(result)
        total += sum(results)
    return total


def plain_keyed(batches: Batches) -> int:
    """The loop that keeps nothing but the state."""
    states: dict[str, int] = {}
    get = states.get
    total = 0
    for values in batches:
        for value in values:
            key = key_of(value)
            result, states[key] = add(key, value, get(key))
            total += result
    return total


def price_of(bid: Bid) -> int:
    return bid[2]


def is_even(price: int) -> bool:
    return price % 2 == 0


def chain_steps(batches: Batches) -> int:
    """map, filter, map as three steps."""
    total = 0
    for values in batches:
        prices: list[int] = []
        results_of(price_of, iter(values), prices)
        even: list[int] = []
        kept_of(is_even, iter(prices), even)
        negative: list[int] = []
        results_of(abs, iter(even), negative)
        total += sum(negative)
    return total


def chain_fused() -> Variant:
    """The same as one comprehension, generated from the chain of steps."""
    code = "def run(values): return [abs(y) for x in values if is_even(y := price_of(x))]"
    names: dict[str, Any] = {"is_even": is_even, "price_of": price_of}
    exec(compile(code, "<fused>", "exec"), names)
    run = names["run"]
    return lambda batches: sum([sum(run(values)) for values in batches])


def over(loop: Callable[[list[Any]], list[Any]], batches: Batches) -> int:
    return sum([sum([row[2] for row in loop(values)]) for values in batches])


def by_append(values: list[Bid]) -> list[Any]:
    results: list[Any] = []
    results_of(in_euros, iter(values), results)
    return results


def by_extend(values: list[Bid]) -> list[Any]:
    results: list[Any] = []
    results.extend(map(in_euros, values))
    return results


def by_generator(values: list[Bid]) -> list[Any]:
    results: list[Any] = []
    results.extend(in_euros(value) for value in values)
    return results


def stop_at_3(value: int) -> int:
    if value == 3:
        raise StopIteration
    return value


class PlainSubclass(dict[Any, Any]):
    """A dict with room for attributes and without further methods."""


class TrackingSubclass(dict[Any, Any]):
    """A dict that notes which keys are assigned."""

    def __init__(self) -> None:
        self.dirty: set[Any] = set()

    def __setitem__(self, key: Any, value: Any) -> None:
        self.dirty.add(key)
        super().__setitem__(key, value)


def states_loop(make: Callable[[], dict[Any, Any]], track: str, pairs: Batches) -> int:
    """The two steps of W1 over the states that ``make`` makes; ``track``: per "batch", per "record" or not."""
    states, total = make(), 0
    get = states.get
    default = no_default()
    dirty: set[Any] = set()
    note = dirty.add if track == "record" else None
    for values in pairs:
        keys: list[str] = []
        results: list[int] = []
        results_of(key_of, iter(values), keys)
        if note is None:
            update_states(zip(keys, values, strict=True), results, states)
        else:
            for key, value in zip(keys, values, strict=True):
                state = get(key)
                if state is None and default is not None:
                    state = default()
                result, state = add(key, value, state)
                if state is None:
                    states.pop(key, None)
                else:
                    states[key] = state
                note(key)
                results.append(result)
        if track == "batch":
            dirty.update(keys)
        total += sum(results)
    return total


def count_each(make: Callable[[Any], object], rows: list[Any]) -> int:
    """Make an object of each row and drop it immediately."""
    count = 0
    for row in rows:
        make(row)
        count += 1
    return count


def any_timed(timed: Callable[[list[Any]], bool], batches: Batches) -> int:
    """Ask of every batch whether one of its records has a timestamp; none has."""
    timestamps: list[int | None] = [None] * ROWS
    return sum([timed(timestamps) for _ in batches])


def as_dict(bid: Bid) -> dict[str, Any]:
    return {"auction": bid[0], "bidder": bid[1], "price": bid[2] * 908 // 1000, "channel": bid[3]}


def dict_loop(rows: list[Bid]) -> Check:
    count = total = 0
    for row in rows:
        result = as_dict(row)
        count += 1
        total += result["price"]
    return count, total


def dict_total(values: list[Any]) -> int:
    return sum([value["price"] for value in values])


def by_kept(predicate: Callable[[Any], Any], columns: int, values: list[Any]) -> int:
    kept: list[Any] = []
    kept_of(predicate, iter(values), kept)
    return len(kept)


def by_mask(predicate: Callable[[Any], Any], columns: int, values: list[Any]) -> int:
    verdicts: list[Any] = []
    verdicts_of(predicate, iter(values), verdicts)
    return {len(list(compress(values, verdicts))) for _ in range(columns)}.pop()


def by_comprehension(predicate: Callable[[Any], Any], columns: int, values: list[Any]) -> int:
    return len([value for value in values if predicate(value)])


def by_indices(predicate: Callable[[Any], Any], columns: int, values: list[Any]) -> int:
    kept: list[int] = []
    for index, value in enumerate(values):
        if predicate(value):
            kept.append(index)
    return {len([values[index] for index in kept]) for _ in range(columns)}.pop()


def by_zip(predicate: Callable[[Any], Any], columns: int, values: list[Any]) -> int:
    """For three columns only."""
    kept: list[Any] = []
    keys: list[Any] = []
    times: list[Any] = []
    for value, key, time in zip(values, values, values, strict=True):
        if predicate(value):
            kept.append(value)
            keys.append(key)
            times.append(time)
    return len(kept)


def sums(select: Callable[..., int], predicate: Callable[[Any], Any], columns: int, batches: Batches) -> int:
    return sum([select(predicate, columns, values) for values in batches])
