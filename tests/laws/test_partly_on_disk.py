"""Steps give the same results while some of their states are on disk, which come in many pieces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import windows
from malstrom_py.data.messages import MAX_EPOCH, DataMessage, Epoch
from malstrom_py.operators.keyed import StatefulOperator
from malstrom_py.rescale.keys.key_hash import encode_key
from malstrom_py.state.memory import StateMemory
from malstrom_py.testing import OperatorTester
from malstrom_py.testing.disk import MemoryDisk

ROWS, KEYS = 500, 120

ALONE: dict[str, Callable[[Any], Any]] = {
    "ttl": lambda s: s.stateful_map("step", lambda key, n, state: ((state or 0) + n,) * 2, ttl=30),
    "tumbling": lambda s: s.window("step", windows.tumbling(30)).collect(),
    "sliding": lambda s: s.window("step", windows.sliding(60, 20)).sum(),
    "session": lambda s: s.window("step", windows.session(9)).collect(),
    "early": lambda s: s.window("step", windows.tumbling(50), emit=2).sum(),
    "collect": lambda s: s.collect("step", size=5),
    "final": lambda s: s.final("step"),
}
JOINED: dict[str, Callable[[Any, Any], Any]] = {
    "tumbling join": lambda a, b: a.join("step", b, window=windows.tumbling(30), how="outer"),
    "sliding join": lambda a, b: a.join("step", b, window=windows.sliding(60, 20), how="outer"),
    "session join": lambda a, b: a.join("step", b, window=windows.session(9), how="outer"),
    "interval join": lambda a, b: a.join_interval("step", b, lower=-20, upper=30, how="outer"),
    "as-of join": lambda a, b: a.join_asof("step", b, how="left"),
    "table join": lambda a, b: a.join_table("step", b, how="left", wait=40),
}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cold._TOGETHER", "many_values.SETTLES", "timed_values.SETTLES", "memory._PIECE"):
        monkeypatch.setattr(f"malstrom_py.state.{name}", 3)


def results(step: str, seed: int, limits: Random | None) -> dict[Any, list[Any]]:
    """Return the results by key. ``limits``: how much is in memory at a time; None: all."""
    factory: Any = ALONE.get(step) or JOINED[step]
    inputs = 1 + (step in JOINED)
    tester = OperatorTester(factory, keyed=True, timed=True, inputs=inputs, checks=False)
    if limits is not None:
        memory, drawn = StateMemory(0, MemoryDisk, encode_key), limits
        settle = memory.settle

        def some() -> None:
            memory.limit = drawn.choice([0, 500, 2_000, 8_000, 1 << 30])
            settle()

        memory.settle = some  # type: ignore[method-assign]
        for operator in tester._runner.operators.values():
            if isinstance(operator, StatefulOperator):
                operator.keep_within(memory)
    draw, passed, found = Random(seed), 0, defaultdict[Any, list[Any]](list)
    for start in range(0, ROWS, 10):
        rows = [
            DataMessage(draw.randrange(KEYS), draw.randrange(100), start + draw.randrange(1, 20)) for _ in range(10)
        ]
        on_time = [row for row in rows if row.timestamp is not None and row.timestamp > passed]
        tester.send_local(on_time, input=draw.randrange(inputs)).step()
        if draw.random() < 0.3:
            passed = start
            tester.send_local(Epoch(passed)).step()
    tester.send_local(Epoch(MAX_EPOCH)).step()
    for message in tester.receive_local():
        if isinstance(message, DataMessage):
            found[message.key].append((message.value, message.timestamp))
    return dict(found)


@pytest.mark.parametrize("step", [*ALONE, *JOINED])
def test_results_are_the_same_with_some_states_on_disk(step: str) -> None:
    for seed in range(6):
        assert results(step, seed, Random(seed)) == results(step, seed, None)


class DueAtOnce(mp.KeyedLogic[Any, int, Any, int]):
    """Counts records, and sets timers that are due immediately."""

    def on_data(self, message: Any, key_state: int | None, output: Any) -> int:
        output.set_timer(message.key, 0)
        output.emit(message.key, (key_state or 0) + 1, message.timestamp)
        return (key_state or 0) + 1

    def on_timer(self, key: Any, time: int, key_state: int | None, output: Any) -> int | None:
        return key_state


def test_no_state_goes_to_disk_while_a_batch_needs_it() -> None:
    tester = OperatorTester(
        lambda stream: stream.stateful_op("step", DueAtOnce(), ttl=100), keyed=True, timed=True, checks=False
    ).keep_on_disk()
    tester.send_local(Epoch(1)).step()
    for start in (10, 50):
        tester.send_local([DataMessage(key, 1, start + key) for key in range(10)]).step()
    # The life of the first key ends in between, so the batch is processed in two pieces.
    rows = [DataMessage(key, 1, 140) for key in range(10)]
    rows += [DataMessage(0, 1, 300), *(DataMessage(key, 1, 145) for key in range(1, 10))]
    tester.send_local(rows).step()
    sent = [message.value for message in tester.receive_local() if isinstance(message, DataMessage)]
    assert sent == [1] * 10 + [2] * 10 + [3] * 10 + [1] + [4] * 9
