"""All laws hold with all state on disk between any two batches: moves, chains, deltas and restores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Any

import pytest

from malstrom_py import windows
from malstrom_py.data.messages import MAX_EPOCH, DataMessage, Epoch
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.state.many_values import SETTLES
from malstrom_py.testing import OperatorTester, check_operator
from malstrom_py.testing.laws.scenario import StepUnderTest
from tests.laws.test_all_operators import DISK, FURTHER, TABLE, Row

CHECKS = import_module("malstrom_py.testing.check_operator")

ROWS = [
    row
    for kind in ("stateful_map", "stateful_flat_map", "ttl_map", "fold", "sum", "aggregate", "distinct", "stateful_op")
    for row in [row for row in TABLE if row.step == kind][-2:]
]
ROWS += [row for row in TABLE if row.step == "stateful_op" and row not in ROWS]  # with timers of both clocks
WINDOWS = {"time_windows", "session_windows", "count_windows", "collect", "final"}
ROWS += [row for row in TABLE if row.step in WINDOWS and DISK not in row.untested]
ROWS += [row for row in TABLE + FURTHER if row.step.endswith("_join")]


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.step}-{number}" for number, row in enumerate(ROWS)])
def test_a_step_whose_state_is_on_disk_obeys_every_law(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CHECKS, "StepUnderTest", partial(StepUnderTest, on_disk=True))
    report: Any = check_operator(row.factory, max_examples=4, **row.options)
    assert report.cases["disk invariance"]


SECONDS = timedelta(seconds=2)

EARLY: dict[str, Callable[[Any], Any]] = {
    "tumbling, by rows": lambda s: s.window("w", windows.tumbling(7), emit=2).sum(),
    "tumbling, by time": lambda s: s.window("w", windows.tumbling(7), emit=timedelta(milliseconds=3)).collect(),
    "sliding, by rows": lambda s: s.window("w", windows.sliding(6, 4), emit=2).max(),
    "sliding in order, by time": lambda s: s.window(
        "w", windows.sliding(6, 4), emit=timedelta(milliseconds=3)
    ).collect(),
    "sliding whole, by rows": lambda s: s.window("w", windows.sliding(6, 4), emit=3).fold(max, default=int),
    "session, by rows": lambda s: s.window("w", windows.session(4), emit=2).collect(),
    "session, by time": lambda s: s.window("w", windows.session(4), emit=timedelta(milliseconds=3)).sum(),
}
OF_THE_CLOCK: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda s: s.window("w", windows.tumbling(SECONDS, clock="processing")).sum(),
    "sliding": lambda s: s.window("w", windows.sliding(2 * SECONDS, SECONDS, clock="processing")).count(),
    "session": lambda s: s.window("w", windows.session(SECONDS, clock="processing")).collect(),
}


@pytest.mark.parametrize("step", EARLY)
def test_early_results_are_the_same_with_state_on_disk(step: str) -> None:
    report = check_operator(EARLY[step], laws=["disk invariance"], timed=True, max_examples=20)
    assert report.cases["disk invariance"]


@pytest.mark.parametrize("step", OF_THE_CLOCK)
def test_windows_of_the_clock_are_the_same_with_state_on_disk(step: str) -> None:
    report = check_operator(OF_THE_CLOCK[step], laws=["disk invariance"], ticks=True, max_examples=20)
    assert report.cases["disk invariance"]


MANY = 3_000

AT_ONCE: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda s: s.window("w", windows.tumbling(7)).sum(),
    "sliding": lambda s: s.window("w", windows.sliding(8, 4)).collect(),
    "session": lambda s: s.window("w", windows.session(4)).collect(),
    "count": lambda s: s.window("w", windows.count(2)).sum(),
    "collect": lambda s: s.collect("w", size=9),
    "final": lambda s: s.final("w"),
}


@pytest.mark.parametrize("end", [40, MAX_EPOCH])
@pytest.mark.parametrize("step", AT_ONCE)
def test_what_comes_for_all_keys_together_needs_memory_for_some(
    step: str, end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory: list[int] = []
    settle = KeyedState.settle

    def watched(state: KeyedState) -> None:
        in_memory.append(len(list(state.values)))
        settle(state)

    monkeypatch.setattr(KeyedState, "settle", watched)
    tester = OperatorTester(AT_ONCE[step], keyed=True, timed=True, checks=False).keep_on_disk()
    for start in range(0, MANY, 100):
        tester.send_local([DataMessage(key, 1, 9) for key in range(start, start + 100)]).step()
    tester.send_local(Epoch(end)).step()
    sent = [message.key for message in tester.receive_local() if isinstance(message, DataMessage)]
    at_the_end_only = step in ("count", "final") and end != MAX_EPOCH
    each = 2 if step == "sliding" else 1
    assert Counter(sent) == ({} if at_the_end_only else dict.fromkeys(range(MANY), each))
    assert max(in_memory) <= SETTLES
