"""Interval and as-of joins against a definition: in one process, and in the simulator with moves, losses, snapshots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.data.messages import MAX_EPOCH, DataMessage, Epoch
from malstrom_py.operators.time_join import TimeJoin
from malstrom_py.state.timers import Timers
from malstrom_py.testing import OperatorTester

BOUND: Final = 6
LAST: Final = MAX_EPOCH - 1

Row = tuple[str, int, int]
"""A key, a time and a number."""

ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.integers(0, 9)), max_size=15)


def between(lower: int, upper: int, how: Any) -> Callable[[list[Row], list[Row]], list[Any]]:
    """Return the definition of an interval join of the records of one key."""

    def pairs(left: list[Row], right: list[Row]) -> list[Any]:
        found: list[Any] = [
            ((one, other), max(one[1], other[1]))
            for one in left
            for other in right
            if lower <= other[1] - one[1] <= upper
        ]
        for one in left:
            if how != "inner" and not any(pair[0] == one for pair, _ in found):
                found.append(((one, None), one[1] + max(upper, 0)))
        for other in right:
            if how == "outer" and not any(pair[1] == other for pair, _ in found):
                found.append(((None, other), other[1] + max(-lower, 0)))
        return found

    return pairs


def as_of(direction: str, tolerance: int, how: str) -> Callable[[list[Row], list[Row]], list[Any]]:
    """Return the definition of an as-of join of the records of one key: each with the time at which it is decided."""

    def pairs(left: list[Row], right: list[Row]) -> list[Any]:
        found: list[Any] = []
        for one in left:
            time = one[1]
            before = [other for other in right if other[1] <= time <= other[1] + tolerance]
            after = [other for other in right if time <= other[1] <= time + tolerance]
            back = max(before, key=lambda other: other[1], default=None)
            back = next((other for other in reversed(before) if back and other[1] == back[1]), None)
            ahead = min(after, key=lambda other: other[1], default=None)
            end = min(time + tolerance, LAST)
            if direction == "backward":
                partner, moment = back, time
            elif direction == "forward":
                partner, moment = ahead, ahead[1] if ahead else end
            else:
                moments = [end, *([2 * time - back[1]] if back else []), *([ahead[1]] if ahead else [])]
                moment = min(moments)
                nearer = ahead is not None and (back is None or ahead[1] - time < time - back[1])
                partner = ahead if nearer else back
            if partner is not None or how == "left":
                found.append(((one, partner), moment))
        return found

    return pairs


Join = Callable[[Any, Any], Any]
ANY: Final = 1 << 61

KINDS: Final[dict[str, tuple[Join, Callable[[list[Row], list[Row]], list[Any]]]]] = {
    "interval": (lambda a, b: a.join_interval("join", b, lower=-3, upper=5), between(-3, 5, "inner")),
    "interval, left": (lambda a, b: a.join_interval("join", b, lower=2, upper=7, how="left"), between(2, 7, "left")),
    "interval, before": (
        lambda a, b: a.join_interval("join", b, lower=-9, upper=-2, how="outer"),
        between(-9, -2, "outer"),
    ),
    "interval, outer": (lambda a, b: a.join_interval("join", b, lower=0, upper=4, how="outer"), between(0, 4, "outer")),
    "backward": (lambda a, b: a.join_asof("join", b), as_of("backward", ANY, "left")),
    "backward, near": (lambda a, b: a.join_asof("join", b, tolerance=4), as_of("backward", 4, "left")),
    "forward": (lambda a, b: a.join_asof("join", b, direction="forward", how="inner"), as_of("forward", ANY, "inner")),
    "forward, near": (
        lambda a, b: a.join_asof("join", b, direction="forward", tolerance=5),
        as_of("forward", 5, "left"),
    ),
    "nearest": (lambda a, b: a.join_asof("join", b, direction="nearest", how="inner"), as_of("nearest", ANY, "inner")),
    "nearest, near": (
        lambda a, b: a.join_asof("join", b, direction="nearest", tolerance=6),
        as_of("nearest", 6, "left"),
    ),
}


def on_time(rows: list[Row]) -> list[Row]:
    kept, epoch = [], -1
    for row in rows:
        if row[1] > epoch:
            kept.append(row)
            epoch = max(epoch, row[1] - BOUND - 1)
    return kept


def numbered(rows: list[tuple[str, int, int]]) -> list[Row]:
    """Number the rows."""
    return [(key, time, number) for number, (key, time, _) in enumerate(rows)]


def keyed(job: mp.Job, name: str, rows: list[Row]) -> Any:
    timed = job.source(name, sources.Memory(rows)).assign_timestamps(f"time-{name}", lambda row: row[1])
    on_time, _ = timed.generate_epochs(f"epochs-{name}", mp.limit_out_of_orderness(BOUND))
    return on_time.key_by(f"key-{name}", lambda row: row[0])


def stamped(message: mp.DataMessage[Any, Any], output: mp.Output[Any, Any]) -> None:
    output.emit(message.key, (message.value, message.timestamp), message.timestamp)


def job_of(join: Join, left: list[Row], right: list[Row]) -> tuple[mp.Job, sinks.Memory]:
    job, out = mp.Job("join"), sinks.Memory()
    join(keyed(job, "left", left), keyed(job, "right", right)).stateless_op("stamp", stamped).sink("out", out)
    return job, out


def expected(pairs: Callable[[list[Row], list[Row]], list[Any]], left: list[Row], right: list[Row]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for key in {row[0] for row in (*left, *right)}:
        own, other = ([row for row in rows if row[0] == key] for rows in (left, right))
        found.update((key, (pair, min(time, LAST))) for pair, time in pairs(own, other))
    return found


def found(out: sinks.Memory) -> Counter[Any]:
    return Counter((key, pair) for key, pairs in out.by_key.items() for pair in pairs)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=6, deadline=None)
@given(left=ROWS, right=ROWS, batch=st.sampled_from((1, 3, 1024)), workers=st.integers(1, 2))
def test_records_are_paired_by_their_times(
    kind: str, left: list[Row], right: list[Row], batch: int, workers: int
) -> None:
    join, pairs = KINDS[kind]
    left, right = numbered(left), numbered(right)
    job, out = job_of(join, left, right)
    mp.run(job, workers=workers, batch=mp.Batching(rows_max=batch), progress=False, checks=True)
    assert found(out) == expected(pairs, on_time(left), on_time(right))


LEFT: Final = numbered([(f"k{number * 3 % 7}", number + (0, 4, 1)[number % 3], 0) for number in range(60)])
RIGHT: Final = numbered([(f"k{number * 5 % 8}", number * 3 // 2 + (3, 0)[number % 2], 0) for number in range(50)])


def too_early(right: Any) -> Any:
    """Records are dropped, or answered, before the epoch proves it."""
    due = Timers.due

    def on_epoch(step: Any, epoch: Any, out: Any) -> None:
        act = step.act
        step.act = lambda key, state, reached, ended: act(key, state, min(reached + 8, MAX_EPOCH), ended)
        with patch.object(Timers, "due", lambda timers, time: due(timers, min(time + 8, MAX_EPOCH))):
            right(step, epoch, out)
        del step.act

    return on_epoch


@pytest.mark.parametrize("kind", ["interval, outer", "backward", "nearest, near"])
def test_a_join_that_does_not_wait_for_the_epoch_is_seen(kind: str) -> None:
    join, pairs = KINDS[kind]
    job, out = job_of(join, LEFT, RIGHT)
    with patch.object(TimeJoin, "on_epoch", too_early(TimeJoin.on_epoch)):
        mp.run(job, batch=mp.Batching(rows_max=1), progress=False)
    assert found(out) != expected(pairs, LEFT, RIGHT)


@pytest.mark.parametrize("kind", KINDS)
def test_state_is_dropped_by_epoch(kind: str) -> None:
    """However long it runs, only what may still get a partner is kept; of a table without tolerance one record."""
    tester = OperatorTester(KINDS[kind][0], keyed=True, timed=True, inputs=2, checks=False)
    sizes = []
    for time in range(0, 1_000, 10):
        rows = [(key, (time, key), time + number) for number, key in enumerate("abca")]
        tester.send_local([*rows, (f"once-{time}", 1, time + 3)], input=0).send_local(rows, input=1)
        tester.send_local(Epoch(time)).step().receive_local()
        (state,) = tester.states.values()
        kept = [len(one[at]) for key, one in state.values.items() if len(key) == 1 for at in (0, (len(one) - 1) // 2)]
        sizes.append((sum(kept), len(state.timers), len(state.values)))
    assert max(size for size, _, _ in sizes) < 30
    if kind not in ("forward", "nearest"):  # without a tolerance a record waits for a partner until the end
        assert max(timers for _, timers, _ in sizes) < 30
        assert max(keys for _, _, keys in sizes) < 20
    tester.send_local(Epoch(MAX_EPOCH)).step()
    (state,) = tester.states.values()
    assert kind == "backward" or not state.values


def test_pairs_of_an_interval_come_at_once_and_in_order() -> None:
    tester = OperatorTester(lambda a, b: a.join_interval("join", b, lower=0, upper=9), keyed=True, timed=True, inputs=2)
    tester.send_local([("a", "l1", 5), ("a", "l2", 3)]).step()
    tester.send_local([("a", "r1", 8), ("a", "r2", 4)], input=1).step()
    received: list[Any] = tester.receive_local()
    assert [(message.value, message.timestamp) for message in received] == [
        (("l2", "r1"), 8),
        (("l1", "r1"), 8),
        (("l2", "r2"), 4),
    ]


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("first", [None, 0])
def test_a_record_stays_to_the_last_moment_at_which_a_partner_may_come(side: int, first: int | None) -> None:
    """Also when another record of its key, or its own timer, has the step look at it one moment before."""
    span = {"lower": 0, "upper": 6} if side == 0 else {"lower": -6, "upper": 0}
    tester = OperatorTester(
        lambda a, b: a.join_interval("join", b, how="outer", **span), keyed=True, timed=True, inputs=2
    )
    rows = [("a", "first", first)] if first is not None else []
    tester.send_local([*rows, ("a", "one", 1)], input=side).send_local(Epoch(6)).step().receive_local()
    tester.send_local([("a", "other", 7)], input=1 - side).step()
    (pair,) = values_of(tester)
    assert set(pair) == {"one", "other"}
    tester.send_local(Epoch(7)).step()
    (state,) = tester.states.values()
    assert not state.values, "nothing of what is past stays"


@pytest.mark.parametrize("side", [0, 1])
def test_an_inner_join_continues_a_state_that_has_no_flags(side: int) -> None:
    """As versions had it that did not count unmatched records: its records are taken to be paired."""
    join = lambda a, b: a.join_interval("join", b, lower=-5, upper=5)  # noqa: E731
    old = OperatorTester(join, keyed=True, timed=True, inputs=2).track(lambda keys: [0] * len(keys))
    old.send_local([("a", "first", 1), ("a", "second", 3)], input=side).step()
    (state,) = old.states.values()
    state.values["a"][2] = state.values["a"][5] = ()
    new = OperatorTester(join, keyed=True, timed=True, inputs=2)
    new.install([old.barrier("full")], slots=[0])
    new.send_local([("a", "between", 2)], input=side).send_local([("a", "other", 8)], input=1 - side).step()
    assert len(values_of(new)) == 1
    new.send_local(Epoch(MAX_EPOCH)).step()
    assert sum(operator.counters.unmatched for operator in new._runner.operators.values()) == 1


def values_of(tester: OperatorTester) -> list[Any]:
    return [message.value for message in tester.receive_local() if isinstance(message, DataMessage)]


def test_an_answer_does_not_depend_on_the_order_of_arrival() -> None:
    sent: list[list[Any]] = []
    quotes = [("a", 10, 10), ("a", 12, 12), ("a", 7, 7)]
    for order in (quotes, quotes[::-1]):
        tester = OperatorTester(lambda a, b: a.join_asof("join", b), keyed=True, timed=True, inputs=2)
        for row in order[:2]:
            tester.send_local([row], input=1).step()
        tester.send_local([("a", "trade", 11)]).step()
        assert tester.receive_local() == []
        tester.send_local(order[2:], input=1).send_local(Epoch(11)).step()
        sent.append(tester.receive_local())
    assert sent[0] == sent[1]
    assert sent[0][0].value == ("trade", 10)
