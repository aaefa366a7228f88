"""Joins of columns, of rows and of both by turns, with barriers, moves and restores between, against a definition.

The definition is nested loops over the list of what has come. It shares no code with the package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pytest

from malstrom_py import windows
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, DataMessage, Epoch
from malstrom_py.testing import OperatorTester

SEEDS: Final = 10
LAST: Final = 2**63 - 2


class Came(NamedTuple):
    """A record that came, in order."""

    side: int
    key: Any
    value: dict[str, Any]
    time: int


Sent = tuple[Any, Any, Any, int]
"""A key, a left and a right value, and a time."""

Definition = Callable[[list[Came]], list[Sent]]

TYPES: Final[list[list[pa.DataType]]] = [
    [pa.string(), pa.large_string()],
    [pa.int64(), pa.int16(), pa.uint64()],
    [pa.binary(), pa.large_binary()],
    [pa.dictionary(pa.int32(), pa.string()), pa.string()],
    [pa.int64()],
    [pa.int64(), pa.string(), pa.null()],
]
"""Of columns of keys."""

KEYS: Final[list[list[Any]]] = [
    ["a", "", "ä", None],
    [0, 1, 300, None],
    [b"a", b"", b"\xff", None],
    ["a", "b", "ä", None],
    [0, 2**63 - 1, -(2**63), 7],
    [None],
]


# -- the definitions --


def in_windows(how: str, size: int, step: int) -> Definition:
    def pairs(came: list[Came]) -> list[Sent]:
        starts = sorted({start for row in came for start in range(row.time - size + 1, row.time + 1)})
        found = []
        for start in starts:
            if start % step:
                continue
            rows = [row for row in came if start <= row.time < start + size]
            for key in dict.fromkeys(row.key for row in rows):
                found += in_one_window(how, [row for row in rows if row.key == key], start + size - 1)
        return found

    return pairs


def in_one_window(how: str, rows: list[Came], time: int) -> list[Sent]:
    """Return the pairs of the rows of a key in a window."""
    lefts: list[Any] = [row.value for row in rows if not row.side]
    rights: list[Any] = [row.value for row in rows if row.side]
    if how != "inner":
        rights = rights or [None]
    if how == "outer":
        lefts = lefts or [None]
    return [(rows[0].key, left, right, time) for left in lefts for right in rights]


def in_sessions(how: str, gap: int) -> Definition:
    def pairs(came: list[Came]) -> list[Sent]:
        found: list[Sent] = []
        for key in {row.key for row in came}:
            of_key = [row for row in came if row.key == key]
            times = sorted(row.time for row in of_key)
            last = [time for time, after in zip(times, [*times[1:], LAST], strict=True) if after - time >= gap]
            for before, end in zip([-LAST, *last], last, strict=False):
                found += in_one_window(how, [row for row in of_key if before < row.time <= end], end + gap - 1)
        return found

    return pairs


def with_table(how: str, *, waits: bool) -> Definition:
    def pairs(came: list[Came]) -> list[Sent]:
        found: list[Sent] = []
        for place, row in enumerate(came):
            if row.side:
                continue
            before = [one for one in came[:place] if one.side and one.key == row.key]
            after = [one for one in came[place:] if one.side and one.key == row.key]
            if before:
                found.append((row.key, row.value, before[-1].value, row.time))
            elif waits and after:
                found.append((row.key, row.value, after[0].value, max(row.time, after[0].time)))
            elif how == "left":
                found.append((row.key, row.value, None, LAST if waits else row.time))
        return found

    return pairs


def in_interval(how: str, lower: int, upper: int) -> Definition:
    def pairs(came: list[Came]) -> list[Sent]:
        found: list[Sent] = []
        lefts, rights = [row for row in came if not row.side], [row for row in came if row.side]

        def near(left: Came, right: Came) -> bool:
            return left.key == right.key and lower <= right.time - left.time <= upper

        for left in lefts:
            partners = [right for right in rights if near(left, right)]
            found += [(left.key, left.value, one.value, max(left.time, one.time)) for one in partners]
            if not partners and how != "inner":
                found.append((left.key, left.value, None, left.time + max(upper, 0)))
        for right in rights:
            if how == "outer" and not any(near(left, right) for left in lefts):
                found.append((right.key, None, right.value, right.time + max(-lower, 0)))
        return found

    return pairs


def as_of(how: str, direction: str, far: int) -> Definition:
    def pairs(came: list[Came]) -> list[Sent]:
        found: list[Sent] = []
        for left in (row for row in came if not row.side):
            rights = [row for row in came if row.side and row.key == left.key]
            before = [row for row in rights if left.time - far <= row.time <= left.time and direction != "forward"]
            after = [row for row in rights if left.time <= row.time <= left.time + far and direction != "backward"]
            back = max(reversed(before), key=lambda row: row.time, default=None)
            ahead = min(after, key=lambda row: row.time, default=None)
            moments = [left.time if direction == "backward" else min(left.time + far, LAST)]
            if back:
                moments.append(2 * left.time - back.time)
            if ahead:
                moments.append(ahead.time)
            one = ahead if ahead and (not back or ahead.time - left.time < left.time - back.time) else back
            if one or how == "left":
                found.append((left.key, left.value, one.value if one else None, min(moments)))
        return found

    return pairs


CASES: Final[dict[str, tuple[Any, Definition]]] = {
    **{
        f"{how} join of windows of {size} by {step}": (
            lambda a, b, how=how, of=(size, step): a.join("join", b, window=windows.sliding(*of), how=how),
            in_windows(how, size, step),
        )
        for how in ("inner", "left", "outer")
        for size, step in ((6, 6), (6, 4), (9, 3))
    },
    **{
        f"{how} join of windows of sessions, {gap} apart": (
            lambda a, b, how=how, gap=gap: a.join("join", b, window=windows.session(gap), how=how),
            in_sessions(how, gap),
        )
        for how in ("inner", "left", "outer")
        for gap in (1, 4)
    },
    **{
        f"{how} join of a table, wait={waits}": (
            lambda a, b, how=how, waits=waits: a.join_table("join", b, how=how, wait=waits),
            with_table(how, waits=waits),
        )
        for how in ("inner", "left")
        for waits in (True, False)
    },
    **{
        f"{how} join of an interval": (
            lambda a, b, how=how: a.join_interval("join", b, lower=-2, upper=3, how=how),
            in_interval(how, -2, 3),
        )
        for how in ("inner", "left", "outer")
    },
    **{
        f"{how} join as of a time, {direction}, within {far}": (
            lambda a, b, how=how, to=direction, far=far: a.join_asof(
                "join", b, how=how, direction=to, tolerance=None if far == LAST else far
            ),
            as_of(how, direction, far),
        )
        for how in ("inner", "left")
        for direction in ("backward", "forward", "nearest")
        for far in (4, LAST)
    },
}


# -- runs --


class Run:
    """A step that is moved and restored, and all that it has sent."""

    def __init__(self, join: Any) -> None:
        self._join = join
        self._tester = self._new()
        self._chain: list[Any] = []
        self.sent: list[Sent] = []

    def _new(self) -> OperatorTester:
        return OperatorTester(self._join, keyed=True, timed=True, inputs=2, checks=False).track(
            lambda keys: [0] * len(keys)
        )

    def take(self, batch: Batch | Epoch, side: int | None = None) -> None:
        self._tester.send_local(batch, input=side).step()
        for message in self._tester.receive_local():
            if isinstance(message, DataMessage):
                assert message.timestamp is not None
                self.sent.append((message.key, *message.value, message.timestamp))

    def disturb(self, draw: Random) -> None:
        """Write a snapshot, in full or as a delta, and perhaps restore it; or move some keys away, and back."""
        if draw.random() < 0.5:
            if draw.random() < 0.3:
                self._chain = []
            number = len(self._chain)
            parent = {"parent": f"s{number - 1}"} if number else {}
            self._chain.append(self._tester.barrier(f"s{number}", **parent))
            if draw.random() < 0.5:
                self._tester = self._new()
                self._tester.install(self._chain, slots=[0])
                self._chain = []
            return
        other, keys = self._new(), sorted(self._tester.interrogate(), key=repr)
        taken = self._tester.collect(draw.sample(keys, len(keys) // 2))
        if taken:
            other.acquire(taken)
            self._tester.acquire(other.collect(other.interrogate()))


def batch_of(rows: list[Came], of_keys: pa.DataType | None, draw: Random) -> Batch:
    """Return rows as columns with keys of a type, or without one as rows."""
    keys, values, times = [row.key for row in rows], [row.value for row in rows], [row.time for row in rows]
    if of_keys is None:
        return Batch(values, keys=keys, timestamps=times)
    texts = pa.large_string() if draw.random() < 0.2 else pa.string()
    columns = pa.RecordBatch.from_pylist(values, schema=pa.schema([("n", pa.int64()), ("text", texts)]))
    return ColumnBatch(columns, key_column=pa.array(keys, of_keys), time_column=pa.array(times, pa.int64()))


def script(draw: Random) -> Iterator[tuple[int, list[Came], pa.DataType | None]]:
    """Yield an epoch, and the batch that comes after it: a side's rows, and the type of its keys."""
    of, mix, epoch = draw.randrange(len(KEYS)), draw.choice([0.0, 0.0, 0.15, 1.0]), -1
    number = 0
    for _ in range(draw.randint(1, 14)):
        side, rows = draw.randrange(2), []
        for _ in range(draw.randint(1, 9)):
            number += 1
            value = {"n": number, "text": draw.choice([None, f"row {number}"])}
            rows.append(Came(side, draw.choice(KEYS[of]), value, epoch + 1 + draw.randrange(12)))
        if draw.random() < 0.5:
            rows.sort(key=lambda row: row.time)
        yield epoch, rows, None if draw.random() < mix else draw.choice(TYPES[of])
        if draw.random() < 0.5:
            epoch += draw.choice([1, 3, 11])


@pytest.mark.parametrize("name", CASES)
def test_any_order_of_columns_and_rows_gives_what_the_definition_says(name: str) -> None:
    join, definition = CASES[name]
    for seed in range(SEEDS):
        draw, run, came = Random(f"{name} {seed}"), Run(join), list[Came]()
        for epoch, rows, of_keys in script(draw):
            run.take(Epoch(epoch))
            run.take(batch_of(rows, of_keys, draw), rows[0].side)
            came += rows
            if draw.random() < 0.3:
                run.disturb(draw)
        run.take(Epoch(MAX_EPOCH))
        assert sorted(run.sent, key=repr) == sorted(definition(came), key=repr), f"seed {seed}"
        for key in {key for key, *_ in run.sent} if "windows" in name else ():
            times = [sent[-1] for sent in run.sent if sent[0] == key]
            assert times == sorted(times), f"seed {seed}"
