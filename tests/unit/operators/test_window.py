"""Windows against a definition of what belongs to which; the order of arrival; and what they keep in memory."""

from __future__ import annotations

import gc
import operator
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import agg, sinks, sources, windows
from malstrom_py.data.messages import MAX_EPOCH, DataMessage, Epoch
from malstrom_py.errors import PlanError
from malstrom_py.operators.time_windows import TimeWindows
from malstrom_py.operators.window import SessionWindows
from malstrom_py.testing import OperatorTester, check_operator
from malstrom_py.windows import Windows

BOUND: Final = 8
Row = tuple[str, int, int]
"""A key, a time, and a number."""

ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-30, 60), st.integers(-5, 5)), max_size=40)
WINDOWS: Final[dict[str, Windows]] = {
    "tumbling": windows.tumbling(10),
    "tumbling, origin": windows.tumbling(7, origin=-3),
    "sliding": windows.sliding(12, 4),
    "sliding, odd": windows.sliding(5, 2, origin=1),
    "session": windows.session(6),
}


def on_time(rows: list[Row]) -> list[Row]:
    """Return the rows that are not late in one part."""
    kept, epoch = [], -(1 << 62)
    for row in rows:
        if row[1] > epoch:
            kept.append(row)
            epoch = max(epoch, row[1] - BOUND - 1)
    return kept


def spans(kind: Windows, times: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the windows that have one of ``times``, all of one key."""
    if isinstance(kind, windows.Sliding):
        size, step, origin = kind.in_unit("ms", "test")
        low, high = min(times, default=0), max(times, default=0)
        for start in range(origin + (low - size - origin) // step * step, high + 1, step):
            if any(start <= time < start + size for time in times):
                yield start, start + size
        return
    assert isinstance(kind, windows.Session)
    gap, run = kind.in_unit("ms", "test"), list[int]()
    for time in [*sorted(times), 1 << 62]:
        if run and time - run[-1] >= gap:
            yield run[0], run[-1] + gap
            run = []
        run.append(time)


def expected(kind: Windows, rows: list[Row], value: Callable[[list[int]], Any]) -> Counter[Any]:
    """Return (key, window) -> how often it comes out: once."""
    by_key = defaultdict[str, list[Row]](list)
    for row in rows:
        by_key[row[0]].append(row)
    found: Counter[Any] = Counter()
    for key, own in by_key.items():
        for start, end in spans(kind, [time for _, time, _ in own]):
            inside = [number for _, time, number in own if start <= time < end]
            found[key, start, end, repr(value(inside))] += 1
    return found


def job_of(kind: Windows, rows: list[Row], gather: Callable[[Any], Any], *, parts: int = 1, **options: Any) -> Any:
    """Return a job of these windows, and its sink."""
    job, out = mp.Job("windows"), sinks.Memory()
    timed = job.source("rows", sources.Memory(rows, parts=parts)).assign_timestamps("time", lambda row: row[1])
    kept, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(BOUND))
    keyed = kept.key_by("key", lambda row: row[0]).map("number", lambda row: row[2])
    gather(keyed.window("window", kind, **options)).sink("out", out)
    return job, out


def found(out: sinks.Memory) -> Counter[Any]:
    """Return the final results as `expected` does."""
    return Counter(
        (key, result.start, result.end, repr(result.value))
        for key, results in out.by_key.items()
        for result in results
        if not result.update
    )


def in_any_order(numbers: list[int], number: int) -> list[int]:
    return sorted([*numbers, number])


HOW: Final[dict[str, tuple[Callable[[Any], Any], Callable[[list[int]], Any]]]] = {
    "count": (lambda w: w.count(), len),
    "sum": (lambda w: w.sum(), sum),
    "max": (lambda w: w.max(), max),
    "min": (lambda w: w.min(), min),
    "mean": (lambda w: w.mean(), lambda numbers: sum(numbers) / len(numbers)),
    "two": (
        lambda w: w.aggregate(n=agg.count(), total=agg.sum()),
        lambda numbers: {"n": len(numbers), "total": sum(numbers)},
    ),
    "aggregate": (
        lambda w: w.aggregate(n=agg.count(), total=agg.sum(), least=agg.min()),
        lambda numbers: {"n": len(numbers), "total": sum(numbers), "least": min(numbers)},
    ),
    "reduce": (lambda w: w.reduce(operator.add), sum),
    "collect": (lambda w: w.collect().map("sorted", lambda r: r._replace(value=sorted(r.value))), sorted),
    "fold": (
        lambda w: w.fold(in_any_order, default=list, merge=lambda left, right: sorted(left + right)),
        sorted,
    ),
}


@pytest.mark.parametrize("kind", WINDOWS)
@settings(max_examples=40, deadline=None)
@given(rows=ROWS, how=st.sampled_from(sorted(HOW)), batch=st.sampled_from((1, 3, 1024)), workers=st.integers(1, 2))
def test_each_record_is_in_its_windows(kind: str, rows: list[Row], how: str, batch: int, workers: int) -> None:
    gather, value = HOW[how]
    job, out = job_of(WINDOWS[kind], rows, gather)
    mp.run(job, workers=workers, batch=mp.Batching(rows_max=batch), progress=False, checks=True)
    assert found(out) == expected(WINDOWS[kind], on_time(rows), value)


def test_none_is_left_out_of_windows_as_in_sql() -> None:
    def values(gather: Callable[[Any], Any]) -> list[Any]:
        job, out = job_of(WINDOWS["tumbling"], [("a", 1, 2), ("a", 2, 0), ("a", 3, 3), ("b", 4, 0)], gather)
        mp.run(job, progress=False)
        return [result.value for result in out.items]

    def known(number: int) -> int | None:
        return number or None

    assert values(lambda w: w.sum(known, skip_nulls=True)) == [5, None]
    figures = {"n": agg.count(known, skip_nulls=True), "total": agg.sum(known, skip_nulls=True)}
    assert values(lambda w: w.aggregate(**figures)) == [{"n": 2, "total": 5}, {"n": 0, "total": None}]


@settings(max_examples=40, deadline=None)
@given(rows=ROWS, batch=st.sampled_from((1, 3, 1024)))
def test_sliding_windows_of_a_fold_that_cannot_be_merged_are_kept_whole(rows: list[Row], batch: int) -> None:
    kind = windows.sliding(5, 2)
    job, out = job_of(kind, rows, lambda w: w.fold(in_any_order, default=list))
    mp.run(job, batch=mp.Batching(rows_max=batch), progress=False)
    assert found(out) == expected(kind, on_time(rows), sorted)


def steady() -> list[Row]:
    """Return rows that are out of order by up to `BOUND`, with gaps between sessions; some keys come once."""
    return [
        (
            f"once-{number}" if number % 9 == 0 else f"k{number * 7 % 5}",
            number // 2 + number // 40 * 20 + (BOUND + 1, 0, 5, 1)[number // 2 % 4],
            number % 7,
        )
        for number in range(200)
    ]


def one_side_of_a_session(right: Any) -> Any:
    """Two sessions that join keep what one of them had."""
    return lambda step, near: near[0][2]


def too_early(right: Any) -> Any:
    """Windows close one unit before the epoch reaches their last moment."""
    return lambda step, reached, out: right(step, min(reached + 1, MAX_EPOCH), out)


@pytest.mark.parametrize(
    ("place", "method", "of"),
    [(SessionWindows, "_joined", one_side_of_a_session), (TimeWindows, "close", too_early)],
)
def test_a_wrong_window_is_seen(place: Any, method: str, of: Callable[[Any], Any]) -> None:
    """`tests/laws/test_wrong_states.py` has those that keep or move their state wrongly."""
    kind = WINDOWS["session" if place is SessionWindows else "sliding, odd"]
    job, out = job_of(kind, steady(), lambda w: w.sum())
    with patch.object(place, method, of(getattr(place, method))):
        mp.run(job, batch=mp.Batching(rows_max=1), progress=False)
    assert found(out) != expected(kind, steady(), sum)


def test_early_results_are_marked_and_the_last_is_final() -> None:
    rows = [("a", time, 1) for time in range(25)]
    for emit, updates in ((4, {4, 8}), (timedelta(milliseconds=5), {5, 10})):
        job, out = job_of(windows.tumbling(10), rows, lambda w: w.count(), emit=emit)
        mp.run(job, batch=mp.Batching(rows_max=1), progress=False)
        early = [result for result in out.by_key["a"] if result.update]
        assert {result.value for result in early if result.start == 0} <= updates | {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
        assert early
        assert [tuple(result) for result in out.by_key["a"] if not result.update] == [
            (0, 10, 10, False),
            (10, 20, 10, False),
            (20, 30, 5, False),
        ]


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("kind", [windows.tumbling(10), windows.sliding(10, 5), windows.session(10), windows.count(2)])
def test_windows_of_what_is_sent_at_the_end_come_too(kind: Windows, *, columns: bool) -> None:
    """An incomplete window by count ends after all epochs, and a window that would end after the last moment closes."""
    times = mp.Job("ends").source("rows", sources.Memory([{"key": "a", "at": 5}, {"key": "b", "at": 50}]))
    timed = times.assign_timestamps("at", "at")
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(0))
    threes = on_time.key_by("key", "key").window("threes", windows.count(3)).count()
    last = threes.map("n", lambda window: {"n": window.value})
    if columns:
        last = last.select("columns", "n")
    found = mp.collect(last.window("last", kind).sum("n"), batch=mp.Batching(rows_max=1))
    per_key = 2 if kind == windows.sliding(10, 5) else 1
    assert [result.value for result in found] == [1] * 2 * per_key


def test_an_origin_that_is_not_a_whole_number_of_the_unit_is_refused() -> None:
    half = datetime(2026, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)
    for kind in (windows.tumbling(10, origin=half), windows.sliding(10, 5, origin=half)):
        with pytest.raises(PlanError, match=r"step 'w': the origin 2026-01-01 .* is not a whole number of s, the unit"):
            kind.in_unit("s", "w")
    assert windows.tumbling(1000, origin=half).in_unit("ms", "w") == (1000, 1000, 500)


# Order of arrival


KINDS: Final[dict[str, Windows]] = {
    "tumbling": windows.tumbling(6),
    "sliding": windows.sliding(8, 4),
    "sliding, odd": windows.sliding(5, 2, origin=1),
    "session": windows.session(4),
}


def append(values: Sequence[Any], value: Any) -> list[Any]:
    return [*values, value]


def extend(values: list[Any], more: list[Any]) -> list[Any]:
    """Change the first argument, as it must not."""
    values.extend(more)
    return values


def pushed(values: list[Any], value: Any) -> list[Any]:
    values.append(value)
    return values


def unsorted(values: list[Any]) -> list[Any]:
    return values


Windowed = Any
GATHERED: Final[dict[str, Callable[[Windowed], Any]]] = {
    "collect": lambda w: w.collect(),
    "reduce": lambda w: w.reduce(lambda earlier, later: earlier + later),
    "reduce that extends": lambda w: w.reduce(extend),
    "fold and merge": lambda w: w.fold(lambda values, one: [*values, *one], default=list, merge=lambda a, b: a + b),
    "fold that appends, merge that extends": lambda w: w.fold(extend, default=list, merge=extend),
    "first and last": lambda w: w.aggregate(first=agg.first(), last=agg.last()),
    "custom": lambda w: w.aggregate(all=agg.custom(list, append, extend, unsorted), n=agg.count()),
    "fold without merge": lambda w: w.fold(lambda values, one: [*values, *one], default=list),
}


def wanted(how: str, inside: list[list[int]]) -> Any:
    """Return the value of a window with the values ``inside``, in the order of arrival."""
    if how == "first and last":
        return {"first": inside[0], "last": inside[-1]}
    if how == "custom":
        return {"all": inside, "n": len(inside)}
    return inside if how == "collect" else [number for value in inside for number in value]


@pytest.mark.long(
    but=("*-sliding", "collect-*", "custom-session", "reduce that extends-session", "fold without*-session")
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", GATHERED)
def test_the_order_is_that_of_arrival_at_any_cut_and_after_any_move(kind: str, how: str) -> None:
    if kind == "session" and how == "fold without merge":
        with pytest.raises(mp.PlanError, match="merge="):
            mp.collect(stream_of([]).window("step", KINDS[kind]).fold(append, default=list))
        return

    def oracle(records: list[DataMessage[Any, Any]]) -> list[Any]:
        closed = sorted(spans(KINDS[kind], [record.timestamp or 0 for record in records]))
        insides = [[r.value for r in records if start <= (r.timestamp or 0) < end] for start, end in closed]
        return [wanted(how, inside) for inside in insides]

    check_operator(
        lambda s: GATHERED[how](s.window("step", KINDS[kind])).map("value", lambda r: r.value),
        timed=True,
        keys=["a", "b"],
        values=[[number] for number in range(9)],
        oracle=oracle,
        in_order=True,
        max_examples=12,
    )


def stream_of(rows: list[tuple[int, Any]]) -> Any:
    timed = mp.Job("order").source("rows", sources.Memory(rows)).assign_timestamps("at", lambda row: row[0])
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(100))
    return on_time.key_by("all", lambda row: 0).map("value", lambda row: row[1])


def test_a_join_of_sessions_that_join_pairs_in_the_order_of_arrival() -> None:
    def join(left: Any, right: Any) -> Any:
        return left.join("step", right, window=windows.session(4))

    tester = OperatorTester(join, keyed=True, timed=True, inputs=2)
    tester.send_local([("a", name, at) for at, name in ((0, "a"), (6, "b"), (1, "c"), (4, "d"))], input=0)
    tester.send_local([("a", "x", 5)], input=1).send_local(Epoch(100)).step()
    found = [message.value for message in tester.receive_local() if isinstance(message, DataMessage)]
    assert found == [("a", "x"), ("b", "x"), ("c", "x"), ("d", "x")]


def test_a_session_goes_on_after_a_snapshot_without_numbers() -> None:
    """Two sessions as they were stored before runs had numbers: they have the order of time, and then of arrival."""
    tester = OperatorTester(lambda s: s.window("visits", windows.session(4)).collect(), keyed=True, timed=True)
    tester.send_local([("a", "x", 0), ("a", "y", 6)]).step()
    state = tester.states["visits"]
    state.values["a"] = [[0, 0, ["x"]], [6, 6, ["y"]]]
    found = tester.send_local([("a", "z", 7), ("a", "w", 3)], Epoch(100)).step().receive_local()
    assert [message.value.value for message in found if isinstance(message, DataMessage)] == [["x", "y", "z", "w"]]


def test_sliding_windows_go_on_after_a_snapshot_without_numbers() -> None:
    tester = OperatorTester(lambda s: s.window("hops", windows.sliding(8, 4)).collect(), keyed=True, timed=True)
    tester.states["hops"].values.update({"a": {0: ["x"], 4: ["y"]}})
    found = tester.send_local([("a", "z", 1), ("a", "w", 5)], Epoch(100)).step().receive_local()
    values = [message.value.value for message in found if isinstance(message, DataMessage)]
    assert values == [["x", "z"], ["x", "y", "z", "w"], ["y", "w"]]


def test_early_results_do_not_change_when_a_fold_appends() -> None:
    for kind in (windows.tumbling(100), windows.sliding(100, 50), windows.session(50)):
        windowed = stream_of([(1, "a"), (2, "b"), (3, "c")]).window("step", kind, emit=1)
        found = mp.collect(windowed.fold(pushed, default=list, merge=extend), batch=mp.Batching(rows_max=1))
        early = [result.value for result in found if result.update and result.start >= 0]
        assert early == [["a"], ["a", "b"], ["a", "b", "c"]]


def test_a_window_does_not_change_the_values_that_came_in() -> None:
    """Another branch has the same values."""
    stream = stream_of([(1, [1]), (2, [2]), (3, [3])])
    for number, kind in enumerate((windows.tumbling(10), windows.sliding(10, 5), windows.session(5), windows.count(3))):
        stream.window(f"{number}", kind).reduce(extend).sink(f"out-{number}", sinks.Memory())
    both = sinks.Memory()
    stream.sink("both", both)
    mp.run(stream.job, progress=False, checks=True)
    assert both.items == [[1], [2], [3]]


# Memory


KEYS = 20
LONG = 40
"""How many times the first rounds follow: far more than a leak of one object per window and key could hide in."""

STEPS: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda s: s.window("w", windows.tumbling(10)).aggregate(n=agg.count(), total=agg.sum()),
    "tumbling, early": lambda s: s.window("w", windows.tumbling(10), emit=3).count(),
    "sliding": lambda s: s.window("w", windows.sliding(30, 10)).sum(),
    "sliding, whole": lambda s: s.window("w", windows.sliding(30, 10)).fold(lambda a, b: a + b, default=int),
    "session": lambda s: s.window("w", windows.session(5)).collect(),
    "session, early": lambda s: s.window("w", windows.session(5), emit=2).count(),
    "ttl": lambda s: s.count("w", ttl=20),
    "ttl, op": lambda s: s.stateful_op("w", lambda message, state, output: (state or 0) + 1, ttl=20),
}


def rounds(first: int, last: int) -> Iterator[Any]:
    """Each round is ten units of time with a record of some keys, which differ in each, and the epoch after it."""
    for number in range(first, last):
        yield [DataMessage(f"{number}-{key}", key, 10 * number + key % 4 + 1) for key in range(KEYS)]
        yield [DataMessage(f"always-{key}", key, 10 * number + 2) for key in range(3)]
        yield Epoch(10 * number + 9)


def weight_of(thing: object) -> int:
    """Return the size of all that a step keeps, in bytes: what is reachable from its state and from itself."""
    seen, left, total = set[int](), [thing], 0
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, type) or callable(one):
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        left += gc.get_referents(one)
    return total


def held(tester: OperatorTester) -> tuple[int, int]:
    """Return the number of keys with state, and the weight of the state."""
    (state,) = tester.states.values()
    return len(state.keys()), weight_of([state.values, state.timers, state.clock_timers, state.expiry])


@pytest.mark.parametrize("step", STEPS)
def test_what_a_step_keeps_depends_on_what_is_open_and_not_on_the_length_of_the_run(step: str) -> None:
    tester = OperatorTester(STEPS[step], keyed=True, timed=True, checks=False)
    for message in rounds(0, 10):
        tester.send_local(message).step()
    before = held(tester)
    for message in rounds(10, 10 + 10 * LONG):
        tester.send_local(message).step()
    tester.receive_local()
    keys, weight = held(tester)
    assert keys == before[0]
    assert weight <= 1.5 * before[1] + 20_000


def test_memory_of_early_results_goes_with_the_windows() -> None:
    tester = OperatorTester(STEPS["tumbling, early"], keyed=True, timed=True, checks=False)
    for message in rounds(0, 50):
        tester.send_local(message).step()
    operator = _operator_of(tester)
    assert len(operator._changed) <= 1


def _operator_of(tester: OperatorTester) -> Any:
    return tester._runner.operators["w"]
