"""Results that depend on the order of records have the order of arrival, and nothing that was sent changes later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest

import malstrom_py as mp
from malstrom_py import agg, sinks, sources, windows
from malstrom_py.data.messages import DataMessage, Epoch
from malstrom_py.testing import OperatorTester, check_operator
from malstrom_py.windows import Session, Sliding, Windows

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
HOW: Final[dict[str, Callable[[Windowed], Any]]] = {
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


def windows_with(kind: Windows, times: Sequence[int]) -> list[tuple[int, int]]:
    """Return the windows that have one of ``times``, in the order in which they close."""
    if isinstance(kind, Sliding):
        size, step, origin = kind.in_unit("ms", "test")
        starts = {
            first - back * step
            for time in times
            for back in range(size // step + 1)
            for first in [(time - origin) // step * step + origin]
        }
        found = [(start, start + size) for start in starts if any(start <= time < start + size for time in times)]
        return sorted(found)
    assert isinstance(kind, Session)
    gap, runs = kind.in_unit("ms", "test"), list[list[int]]()
    for time in sorted(times):
        if runs and time - runs[-1][-1] < gap:
            runs[-1].append(time)
        else:
            runs.append([time])
    return [(run[0], run[-1] + gap) for run in runs]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", HOW)
def test_the_order_is_that_of_arrival_at_any_cut_and_after_any_move(kind: str, how: str) -> None:
    if kind == "session" and how == "fold without merge":
        with pytest.raises(mp.PlanError, match="merge="):
            mp.collect(stream_of([]).window("step", KINDS[kind]).fold(append, default=list))
        return

    def oracle(records: list[DataMessage[Any, Any]]) -> list[Any]:
        spans = windows_with(KINDS[kind], [record.timestamp or 0 for record in records])
        insides = [[r.value for r in records if start <= (r.timestamp or 0) < end] for start, end in spans]
        return [wanted(how, inside) for inside in insides]

    check_operator(
        lambda s: HOW[how](s.window("step", KINDS[kind])).map("value", lambda r: r.value),
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


def test_sessions_that_join_have_the_order_of_arrival() -> None:
    rows = [(0, "a"), (6, "b"), (1, "c"), (7, "d"), (4, "e"), (5, "f")]
    for rows_max in (1, 2, 100):
        letters = stream_of(rows).window("visits", windows.session(4)).reduce(lambda earlier, later: earlier + later)
        assert [found.value for found in mp.collect(letters, batch=mp.Batching(rows_max=rows_max))] == ["abcdef"]


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
